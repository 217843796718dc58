"""The figures of a block of load, and how two kinds of blocks compare."""

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from cat_store_load.answers import IN_FLIGHT, Answer, Kind

__all__ = ["BlockFigures", "Times", "compare_p95", "cpu_seconds", "figures_of", "middle", "percentile"]

_STAT_UTIME: Final = 11
"""The place of the user time in /proc/<pid>/stat, counted from behind the name; the system time follows it."""


@dataclass(frozen=True, slots=True)
class Times:
    """
    How long some requests took.

    Attributes:
        requests: How many there were.
        p50_ms: Half of them took at most so long, in milliseconds; 0 where there were none.
        p95_ms: 95 of a hundred did.
        p99_ms: 99 of a hundred did.
    """

    requests: int
    p50_ms: float
    p95_ms: float
    p99_ms: float

    @classmethod
    def of(cls, answers: Iterable[Answer]) -> "Times":
        """Look at some answers."""
        took = sorted(answer.took_ms for answer in answers)
        return cls(len(took), percentile(took, 50), percentile(took, 95), percentile(took, 99))


@dataclass(frozen=True, slots=True)
class BlockFigures:
    """
    One block of load.

    Attributes:
        block: Its name.
        keys: Whether orders had a key.
        seconds: How long users began new things.
        orders: The first requests of orders that were placed: what a customer waits for.
        storms: The requests of storms, whatever the answer.
        reads: The reading requests.
        exports: The exports by hand.
        requests: All of them.
        failed: Those without an answer, or with one of 5xx; hasty clients' own time-outs are among them.
        in_flight: Those that were told that the first request is under way.
        replays: Answers that were given once more.
        cpu_ms: Processor time of the replicas a request, in milliseconds; None where the system does not tell.
    """

    block: str
    keys: bool
    seconds: int
    orders: Times
    storms: Times
    reads: Times
    exports: Times
    requests: int
    failed: int
    in_flight: int
    replays: int
    cpu_ms: float | None


def percentile(ordered: Sequence[float], share: int) -> float:
    """
    Give the smallest of some values which as many of a hundred of them do not exceed; 0 of none.

    Args:
        ordered: The values, in ascending order.
        share: How many of a hundred, 1 to 100.
    """
    if not ordered:
        return 0.0
    return ordered[math.ceil(len(ordered) * share / 100) - 1]


def figures_of(
    block: str, answers: Sequence[Answer], *, keys: bool, seconds: int, cpu_s: float | None = None
) -> BlockFigures:
    """
    Work the figures of a block out.

    Args:
        block: Its name.
        answers: What was heard in it.
        keys: Whether orders had a key.
        seconds: How long users began new things.
        cpu_s: The processor time of the replicas in it, in seconds.
    """
    return BlockFigures(
        block=block,
        keys=keys,
        seconds=seconds,
        orders=Times.of(answer for answer in answers if answer.kind == Kind.ORDER and answer.placed),
        storms=Times.of(answer for answer in answers if answer.kind == Kind.STORM),
        reads=Times.of(answer for answer in answers if answer.kind == Kind.READ),
        exports=Times.of(answer for answer in answers if answer.kind == Kind.EXPORT),
        requests=len(answers),
        failed=sum(answer.failed for answer in answers),
        in_flight=sum(answer.code == IN_FLIGHT for answer in answers),
        replays=sum(answer.replayed for answer in answers),
        cpu_ms=None if cpu_s is None or not answers else cpu_s * 1000 / len(answers),
    )


def compare_p95(pairs: Iterable[tuple[BlockFigures, BlockFigures]]) -> list[float]:
    """
    Give what each pair of neighbouring blocks says of the cost of keys: the p95 of orders with, over that without.

    In ascending order, so that the middle one is the median. A pair without orders says nothing, and is left out.
    """
    return sorted(
        with_keys.orders.p95_ms / without.orders.p95_ms
        for without, with_keys in pairs
        if without.orders.p95_ms and with_keys.orders.p95_ms
    )


def cpu_seconds(pids: Iterable[int]) -> float | None:
    """Tell how much processor time some processes have had, in seconds; None where the system does not tell."""
    total = 0.0
    for pid in pids:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
        except OSError:
            return None
        fields = stat.rpartition(")")[2].split()
        total += sum(map(int, fields[_STAT_UTIME : _STAT_UTIME + 2])) / os.sysconf("SC_CLK_TCK")
    return total


def middle(ratios: Sequence[float]) -> float | None:
    """Give the median of some ratios; None of none."""
    return median(ratios) if ratios else None
