"""
What happened, as values: the one vocabulary of hooks, logs and metrics.

Every event is frozen and names its key and, where there is one, its fencing token. None holds an owner.
Durations are seconds on this process's clock.
"""

import enum
from dataclasses import dataclass
from typing import Literal, final

from tenure.errors import LossReason

__all__ = [
    "AcquireRefused",
    "Event",
    "JobSkipped",
    "JobStarted",
    "LeadershipAcquired",
    "LeadershipLost",
    "LeaseAcquired",
    "LeaseLost",
    "LeaseReleased",
    "LeaseRenewedLate",
    "LocksClosed",
    "LocksStarted",
    "ReleaseFailed",
    "RenewalFailed",
    "SkipReason",
    "StoreFinding",
]


class SkipReason(enum.Enum):
    """Why a tick of a job did not run here."""

    ELSEWHERE = "it runs on another instance"
    OVERLAP = "a run is still in progress"
    SLOT_TAKEN = "its slot was already run"
    DRAINING = "this instance is shutting down"


@final
@dataclass(frozen=True, slots=True)
class LocksStarted:
    """A `Locks` was entered: the store in use, and how far it reaches."""

    instance: str
    store: str
    reach: Literal["process", "host", "cluster"]


@final
@dataclass(frozen=True, slots=True)
class StoreFinding:
    """The start-up check of the store found something that does not stop the start."""

    code: str
    message: str
    remedy: str


@final
@dataclass(frozen=True, slots=True)
class LocksClosed:
    """A `Locks` was left; everything was handed back, or is left to expire."""

    instance: str


@final
@dataclass(frozen=True, slots=True)
class LeaseAcquired:
    """A lease was granted."""

    key: str
    token: int
    waited_s: float
    after: Literal["released", "expired"] | None


@final
@dataclass(frozen=True, slots=True)
class AcquireRefused:
    """A key was held by another owner for all of the wait."""

    key: str
    waited_s: float


@final
@dataclass(frozen=True, slots=True)
class RenewalFailed:
    """A renewal ended without an answer (an error, not a refusal). It is tried again until the deadline."""

    key: str
    token: int
    error: str
    """The type of the error, without its text: a driver's text may hold keys and owners."""


@final
@dataclass(frozen=True, slots=True)
class LeaseRenewedLate:
    """A renewal was sent late: the event loop was blocked, or the process did not run."""

    key: str
    token: int
    late_s: float
    ttl_s: float


@final
@dataclass(frozen=True, slots=True)
class LeaseLost:
    """A lease ended under its holder. Alert on it: another instance may be in the same critical section."""

    key: str
    token: int
    reason: LossReason
    held_s: float


@final
@dataclass(frozen=True, slots=True)
class LeaseReleased:
    """A lease was given back by its holder."""

    key: str
    token: int
    held_s: float


@final
@dataclass(frozen=True, slots=True)
class ReleaseFailed:
    """A release ended without an answer: the lock is free once its ttl has passed."""

    key: str
    token: int
    error: str
    """The type of the error, without its text."""


@final
@dataclass(frozen=True, slots=True)
class JobStarted:
    """This instance took a job's lease: every tick of the job runs here from now on."""

    job: str
    key: str
    token: int


@final
@dataclass(frozen=True, slots=True)
class JobSkipped:
    """A tick of a job did not run here."""

    job: str
    key: str
    reason: SkipReason


@final
@dataclass(frozen=True, slots=True)
class LeadershipAcquired:
    """This instance leads."""

    key: str
    token: int


@final
@dataclass(frozen=True, slots=True)
class LeadershipLost:
    """This instance led and does so no more. `reason` is None where it stepped down by itself."""

    key: str
    token: int
    reason: LossReason | None
    led_s: float


Event = (
    LocksStarted
    | StoreFinding
    | LocksClosed
    | LeaseAcquired
    | AcquireRefused
    | RenewalFailed
    | LeaseRenewedLate
    | LeaseLost
    | LeaseReleased
    | ReleaseFailed
    | JobStarted
    | JobSkipped
    | LeadershipAcquired
    | LeadershipLost
)
"""Any of the events."""
