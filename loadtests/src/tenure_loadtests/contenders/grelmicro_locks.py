"""grelmicro on Redis and on PostgreSQL. Its locks are not renewed by themselves: a task of the user's extends each."""

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from importlib import import_module
from typing import Any

from tenure_loadtests.contenders.contract import TTL_S, AsyncLock, HeldLeases, HoldsMany
from tenure_loadtests.contenders.renewed_by_task import TaskALease

__all__ = ["GrelmicroOnPostgres", "GrelmicroOnRedis"]

_MANY = 1000
_POOL_SIZE = 16
_AT_ONCE = 64


class GrelmicroOnRedis(HoldsMany):
    """grelmicro's Lock on its Redis backend."""

    distributions = ("grelmicro", "redis", "hiredis", "asyncpg")

    async def open(self, tasks: int) -> None:
        """Enter a provider and a backend."""
        del tasks
        self._exits = contextlib.AsyncExitStack()
        self._lock: Any = import_module("grelmicro.coordination").Lock
        self._backend = await self._exits.enter_async_context(await self._made())

    async def close(self) -> None:
        """Leave them."""
        await self._exits.aclose()

    def lock(self, key: str) -> AsyncLock:
        """One Lock a task."""
        lock: AsyncLock = self._lock(key, backend=self._backend, lease_duration=TTL_S)
        return lock

    async def hold(self, keys: Sequence[str], ttl_s: float) -> HeldLeases:
        """A task a lease, for a lock is extended by the task that took it."""
        held = TaskALease(ttl_s)

        async def take(key: str) -> tuple[Callable[[], Awaitable[object]], Callable[[], Awaitable[object]]]:
            lock = self._lock(key, backend=self._backend, lease_duration=ttl_s)
            await lock.acquire()
            return lock.extend, lock.release

        await held.take(keys, take, _AT_ONCE)
        return held

    async def _made(self) -> Any:
        provider: Any = import_module("grelmicro.providers.redis").RedisProvider(f"redis://{self.address.valkey}/0")
        await self._exits.enter_async_context(provider)
        # By default it raises beyond a hundred calls at once.
        provider.client.connection_pool.max_connections = _MANY
        return import_module("grelmicro.coordination.redis").RedisLockAdapter(provider=provider)


class GrelmicroOnPostgres(GrelmicroOnRedis):
    """grelmicro's Lock on its PostgreSQL backend."""

    async def _made(self) -> Any:
        asyncpg: Any = import_module("asyncpg")
        pool = await self._exits.enter_async_context(
            asyncpg.create_pool(self.address.postgres, min_size=_POOL_SIZE, max_size=_POOL_SIZE)
        )
        provider: Any = import_module("grelmicro.providers.postgres").PostgresProvider.from_client(pool)
        await self._exits.enter_async_context(provider)
        adapter: Any = import_module("grelmicro.coordination.postgres").PostgresLockAdapter
        return adapter(provider=provider, table_name="grelmicro_locks")
