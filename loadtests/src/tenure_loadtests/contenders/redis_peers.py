"""Peers on redis-py: its own Lock, pottery, redis-lock-py, and python-redis-lock, which blocks."""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from tenure_loadtests.contenders.contract import (
    TTL_S,
    AsyncLock,
    Blocking,
    BlockingLock,
    Contender,
    OneAfterAnother,
)

__all__ = ["Pottery", "PythonRedisLock", "RedisAsyncioLock", "RedisLockPy"]

_MANY = 1000
_WAIT_S = 120


class RedisAsyncioLock(Contender):
    """`redis.asyncio.Redis.lock()`; its waiters poll every 100 ms unless they are told otherwise."""

    distributions: Sequence[str] = ("redis", "hiredis")

    async def open(self, tasks: int) -> None:
        """Connect."""
        del tasks
        redis = import_module("redis.asyncio")
        self.client = redis.Redis(
            host=self.address.valkey_host, port=self.address.valkey_port, max_connections=_MANY, socket_timeout=None
        )
        await self.client.ping()

    async def close(self) -> None:
        """Disconnect."""
        await self.client.aclose()

    def lock(self, key: str) -> AsyncLock:
        """A Lock each turn, as its documentation has it."""
        sleep = float(self.options.get("sleep_s", 0.1))
        return OneAfterAnother(lambda: self.client.lock(key, timeout=TTL_S, sleep=sleep))


class Pottery(RedisAsyncioLock):
    """`pottery.AIORedlock` on one master."""

    distributions = ("pottery", "redis", "hiredis")

    def lock(self, key: str) -> AsyncLock:
        """An AIORedlock each turn."""
        library: Any = import_module("pottery")
        masters = {self.client}
        return OneAfterAnother(lambda: library.AIORedlock(key=key, masters=masters, auto_release_time=TTL_S))


class RedisLockPy(RedisAsyncioLock):
    """redis-lock-py: a release publishes, and every waiter wakes up."""

    distributions = ("redis-lock-py", "redis", "hiredis")

    def lock(self, key: str) -> AsyncLock:
        """A RedisLock each turn."""
        library: Any = import_module("redis_lock.asyncio")
        return OneAfterAnother(
            lambda: library.RedisLock(self.client, key, expire_timeout=round(TTL_S), blocking_timeout=_WAIT_S)
        )


class PythonRedisLock(Blocking):
    """python-redis-lock: its waiters block in BLPOP, a thread and a connection each."""

    distributions = ("python-redis-lock", "redis", "hiredis")

    async def open(self, tasks: int) -> None:
        """Connect."""
        del tasks
        redis: Any = import_module("redis")
        self._client = redis.Redis(
            host=self.address.valkey_host, port=self.address.valkey_port, max_connections=_MANY, socket_timeout=None
        )
        self._client.ping()

    async def close(self) -> None:
        """Disconnect."""
        self._client.close()

    def blocking_lock(self, key: str) -> BlockingLock:
        """A Lock each turn: one that was released is used up."""
        return _UsedOnce(self._client, key)


class _UsedOnce:
    def __init__(self, client: Any, key: str) -> None:
        self._library: Any = import_module("redis_lock")
        self._client = client
        self._key = key
        self._lock: Any = None

    def acquire(self) -> None:
        self._lock = self._library.Lock(self._client, self._key, expire=round(TTL_S))
        if not self._lock.acquire():
            raise RuntimeError("The library gave up waiting for a key that is free or soon will be.")

    def release(self) -> None:
        self._lock.release()
