"""Turns on one key: tasks of several processes wait for it, hold it for a moment, and hand it on."""

import asyncio
import mmap
import random
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tenure_loadtests.contenders.contract import AsyncLock, Blocking, BlockingLock, Contender
from tenure_loadtests.worker.meter import Meter

__all__ = ["Turns", "TurnsPlan"]

_GRACE_S = 10.0
"""How long the last waiters have to get their turn, and end: some libraries let them starve."""

_LOOK_AGAIN_S = 0.002
"""How often one that has released looks whether another has the key: it costs little beside a hand-over."""


@dataclass(frozen=True, slots=True)
class TurnsPlan:
    """
    What the participants of one process do.

    Attributes:
        key: What they take.
        tasks: How many they are.
        start_at: When they begin, on the monotonic clock that all processes of a machine share.
        seconds: For how long.
        body_s: The least and the greatest time for which each holds the key.
        board: A file that the processes share, where each holder counts on.
        hand_on: Whether one that has released waits until another had the key before it asks again.
    """

    key: str
    tasks: int
    start_at: float
    seconds: float
    body_s: tuple[float, float]
    board: str
    hand_on: bool


class Turns:
    """
    The participants of one process, made before the clock runs.

    Args:
        contender: Whose locks they take.
        servers: Whose CPU time is told.
        key: What they take.
        tasks: How many they are.
    """

    def __init__(self, contender: Contender, servers: Sequence[int], key: str, tasks: int) -> None:
        self._servers = servers
        self._blocking: list[BlockingLock] = []
        self._locks: list[AsyncLock] = []
        if isinstance(contender, Blocking):
            self._blocking = [contender.blocking_lock(key) for _ in range(tasks)]
        else:
            self._locks = [contender.lock(key) for _ in range(tasks)]

    async def run(self, plan: TurnsPlan) -> dict[str, Any]:
        """
        Take turns.

        Returns:
            `turns`, each [who, asked, acquired, gave back, given back] in seconds on the shared clock, and `usage`.
        """
        turns: list[list[float]] = []
        with _shared(plan.board) as board:
            await asyncio.sleep(max(0.0, plan.start_at - time.perf_counter()))
            meter = Meter(self._servers)
            if self._blocking:
                await asyncio.to_thread(self._in_threads, plan, board, turns)
            else:
                await self._in_tasks(plan, board, turns)
            usage = meter.read()
        return {"turns": list(turns), "usage": usage.to_json()}

    async def _in_tasks(self, plan: TurnsPlan, board: "_Board", turns: list[list[float]]) -> None:
        tasks = [
            asyncio.create_task(_take_turns(who, lock, plan, board, turns)) for who, lock in enumerate(self._locks)
        ]
        within_s = plan.start_at + plan.seconds + _GRACE_S - time.perf_counter()
        done, waiting = await asyncio.wait(tasks, timeout=within_s, return_when=asyncio.FIRST_EXCEPTION)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        for task in done:
            task.result()

    def _in_threads(self, plan: TurnsPlan, board: "_Board", turns: list[list[float]]) -> None:
        threads = [
            threading.Thread(target=_take_blocking_turns, args=(who, lock, plan, board, turns), daemon=True)
            for who, lock in enumerate(self._blocking)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, plan.start_at + plan.seconds + _GRACE_S - time.perf_counter()))


class _Board:
    """A number that whoever holds the key counts on: there is one holder at a time, so nothing races."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory

    def read(self) -> int:
        number: int = struct.unpack_from("<q", self._memory)[0]
        return number

    def count(self) -> int:
        number = self.read() + 1
        struct.pack_into("<q", self._memory, 0, number)
        return number


@contextmanager
def _shared(path: str) -> Iterator[_Board]:
    with Path(path).open("r+b") as file, mmap.mmap(file.fileno(), 8) as memory:
        yield _Board(memory)


async def _take_turns(who: int, lock: AsyncLock, plan: TurnsPlan, board: _Board, turns: list[list[float]]) -> None:
    now = time.perf_counter
    until = plan.start_at + plan.seconds
    while (asked := now()) < until:
        await lock.acquire()
        acquired, number = now(), board.count()
        if acquired < until:
            await asyncio.sleep(random.uniform(*plan.body_s))  # noqa: S311 -- no secret
        gives_back = now()
        await lock.release()
        turns.append([who, asked, acquired, gives_back, now()])
        while plan.hand_on and board.read() == number and now() < until:  # noqa: ASYNC110 -- another process
            await asyncio.sleep(_LOOK_AGAIN_S)


def _take_blocking_turns(
    who: int, lock: BlockingLock, plan: TurnsPlan, board: _Board, turns: list[list[float]]
) -> None:
    now = time.perf_counter
    until = plan.start_at + plan.seconds
    while (asked := now()) < until:
        lock.acquire()
        acquired, number = now(), board.count()
        if acquired < until:
            time.sleep(random.uniform(*plan.body_s))  # noqa: S311 -- no secret
        gives_back = now()
        lock.release()
        turns.append([who, asked, acquired, gives_back, now()])
        while plan.hand_on and board.read() == number and now() < until:
            time.sleep(_LOOK_AGAIN_S)
