"""
What happened, as values: the one vocabulary of hooks, logs and metrics.

Every event is frozen and names its key and, where there is one, its fencing token. None holds an owner. An event of a
record names it by twelve characters of a keyed hash: an idempotency key is a client's, and may be a secret.
Durations are seconds on this process's clock.
"""

import enum
from dataclasses import dataclass
from typing import Literal, final

from tenure.errors import LossReason

__all__ = [
    "AcquireRefused",
    "Event",
    "ExecutionLost",
    "ExtensionFailed",
    "IdempotencyClosed",
    "IdempotencyOutcome",
    "IdempotencyStarted",
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
    "RecordOutcome",
    "ReleaseFailed",
    "RenewalFailed",
    "SkipReason",
    "StoreFinding",
]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class _Happening:
    """
    What events share: one equals another of its kind with the same fields.

    Said once, here: made for each of twenty classes it would be a third of the time that `import tenure` takes.
    """

    def _fields(self) -> list[tuple[str, object]]:
        names: tuple[str, ...] = type(self).__match_args__
        return [(name, getattr(self, name)) for name in names]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Happening) or type(other) is not type(self):
            return NotImplemented
        return self._fields() == other._fields()

    def __hash__(self) -> int:
        return hash((type(self), *self._fields()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self._fields())})"


class SkipReason(enum.Enum):
    """Why a tick of a job did not run here."""

    ELSEWHERE = "it runs on another instance"
    OVERLAP = "a run is still in progress"
    SLOT_TAKEN = "its slot was already run"
    DRAINING = "this instance is shutting down"


@final
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class LocksStarted(_Happening):
    """A `Locks` was entered: the store in use, and how far it reaches."""

    instance: str
    store: str
    reach: Literal["process", "host", "cluster"]


@final
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class StoreFinding(_Happening):
    """The start-up check of the store found something that does not stop the start."""

    code: str
    message: str
    remedy: str


@final
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class LocksClosed(_Happening):
    """A `Locks` was left; everything was handed back, or is left to expire."""

    instance: str


@final
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class LeaseAcquired(_Happening):
    """A lease was granted."""

    key: str
    token: int
    waited_s: float
    after: Literal["released", "expired"] | None


@final
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class AcquireRefused(_Happening):
    """A key was held by another owner for all of the wait."""

    key: str
    waited_s: float


@final
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class RenewalFailed(_Happening):
    """A renewal ended without an answer (an error, not a refusal). It is tried again until the deadline."""

    key: str
    token: int
    error: str
    """The type of the error, without its text: a driver's text may hold keys and owners."""


@final
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class LeaseRenewedLate(_Happening):
    """A renewal was sent late: the event loop was blocked, or the process did not run."""

    key: str
    token: int
    late_s: float
    ttl_s: float


@final
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class LeaseLost(_Happening):
    """A lease ended under its holder. Alert on it: another instance may be in the same critical section."""

    key: str
    token: int
    reason: LossReason
    held_s: float


@final
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class LeaseReleased(_Happening):
    """A lease was given back by its holder."""

    key: str
    token: int
    held_s: float


@final
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ReleaseFailed(_Happening):
    """A release ended without an answer: the lock is free once its ttl has passed."""

    key: str
    token: int
    error: str
    """The type of the error, without its text."""


@final
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class JobStarted(_Happening):
    """This instance took a job's lease: every tick of the job runs here from now on."""

    job: str
    key: str
    token: int


@final
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class JobSkipped(_Happening):
    """A tick of a job did not run here."""

    job: str
    key: str
    reason: SkipReason


@final
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class LeadershipAcquired(_Happening):
    """This instance leads."""

    key: str
    token: int


@final
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class LeadershipLost(_Happening):
    """This instance led and does so no more. `reason` is None where it stepped down by itself."""

    key: str
    token: int
    reason: LossReason | None
    led_s: float


class IdempotencyOutcome(enum.Enum):
    """What became of a request that carries an idempotency key."""

    ACQUIRED = "acquired"
    TAKEN_OVER = "taken over"
    REPLAYED = "replayed"
    IN_FLIGHT = "in flight"
    MISMATCH = "mismatch"
    REFUSED = "refused"
    """An execution of unknown outcome, or one whose response was lost, was not begun again."""
    STORED = "stored"
    TOMBSTONE = "tombstone"
    """It was carried out, and its response was not kept."""
    STALE = "stale"
    """Another execution had taken its record over when it completed: two may have had their effect."""
    GONE = "gone"
    """Its record had ended when it completed."""
    RELEASED = "released"
    ABANDONED = "abandoned"
    """It ended, and its outcome is unknown."""
    BYPASSED = "bypassed"
    """It came without a key, where none is required."""
    OVER_QUOTA = "over quota"
    """Its client has as many as it may on this instance; the store was not asked."""
    STORE_ERROR = "store error"


@final
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class IdempotencyStarted(_Happening):
    """An `Idempotency` was entered: the store in use, and how far it reaches."""

    instance: str
    store: str
    reach: Literal["process", "host", "cluster"]


@final
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class IdempotencyClosed(_Happening):
    """
    An `Idempotency` was left.

    Attributes:
        instance: The instance's name.
        unsettled: Executions whose outcome could not be stored; a repeat of theirs is a second attempt.
    """

    instance: str
    unsettled: int


@final
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class RecordOutcome(_Happening):
    """
    A request under an idempotency key was answered, or an execution ended.

    Attributes:
        record: Twelve characters of a keyed hash of the record's key; empty for a request without one.
        outcome: What became of it.
        attempt: The execution's number, where there is one.
        elapsed_s: How long the execution took, where one ended.
        size: The bytes that were stored or replayed.
        error: The type of the store's error, without its text.
    """

    record: str
    outcome: IdempotencyOutcome
    attempt: int | None = None
    elapsed_s: float | None = None
    size: int | None = None
    error: str | None = None


@final
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ExtensionFailed(_Happening):
    """The lock of an execution could not be extended (an error, not a refusal). It is tried again."""

    record: str
    attempt: int
    error: str
    """The type of the error, without its text."""


@final
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ExecutionLost(_Happening):
    """The lock of an execution ended under it: another one may have begun. Its completion will tell."""

    record: str
    attempt: int
    reason: LossReason


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
    | IdempotencyStarted
    | IdempotencyClosed
    | RecordOutcome
    | ExtensionFailed
    | ExecutionLost
)
"""Any of the events."""
