"""A cell: a server, and the processes that meet at it, each through a fault proxy of its own."""

import asyncio
import contextlib
import json
import math
import os
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self, final

from chaos.ledger import Ledger
from chaos.soak.pages import Pages
from chaos.soak.stalls import worst_s
from chaos.stores import Backend, backend
from tenure.testing.history import HistoryRecorder
from tenure_postgres import create_idempotency_schema_sql
from tenure_testbed import FaultProxy, NotReachedError, Replica

TTL_S: Final = 2.0
_TESTS: Final = Path(__file__).resolve().parents[2]
_START_S: Final = 90.0
_PAGE_S: Final = 60.0
_DURABLE: Final = {"appendonly": "yes", "appendfsync": "always"}
"""A Valkey that is restarted has to know what it granted: that it forgets is another scenario's."""


@final
@dataclass
class Resident:
    """
    A process of the cell, with its proxy, which its successors have after it.

    Attributes:
        seat: Its name without the number of the incarnation.
        proxy: Between it and the server.
        replica: The process.
        incarnation: How many there were in this seat.
        immortal: Whether it is left alive; what grows is measured on it.
        leaks: Whether it is the control of that.
        stopped: When it was stopped, from and to, on the monotonic clock.
        turn: Held by who hurts it: two faults at once would have one end the process that the other lets go on.
    """

    seat: str
    proxy: FaultProxy
    replica: Replica | None = None
    incarnation: int = 0
    immortal: bool = False
    leaks: bool = False
    stopped: list[tuple[float, float]] = field(default_factory=list)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def name(self) -> str:
        """Its name in histories: every incarnation has one of its own."""
        return f"{self.seat}.{self.incarnation}"

    @property
    def running(self) -> Replica:
        """The process."""
        assert self.replica is not None
        return self.replica

    async def said(self, what: str, *, after: int, within: float) -> dict[str, Any]:
        """Wait for a line of that kind."""
        pattern = rf'^\{{"what": "{what}".*\}}$'
        found = await asyncio.to_thread(self.running.wait_for_line, pattern, within, after=after)
        line: dict[str, Any] = json.loads(found.group(0))
        return line

    def last(self, what: str) -> dict[str, Any] | None:
        """The last line of that kind that it said."""
        for line in reversed(self.running.lines):
            if line.text.startswith(f'{{"what": "{what}"'):
                told: dict[str, Any] = json.loads(line.text)
                return told
        return None


