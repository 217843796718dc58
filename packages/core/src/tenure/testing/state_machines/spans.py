"""
When a call took effect, and when a lock ends: as much of it as a caller can know.

On a simulated clock both are a moment. On a real server a call takes effect somewhere between its sending and its
answer, and a lock that it granted ends somewhere in a span as wide. A call whose own span meets that one may find the
lock held or over: both are right, and the answer tells which it was.
"""

import math
from dataclasses import dataclass, replace
from typing import final

__all__ = ["NEVER", "Moment", "Span"]


@final
@dataclass(frozen=True, slots=True)
class Span:
    """
    When something ends, in milliseconds since the machine began.

    Attributes:
        earliest: No sooner than this.
        latest: No later than this.
    """

    earliest: float
    latest: float

    def plus(self, span_ms: int) -> "Span":
        """Return what ends *span_ms* after this."""
        return Span(self.earliest + span_ms, self.latest + span_ms)

    def or_later(self, other: "Span") -> "Span":
        """Return what ends when this and *other* have ended both."""
        return Span(max(self.earliest, other.earliest), max(self.latest, other.latest))


NEVER = Span(-math.inf, -math.inf)
"""The end of what has never begun."""


@final
@dataclass(frozen=True, slots=True)
class Moment:
    """
    When a call took effect, in milliseconds since the machine began.

    Attributes:
        sent: Not before it was sent.
        answered: Not after it was answered.
        tolerance_ms: What two readings of the store's clock may be off by: its step, and how it rounds.
    """

    sent: float
    answered: float
    tolerance_ms: float

    def after(self, span_ms: int) -> Span:
        """Say when something ends that got *span_ms* from this call."""
        return Span(self.sent + span_ms, self.answered + span_ms)

    def may_precede(self, end: Span) -> bool:
        """Whether the call may have found that *end* is still to come."""
        return self.sent - self.tolerance_ms < end.latest

    def may_follow(self, end: Span) -> bool:
        """Whether the call may have found that *end* has come."""
        return self.answered + self.tolerance_ms >= end.earliest

    def before(self, end: Span) -> Span:
        """Return *end*, known to have been still to come."""
        return replace(end, earliest=max(end.earliest, self.sent - self.tolerance_ms))

    def behind(self, end: Span) -> Span:
        """Return *end*, known to have come."""
        return replace(end, latest=min(end.latest, self.answered + self.tolerance_ms))

    def left_ms(self, end: Span) -> tuple[float, float]:
        """Return the least and the most that may be left until *end*, whole milliseconds rounded up or not."""
        least = end.earliest - self.answered - self.tolerance_ms
        return max(0.0, least), max(0.0, end.latest - self.sent + self.tolerance_ms) + 1

    def until(self, later: "Moment") -> "Moment":
        """Return the moment of a call that took effect any time between this and *later*."""
        return replace(self, answered=later.answered)
