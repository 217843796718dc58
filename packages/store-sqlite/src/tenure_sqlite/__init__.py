"""Locks and idempotency records in a SQLite file: stores of `tenure` for the processes of one host, and no server."""

from tenure_sqlite.clock import HostClock, host_clock
from tenure_sqlite.errors import ForeignClockError, LockFileReplacedError
from tenure_sqlite.idempotency_store import SqliteIdempotencyStore
from tenure_sqlite.lock_store import SqliteLockStore
from tenure_sqlite.opening import open_sqlite_idempotency_store, open_sqlite_store

__all__ = [
    "ForeignClockError",
    "HostClock",
    "LockFileReplacedError",
    "SqliteIdempotencyStore",
    "SqliteLockStore",
    "host_clock",
    "open_sqlite_idempotency_store",
    "open_sqlite_store",
]
