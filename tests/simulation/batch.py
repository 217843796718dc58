"""Many seeds, over several processes, and what they came to."""

import multiprocessing
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, final

from simulation.journal import Violation
from simulation.observers.situations import ENOUGH_SEEDS, never_seen
from simulation.world import run_seed

__all__ = ["Batch", "run_batch"]

_CHUNK: Final = 25
"""Seeds that a process is handed at a time."""


@final
@dataclass(slots=True)
class Batch:
    """
    What a batch came to.

    Attributes:
        seeds: How many ran.
        virtual_s: Virtual seconds, over all of them.
        real_s: Real seconds that it took.
        fired: How often each fault met somebody.
        seen: How often each situation came up.
        failing: The seeds that broke a rule, and how, in the order of the seeds.
    """

    seeds: int = 0
    virtual_s: float = 0.0
    real_s: float = 0.0
    fired: Counter[str] = field(default_factory=Counter)
    seen: Counter[str] = field(default_factory=Counter)
    failing: dict[int, list[Violation]] = field(default_factory=dict)

    @property
    def never_seen(self) -> list[str]:
        """What never came up, and should have among so many seeds."""
        return never_seen(self.fired, self.seen) if self.seeds >= ENOUGH_SEEDS else []

    @property
    def ok(self) -> bool:
        """Whether nothing was broken, and everything came up."""
        return not self.failing and not self.never_seen

    def add(self, other: "Batch") -> None:
        """Add what another batch came to."""
        self.seeds += other.seeds
        self.virtual_s += other.virtual_s
        self.fired += other.fired
        self.seen += other.seen
        self.failing.update(other.failing)


def _run(seeds: range) -> Batch:
    batch = Batch()
    for seed in seeds:
        outcome = run_seed(seed)
        batch.seeds += 1
        batch.virtual_s += outcome.virtual_s
        batch.fired += outcome.fired
        batch.seen += outcome.journal.seen
        if not outcome.ok:
            batch.failing[seed] = list(outcome.violations)
    return batch


def run_batch(seeds: Iterable[range], *, workers: int = 1, until: Callable[[], bool] = lambda: False) -> Batch:
    """
    Run batches of seeds.

    Args:
        seeds: Ranges of seeds, which may go on for ever.
        workers: How many processes.
        until: Asked after each chunk, whether it is enough.
    """
    total, began = Batch(), time.monotonic()
    chunks = (seeds_of[at : at + _CHUNK] for seeds_of in seeds for at in range(0, len(seeds_of), _CHUNK))
    with _spread(chunks, workers) as results:
        for batch in results:
            total.add(batch)
            if until():
                break
    total.real_s = time.monotonic() - began
    total.failing = dict(sorted(total.failing.items()))
    return total


@contextmanager
def _spread(chunks: Iterator[range], workers: int) -> Iterator[Iterator[Batch]]:
    if workers == 1:
        yield map(_run, chunks)
        return
    # Started afresh: a process that was forked would inherit whatever the parent had running.
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        yield pool.imap_unordered(_run, chunks)
