"""Somebody else's transactions: an order that is written and committed, again and again, with pauses between."""

import asyncio
import time
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from tenure_loadtests.contenders.contract import RunsCycles
from tenure_loadtests.figures import quantile

__all__ = ["Transactions"]

_PAUSE_S = 0.005
"""Between two transactions of a client: the latency of a commit is of interest, not how many the disk can take."""


class Transactions(RunsCycles):
    """An application on the same database that has nothing to do with locks."""

    distributions = ("asyncpg",)

    async def open(self, tasks: int) -> None:
        """Connect, a connection a client."""
        asyncpg: Any = import_module("asyncpg")
        self._connections = [await asyncpg.connect(self.address.postgres) for _ in range(tasks)]

    async def close(self) -> None:
        """Disconnect."""
        for connection in self._connections:
            await connection.close()

    async def run_cycles(self, tasks: int, seconds: float) -> Mapping[str, float]:
        """A cycle is a transaction of two statements; its pause is not in its latency."""
        now = time.perf_counter
        until = now() + seconds
        samples: list[float] = []

        async def client(connection: Any) -> None:
            while (begun := now()) < until:
                async with connection.transaction():
                    await connection.execute("INSERT INTO bench_orders (body) VALUES ($1)", "an order")
                samples.append(now() - begun)
                await asyncio.sleep(_PAUSE_S)

        async with asyncio.TaskGroup() as group:
            for connection in self._connections[:tasks]:
                group.create_task(client(connection))
        samples.sort()
        return {
            "cycles": len(samples),
            "p50_us": quantile(samples, 0.5) * 1e6,
            "p99_us": quantile(samples, 0.99) * 1e6,
        }
