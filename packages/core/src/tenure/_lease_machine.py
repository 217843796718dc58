r"""
The lease machine: from when a holder may trust its lease, and what ends that trust.

Theory
------
A store expires a lock *ttl* after it processed the last acquire or renewal, on its own clock. The holder cannot
see that moment. What it can see is when it *sent* the call, which was earlier; so if it counts from there it
gives up no later than the store does, however slow the reply:

      holder   sent ----------------------------- trusted_until       gives up here
                 \                                |
      store       processed ----------------------+------ expires     and the store lets others in here

    trusted_until = sent_at + ttl - margin

The margin is for clocks that run at different *rates*; their readings may differ by years, for nobody compares
them. NTP slews a clock by at most 0.05 %, and a free-running quartz is off by about as much; one per cent of the
ttl is twenty times that. A machine whose clock is slower than the store's by more than the margin can overlap by
the excess, which is what fencing tokens are for.

Rules
-----
- **R1** Only a confirmed renewal moves `trusted_until`, and it moves it to a moment counted from its sending.
- **R2** An unknown outcome (no reply, an error) moves nothing.
- **R3** A refusal loses the lease at once.
- **R4** At `trusted_until` the lease is lost, whatever calls are still under way. (A timer of the keeper stands
  there; and every reader compares the clock, for a blocked event loop runs no timers.)
- **R5** A lost lease is never held again. A confirmation that arrives after `trusted_until` is too late: between
  the two the holder may have been told of the loss, and may have stopped.

    HELD --CONFIRMED--> HELD, trusted for longer       R1
    HELD --UNKNOWN----> HELD, unchanged                R2
    HELD --REFUSED----> LOST (refused)                 R3
    HELD --TIME-------> LOST (expired, or stalled)     R4
    HELD --CLOSED-----> LOST (closed)
    HELD --OVERDUE----> LOST (max_hold)
    HELD --GIVEN_BACK-> RELEASED
    LOST, RELEASED: every event leaves them as they are  R5

The rules stand in this file and nowhere else. It reads no clock, knows no event loop and does no I/O: times come
in with the events, in seconds on the holder's clock.
"""

import enum
from dataclasses import dataclass
from typing import Any, Final, final

from tenure.errors import LossReason

__all__ = [
    "MARGIN_SHARE",
    "RENEWALS_PER_TTL",
    "TRANSITIONS",
    "LeaseEvent",
    "LeaseState",
    "Term",
    "begin",
    "is_held",
    "postponed",
    "reason_at",
    "step",
    "trusted_until",
]

MARGIN_SHARE: Final = 0.01
"""The share of the ttl that is kept for clocks of different rates; see the theory above."""

RENEWALS_PER_TTL: Final = 3
"""A renewal is sent every third of a ttl, so that one may be lost and the next still comes in time."""


@final
class LeaseState(enum.Enum):
    """Where a lease stands."""

    HELD = "held"
    LOST = "lost"
    RELEASED = "released"

    # A member is one object in a process; Enum's own hash is a call of Python's, at every look into the table below.
    __hash__ = object.__hash__


@final
class LeaseEvent(enum.Enum):
    """What can happen to a lease."""

    CONFIRMED = "confirmed"
    """The store confirmed a renewal."""
    UNKNOWN = "unknown"
    """A renewal ended without an answer."""
    REFUSED = "refused"
    """The store said no."""
    TIME = "time"
    """Time passed; nothing else happened."""
    CLOSED = "closed"
    """The keeper is closing."""
    OVERDUE = "overdue"
    """The hold reached its own max_hold."""
    GIVEN_BACK = "given back"
    """The holder gives the lease back: from the sending of the release on it holds nothing."""

    __hash__ = object.__hash__


TRANSITIONS: Final[dict[tuple[LeaseState, LeaseEvent], LeaseState]] = {
    (LeaseState.HELD, LeaseEvent.CONFIRMED): LeaseState.HELD,
    (LeaseState.HELD, LeaseEvent.UNKNOWN): LeaseState.HELD,
    (LeaseState.HELD, LeaseEvent.TIME): LeaseState.HELD,
    (LeaseState.HELD, LeaseEvent.REFUSED): LeaseState.LOST,
    (LeaseState.HELD, LeaseEvent.CLOSED): LeaseState.LOST,
    (LeaseState.HELD, LeaseEvent.OVERDUE): LeaseState.LOST,
    (LeaseState.HELD, LeaseEvent.GIVEN_BACK): LeaseState.RELEASED,
    # R5: the two ends are ends.
    **{(end, event): end for end in (LeaseState.LOST, LeaseState.RELEASED) for event in LeaseEvent},
}
"""Every state under every event, before the deadline. At the deadline R4 comes first: HELD becomes LOST."""

