"""Figures out of samples. Used in the contenders' processes as well: standard library only."""

import statistics
from collections.abc import Iterable, Mapping, Sequence

__all__ = ["jain", "median", "quantile", "ratio_of_least", "ratio_within_rounds", "spread"]


def median(values: Iterable[float]) -> float | None:
    """The median, or None of nothing."""
    found = list(values)
    return statistics.median(found) if found else None


def quantile(ordered: Sequence[float], share: float) -> float:
    """
    The sample below which *share* of the ordered samples lie: a sample, never a mean of two.

    Raises:
        ValueError: There are no samples.
    """
    if not ordered:
        raise ValueError("There are no samples to take a quantile of.")
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def jain(turns: Sequence[float]) -> float:
    """
    Jain's index of fairness: 1 where all had as many turns, 1/n where one had all of them.

    Raises:
        ValueError: There is nobody.
    """
    if not turns:
        raise ValueError("Nobody took part, so there is no fairness to tell.")
    total = sum(turns)
    if total == 0:
        return 1.0
    return total**2 / (len(turns) * sum(one**2 for one in turns))


def ratio_within_rounds(above: Mapping[int, float], below: Mapping[int, float]) -> float | None:
    """
    The median over rounds of the ratio within a round, so that slow minutes cancel.

    Args:
        above: What is compared, by round.
        below: What it is compared with, by round.

    Returns:
        None where no round has both.
    """
    return median(above[number] / below[number] for number in sorted(above) if below.get(number))


def ratio_of_least(above: Mapping[int, float], below: Mapping[int, float]) -> float | None:
    """
    The ratio of the least of each: for CPU time, to which a disturbance only ever adds.

    Args:
        above: What is compared, by round.
        below: What it is compared with, by round.

    Returns:
        None where one of them has no round, or took nothing.
    """
    least = min(below.values(), default=0.0)
    return min(above.values()) / least if above and least > 0 else None


def spread(values: Iterable[float]) -> float | None:
    """How far the rounds lie apart: greatest less smallest, as a share of the median; None for fewer than two."""
    found = list(values)
    middle = median(found)
    if len(found) < 2 or not middle:
        return None
    return (max(found) - min(found)) / middle
