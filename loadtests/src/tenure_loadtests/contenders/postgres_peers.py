"""Peers on PostgreSQL: sqlalchemy-dlock and advisory locks by hand, which keep a connection; postgres-mutex."""

import contextlib
from importlib import import_module
from typing import Any

from tenure_loadtests.contenders.contract import AsyncLock, Contender, OneAfterAnother

__all__ = ["PostgresMutex", "SqlalchemyDlock"]

_POOL_SIZE = 16
_MOST_CONNECTIONS = 64


class SqlalchemyDlock(Contender):
    """sqlalchemy-dlock: an advisory lock on a connection that is kept for the whole hold."""

    distributions = ("sqlalchemy-dlock", "sqlalchemy", "asyncpg")

    async def open(self, tasks: int) -> None:
        """Make an engine."""
        sqlalchemy: Any = import_module("sqlalchemy.ext.asyncio")
        url = self.address.postgres.replace("postgresql://", "postgresql+asyncpg://", 1)
        self._engine = sqlalchemy.create_async_engine(
            url,
            isolation_level="AUTOCOMMIT",
            pool_size=min(max(tasks, 1), _MOST_CONNECTIONS),
            max_overflow=0,
            pool_timeout=120,
        )

    async def close(self) -> None:
        """Dispose it."""
        await self._engine.dispose()

    def lock(self, key: str) -> AsyncLock:
        """A lock each turn, on a connection of the pool."""
        library: Any = import_module("sqlalchemy_dlock")
        return _OnConnection(self._engine, library.create_async_sadlock, key)


class _OnConnection:
    def __init__(self, engine: Any, make: Any, key: str) -> None:
        self._engine, self._make, self._key = engine, make, key
        self._connection: Any = None
        self._lock: Any = None

    async def acquire(self) -> None:
        self._connection = await self._engine.connect()
        self._lock = self._make(self._connection, self._key)
        if not await self._lock.acquire():
            raise RuntimeError("The library gave up waiting for a key that is free or soon will be.")

    async def release(self) -> None:
        await self._lock.release()
        await self._connection.close()


class PostgresMutex(Contender):
    """postgres-mutex: a row and a task that renews it; its waiters poll every half second."""

    distributions = ("postgres-mutex", "psycopg", "psycopg-pool")

    async def open(self, tasks: int) -> None:
        """Fill a pool, and make the library's table."""
        del tasks
        self._mutex: Any = import_module("postgres_mutex").Mutex
        pools: Any = import_module("psycopg_pool")
        self._pool = pools.AsyncConnectionPool(
            self.address.postgres,
            min_size=_POOL_SIZE,
            max_size=_POOL_SIZE,
            open=False,
            timeout=120,
            kwargs={"autocommit": True},
        )
        await self._pool.open(wait=True)
        await self._mutex(lock_name="schema", async_pool=self._pool).create_schema_async()

    async def close(self) -> None:
        """Empty it."""
        await self._pool.close()

    def lock(self, key: str) -> AsyncLock:
        """One mutex a task, entered each turn."""
        mutex = self._mutex(lock_name=key[-60:], async_pool=self._pool)
        return OneAfterAnother(lambda: _Entered(mutex.acquire_async(blocking=True, timeout=120)))


class _Entered:
    """An async context manager as a lock: its entering tells whether the key was had."""

    def __init__(self, context: contextlib.AbstractAsyncContextManager[Any]) -> None:
        self._context = context

    async def acquire(self) -> bool:
        return bool(await self._context.__aenter__())

    async def release(self) -> None:
        await self._context.__aexit__(None, None, None)