_REASONS: Final = {
    LeaseEvent.REFUSED: LossReason.REFUSED,
    LeaseEvent.CLOSED: LossReason.CLOSED,
    LeaseEvent.OVERDUE: LossReason.MAX_HOLD,
}


@final
@dataclass(frozen=True, slots=True, init=False)
class Term:
    """
    A lease as its holder may believe in it: immutable, replaced at each event.

    Attributes:
        state: Where the lease stands, as of the last event.
        trusted_until: The holder's deadline, in seconds on its clock.
        renew_at: When the next renewal is due to be sent, in seconds on the same clock. Never after the
            deadline.
        reason: How the loss was found out, once it is lost.
    """

    state: LeaseState
    trusted_until: float
    renew_at: float
    reason: LossReason | None = None

    def __init__(
        self, state: LeaseState, trusted_until: float, renew_at: float, reason: LossReason | None = None
    ) -> None:
        # Written through its slots: what a frozen dataclass makes of this takes twice the time, at each event.
        _set_state(self, state)
        _set_trusted_until(self, trusted_until)
        _set_renew_at(self, renew_at)
        _set_reason(self, reason)


_slots: Final[Any] = Term
_set_state, _set_trusted_until, _set_renew_at, _set_reason = (
    getattr(_slots, field).__set__ for field in ("state", "trusted_until", "renew_at", "reason")
)


def trusted_until(sent_at: float, ttl_s: float) -> float:
    """Count the holder's deadline, in seconds, from the sending of the call that the store confirmed."""
    return sent_at + ttl_s * (1 - MARGIN_SHARE)


def begin(sent_at: float, ttl_s: float) -> Term:
    """Begin the term of a lease whose acquire was sent at *sent_at*."""
    return Term(LeaseState.HELD, trusted_until(sent_at, ttl_s), sent_at + ttl_s / RENEWALS_PER_TTL)


def step(term: Term, event: LeaseEvent, now: float, *, sent_at: float = 0.0, ttl_s: float = 0.0) -> Term:
    """
    Follow one event at *now*.

    Args:
        term: The lease so far.
        event: What happened.
        now: When it was learned of, in seconds.
        sent_at: With CONFIRMED, when the renewal was sent, in seconds.
        ttl_s: With CONFIRMED, the ttl that it asked for, in seconds.

    Returns:
        The lease from now on; the same object where nothing changed.
    """
    if term.state is LeaseState.HELD and now >= term.trusted_until:  # R4, before whatever else is reported
        return Term(LeaseState.LOST, term.trusted_until, term.renew_at, reason_at(term, now))
    state = TRANSITIONS[term.state, event]
    if state is not term.state:
        return Term(state, term.trusted_until, term.renew_at, _REASONS.get(event))
    if state is LeaseState.HELD and event is LeaseEvent.CONFIRMED:  # R1
        until = trusted_until(sent_at, ttl_s)
        # Of two renewals under way, the older one may be answered last; it must not take back what the
        # younger one gave.
        if until > term.trusted_until:
            return Term(state, until, sent_at + ttl_s / RENEWALS_PER_TTL)
    return term


def is_held(term: Term, now: float) -> bool:
    """Whether the holder may believe in the lease at *now*, in seconds: right even where no timer ran."""
    return term.state is LeaseState.HELD and now < term.trusted_until


def reason_at(term: Term, now: float) -> LossReason | None:
    """
    How the lease is lost as of *now*, or None where it is held or was given back.

    A lease that ran out while its renewal was overdue was not refused time by the store: its process did not
    run. One whose renewals went out, and were not confirmed, expired.
    """
    if term.state is not LeaseState.HELD or now < term.trusted_until:
        return term.reason
    return LossReason.STALLED if term.renew_at < term.trusted_until else LossReason.EXPIRED


def postponed(term: Term, renew_at: float) -> Term:
    """Set the time of the next renewal: after one was sent, or after one failed. Never beyond the deadline."""
    return Term(term.state, term.trusted_until, min(renew_at, term.trusted_until), term.reason)