@final
@dataclass
class Cell:
    """
    One store's servers and processes.

    Attributes:
        store: The store.
        directory: Of the windows.
        mortal: How many processes are killed and stopped, beside the one that is not.
        window: The window that is open.
        strays: Events that processes wrote between two windows, and `unended` calls at the end of one.
        stall_s: The longest time in this window that the machine did not run one of them.
    """

    store: str
    directory: Path
    seed: int
    mortal: int = 3
    ttl_s: float = TTL_S
    sample_s: float = 5.0
    control: bool = True
    window: int = 1
    strays: int = 0
    unended: int = 0
    stall_s: float = 0.0
    residents: list[Resident] = field(default_factory=list)
    _resources: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as starting:
            settings = {} if self.store == "postgres" else _DURABLE
            self.backend: Backend = await starting.enter_async_context(backend(self.store, **settings))
            if self.store == "postgres":
                await asyncio.to_thread(self.server.execute, create_idempotency_schema_sql())
            self.pages = Pages(self.directory, "nemesis")
            self.pages.open(self.window)
            self.recorder = HistoryRecorder(self.pages, process="nemesis")
            self.ledger = await starting.enter_async_context(Ledger(self.recorder))
            seats = ["lives", *(f"mortal-{number}" for number in range(1, self.mortal + 1))]
            for seat in seats + ["leaks"] * self.control:
                proxy = FaultProxy(("127.0.0.1", self.server.port), seed=self.seed)
                await starting.enter_async_context(proxy)
                immortal = seat in ("lives", "leaks")
                self.residents.append(Resident(seat, proxy, immortal=immortal, leaks=seat == "leaks"))
            starting.push_async_callback(self._end)
            await asyncio.gather(*map(self.start, self.residents))
            self._resources = starting.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._resources.aclose()
        self.pages.close()

    @property
    def server(self) -> Any:
        """The server."""
        return self.backend.server

    @property
    def mortals(self) -> list[Resident]:
        """Those that may be killed and stopped."""
        return [each for each in self.residents if not each.immortal]

    # ------------------------------------------------------------------------------------ processes

    async def start(self, resident: Resident) -> None:
        """Start the next incarnation, and return once it is at work."""
        resident.incarnation += 1
        command = [sys.executable, "-m", "chaos.soak.worker", "--process", resident.name]
        command += ["--histories", str(self.directory), "--window", str(self.window)]
        command += ["--url", self.backend.through(resident.proxy), "--ledger", str(self.ledger.port)]
        command += ["--ttl", str(self.ttl_s), "--sample", str(self.sample_s)]
        command += ["--seed", str(self.seed + resident.incarnation)] + ["--leak"] * resident.leaks
        env = {"PYTHONPATH": str(_TESTS)}
        resident.replica = Replica(command, name=resident.name, cwd=_TESTS, env=env, kept_lines=1000)
        self.recorder.note("started", process=resident.name, by="nemesis")
        await asyncio.to_thread(resident.replica.start)
        await resident.said("ready", after=0, within=_START_S)

    async def replace(self, resident: Resident, *, graceful: bool) -> None:
        """End a process, and start another one in its place."""
        with contextlib.suppress(NotReachedError):  # a drain that a fault holds up: then it is killed, too
            if graceful:
                await asyncio.to_thread(resident.running.terminate)
        await asyncio.to_thread(resident.running.kill)
        self.recorder.note("died", process=resident.name, by="nemesis")
        await self.start(resident)

    async def pause(self, resident: Resident) -> None:
        """SIGSTOP."""
        resident.stopped.append((time.monotonic(), math.inf))
        await asyncio.to_thread(resident.running.pause)
        self.recorder.note("paused", process=resident.name, by="nemesis")

    async def resume(self, resident: Resident) -> None:
        """SIGCONT."""
        self.recorder.note("resumed", process=resident.name, by="nemesis")
        await asyncio.to_thread(resident.running.resume)
        since, _ = resident.stopped[-1]
        resident.stopped[-1] = (since, time.monotonic())

    async def _end(self) -> None:
        async def end(resident: Resident) -> None:
            if resident.replica is not None:
                with contextlib.suppress(NotReachedError):
                    if resident.replica.running:
                        await asyncio.to_thread(resident.replica.terminate, 5.0)
                await asyncio.to_thread(resident.replica.close)

        await asyncio.gather(*map(end, self.residents))

    # -------------------------------------------------------------------------------------- windows

    async def end_window(self) -> Path:
        """Have everybody give back what it has and end its page; returns where the histories are."""
        ended = await asyncio.gather(*(self._told(each, "paged") for each in self.residents))
        for resident, told in zip(self.residents, ended, strict=True):
            self.strays += told["strays"]
            self.unended += told["open"]
            self.stall_s = max(self.stall_s, worst_s(told["stalls"], resident.stopped))
            resident.stopped.clear()
        self.pages.close()
        return self.directory / f"window-{self.window:04}"

    async def begin_window(self) -> None:
        """Begin the next window, once every lease has ended that nobody could give back."""
        await asyncio.sleep(1.25 * self.ttl_s)
        self.window += 1
        self.stall_s = 0.0
        self.pages.open(self.window)
        await asyncio.gather(*(self._told(each, "turned") for each in self.residents))

    async def _told(self, resident: Resident, what: str) -> dict[str, Any]:
        mark = resident.running.mark
        os.kill(resident.running.pid, signal.SIGUSR1)
        return await resident.said(what, after=mark, within=_PAGE_S)

    # -------------------------------------------------------------------------------------- samples

    def sample(self, resident: Resident) -> dict[str, float]:
        """Measure a process: from outside, by what it said of itself, and at its proxy."""
        told = resident.last("sample") or {}
        return measured(resident.running.pid) | {
            "tasks": told.get("tasks", 0),
            "timers": told.get("timers", 0),
            "connections": resident.proxy.counters.open,
        }


def measured(pid: int) -> dict[str, float]:
    """The memory and the descriptors of a process."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    (resident,) = [line.split()[1] for line in status.splitlines() if line.startswith("VmRSS:")]
    return {"rss_kib": float(resident), "descriptors": float(sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir()))}
