"""
What can go wrong that is a lock file's alone. Everything else that a call raises is `sqlite3`'s own error.

A driver's error gets a note (`BaseException.add_note`) where its text does not say what to do.
"""

import sqlite3
from typing import Final

from tenure.errors import StoreError

__all__ = ["ForeignClockError", "LockFileReplacedError", "explain"]


class LockFileReplacedError(StoreError):
    """
    The file was deleted or replaced while it was open; nothing was done.

    Whoever opens it now has another file, with other locks in it.
    """

    __module__ = "tenure_sqlite"

    def __str__(self) -> str:
        return (
            "The file of the locks was deleted or replaced while it was open: processes that open it now lock in "
            "another one. Restart every process that uses it, and keep whatever tidies up away from it and from the "
            "-wal and -shm files beside it."
        )


class ForeignClockError(StoreError):
    """
    Another kernel, or another time namespace, has opened the file and reads its expiries on a clock of its own.

    What was asked for was not done.
    """

    __module__ = "tenure_sqlite"

    def __str__(self) -> str:
        return (
            "The file of the locks is used by another kernel or time namespace (a virtual machine, a sandbox with a "
            "kernel of its own), whose clock is another one. A SQLite file excludes the processes of one kernel: "
            "give each a file of its own, or use a store with a server, such as tenure-postgres or tenure-valkey."
        )


_NOTES: Final = {
    sqlite3.SQLITE_BUSY: (
        "Another connection had the file's write lock for longer than busy_timeout; nothing was written. See that no "
        "program keeps a transaction open on the file: give the locks a file of their own."
    ),
    sqlite3.SQLITE_READONLY: (
        "The file, or the directory that it is in, cannot be written: the user of this process needs write access to "
        "both, for SQLite keeps a -wal and a -shm file beside it. Nothing was written."
    ),
    sqlite3.SQLITE_CANTOPEN: (
        "The file cannot be opened or made. See that its directory exists, and that the user of this process may write "
        "in it."
    ),
    sqlite3.SQLITE_FULL: (
        "The disk is full: locks cannot be taken or renewed until there is room. The outcome of the call is unknown."
    ),
    sqlite3.SQLITE_NOTADB: "The file is no SQLite database: give the locks a path of their own.",
    sqlite3.SQLITE_CORRUPT: (
        "The file is damaged. Stop every process that uses it, delete it with its -wal and -shm files, and start them "
        "again: the locks are over then, and tokens go on from the wall clock."
    ),
    sqlite3.SQLITE_CONSTRAINT: (
        "The key's last fencing token is 2**53 - 1, the greatest there is, so it cannot be acquired again. Tokens get "
        "there in the year 2255: look at the row of the key in tenure_locks, or use another key. Nothing was written."
    ),
}
"""By the primary result code, which is the low byte of what the driver tells."""


def explain(error: sqlite3.Error) -> None:
    """Add a note that says what to do about *error*, where there is something to say."""
    note = _NOTES.get(getattr(error, "sqlite_errorcode", 0) & 0xFF)
    if note is not None:
        error.add_note(note)
