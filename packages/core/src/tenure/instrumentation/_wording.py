"""Events as sentences, for the log: one place, so that every log says the same."""

import logging
import re
from typing import Final, assert_never

from tenure.errors import LossReason
from tenure.events import (
    AcquireRefused,
    Event,
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
    ReleaseFailed,
    RenewalFailed,
    StoreFinding,
)

__all__ = ["kind_of", "level_of", "sentence_of"]

_LOSSES: Final = {
    LossReason.REFUSED: "the store refused a renewal",
    LossReason.EXPIRED: "no renewal was confirmed before its deadline",
    LossReason.STALLED: "this process did not run until past its deadline",
    LossReason.CLOSED: "it was still held when its Locks was closed",
    LossReason.MAX_HOLD: "its hold reached its max_hold",
    LossReason.FORKED: "this process is a fork of its holder",
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
}


def kind_of(event: Event) -> str:
    """Name the kind of *event* for machines: `lease_acquired` for a `LeaseAcquired`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", type(event).__name__).lower()


def level_of(event: Event) -> int:
    """Return the level that *event* is logged at: warnings are what somebody should look into."""
    if isinstance(event, LocksStarted) and event.reach == "process":
        return logging.WARNING
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
        case _:
            assert_never(event)


def _ended(after: str) -> str:
    return "was released" if after == "released" else "expired: its holder may have left work half done"
