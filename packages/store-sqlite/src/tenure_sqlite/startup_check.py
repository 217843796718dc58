"""
The check at start-up: would this file exclude every process that is to be excluded?

It looks and never writes; a file that is not there yet is made by the first call, not by the check.
"""

import asyncio
import contextlib
import os
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import quote

from tenure.store import Finding
from tenure_sqlite.clock import HostClock
from tenure_sqlite.place import Place
from tenure_sqlite.store_file import OLDEST_SQLITE

__all__ = ["check_file"]

_MOUNTS: Final = Path("/proc/self/mountinfo")

_NETWORK: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "ncpfs", "afs", "ceph", "lustre", "gfs2", "ocfs2", "gpfs", "fuse.sshfs",
     "fuse.glusterfs", "fuse.s3fs", "fuse.gcsfuse", "fuse.rclone", "davfs", "fuse.davfs2"}
)  # fmt: skip
_BETWEEN_KERNELS: Final = frozenset(
    {"9p", "virtiofs", "vboxsf", "vmhgfs", "fuse.vmhgfs-fuse", "prl_fs", "fuse.grpcfuse"}
)
"""Folders that a host shares with its virtual machines: each side has a kernel, and a clock, of its own."""

_COLUMNS: Final = {
    "tenure_locks": "key owner token expires_at after",
    "tenure_idempotency": "key owner fingerprint attempt begun_at lock_until grace expires_at response",
    "tenure_clock": "one identity",
}


async def check_file(place: Place) -> list[Finding]:
    """Look at SQLite, the clock, the file and where it lies."""
    # On a thread: a network filesystem whose server is away answers no stat().
    return await asyncio.to_thread(_look, place)


def _look(place: Place) -> list[Finding]:
    path = place.path
    findings = [*_at_sqlite(), *_at_clock(place.clock), *_at_path(path, relative=place.relative)]
    if not any(finding.fatal for finding in findings):
        findings += _at_content(path)
    return findings


def _at_sqlite() -> Iterator[Finding]:
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        yield Finding(
            "sqlite-too-old",
            fatal=True,
            message=f"This Python has SQLite {sqlite3.sqlite_version}.",
            remedy=f"Use a Python, or a system library, with {'.'.join(map(str, OLDEST_SQLITE))} or newer.",
        )


def _at_clock(clock: HostClock) -> Iterator[Finding]:
    if clock.can_be_set:
        yield Finding(
            "wall-clock",
            fatal=False,
            message="Expiry is on the wall clock here: a step forward by a ttl lets a second holder in until the "
            "first one renews.",
            remedy="Have the clock slewed, not stepped; or run on Linux with /proc mounted, which has a boot clock.",
        )


def _at_path(path: Path, *, relative: bool) -> Iterator[Finding]:
    if relative:
        yield Finding(
            "relative-path",
            fatal=False,
            message=f"The path of the store's file is relative, and is {path} from this process' working directory.",
            remedy="Give an absolute path: a process that starts elsewhere would lock in another file.",
        )
    directory = path.parent
    if not directory.is_dir():
        yield Finding(
            "directory-missing", fatal=True, message=f"The directory {directory} does not exist.", remedy="Make it."
        )
        return
    yield from _at_rights(path)
    yield from _at_mount(path)
    if path.exists() and path.stat().st_nlink > 1:
        yield Finding(
            "hard-links",
            fatal=True,
            message=f"{path} has more than one name, and SQLite keeps its log under the one that it was opened by.",
            remedy="Keep one name, and remove the others.",
        )


def _at_rights(path: Path) -> Iterator[Finding]:
    for needed in (path.parent, path):
        if needed.exists() and not os.access(needed, os.W_OK):
            yield Finding(
                "read-only",
                fatal=True,
                message=f"{needed} cannot be written.",
                remedy="Give this process' user write access to the file and to its directory, on a filesystem that is "
                "mounted for writing.",
            )


def _at_mount(path: Path) -> Iterator[Finding]:
    mounts = dict(_mounts())
    real = path.resolve()
    if str(real) in mounts:
        yield Finding(
            "file-mounted",
            fatal=True,
            message=f"{path} is mounted into this container alone, without the log and shared memory beside it.",
            remedy="Mount the directory that it is in: without them, containers exclude each other not at all.",
        )
    kind = next((mounts[str(part)] for part in real.parents if str(part) in mounts), "")
    if kind in _NETWORK:
        yield Finding(
            "network-filesystem",
            fatal=True,
            message=f"{path} is on a network filesystem ({kind}), where SQLite's locks and shared memory do not hold.",
            remedy="Put it on a local disk; for several hosts use tenure-postgres or tenure-valkey.",
        )
    if kind in _BETWEEN_KERNELS:
        yield Finding(
            "shared-folder",
            fatal=False,
            message=f"{path} is in a folder that a host shares with virtual machines ({kind}).",
            remedy="Use it from one side only: a SQLite file excludes the processes of one kernel.",
        )


def _mounts() -> Iterator[tuple[str, str]]:
    """Yield where each filesystem is mounted, and its kind; a later one covers an earlier one. Nothing off Linux."""
    with contextlib.suppress(OSError):
        for line in _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
            before, _, after = line.partition(" - ")
            where = re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), before.split(" ")[4])
            yield where, after.split(" ")[0]


def _at_content(path: Path) -> Iterator[Finding]:
    """Look into a file that is there."""
    if not path.exists() or not path.stat().st_size:
        return
    try:
        with contextlib.closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=1)) as connection:
            [mode] = connection.execute("PRAGMA journal_mode").fetchone()
            found = {
                table: " ".join(row[1] for row in connection.execute(f"PRAGMA table_info({table})"))
                for table in _COLUMNS
            }
    except sqlite3.Error as error:
        yield Finding(
            "unreadable",
            fatal=True,
            message=f"{path} cannot be read as a SQLite database ({getattr(error, 'sqlite_errorname', 'unknown')}).",
            remedy="Give the locks a file of their own; a damaged one may be deleted when nobody has it open.",
        )
        return
    if mode != "wal":
        yield Finding(
            "journal-mode",
            fatal=False,
            message=f"{path} is in journal mode {mode}; the first call switches it to wal, for everybody who uses it.",
            remedy="Give the locks a file of their own where other programs rely on the mode.",
        )
    for table, columns in found.items():
        if columns not in ("", _COLUMNS[table]):
            yield Finding(
                "table-columns",
                fatal=True,
                message=f"The table {table} in {path} is not the store's: it has the columns {columns}.",
                remedy="Give the locks a file of their own.",
            )
