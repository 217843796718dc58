"""Running cases, each in a process of its own: one that hangs is ended, and several run side by side."""

import asyncio
import multiprocessing
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import final

from chaos.outcome import Outcome
from chaos.peers import hush_glide
from chaos.scenario import Run, carry_out
from chaos.scenarios import SCENARIOS

LIMIT_S = 1500.0
"""After so long a case is taken for one that hangs: twice what the longest of a full run takes."""


@final
@dataclass(frozen=True, slots=True)
class Case:
    """
    A scenario on a store.

    Attributes:
        scenario: Its number.
        store: The store.
        full: Whether it is a whole run.
        n: How often to repeat the fault; None for as often as the scenario says.
        directory: Where its histories go.
    """

    scenario: str
    store: str
    full: bool
    n: int | None
    directory: Path

    def carry_out(self) -> Outcome:
        """Run it here."""
        found = next(one for one in SCENARIOS if one.id == self.scenario)
        hush_glide()
        # What an earlier run left there would be taken for this one's.
        shutil.rmtree(self.directory, ignore_errors=True)
        run = Run(found, self.store, full=self.full, directory=self.directory, n=self.n)
        return asyncio.run(carry_out(found, run))

    def failed(self, why: str) -> Outcome:
        """Say that it came to no end."""
        found = next(one for one in SCENARIOS if one.id == self.scenario)
        return Outcome(found.id, found.title, self.store, 0, broken=[why])


def run_all(cases: Sequence[Case], *, jobs: int) -> Iterator[Outcome]:
    """
    Run *cases*, so many side by side, and give each outcome as it comes.

    Most of a case is waiting for a ttl to pass, so two or three on two cores do not disturb each other much; what they
    do take from each other, each case measures (`chaos.stall`).
    """
    spawn = multiprocessing.get_context("spawn")
    waiting = list(cases)
    running: dict[Connection, tuple[Case, SpawnProcess, float]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                case = waiting.pop(0)
                ours, theirs = spawn.Pipe(duplex=False)
                process = spawn.Process(target=_send, args=(case, theirs), name=f"{case.scenario}-{case.store}")
                process.start()
                theirs.close()
                running[ours] = (case, process, time.monotonic() + LIMIT_S)
            for ours in _ready(running):
                case, process, until = running.pop(ours)
                yield _outcome(case, ours, hung=time.monotonic() >= until)
                process.kill()
                process.join()
    finally:
        for _, process, _ in running.values():
            process.kill()


def _ready(running: dict[Connection, tuple[Case, SpawnProcess, float]]) -> list[Connection]:
    first = min(until for _, _, until in running.values())
    ready = wait(list(running), timeout=max(0.0, first - time.monotonic()))
    overdue = [ours for ours, (_, _, until) in running.items() if time.monotonic() >= until]
    return [ours for ours in running if ours in ready or ours in overdue]


def _outcome(case: Case, ours: Connection, *, hung: bool) -> Outcome:
    with ours:
        if hung and not ours.poll():
            return case.failed(f"It had not ended after {LIMIT_S:g} s.")
        try:
            outcome: Outcome = ours.recv()
        except EOFError:
            return case.failed("Its process ended without an outcome.")
        return outcome


def _send(case: Case, theirs: Connection) -> None:
    with theirs:
        theirs.send(case.carry_out())
