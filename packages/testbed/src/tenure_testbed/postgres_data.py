"""The data directory of a PostgreSQL server: how it is made, its settings, and who has it open."""

import ctypes
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tenure_testbed.account import Account
from tenure_testbed.ports import LOOPBACK
from tenure_testbed.postgres_install import PostgresInstall
from tenure_testbed.scratch import Scratch

Setting = str | int | bool

_SETTINGS_FILE = "testbed.conf"
_IPC_RMID = 0  # <sys/ipc.h>, the same on Linux and macOS


@dataclass(frozen=True, slots=True)
class Postmaster:
    """
    What `postmaster.pid` says.

    Attributes:
        pid: The postmaster's process id.
        port: The port that it listens on.
        status: `ready`, `standby` (serving reads), `starting`, `stopping`; empty early in a start.
        memory: The id of its System V segment, or None early in a start.
    """

    pid: int
    port: int
    status: str
    memory: int | None


class DataDirectory:
    """A data directory, made by `initialise()` or by pg_basebackup."""

    def __init__(self, path: Path, account: Account, install: PostgresInstall) -> None:
        self.path = path
        self.account = account
        self.install = install

    def initialise(self) -> None:
        """Fill it with a fresh cluster: a copy of the one that was made once for this process."""
        template = _template(self.account, self.install)
        # cp and not shutil: run by the account, it needs no chown of a thousand files.
        self.install.run_system(self.account, "cp", "-R", "-p", str(template), str(self.path))

    def write_settings(self, settings: Mapping[str, Setting]) -> None:
        """Replace the settings of the test bed; the server reads them when it starts or reloads."""
        lines = [f"{name} = {_literal(value)}\n" for name, value in settings.items()]
        self.write_file(_SETTINGS_FILE, "".join(lines))

    def write_file(self, name: str, text: str) -> None:
        """Write a file that the server and its tools may replace."""
        path = self.path / name
        path.write_text(text, encoding="utf-8")
        if self.account.identity():
            os.chown(path, self.account.uid, self.account.gid)

    def postmaster(self) -> Postmaster | None:
        """Who has the directory open, or None when `postmaster.pid` is not there or not whole yet."""
        try:
            lines = (self.path / "postmaster.pid").read_text(encoding="ascii").splitlines()
        except (OSError, UnicodeDecodeError):
            return None
        if len(lines) < 4 or not lines[0].isdigit():
            return None
        memory = lines[6].split() if len(lines) > 6 else []
        return Postmaster(
            pid=int(lines[0]),
            port=int(lines[3]),
            status=lines[7].strip() if len(lines) > 7 else "",
            memory=int(memory[1]) if len(memory) == 2 else None,
        )

    def release_memory(self) -> None:
        """
        Remove the System V segment that a killed postmaster left behind.

        The next start on the directory would do it; a directory that is about to be removed has no next start,
        and the machine has few of these segments.
        """
        left = self.postmaster()
        if left is not None and left.memory is not None:
            ctypes.CDLL(None).shmctl(left.memory, _IPC_RMID, None)


def defaults(*, fsync: bool) -> dict[str, Setting]:
    """
    The settings that every server of the test bed starts from.

    Args:
        fsync: Whether commits reach the disk. Without it a commit survives the death of every process, not the
            death of the machine: all that a test needs, at a fraction of the time.
    """
    return {
        "listen_addresses": LOOPBACK,
        # A socket file's path is limited to about 100 bytes, less than some temporary directories have.
        "unix_socket_directories": "",
        "fsync": fsync,
        "full_page_writes": fsync,
        # Several pools at once; the default of 100 is the first thing that a wide test runs into.
        "max_connections": 200,
        # In the data directory, so that they go with it when the server is killed.
        "dynamic_shared_memory_type": "mmap",
        "timezone": "UTC",
        "log_timezone": "UTC",
        "log_line_prefix": "%m [%p] ",
    }


def _template(account: Account, install: PostgresInstall) -> Path:
    with _lock:
        path = _templates.get(account)
        if path is None:
            path = Scratch(account).path / "template"
            install.run(
                account,
                "initdb",
                f"--pgdata={path}",
                "--username=postgres",
                "--auth=trust",
                "--encoding=UTF8",
                "--locale=C",
                "--locale-provider=builtin",
                "--builtin-locale=C.UTF-8",
                "--no-sync",
                "--no-instructions",
            )
            # Not in postgresql.auto.conf: that file is for ALTER SYSTEM, which tests use and pg_rewind copies.
            with (path / "postgresql.conf").open("a", encoding="utf-8") as file:
                file.write(f"\ninclude_if_exists '{_SETTINGS_FILE}'\n")
            _templates[account] = path
        return path


def _literal(value: Setting) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "'" + str(value).replace("\\", "\\\\").replace("'", "''") + "'"


_lock = threading.Lock()
_templates: dict[Account, Path] = {}
