"""
tenure: a job, a connection or a write that belongs to one process at a time.

A lease that its holder keeps renewing, checked in a store that every instance shares; a signal when it is lost; a
fencing token that grows with every acquisition, so that a late write is refused. `tenure.idempotency` carries out once
what comes twice.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

from tenure.context import current_lease
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
from tenure.lease import Lease
from tenure.locks import Locks
from tenure.store import Acquired, Held, LockStore

if TYPE_CHECKING:
    from tenure.config import open_idempotency_store, open_store
    from tenure.election import LeaderElection
    from tenure.jobs import locked, on_one_instance, without_overlapping
    from tenure.memory import InMemoryLockStore

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

if not TYPE_CHECKING:  # a checker would take it for a promise that every name is there
    _LATER: Final = {
        "InMemoryLockStore": "tenure.memory",
        "LeaderElection": "tenure.election",
        "locked": "tenure.jobs",
        "on_one_instance": "tenure.jobs",
        "open_idempotency_store": "tenure.config",
        "open_store": "tenure.config",
        "without_overlapping": "tenure.jobs",
    }
    """The floors that a program may do without, imported when one of their names is first asked for (PEP 562)."""

    def __getattr__(name: str) -> object:
        if name not in _LATER:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_LATER[name]), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
