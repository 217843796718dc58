"""The command: one seed's trace, a batch, a night, or the planted bugs."""

import argparse
import itertools
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from simulation.batch import Batch, run_batch
from simulation.observers.situations import SITUATIONS
from simulation.planted import PLANTED, Catch, catch_all
from simulation.world import run_seed

__all__ = ["REGRESSIONS", "main", "regression_seeds"]

_CHUNK: Final = 1000

REGRESSIONS: Final = Path(__file__).with_name("regression_seeds.txt")
"""Seeds that found something once, each with what it was: they run before any other."""


def regression_seeds() -> dict[int, str]:
    """Read the kept seeds, and why each is kept."""
    lines = [line.partition("#") for line in REGRESSIONS.read_text().splitlines()]
    return {int(seed): reason.strip() for seed, _, reason in lines if seed.strip()}


def main(argv: Sequence[str]) -> int:
    """Run the command; returns its exit code."""
    options = _parse(argv)
    if options.planted:
        return _run_planted(options.seeds or 100, options.workers)
    if options.seed is not None:
        return _trace(options.seed)
    return _run_batch(options.seeds or 2000, options.start, options.workers, options.minutes)


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m simulation", description="Simulate tenure, one seed a run.")
    parser.add_argument("--seed", type=int, help="run this seed, and print its trace and the trace's hash")
    parser.add_argument("--seeds", type=int, help="run so many seeds (2000; with --planted, 100)")
    parser.add_argument("--from", type=int, default=0, dest="start", help="the first seed (0)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes to spread the seeds over")
    parser.add_argument("--minutes", type=float, help="go on with further seeds for so long")
    parser.add_argument("--planted", action="store_true", help="run every planted bug, and print where it is caught")
    return parser.parse_args(argv)


def _trace(seed: int) -> int:
    outcome = run_seed(seed)
    for at, who, what in outcome.journal.lines:
        print(f"{at:12.6f}  {who:8}  {what}")
    print(f"\nseed {seed}: {outcome.virtual_s:.1f} virtual s, {len(outcome.journal.lines)} lines")
    print(f"hash {outcome.journal.hash()}")
    for violation in outcome.violations:
        print(f"VIOLATION {violation}")
    return 0 if outcome.ok else 1


def _run_batch(seeds: int, start: int, workers: int, minutes: float | None) -> int:
    kept = [range(seed, seed + 1) for seed in regression_seeds()]
    if minutes is None:
        batch = run_batch([*kept, range(start, start + seeds)], workers=workers)
    else:
        end = time.monotonic() + minutes * 60
        more: Iterable[range] = (range(at, at + _CHUNK) for at in itertools.count(start, _CHUNK))
        batch = run_batch(itertools.chain(kept, more), workers=workers, until=lambda: time.monotonic() >= end)
    _print_batch(batch)
    return 0 if batch.ok else 1


def _print_batch(batch: Batch) -> None:
    rate = batch.seeds / batch.real_s
    print(
        f"{batch.seeds} seeds in {batch.real_s:.1f} s: {rate:.1f} seeds/s, {batch.virtual_s / 3600:.1f} virtual hours"
    )
    print(f"{batch.virtual_s / batch.real_s:.0f} times as fast as the time that it simulates\n")
    print("faults that met somebody")
    for fault, count in sorted(batch.fired.items()):
        print(f"{count:9}  {fault}")
    print("\nsituations")
    for situation in [*SITUATIONS, *sorted(set(batch.seen) - set(SITUATIONS))]:
        print(f"{batch.seen[situation]:9}  {situation}")
    for missing in batch.never_seen:
        print(f"\nNEVER SEEN: {missing}")
    for seed, violations in batch.failing.items():
        print(f"\nFAILED: python -m simulation --seed {seed}")
        for violation in violations[:3]:
            print(f"  {violation}")
    if not batch.failing:
        print(f"\nno rule was broken in {batch.seeds} seeds (so in fewer than {3 / batch.seeds:.2%} of all, at 95 %)")


def _run_planted(seeds: int, workers: int) -> int:
    missed = 0
    for planted, caught in zip(PLANTED, catch_all(seeds, workers), strict=True):
        first = caught.caught[0] if caught.caught else None
        in_time = first is not None and first < planted.within
        missed += not in_time
        print(
            f"{len(caught.caught):4} of {caught.seeds}  first {_shown(first):>5}  {planted.name}  ({_rules(caught)})",
            flush=True,
        )
        if not in_time:
            print(f"      NOT CAUGHT within {planted.within} seeds")
    print(f"\n{len(PLANTED) - missed} of {len(PLANTED)} planted bugs caught in time")
    return 1 if missed else 0


def _shown(first: int | None) -> str:
    return "never" if first is None else str(first)


def _rules(caught: Catch) -> str:
    return ", ".join(f"{rule} {count}" for rule, count in sorted(caught.rules.items(), key=lambda one: -one[1]))
