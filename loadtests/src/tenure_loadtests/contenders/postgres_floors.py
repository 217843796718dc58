"""The floors on PostgreSQL: the store's own statements on a bare driver, and a lock that blocks in the server."""

import asyncio
from collections import deque
from importlib import import_module
from typing import Any

from tenure_loadtests.contenders.captured import Sent, sent_to_postgres
from tenure_loadtests.contenders.contract import AsyncLock, Contender

__all__ = ["POOL_SIZE", "AdvisoryLock", "PairOnConnection", "PairOnPool"]

POOL_SIZE = 16
"""Connections of every contender on PostgreSQL that has a pool, as in a service of some size."""


class PairOnConnection(Contender):
    """The two statements, prepared, on connections of the contender's own that are handed out in order."""

    distributions = ("asyncpg",)

    async def open(self, tasks: int) -> None:
        """Connect as often as tasks can use it, up to the size of a pool."""
        asyncpg = import_module("asyncpg")
        self._sent = await sent_to_postgres(self.address.postgres)
        self._connections = [await asyncpg.connect(self.address.postgres) for _ in range(min(tasks, POOL_SIZE))]
        self._free: deque[Any] = deque(self._connections)
        self._waiting: deque[asyncio.Future[Any]] = deque()

    async def close(self) -> None:
        """Disconnect."""
        for connection in self._connections:
            await connection.close()

    def lock(self, key: str) -> AsyncLock:
        """The pair of statements on *key*."""
        return _StatementPair(self._run, self._sent, key)

    async def _run(self, text: str, *arguments: object) -> Any:
        if self._free:
            connection = self._free.popleft()
        else:
            turn: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            connection = await turn
        try:
            return await connection.fetchrow(text, *arguments)
        finally:
            # To whoever waits longest, past everybody who comes now: a queue that is asked again would let them starve.
            if self._waiting:
                self._waiting.popleft().set_result(connection)
            else:
                self._free.append(connection)


class PairOnPool(Contender):
    """The two statements through `asyncpg.create_pool`, as it comes."""

    distributions = ("asyncpg",)

    async def open(self, tasks: int) -> None:
        """Fill the pool."""
        del tasks
        asyncpg = import_module("asyncpg")
        self._sent = await sent_to_postgres(self.address.postgres)
        self._pool = await asyncpg.create_pool(self.address.postgres, min_size=POOL_SIZE, max_size=POOL_SIZE)

    async def close(self) -> None:
        """Empty it."""
        await self._pool.close()

    def lock(self, key: str) -> AsyncLock:
        """The pair of statements on *key*."""
        return _StatementPair(self._pool.fetchrow, self._sent, key)


class _StatementPair:
    def __init__(self, run: Any, sent: tuple[Sent, Sent], key: str) -> None:
        self._run = run
        owner = f"bench-1:{id(self):032x}"
        self._acquire, self._release = ((one.text, *one.with_names(key, owner)[1]) for one in sent)

    async def acquire(self) -> None:
        if (await self._run(*self._acquire))["token"] is None:
            raise RuntimeError("The key is held by another.")

    async def release(self) -> None:
        if not await self._run(*self._release):
            raise RuntimeError("The lock was not released.")


class AdvisoryLock(Contender):
    """
    `pg_advisory_lock` on a connection that is kept for the whole hold: a waiter is blocked in the server.

    It writes nothing: no expiry, no token, and the lock goes with its connection.
    """

    distributions = ("asyncpg",)

    async def open(self, tasks: int) -> None:
        """Connect: each task keeps one, up to what a server has."""
        asyncpg = import_module("asyncpg")
        size = min(tasks, 64)
        self._pool = await asyncpg.create_pool(self.address.postgres, min_size=size, max_size=size)

    async def close(self) -> None:
        """Disconnect."""
        await self._pool.close()

    def lock(self, key: str) -> AsyncLock:
        """The advisory lock of the hash of *key*."""
        return _Advisory(self._pool, key)


class _Advisory:
    def __init__(self, pool: Any, key: str) -> None:
        self._pool = pool
        self._key = key
        self._connection: Any = None

    async def acquire(self) -> None:
        self._connection = await self._pool.acquire()
        await self._connection.fetchval("SELECT pg_advisory_lock(hashtextextended($1, 0))", self._key)

    async def release(self) -> None:
        released = await self._connection.fetchval("SELECT pg_advisory_unlock(hashtextextended($1, 0))", self._key)
        await self._pool.release(self._connection)
        if not released:
            raise RuntimeError("The lock was not released.")
