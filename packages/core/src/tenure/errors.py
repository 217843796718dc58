"""
What can go wrong, by what a caller can do about it.

- `ConfigurationError`: what you passed cannot work; change it. Raised before anything is sent.
- `LockNotAcquiredError`: somebody else holds the key; come back later.
- `LeaseLostError`: the lease ended under its holder; stop, and let the fence refuse what is on its way.
- `LeaseStateError`: a call out of order (before start, after close, after a fork); fix the program.
- `StoreError`: the store did not answer in time, or answered what the contract does not allow.
- `IdempotencyError`: the request was made before; what became of it says which child.

A driver's own errors pass through unwrapped. No message and no `repr` holds an owner, a secret or a
stored payload.
"""

import enum
from typing import Any

__all__ = [
    "ConfigurationError",
    "ExecutionLostError",
    "IdempotencyError",
    "InFlightError",
    "KeyReusedError",
    "LeaseLostError",
    "LeaseStateError",
    "LockNotAcquiredError",
    "LossReason",
    "NoEffectError",
    "OutcomeUnknownError",
    "ResponseNotStoredError",
    "SealError",
    "StoreError",
    "StoreFullError",
    "StoreReplyError",
    "StoreTimeoutError",
    "TenureError",
]


class LossReason(enum.Enum):
    """How the end of a lease was found out."""

    REFUSED = "refused"
    """The store said no: the lock is expired, or another's."""

    EXPIRED = "expired"
    """The deadline passed without a confirmed renewal."""

    STALLED = "stalled"
    """This process did not run (paused, suspended, a blocked event loop) until past the deadline."""

    CLOSED = "closed"
    """The `Locks` that kept the lease was closed while it was held."""

    MAX_HOLD = "max_hold"
    """The hold reached its own `max_hold`."""

    FORKED = "forked"
    """This is a child of the process that holds the lease; a child holds nothing."""


_HOW = {
    LossReason.REFUSED: "the store refused a renewal: the lock expired there, or is another's",
    LossReason.EXPIRED: "its deadline passed without a renewal that the store confirmed",
    LossReason.STALLED: "this process did not run until past its deadline",
    LossReason.CLOSED: "the Locks that kept it was closed",
    LossReason.MAX_HOLD: "the hold reached its max_hold",
    LossReason.FORKED: "this process is a fork of its holder, and a child holds nothing",
}


def _plain(seconds: float) -> str:
    """Say a time in plain figures: milliseconds where they matter, and no exponent."""
    return f"{seconds:.3f}".rstrip("0").rstrip(".")


class TenureError(Exception):
    """The parent of all errors of tenure; never raised itself."""

    __module__ = "tenure"

    def __init__(self, *args: Any) -> None:
        if type(self) is TenureError:
            raise TypeError("TenureError is a parent class: raise one of its children.")
        super().__init__(*args)


class ConfigurationError(TenureError, ValueError):
    """
    What was passed cannot work, and the message says what to pass instead.

    Raised before anything is sent to a store, or when a start-up check finds what would make locks
    unsafe.
    """

    __module__ = "tenure"


class LockNotAcquiredError(TenureError):
    """
    Another owner held the key for all of the time that the caller was ready to wait.

    Attributes:
        key: The key asked for.
        waited_s: Seconds spent waiting, on this process's clock.
        status_hint: 409, a suggestion for a web layer.
    """

    __module__ = "tenure"
    status_hint = 409

    def __init__(self, key: str, waited_s: float) -> None:
        super().__init__(key, waited_s)
        self.key = key
        self.waited_s = waited_s

    def __str__(self) -> str:
        waited = f"after {_plain(self.waited_s)} s of waiting" if self.waited_s > 0 else "and no wait was asked for"
        return f"Lock {self.key!r} is held by another owner, {waited}. Try again later, or pass a longer wait=."


class LeaseLostError(TenureError):
    """
    The lease ended before its holder gave it back; another instance may hold the key now.

    Attributes:
        key: The key of the lease.
        token: Its fencing token; a write that carries it is refused once a greater one was seen.
        reason: How the loss was found out.
    """

    __module__ = "tenure"

    def __init__(self, key: str, token: int, reason: LossReason) -> None:
        super().__init__(key, token, reason)
        self.key = key
        self.token = token
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"Lost the lease on {self.key!r} (fencing token {self.token}): {_HOW[self.reason]}. "
            "Another instance may hold it now: stop, and start over under a new lease."
        )


