"""
tenure: a job, a connection or a write that belongs to one process at a time.

A lease that its holder keeps renewing, checked in a store that every instance shares; a signal when it is lost; a
fencing token that grows with every acquisition, so that a late write is refused. `tenure.idempotency` carries out once
what comes twice.
"""

from tenure.config import open_idempotency_store, open_store
from tenure.context import current_lease
from tenure.election import LeaderElection
from tenure.errors import (
    ConfigurationError,
    LeaseLostError,
    LeaseStateError,
    LockNotAcquiredError,
    LossReason,
    StoreError,
    StoreReplyError,
    StoreTimeoutError,
    TenureError,
)
from tenure.jobs import locked, on_one_instance, without_overlapping
from tenure.lease import Lease
from tenure.locks import Locks
from tenure.memory import InMemoryLockStore
from tenure.store import Acquired, Held, LockStore

__all__ = [
    "Acquired",
    "ConfigurationError",
    "Held",
    "InMemoryLockStore",
    "LeaderElection",
    "Lease",
    "LeaseLostError",
    "LeaseStateError",
    "LockNotAcquiredError",
    "LockStore",
    "Locks",
    "LossReason",
    "StoreError",
    "StoreReplyError",
    "StoreTimeoutError",
    "TenureError",
    "current_lease",
    "locked",
    "on_one_instance",
    "open_idempotency_store",
    "open_store",
    "without_overlapping",
]
