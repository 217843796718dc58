"""
Bugs planted in the engine and in the store, which the simulation must find.

Each is one that a released library had, or that a change could bring back. A seed's run without the bug is right, so
what is found under it is the bug's.
"""

import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, final
from unittest import mock

from simulation.planted.engine import ENGINE_BUGS
from simulation.planted.store import STORE_BUGS
from simulation.world import run_seed

__all__ = ["PLANTED", "Catch", "Planted", "catch", "catch_all"]

Patch = Callable[[Callable[..., None]], None]


@final
@dataclass(frozen=True, slots=True)
class Planted:
    """
    A planted bug.

    Attributes:
        name: What is wrong.
        plant: Replaces what it takes, through the function that it is given.
        within: By which seed, counted from 0, it must have been caught.
        hint: A seed that caught it when it was last looked: tried first.
    """

    name: str
    plant: Patch
    within: int
    hint: int

    def seeds(self) -> Iterator[int]:
        """Go through the seeds in which it must be caught, the likeliest first."""
        yield self.hint
        yield from (seed for seed in range(self.within) if seed != self.hint)


PLANTED: Final[Sequence[Planted]] = [
    Planted(plant.__name__.replace("_", " "), plant, within, hint)
    for plant, within, hint in (*ENGINE_BUGS, *STORE_BUGS)
]


@final
@dataclass(slots=True)
class Catch:
    """
    How a planted bug fared.

    Attributes:
        name: Its name.
        seeds: How many were run.
        caught: Those in which it was caught.
        rules: The rules that it broke first, in each.
    """

    name: str
    seeds: int = 0
    caught: list[int] = field(default_factory=list)
    rules: dict[str, int] = field(default_factory=dict)


def catch(planted: Planted, seeds: Iterable[int], *, once: bool = False) -> Catch:
    """Run *seeds* with the bug; with *once*, until it is caught."""
    found = Catch(planted.name)
    with ExitStack() as stack:

        def patch(target: Any, name: str, value: Any) -> None:
            stack.enter_context(mock.patch.object(target, name, value))

        planted.plant(patch)
        for seed in seeds:
            found.seeds += 1
            new = run_seed(seed).violations
            if new:
                found.caught.append(seed)
                found.rules[new[0].rule] = found.rules.get(new[0].rule, 0) + 1
                if once:
                    break
    return found


def catch_all(seeds: int, workers: int) -> Iterator[Catch]:
    """Run every planted bug over *seeds* seeds, in the order of the table."""
    one = partial(_catch_number, seeds)
    if workers == 1:
        yield from map(one, range(len(PLANTED)))
        return
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        yield from pool.imap(one, range(len(PLANTED)))


def _catch_number(seeds: int, number: int) -> Catch:
    return catch(PLANTED[number], range(seeds))