class LeaseStateError(TenureError, RuntimeError):
    """A call out of order: before start, after close, after a fork, or for a key that the caller holds."""

    __module__ = "tenure"


class StoreError(TenureError):
    """The store failed in a way that is tenure's to name. The message holds no key and no owner."""

    __module__ = "tenure"


class StoreTimeoutError(StoreError):
    """
    The store did not answer within the time that a call may take. The outcome is unknown.

    Not a `TimeoutError`: that is what a caller's own `asyncio.timeout()` raises, and the two must not be
    taken for each other.

    Attributes:
        operation: The store method that did not answer.
        timeout_s: How long it was given, in seconds.
    """

    __module__ = "tenure"

    def __init__(self, operation: str, timeout_s: float) -> None:
        super().__init__(operation, timeout_s)
        self.operation = operation
        self.timeout_s = timeout_s

    def __str__(self) -> str:
        return (
            f"The store did not answer {self.operation}() within {_plain(self.timeout_s)} s; its outcome is unknown. "
            "Look at the store's load and at its connection pool (a pool at its limit looks the same)."
        )


class StoreReplyError(StoreError):
    """The store answered what the contract does not allow; it is never taken for a grant."""

    __module__ = "tenure"


class StoreFullError(StoreError):
    """A store in memory is at its bound and holds nothing that may be forgotten. Nothing was begun."""

    __module__ = "tenure.idempotency"


class IdempotencyError(TenureError):
    """The parent of what a repeated request is told instead of an execution; never raised itself."""

    __module__ = "tenure.idempotency"
    status_hint = 409

    def __init__(self, *args: Any) -> None:
        if type(self) is IdempotencyError:
            raise TypeError("IdempotencyError is a parent class: raise one of its children.")
        super().__init__(*args)


class InFlightError(IdempotencyError):
    """
    The first request under the key is still being worked on: ask again later, nothing needs to be corrected.

    Attributes:
        retry_after_s: What is left of the execution's lock, in seconds on the store's clock. It may be extended, and
            the execution may end any time before.
    """

    __module__ = "tenure.idempotency"

    def __init__(self, retry_after_s: float) -> None:
        super().__init__(retry_after_s)
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        return (
            "A request with this idempotency key is still in progress. Repeat it after a pause, with the same key and "
            "the same payload."
        )


class KeyReusedError(IdempotencyError):
    """The key was used with another payload before. Nothing ran."""

    __module__ = "tenure.idempotency"
    status_hint = 422

    def __str__(self) -> str:
        return (
            "This idempotency key belongs to a request with another payload. Use a new key for a new request, and "
            "repeat a request unchanged."
        )


class OutcomeUnknownError(IdempotencyError):
    """
    An execution under the key began and nobody knows how it ended; it is not begun again.

    A guarded function may raise it too, to say just that of itself: its record is left abandoned.

    Attributes:
        attempt: How many executions began, where it is known.
    """

    __module__ = "tenure.idempotency"

    def __init__(self, attempt: int | None = None) -> None:
        super().__init__(attempt)
        self.attempt = attempt

    def __str__(self) -> str:
        return (
            "An earlier request with this idempotency key began and its outcome is unknown. Find out whether it took "
            "effect before a new key is used."
        )


class ResponseNotStoredError(IdempotencyError):
    """
    The request was carried out, and its response was not kept: it was a stream, too large, or lost in a crash.

    Attributes:
        summary: What was kept instead, as the execution left it; empty where nothing was. Not in the message.
    """

    __module__ = "tenure.idempotency"

    def __init__(self, summary: bytes = b"") -> None:
        super().__init__()
        self.summary = summary

    def __str__(self) -> str:
        return (
            "The request with this idempotency key was carried out, and its response was not kept. Read its result "
            "where it is stored; do not repeat it under a new key."
        )


class ExecutionLostError(IdempotencyError):
    """The record of this execution is another's by now, or gone: what it would do must not be done. Roll back."""

    __module__ = "tenure.idempotency"

    def __str__(self) -> str:
        return (
            "This execution was replaced by another one under its idempotency key, or its record has ended. Roll its "
            "work back: the other one does it."
        )


class NoEffectError(TenureError):
    """
    Raised by a guarded function to say that it had no effect: its record is released whatever the policy.

    Raise it from the error that is to be seen, or a child of it.
    """

    __module__ = "tenure.idempotency"


class SealError(TenureError):
    """
    A stored response could not be opened: another key, or a record that was moved or changed. It is never taken for
    a reason to run the request again.
    """

    __module__ = "tenure.idempotency"
