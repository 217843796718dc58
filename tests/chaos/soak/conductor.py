"""Goes through the windows of a cell: strikes, samples, has the histories checked, and says what was found."""

import asyncio
import json
import os
import random
import shutil
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, final

from chaos.outcome import STALLS, Control, Outcome, Zero
from chaos.soak.cell import Cell, Resident, measured
from chaos.soak.faults import KINDS, ON_A_SERVER
from chaos.soak.growth import PARENT, Growth, growth_of, settled
from chaos.stall import StallMeter
from tenure.testing.history import HistoryRecorder

TITLE: Final = "soak: mixed faults at random (H1 to H10)"

_TESTS: Final = Path(__file__).resolve().parents[2]
_CHECK_S: Final = 300.0
_SHOWN: Final = 5
_GOODBYE_S: Final = 2.0
"""
How long a connection to a server that is silent may take to close behind a call that was given up. The caller has been
told by then; the recorded call ends with it.
"""

_TWO_AT_ONCE: Final = 0.3
"""How often two faults are done at the same time."""


@final
@dataclass(frozen=True, slots=True)
class Plan:
    """
    How long, and how much of it.

    Attributes:
        lasts_s: The whole run, in seconds.
        window_s: A window.
        pause_s: Between two faults, from and to.
        sample_s: Between two samples.
        seed: What the faults are drawn from.
    """

    lasts_s: float
    window_s: float
    pause_s: tuple[float, float]
    sample_s: float
    seed: int


