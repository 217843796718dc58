"""Locks on PostgreSQL: the store of `tenure` in the application's own database, and fenced writes beside it."""

from tenure_postgres.engine import create_lock_engine, open_postgres_store
from tenure_postgres.errors import TokensExhaustedError, UnreplicatedWriteError
from tenure_postgres.fencing import Fence, fence, lease_guard
from tenure_postgres.lock_store import PostgresLockStore
from tenure_postgres.table import (
    LOCK_TABLE_OPTIONS,
    LockMixin,
    create_lock_table,
    create_schema_sql,
    drop_lock_table,
    lock_table,
)

__all__ = [
    "LOCK_TABLE_OPTIONS",
    "Fence",
    "LockMixin",
    "PostgresLockStore",
    "TokensExhaustedError",
    "UnreplicatedWriteError",
    "create_lock_engine",
    "create_lock_table",
    "create_schema_sql",
    "drop_lock_table",
    "fence",
    "lease_guard",
    "lock_table",
    "open_postgres_store",
]
