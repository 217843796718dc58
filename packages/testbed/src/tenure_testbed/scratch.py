"""Directories for servers: owned by the account that they run as, and gone when the server is."""

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tenure_testbed.account import Account
from tenure_testbed.custody import custody
from tenure_testbed.errors import ServerUnavailableError

PREFIX = "tenure-testbed-"


class Scratch:
    """
    A temporary directory that an account can work in; removed by `remove()` or by the warden.

    The directories that the system names for temporary files may lie where an unprivileged account cannot go
    (a home directory with mode 0700): each candidate is tried by that account before it is used.
    """

    def __init__(self, account: Account) -> None:
        self.path = _make(account)

    def remove(self) -> None:
        """Remove the directory with everything in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        custody.drop_directory(self.path)


def _make(account: Account) -> Path:
    tried: list[str] = []
    for root in _roots():
        path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=root)).resolve()
        custody.take_directory(path)
        if account.identity():
            os.chown(path, account.uid, account.gid)
        if _can_work_in(account, path):
            return path
        shutil.rmtree(path, ignore_errors=True)
        custody.drop_directory(path)
        tried.append(str(root))
    raise ServerUnavailableError(
        f"No directory for temporary files that the account {account.name!r} can work in; "
        f"tried {', '.join(tried)}. Set TMPDIR to one that it can enter."
    )


def _roots() -> Iterator[str]:
    yield tempfile.gettempdir()
    for root in ("/tmp", "/var/tmp", "/dev/shm"):  # noqa: S108  mkdtemp makes a private directory in each
        if os.path.realpath(root) != os.path.realpath(tempfile.gettempdir()) and Path(root).is_dir():
            yield root


def _can_work_in(account: Account, path: Path) -> bool:
    with contextlib.suppress(OSError):
        probe = ["/bin/sh", "-c", 'cd "$0" && : > probe && rm probe', str(path)]
        return subprocess.run(probe, check=False, capture_output=True, **account.identity()).returncode == 0
    return False
