"""Contenders in two processes: who has how many turns, and what it costs when one of the processes stops or dies."""

import asyncio
import itertools
import json
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tenure.store import Acquired, Held
from tenure_testbed import ValkeyCluster, ValkeyServer
from tenure_valkey import ValkeyLockStore

PROGRAM = Path(__file__).with_name("queue_contender.py")
START_S = 30.0


class Contenders:
    """One process of contenders, and the sections that it has told of."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.sections: list[dict[str, Any]] = []
        self._reading: asyncio.Task[None] | None = None

    async def ready(self) -> None:
        assert self.process.stdout is not None
        async with asyncio.timeout(START_S):
            while b'"ready"' not in (line := await self.process.stdout.readline()):
                assert line, "the process ended before it was ready"
        self._reading = asyncio.create_task(self._read())

    async def begin(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        await self.process.stdin.drain()

    async def _read(self) -> None:
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            if line.startswith(b'{"name"'):
                self.sections.append(json.loads(line))

    def send(self, what: signal.Signals) -> None:
        self.process.send_signal(what)

    async def end(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
            await self.process.wait()
        if self._reading is not None:
            await self._reading


Start = Callable[..., Awaitable[Contenders]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Start a process of contenders; it begins when it is told to."""
    started: list[Contenders] = []

    async def one(
        url: str, name: str, contenders: int, *, ttl_ms: int = 10_000, place_ms: int = 4000, body_s: float = 0.001
    ) -> Contenders:
        numbers = map(str, (contenders, ttl_ms, place_ms, body_s))
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(PROGRAM), url, name, *numbers, stdin=pipe, stdout=pipe
        )
        started.append(Contenders(process))
        await started[-1].ready()
        return started[-1]

    yield one
    for contenders in started:
        await contenders.end()


def in_order(*contenders: Contenders) -> list[dict[str, Any]]:
    """All sections, by when they began; no two at the same time, and each with a greater token than the one before."""
    sections = sorted((section for one in contenders for section in one.sections), key=lambda one: one["began"])
    for earlier, later in itertools.pairwise(sections):
        assert earlier["token"] < later["token"]
        if earlier["released"]:
            assert earlier["ended"] <= later["began"], "two at the same time"
    return sections


def jain(turns: list[int]) -> float:
    return sum(turns) ** 2 / (len(turns) * sum(one * one for one in turns))


async def alternate(start: Start, url: str, until: Any) -> None:
    one, other = await start(url, "a", 8), await start(url, "b", 8)
    await one.begin()
    await other.begin()
    await until(lambda: len(one.sections) > 250 and len(other.sections) > 250, "250 turns each", within_s=30)
    await one.end()
    await other.end()
    # From the moment in which all of them were there, to the moment before the first was ended.
    sections = in_order(one, other)[32:-32]
    turns = Counter(section["name"] for section in sections)
    assert len(turns) == 16
    assert jain(list(turns.values())) >= 0.95, turns


@pytest.mark.parametrize("client", ["glide", "redis"])
async def test_sixteen_contenders_in_two_processes_have_equal_turns(
    valkey_server: ValkeyServer, valkey_url: str, start: Start, until: Any, client: str
) -> None:
    await alternate(start, f"{valkey_url}?client={client}", until)


@pytest.mark.matrix
@pytest.mark.parametrize("client", ["glide", "redis"])
async def test_so_they_have_on_a_cluster(
    valkey_cluster: ValkeyCluster, valkey_cluster_url: str, start: Start, until: Any, client: str
) -> None:
    await alternate(start, f"{valkey_cluster_url}?client={client}", until)


async def test_the_waiters_of_a_process_that_was_killed_are_passed_over(
    valkey_server: ValkeyServer, store: ValkeyLockStore, valkey_url: str, start: Start, until: Any
) -> None:
    """Were they granted the lock, it would be nobody's for ten seconds."""
    assert isinstance(await store.acquire("job", "holder", 60_000), Acquired)
    others = await start(valkey_url, "a", 8, ttl_ms=10_000, place_ms=60_000)
    await others.begin()
    await until(lambda: str(valkey_server.execute("GET", "locks:{job}")).count("\0\0") == 8, "eight to wait")
    assert isinstance(await store.acquire_queued("job", "waiter", 60_000, 60_000), Held)
    await others.end()

    def listening() -> int:
        found: Any = valkey_server.execute("PUBSUB", "CHANNELS", "locks:queue:*")
        return len(found)

    await until(lambda: listening() == 1, "the server to notice")
    assert await store.release("job", "holder")
    reply = await store.acquire("job", "waiter", 60_000)
    assert isinstance(reply, Acquired)
    assert await store.granted("job", "waiter") == reply
    assert others.sections == []


async def test_a_process_that_is_paused_costs_a_ttl_and_its_late_holder_is_refused(
    valkey_server: ValkeyServer, valkey_url: str, start: Start, until: Any
) -> None:
    """The server cannot tell it from one that is slow: it is granted the lock, until its place has run out."""
    ttl_ms, place_ms = 400, 600
    one = await start(valkey_url, "a", 1, ttl_ms=ttl_ms, place_ms=place_ms)
    other = await start(valkey_url, "b", 4, ttl_ms=ttl_ms, place_ms=place_ms)
    await one.begin()
    await other.begin()
    await until(lambda: len(one.sections) > 20 and len(other.sections) > 20, "20 turns each", within_s=30)
    one.send(signal.SIGSTOP)
    try:
        before = len(other.sections)
        await until(lambda: len(other.sections) > before + 200, "turns of those who run", within_s=30)
    finally:
        one.send(signal.SIGCONT)
    before = len(one.sections)
    await until(lambda: len(one.sections) > before + 20, "turns of the one that was paused", within_s=30)
    await one.end()
    await other.end()
    sections = in_order(one, other)
    lost = [section for section in sections if not section["released"]]
    assert len(lost) <= 1
    assert all(section["name"] == "a0" for section in lost)
