"""The account that servers run as: PostgreSQL and PgBouncer refuse to run as root."""

import os
import pwd
from dataclasses import dataclass
from typing import TypedDict

from tenure_testbed.errors import ServerUnavailableError


class Identity(TypedDict, total=False):
    """The arguments of `subprocess.Popen` that change who the child is."""

    user: int
    group: int
    extra_groups: list[int]


@dataclass(frozen=True, slots=True)
class Account:
    """
    An account of this machine.

    Attributes:
        name: Its name.
        uid: Its user id.
        gid: Its group id.
    """

    name: str
    uid: int
    gid: int

    def identity(self) -> Identity:
        """
        For `subprocess`: what makes a child run as this account; empty when this process already does.

        It is done in C between fork and exec, unlike a `preexec_fn`, which can hang in a process with threads.
        """
        if os.geteuid() == self.uid:
            return {}
        return {"user": self.uid, "group": self.gid, "extra_groups": []}


def server_account() -> Account:
    """
    The account that servers run as.

    Returns:
        This process's own; for root the unprivileged account `nobody`, or `postgres` where there is none.

    Raises:
        ServerUnavailableError: This is root, and neither account exists.
    """
    uid = os.geteuid()
    if uid != 0:
        return Account(_name_of(uid), uid, os.getegid())
    for name in ("nobody", "postgres"):
        try:
            found = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(name, found.pw_uid, found.pw_gid)
    raise ServerUnavailableError(
        "PostgreSQL does not run as root, and this machine has neither an account 'nobody' nor 'postgres'. "
        "Create one (useradd --system postgres) or run as a normal user."
    )


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
