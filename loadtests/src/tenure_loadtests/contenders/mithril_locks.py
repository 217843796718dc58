"""mithril-locks on Redis and on PostgreSQL: tokens, and a task that renews each lock."""

import asyncio
import logging
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from tenure_loadtests.contenders.contract import TTL_S, AsyncLock, HeldLeases, HoldsMany, OneAfterAnother
from tenure_loadtests.contenders.renewed_by_task import RENEWALS_PER_TTL, Renewals

__all__ = ["MithrilOnPostgres", "MithrilOnRedis"]

_MANY = 1000
_POOL_SIZE = 16
_AT_ONCE = 64
_WAIT_S = 120.0


class MithrilOnRedis(HoldsMany):
    """AsyncLock on AsyncRedisBackend."""

    distributions = ("mithril-locks", "redis", "hiredis", "sqlalchemy", "asyncpg")

    async def open(self, tasks: int) -> None:
        """Connect; a line of log for each step would be most of its cost."""
        del tasks
        structlog: Any = import_module("structlog")
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
        self._lock: Any = import_module("mithril.aio").AsyncLock
        self._backend = await self._connected()

    async def close(self) -> None:
        """Disconnect."""
        await self._client.aclose()

    def lock(self, key: str) -> AsyncLock:
        """An AsyncLock each turn: they are used once."""
        return OneAfterAnother(lambda: self._lock(key, backend=self._backend, ttl=TTL_S, timeout=_WAIT_S))

    async def hold(self, keys: Sequence[str], ttl_s: float) -> HeldLeases:
        """AsyncLocks that renew themselves."""
        noting = _Noting(self._backend, Renewals(ttl_s / RENEWALS_PER_TTL))
        gate = asyncio.Semaphore(_AT_ONCE)

        async def take(key: str) -> Any:
            lock = self._lock(
                key,
                backend=noting,
                ttl=ttl_s,
                timeout=_WAIT_S,
                auto_renewal=True,
                renewal_interval=ttl_s / RENEWALS_PER_TTL,
            )
            async with gate:
                await lock.acquire()
            return lock

        return _Locks(await asyncio.gather(*(take(key) for key in keys)), noting.renewals)

    async def _connected(self) -> Any:
        redis: Any = import_module("redis.asyncio")
        self._client = redis.Redis(
            host=self.address.valkey_host, port=self.address.valkey_port, max_connections=_MANY, socket_timeout=5
        )
        return import_module("mithril.backends.aio").AsyncRedisBackend(self._client)


class MithrilOnPostgres(MithrilOnRedis):
    """AsyncLock on AsyncPostgresBackend."""

    async def close(self) -> None:
        """Dispose the engine."""
        await self._engine.dispose()

    async def _connected(self) -> Any:
        sqlalchemy: Any = import_module("sqlalchemy.ext.asyncio")
        url = self.address.postgres.replace("postgresql://", "postgresql+asyncpg://", 1)
        self._engine = sqlalchemy.create_async_engine(url, pool_size=_POOL_SIZE, max_overflow=0, pool_timeout=120)
        backend = import_module("mithril.backends.aio").AsyncPostgresBackend(self._engine)
        await backend.initialize()
        return backend


class _Noting:
    """A backend that notes when a renewal is sent, and is otherwise the one that it was given."""

    def __init__(self, backend: Any, renewals: Renewals) -> None:
        self._backend = backend
        self.renewals = renewals

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    async def renew(self, lock_name: str, *arguments: Any, **named: Any) -> Any:
        """Note the renewal, and pass it on."""
        self.renewals.note(lock_name)
        return await self._backend.renew(lock_name, *arguments, **named)


class _Locks:
    def __init__(self, locks: Sequence[Any], renewals: Renewals) -> None:
        self._locks = locks
        self._renewals = renewals

    def lost(self) -> int:
        """How many it holds no more, by its own word."""
        return sum(lock.state.name != "ACQUIRED" for lock in self._locks)

    def late_ms(self) -> Sequence[float]:
        """How late each renewal was sent; the first of each lease has nothing to be measured from."""
        return self._renewals.late_ms

    async def let_go(self) -> None:
        """Release all of them."""
        await asyncio.gather(*(lock.release() for lock in self._locks), return_exceptions=True)
