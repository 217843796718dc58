"""Waiters for keys whose holders die: one a key, and when each had it."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from tenure_loadtests.contenders.contract import Contender
from tenure_loadtests.worker.meter import Meter

__all__ = ["Waiters"]

_SETTLE_S = 1.0
"""After this every waiter has been told that its key is held, and waits."""


class Waiters:
    """
    A task a key, which takes it when its holder has gone.

    Args:
        contender: Whose locks they wait for.
        keys: What they wait for.
    """

    def __init__(self, contender: Contender, keys: Sequence[str]) -> None:
        self._locks = [contender.lock(key) for key in keys]
        self._tasks: list[asyncio.Task[None]] = []
        self._taken: list[float] = []
        self._meter = Meter([])

    async def begin(self) -> None:
        """Have all of them wait; returns when they do."""
        self._tasks = [asyncio.create_task(self._wait(lock)) for lock in self._locks]
        await asyncio.sleep(_SETTLE_S)
        for task in self._tasks:
            if task.done():
                task.result()

    async def taken(self, within_s: float) -> dict[str, Any]:
        """
        Wait until all have their keys.

        Returns:
            `taken`, when each had its key, on the clock that the processes share; and the usage since they were made.
        """
        done, waiting = await asyncio.wait(self._tasks, timeout=within_s)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        for task in done:
            task.result()
        return {"taken": self._taken, "usage": self._meter.read().to_json()}

    async def _wait(self, lock: Any) -> None:
        await lock.acquire()
        self._taken.append(time.perf_counter())
