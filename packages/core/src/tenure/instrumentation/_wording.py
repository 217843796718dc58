"""Events as sentences, for the log: one place, so that every log says the same."""

import logging
import re
from typing import Final, assert_never

from tenure.errors import LossReason
from tenure.events import (
    AcquireRefused,
    Event,
    ExecutionLost,
    ExtensionFailed,
    IdempotencyClosed,
    IdempotencyOutcome,
    IdempotencyStarted,
    JobSkipped,
    JobStarted,
    LeadershipAcquired,
    LeadershipLost,
    LeaseAcquired,
    LeaseLost,
    LeaseReleased,
    LeaseRenewedLate,
    LocksClosed,
    LocksStarted,
    RecordOutcome,
    ReleaseFailed,
    RenewalFailed,
    StoreFinding,
)

__all__ = ["kind_of", "least_level_of", "level_of", "sentence_of"]

_LOSSES: Final = {
    LossReason.REFUSED: "the store refused a renewal",
    LossReason.EXPIRED: "no renewal was confirmed before its deadline",
    LossReason.STALLED: "this process did not run until past its deadline",
    LossReason.CLOSED: "it was still held when its Locks was closed",
    LossReason.MAX_HOLD: "its hold reached its max_hold",
    LossReason.FORKED: "this process is a fork of its holder",
}

_LOCK_ENDS: Final = {
    LossReason.REFUSED: "the store refused to extend it",
    LossReason.EXPIRED: "it could not be extended in time",
    LossReason.STALLED: "this process did not run until its lock had ended",
    LossReason.CLOSED: "its Idempotency was closed",
    LossReason.MAX_HOLD: "it reached its max_execution",
    LossReason.FORKED: "this process is a fork of the one that runs it",
}

_LEVELS: Final[dict[type, int]] = {
    LocksStarted: logging.INFO,
    LocksClosed: logging.INFO,
    StoreFinding: logging.WARNING,
    LeaseAcquired: logging.DEBUG,
    AcquireRefused: logging.DEBUG,
    LeaseReleased: logging.DEBUG,
    RenewalFailed: logging.WARNING,
    LeaseRenewedLate: logging.WARNING,
    LeaseLost: logging.WARNING,
    ReleaseFailed: logging.WARNING,
    JobStarted: logging.INFO,
    JobSkipped: logging.DEBUG,
    LeadershipAcquired: logging.INFO,
    LeadershipLost: logging.INFO,
    IdempotencyStarted: logging.INFO,
    IdempotencyClosed: logging.INFO,
    RecordOutcome: logging.DEBUG,
    ExtensionFailed: logging.WARNING,
    ExecutionLost: logging.WARNING,
}

_OUTCOMES: Final = {
    IdempotencyOutcome.ACQUIRED: (logging.DEBUG, "begins"),
    IdempotencyOutcome.TAKEN_OVER: (logging.WARNING, "begins again: how the one before ended is unknown"),
    IdempotencyOutcome.REPLAYED: (logging.DEBUG, "was answered with the stored response"),
    IdempotencyOutcome.IN_FLIGHT: (logging.DEBUG, "is still in progress"),
    IdempotencyOutcome.MISMATCH: (logging.INFO, "was refused: its key belongs to another payload"),
    IdempotencyOutcome.REFUSED: (
        logging.WARNING,
        "was not begun again: its outcome is unknown, or its response was lost",
    ),
    IdempotencyOutcome.STORED: (logging.DEBUG, "is completed"),
    IdempotencyOutcome.TOMBSTONE: (logging.INFO, "is completed without its response, which could not be kept"),
    IdempotencyOutcome.STALE: (logging.WARNING, "was replaced before it completed: two may have had their effect"),
    IdempotencyOutcome.GONE: (logging.WARNING, "completed after its record had ended: a repeat would run again"),
    IdempotencyOutcome.RELEASED: (logging.DEBUG, "had no effect and may be repeated"),
    IdempotencyOutcome.ABANDONED: (logging.WARNING, "ended in an unknown way"),
    IdempotencyOutcome.BYPASSED: (logging.DEBUG, "came without a key and is not protected"),
    # A client that goes on is not to fill the log: count them.
    IdempotencyOutcome.OVER_QUOTA: (logging.DEBUG, "was refused: its client has as many as it may"),
    IdempotencyOutcome.STORE_ERROR: (logging.WARNING, "met a store that failed"),
}
"""The level that an outcome is logged at, and how it is said: warnings are what somebody should look into."""