@final
@dataclass
class Conductor:
    """
    Conducts one cell.

    Attributes:
        fired: How often each kind of fault was done.
        counts: What the histories of all windows held.
        broken: What was wrong with them.
    """

    cell: Cell
    plan: Plan
    fired: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    figures: dict[str, float] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)
    tokens: dict[str, int] = field(default_factory=dict)
    violations: int = 0
    repeated: int = 0
    windows: int = 0
    stall_s: float = 0.0
    samples: dict[tuple[str, str], list[tuple[float, float]]] = field(default_factory=dict)
    _bag: list[str] = field(default_factory=list)
    _checks: list[asyncio.Task[None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._chance = random.Random(f"{self.plan.seed} {self.cell.store}")

    async def run(self) -> None:
        """Go through the windows."""
        self._began = time.monotonic()
        sampling = asyncio.create_task(self._sample())
        try:
            while True:
                left_s = max(self._began + self.plan.lasts_s - time.monotonic(), self.plan.window_s / 4)
                with StallMeter() as meter:
                    began = time.monotonic()
                    await self._window(min(self.plan.window_s, left_s))
                    directory = await self.cell.end_window()
                self._note_run(directory, began, max(meter.worst_s, self.cell.stall_s))
                self._checks.append(asyncio.create_task(self._check(directory)))
                if self._is_over():
                    break
                await self.cell.begin_window()
        finally:
            sampling.cancel()
            await asyncio.gather(sampling, *self._checks, return_exceptions=True)
        for check in self._checks:
            check.result()

    def _is_over(self) -> bool:
        """Whether the time is over, and every kind of fault has come; it is over for good after twice the time."""
        spent_s = time.monotonic() - self._began
        missing = KINDS[self.cell.store].keys() - self.fired.keys()
        return spent_s > self.plan.lasts_s - self.plan.window_s / 4 and (not missing or spent_s > 2 * self.plan.lasts_s)

    async def _window(self, lasts_s: float) -> None:
        ends = time.monotonic() + lasts_s
        while True:
            await asyncio.sleep(self._chance.uniform(*self.plan.pause_s))
            if time.monotonic() >= ends:
                return
            kinds = [self._draw()]
            if self._chance.random() < _TWO_AT_ONCE:
                kinds.append(self._draw())
            if ON_A_SERVER.issuperset(kinds):
                for kind in kinds:
                    await self._strike(kind)
            else:
                await asyncio.gather(*map(self._strike, kinds))

    def _draw(self) -> str:
        """Draw a kind: each comes once before any comes again."""
        if not self._bag:
            self._bag = list(KINDS[self.cell.store])
            self._chance.shuffle(self._bag)
        return self._bag.pop()

    async def _strike(self, kind: str) -> None:
        self.fired[kind] += 1
        name = f"{kind} {self.fired[kind]}"
        self.cell.recorder.note("fault", fault=name, kind=kind)
        try:
            await KINDS[self.cell.store][kind](self.cell, self._chance)
        finally:
            self.cell.recorder.note("healed", fault=name, kind=kind)

    # -------------------------------------------------------------------------------------- histories

    def _note_run(self, directory: Path, began: float, stall_s: float) -> None:
        """Say what was promised in a window; how much of it the machine took is known at its end."""
        self.stall_s = max(self.stall_s, stall_s)
        with HistoryRecorder(directory / "conductor.jsonl", process="conductor") as conductor:
            conductor.note(
                "run",
                at=began - self.cell.ttl_s,
                topology=self.cell.store,
                ttl_s=self.cell.ttl_s,
                retry_s=1.0,
                call_timeout_s=self.cell.ttl_s / 3 + _GOODBYE_S,
                margin=0.01,
                stall_s=STALLS * stall_s,
                overlap_s=0.0,
                takeover_s=None,
            )

    async def _check(self, directory: Path) -> None:
        """Have a window checked by another process, and throw the histories away if nothing is broken."""
        command = [sys.executable, "-m", "chaos.soak.window", str(directory)]
        process = await asyncio.create_subprocess_exec(*command, cwd=_TESTS, stdout=asyncio.subprocess.PIPE)
        try:
            async with asyncio.timeout(_CHECK_S):
                told, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            self.broken.append(f"the check of {directory.name} ended with {process.returncode}")
            return
        self.take(json.loads(told), directory.name)
        if not self.broken:
            await asyncio.to_thread(shutil.rmtree, directory)

    def take(self, found: dict[str, Any], window: str) -> None:
        """Add up what a window's check found; the windows are taken in their order."""
        self.windows += 1
        self.counts.update(found["counts"])
        for name, value in found["figures"].items():
            self.figures[name] = max(self.figures.get(name, 0.0), value)
        self.violations += len(found["violations"])
        self.broken += [f"{window}: {text}" for text in found["violations"][:_SHOWN]]
        self.broken += [f"{window}: the history proves nothing: {text}" for text in found["problems"]]
        for key, (first, last) in found["tokens"].items():
            self.repeated += first <= self.tokens.get(key, 0)
            self.tokens[key] = max(last, self.tokens.get(key, 0))

    # ---------------------------------------------------------------------------------------- samples

    async def _sample(self) -> None:
        while True:
            await asyncio.sleep(self.plan.sample_s)
            at = time.monotonic()
            for resident in self.cell.residents:
                if resident.immortal:
                    self._note_sample(resident, at)
            own = measured(os.getpid()) | {"tasks": float(len(asyncio.all_tasks()))}
            for measure, value in own.items():
                self.samples.setdefault((PARENT, measure), []).append((at, value))

    def _note_sample(self, resident: Resident, at: float) -> None:
        for measure, value in self.cell.sample(resident).items():
            self.samples.setdefault((resident.seat, measure), []).append((at, value))

    def growths(self) -> list[Growth]:
        """What became of every measure, after the beginning."""
        return [
            growth_of(process, measure, settled(samples, self._began, self.plan.lasts_s))
            for (process, measure), samples in self.samples.items()
        ]

    # ---------------------------------------------------------------------------------------- outcome

    def outcome(self) -> Outcome:
        """Say what was found."""
        found = Outcome("C29", TITLE, self.cell.store, sum(self.fired.values()))
        found.seconds = time.monotonic() - self._began
        found.stall_s = self.stall_s
        found.history = dict(self.counts) | self.figures
        found.broken = self.broken[:20]
        figures: dict[str, Any] = {
            "windows": self.windows,
            "events": self.counts["events"],
            "grants": self.counts["grants"],
            "effects": self.counts["effects committed"],
            "deaths": self.counts["deaths"],
            "seed": self.plan.seed,
        }
        figures |= {f"fault {kind}": count for kind, count in sorted(self.fired.items())}
        growths = self.growths()
        found.figures = figures | {f"{one.process} {one.measure}": str(one) for one in growths}
        living = [one for one in growths if one.process != "leaks"]
        leaking = [one for one in growths if one.process == "leaks" and one.measure != "connections"]
        grown = [one for one in living if not one.flat]
        found.broken += [f"grows: {one.process} {one.measure} {one}" for one in grown]
        kinds = KINDS[self.cell.store]
        found.zeros = [
            Zero("violations of the history", self.violations, self.counts["events"]),
            Zero("keys whose tokens went back from a window to the next", self.repeated, len(self.tokens)),
            Zero("events written between two windows", self.cell.strays, self.counts["events"]),
            Zero("calls that did not end with a window", self.cell.unended, self.counts["calls"]),
            Zero("kinds of fault that never came", sum(kind not in self.fired for kind in kinds), len(kinds)),
            Zero("measures that grow", len(grown), len(living)),
        ]
        if leaking:
            grow = sum(not one.flat for one in leaking)
            found.controls = [Control("of a process that leaks, measures that are flat", grow, len(leaking))]
        return found
