"""What a scenario is, where they are registered, and what one run of it is given."""

import contextlib
import json
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from chaos.outcome import STALLS, Control, Limit, Outcome, Times, Zero
from chaos.stall import StallMeter
from tenure.testing.history import HistoryRecorder, HistoryReport, check_history

Body = Callable[["Run"], Awaitable[None]]

_NEMESIS = "nemesis"

_LAG_S = 0.25
"""How late the event loop of a process may be by itself, in seconds, beside the machine's stalls as measured here."""

RETRY_S = 1.0
"""The longest pause of a waiter between two tries, in seconds; a third of the ttl where that is less."""


@final
@dataclass(frozen=True, slots=True)
class Scenario:
    """
    A fault, how often it is repeated, and on which stores.

    Attributes:
        id: Its number, "C1" to "C29".
        title: The fault, in a few words.
        claims: The rules of the history that it puts to the test, such as "H1 H2 H6".
        stores: The stores, by the names of `chaos.stores.STORES`, or what the scenario itself calls its topologies.
        quick: How often the fault is repeated in a short run, and `full` in a whole one.
        quick_stores: The stores of a short run; the others run in a whole one.
        body: What it does.
        docker: Whether it needs a container engine.
    """

    id: str
    title: str
    claims: str
    stores: tuple[str, ...]
    quick: int
    full: int
    quick_stores: tuple[str, ...]
    body: Body
    docker: bool = False


SCENARIOS: list[Scenario] = []


def scenario(
    id: str,  # noqa: A002 -- what everybody calls it
    title: str,
    *,
    claims: str,
    stores: Sequence[str],
    quick: int,
    full: int,
    quick_stores: Sequence[str] | None = None,
    docker: bool = False,
) -> Callable[[Body], Body]:
    """Register the decorated function as a scenario."""

    def register(body: Body) -> Body:
        short = tuple(stores if quick_stores is None else quick_stores)
        SCENARIOS.append(Scenario(id, title, claims, tuple(stores), quick, full, short, body, docker))
        return body

    return register


@final
class Run:
    """
    One run of a scenario on one store: how often, where to write, and where to say what was found.

    Attributes:
        store: The store's name.
        n: How often to repeat the fault.
        full: Whether this is a whole run.
        directory: For its histories and whatever else it writes; emptied by nobody, so that a failure can be read.
        recorder: Writes what the nemesis does: `run`, `phase`, `fault`, `healed`, `paused`, `died`, and the writes
            that a ledger took.
        outcome: What it found so far.
    """

    def __init__(self, found: Scenario, store: str, *, full: bool, directory: Path, n: int | None = None) -> None:
        self.store = store
        self.full = full
        self.n = n or (found.full if full else found.quick)
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self.recorder = HistoryRecorder(self.history_file(_NEMESIS), process=_NEMESIS)
        self.outcome = Outcome(found.id, found.title, store, self.n)
        self.meter = StallMeter()

    def history_file(self, process: str) -> Path:
        """Name the history of *process*; the same name goes on in the same file after a restart."""
        return self.directory / f"{process}.jsonl"

    # ------------------------------------------------------------------------------- what was found

    def figure(self, name: str, value: Any) -> None:
        """Report a number."""
        self.outcome.figures[name] = value

    def times(self, name: str, sample: Sequence[float]) -> Times:
        """Report a sample of durations, in seconds."""
        times = Times.of(sample)
        self.outcome.figures[name] = times
        return times

    def zero(self, what: str, count: int, *, of: int) -> None:
        """Claim that *what* happened in none of so many trials. No trial is a failure, too."""
        self.outcome.zeros.append(Zero(what, count, of))

    def within(self, what: str, value_s: float, limit_s: float) -> None:
        """Claim that a duration stayed within a limit, but for the machine's stalls as measured in this run."""
        self.outcome.limits.append(Limit(what, value_s, limit_s, self.meter.worst_s))

    def control(self, what: str, *, failed: int, of: int) -> None:
        """Report a control, which had to fail at least once."""
        self.outcome.controls.append(Control(what, failed, of))

    def expect(self, condition: bool, otherwise: str) -> None:
        """Report *otherwise* as broken unless *condition* holds; the scenario goes on."""
        if not condition:
            self.outcome.broken.append(otherwise)

    def promise(
        self, *, ttl_s: float, call_s: float | None = None, recorder: HistoryRecorder | None = None, **more: Any
    ) -> None:
        """
        Write down what is promised from here on, for the check of the history.

        Args:
            ttl_s: How long a lease lives, in seconds.
            call_s: How long a caller waits for a call, in seconds; None for the library's own limit, which is the ttl.
            recorder: Who writes it; None for the nemesis.
            more: Fields of the `run` event that are not as usual: `overlap_s`, where two may believe for a while;
                `stall_s`, where the fault itself keeps a process from running; `at`; `topology`.
        """
        usual = {
            "topology": self.store,
            "ttl_s": ttl_s,
            "retry_s": min(RETRY_S, ttl_s / 3),
            "call_timeout_s": (call_s or ttl_s) + _goodbye_s(self.store),
        }
        (recorder or self.recorder).note("run", **{**usual, **more})

    @contextlib.contextmanager
    def apart(self, name: str) -> Iterator["Run"]:
        """Give a control, or a process with another clock, a run whose histories are not checked with the others."""
        found = next(one for one in SCENARIOS if one.id == self.outcome.scenario)
        other = Run(found, self.store, full=self.full, directory=self.directory / name, n=self.n)
        try:
            yield other
        finally:
            other.recorder.close()

    def check_history(self) -> HistoryReport:
        """Check the histories of all processes, merged; what is broken goes into the outcome."""
        self._allow_for_stalls()
        report = check_history(sorted(self.directory.glob("*.jsonl")))
        self.outcome.history = dict(report.counts) | dict(report.figures)
        self.outcome.broken += [f"{found.rule} {found.text}" for found in report.violations[:5]]
        problems = [problem for assumption in report.assumptions for problem in assumption.problems]
        self.outcome.broken += [f"The history proves nothing: {problem}" for problem in problems[:5]]
        return report

    def _allow_for_stalls(self) -> None:
        """Put the stalls that were measured into the `run` events: when they were written, the run had not been yet."""
        path = self.history_file(_NEMESIS)
        events = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        for event in events:
            if event["what"] == "run":
                event["stall_s"] = max(event.get("stall_s", 0.0), _LAG_S + STALLS * self.meter.worst_s)
        path.write_text("".join(json.dumps(event) + "\n" for event in events), encoding="utf-8")


def _goodbye_s(store: str) -> float:
    """
    Say how long a recorded call may go on behind a caller that was told that its time is up, in seconds.

    PostgreSQL's driver closes the connection, for half a second at most. glide goes on until its own time-out of two.
    """
    if store.startswith("postgres"):
        return 0.5
    return 0.0 if store.endswith("redis") else 2.0


async def carry_out(found: Scenario, run: Run) -> Outcome:
    """Run *found* and return its outcome; an exception is an outcome, too."""
    started = time.monotonic()
    with run.meter:
        try:
            await found.body(run)
        except Exception as error:  # noqa: BLE001 -- the other scenarios still have their turn
            run.outcome.broken.append(f"{type(error).__name__}: {error}")
    run.outcome.seconds = time.monotonic() - started
    run.outcome.stall_s = run.meter.worst_s
    run.recorder.close()
    return run.outcome