def kind_of(event: Event) -> str:
    """Name the kind of *event* for machines: `lease_acquired` for a `LeaseAcquired`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", type(event).__name__).lower()


def least_level_of(kind: type[Event]) -> int:
    """Return the lowest level that an event of *kind* may be logged at."""
    return _LEVELS[kind]


def level_of(event: Event) -> int:
    """Return the level that *event* is logged at: warnings are what somebody should look into."""
    if isinstance(event, LocksStarted | IdempotencyStarted) and event.reach == "process":
        return logging.WARNING
    if isinstance(event, IdempotencyClosed) and event.unsettled:
        return logging.WARNING
    if isinstance(event, RecordOutcome):
        return _OUTCOMES[event.outcome][0]
    return _LEVELS[type(event)]


def sentence_of(event: Event) -> str:  # noqa: C901, PLR0911, PLR0912 -- one case an event, each one line
    """Say *event* in one sentence."""
    match event:
        case LocksStarted(store=store, reach="process"):
            return (
                f"Locks: {store}. It excludes callers in this process only: every other instance takes the same locks "
                "in a store of its own."
            )
        case LocksStarted(instance=instance, store=store):
            return f"Locks: {store} (instance {instance})"
        case LocksClosed(instance=instance):
            return f"Locks of instance {instance} closed"
        case StoreFinding(code=code, message=message, remedy=remedy):
            return f"{message} {remedy} [{code}]"
        case LeaseAcquired(key=key, token=token, waited_s=waited_s, after=after):
            predecessor = "" if after is None else f"; the lease before it {_ended(after)}"
            return f'Acquired "{key}" after {waited_s:.3f} s (fencing token {token}{predecessor})'
        case AcquireRefused(key=key, waited_s=waited_s):
            return f'"{key}" is held by another owner, after {waited_s:.3f} s'
        case LeaseReleased(key=key, token=token, held_s=held_s):
            return f'Released "{key}" after {held_s:.3f} s (fencing token {token})'
        case RenewalFailed(key=key, token=token, error=error):
            return f'Could not renew the lease on "{key}" (fencing token {token}): {error}; trying again'
        case LeaseRenewedLate(key=key, token=token, late_s=late_s, ttl_s=ttl_s):
            return (
                f'Renewed the lease on "{key}" {late_s:.3f} s late, of a ttl of {ttl_s:g} s (fencing token {token}): '
                "something blocked the event loop, or the process did not run"
            )
        case LeaseLost(key=key, token=token, reason=reason, held_s=held_s):
            return f'Lost the lease on "{key}" (fencing token {token}) after {held_s:.3f} s: {_LOSSES[reason]}'
        case ReleaseFailed(key=key, token=token, error=error):
            return f'Could not release "{key}" (fencing token {token}): {error}; it frees itself when its ttl ends'
        case JobStarted(job=job, key=key, token=token):
            return f'{job} runs on this instance (lease "{key}", fencing token {token})'
        case JobSkipped(job=job, reason=reason):
            return f"Skipped {job}: {reason.value}"
        case LeadershipAcquired(key=key, token=token):
            return f'Leading "{key}" (fencing token {token})'
        case LeadershipLost(key=key, token=token, reason=loss):
            if loss is None:
                return f'Stepped down from "{key}" (fencing token {token})'
            return f'Leads "{key}" no more (fencing token {token}): {_LOSSES[loss]}'
        case IdempotencyStarted() | IdempotencyClosed() | RecordOutcome() | ExtensionFailed() | ExecutionLost():
            return _sentence_of_request(event)
        case _:
            assert_never(event)


def _sentence_of_request(
    event: IdempotencyStarted | IdempotencyClosed | RecordOutcome | ExtensionFailed | ExecutionLost,
) -> str:
    match event:
        case IdempotencyStarted(store=store, reach="process"):
            return (
                f"Idempotency: {store}. It knows the requests of this process only: every other instance runs a repeat "
                "that reaches it."
            )
        case IdempotencyStarted(instance=instance, store=store):
            return f"Idempotency: {store} (instance {instance})"
        case IdempotencyClosed(instance=instance, unsettled=unsettled):
            left = f"; {unsettled} executions are left without a stored outcome" if unsettled else ""
            return f"Idempotency of instance {instance} closed{left}"
        case RecordOutcome():
            return _sentence_of_outcome(event)
        case ExtensionFailed(record=record, attempt=attempt, error=error):
            return f"Could not extend request {record} (attempt {attempt}): {error}; trying again"
        case ExecutionLost(record=record, attempt=attempt, reason=reason):
            return (
                f"Request {record} (attempt {attempt}) may be begun again elsewhere: {_LOCK_ENDS[reason]}. Its "
                "completion will tell"
            )
        case _:
            assert_never(event)


def _sentence_of_outcome(event: RecordOutcome) -> str:
    which = f"Request {event.record}" if event.record else "A request"
    attempt = "" if event.attempt is None else f" (attempt {event.attempt})"
    details = [] if event.elapsed_s is None else [f"{event.elapsed_s:.3f} s"]
    if event.size is not None:
        details.append(f"{event.size} bytes")
    if event.error is not None:
        details.append(event.error)
    detail = f" ({', '.join(details)})" if details else ""
    return f"{which}{attempt} {_OUTCOMES[event.outcome][1]}{detail}"


def _ended(after: str) -> str:
    return "was released" if after == "released" else "expired: its holder may have left work half done"
