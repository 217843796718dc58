"""Whether something grows: a line through samples, the error of its slope, and what is told from noise."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

SHARE_PER_HOUR: Final = 0.01
"""What may grow, of the mean, within an hour."""

FLOORS: Final = {"rss_kib": 2048.0, "descriptors": 20.0, "tasks": 20.0, "timers": 20.0, "connections": 15.0}
"""
What may be there more at the end than at the beginning, whatever the time: some arenas of the allocator, connections
that a pool may open, and what is under way just then. In an hour a leak of one a minute is three times that.
"""

PARENT: Final = "the parent"
_OF_THE_PARENT: Final = 5
"""How much more it may be in the process that has the proxies and the pipes of all the others."""

_HOUR_S: Final = 3600.0
_ERRORS: Final = 2.0
"""Standard errors of the slope that are taken for noise: one in forty of what does not grow looks steeper than that."""


@final
@dataclass(frozen=True, slots=True)
class Growth:
    """
    A measure over time.

    Attributes:
        process: Whose.
        measure: One of `FLOORS`.
        n: How many samples.
        mean: Their mean.
        per_hour: The slope of the least-squares line, in units an hour.
        error: The slope's standard error, in units an hour.
        span_s: From the first sample to the last one, in seconds.
    """

    process: str
    measure: str
    n: int
    mean: float
    per_hour: float
    error: float
    span_s: float

    @property
    def share_per_hour(self) -> float:
        """The slope as a share of the mean."""
        return self.per_hour / self.mean if self.mean else 0.0

    @property
    def floor(self) -> float:
        """What it may grow by without a meaning."""
        return FLOORS[self.measure] * (_OF_THE_PARENT if self.process == PARENT else 1)

    @property
    def flat(self) -> bool:
        """
        Whether it does not grow.

        It does if the line rises by more than the floor over the whole span, and by more than the allowed share once
        what may be noise is taken off its slope.
        """
        hours = self.span_s / _HOUR_S
        surely = self.per_hour - _ERRORS * self.error
        return self.per_hour * hours <= self.floor or surely <= SHARE_PER_HOUR * self.mean

    def __str__(self) -> str:
        share, error = 100 * self.share_per_hour, 100 * self.error / self.mean if self.mean else 0.0
        return f"{self.mean:.0f}, {share:+.2f} +- {error:.2f} %/h (n={self.n})"


def growth_of(process: str, measure: str, samples: Sequence[tuple[float, float]]) -> Growth:
    """
    Put a line through *samples*, by least squares.

    Args:
        process: Whose they are.
        measure: What they are of.
        samples: Seconds and value, in the order of time.
    """
    n = len(samples)
    if n < 3:
        return Growth(process, measure, n, math.nan, math.inf, 0.0, _HOUR_S)  # nothing is known: not flat
    at = [time_s / _HOUR_S for time_s, _ in samples]
    values = [value for _, value in samples]
    middle, mean = sum(at) / n, sum(values) / n
    spread = sum((each - middle) ** 2 for each in at)
    slope = sum((each - middle) * (value - mean) for each, value in zip(at, values, strict=True)) / spread
    rest = sum((value - mean - slope * (each - middle)) ** 2 for each, value in zip(at, values, strict=True))
    error = math.sqrt(rest / (n - 2) / spread)
    return Growth(process, measure, n, mean, slope, error, samples[-1][0] - samples[0][0])


def settled(samples: Sequence[tuple[float, float]], began: float, lasted_s: float) -> list[tuple[float, float]]:
    """Leave out the beginning: five minutes, or the first tenth of a shorter run."""
    from_s = began + min(300.0, lasted_s / 10)
    return [(at, value) for at, value in samples if at >= from_s]
