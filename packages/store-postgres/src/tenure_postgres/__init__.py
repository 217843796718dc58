"""Locks and idempotency records on PostgreSQL: stores of `tenure` in the application's own database."""

from tenure_postgres.engine import create_lock_engine, open_postgres_idempotency_store, open_postgres_store
from tenure_postgres.errors import TokensExhaustedError, UnreplicatedWriteError
from tenure_postgres.fencing import Fence, fence, lease_guard
from tenure_postgres.idempotency_store import PostgresIdempotencyStore
from tenure_postgres.lock_store import PostgresLockStore
from tenure_postgres.lock_table import (
    LOCK_TABLE_OPTIONS,
    LockMixin,
    create_lock_table,
    create_schema_sql,
    drop_lock_table,
    lock_table,
)
from tenure_postgres.record_table import (
    IDEMPOTENCY_TABLE_OPTIONS,
    IdempotencyMixin,
    create_idempotency_schema_sql,
    create_idempotency_table,
    drop_idempotency_table,
    idempotency_table,
)

__all__ = [
    "IDEMPOTENCY_TABLE_OPTIONS",
    "LOCK_TABLE_OPTIONS",
    "Fence",
    "IdempotencyMixin",
    "LockMixin",
    "PostgresIdempotencyStore",
    "PostgresLockStore",
    "TokensExhaustedError",
    "UnreplicatedWriteError",
    "create_idempotency_schema_sql",
    "create_idempotency_table",
    "create_lock_engine",
    "create_lock_table",
    "create_schema_sql",
    "drop_idempotency_table",
    "drop_lock_table",
    "fence",
    "idempotency_table",
    "lease_guard",
    "lock_table",
    "open_postgres_idempotency_store",
    "open_postgres_store",
]
