"""The floors on Valkey: the store's own scripts on a bare client, and a hand-over by BLPOP."""

from importlib import import_module
from typing import Any

from tenure_loadtests.contenders.captured import Sent, sent_to_valkey
from tenure_loadtests.contenders.contract import Address, AsyncLock, Contender

__all__ = ["BlpopHandOver", "EvalshaOnGlide", "EvalshaOnRedis"]

_MANY = 1000
"""redis-py refuses a call beyond 100 connections by default: every floor gets as many as it wants."""


class EvalshaOnRedis(Contender):
    """The two scripts by EVALSHA through redis-py, a pooled connection a call."""

    distributions = ("redis", "hiredis")

    async def open(self, tasks: int) -> None:
        """Connect, and load the scripts on every primary."""
        del tasks
        self._client = _redis_client(self.address, cluster=bool(self.options.get("cluster")))
        self._sent = await sent_to_valkey()
        self._digests = [await _load(self._client, one.text) for one in self._sent]

    async def close(self) -> None:
        """Disconnect."""
        await self._client.aclose()

    def lock(self, key: str) -> AsyncLock:
        """The pair of scripts on *key*."""
        owner = f"bench-1:{id(self):032x}"
        words = [
            ("EVALSHA", digest, len(keys), *keys, *arguments)
            for digest, (keys, arguments) in zip(
                self._digests, (one.with_names(key, owner) for one in self._sent), strict=True
            )
        ]
        return _EvalshaPair(self._client.execute_command, *words)


class _EvalshaPair:
    def __init__(self, call: Any, acquire: tuple[Any, ...], release: tuple[Any, ...]) -> None:
        self._call = call
        self._acquire, self._release = acquire, release

    async def acquire(self) -> None:
        if (await self._call(*self._acquire))[0] != 1:
            raise RuntimeError("The key is held by another.")

    async def release(self) -> None:
        if await self._call(*self._release) != 1:
            raise RuntimeError("The lock was not released.")


class EvalshaOnGlide(Contender):
    """The two scripts through glide's `invoke_script`."""

    distributions = ("valkey-glide",)

    async def open(self, tasks: int) -> None:
        """Connect."""
        del tasks
        glide = import_module("glide")
        cluster = bool(self.options.get("cluster"))
        nodes = self.address.cluster if cluster else (self.address.valkey,)
        kind = "GlideCluster" if cluster else "Glide"
        made = getattr(glide, f"{kind}ClientConfiguration")(
            [glide.NodeAddress(host, int(port)) for host, _, port in (node.rpartition(":") for node in nodes)],
            request_timeout=5000,
            inflight_requests_limit=100_000,
        )
        self._client = await getattr(glide, f"{kind}Client").create(made)
        self._sent = await sent_to_valkey()
        self._scripts = [glide.Script(one.text) for one in self._sent]

    async def close(self) -> None:
        """Disconnect."""
        await self._client.close()

    def lock(self, key: str) -> AsyncLock:
        """The pair of scripts on *key*."""
        return _GlidePair(self._client, self._scripts, self._sent, key)


class _GlidePair:
    def __init__(self, client: Any, scripts: list[Any], sent: tuple[Sent, Sent], key: str) -> None:
        self._run = client.invoke_script
        owner = f"bench-1:{id(self):032x}"
        self._acquire, self._release = (
            (script, *one.with_names(key, owner)) for script, one in zip(scripts, sent, strict=True)
        )

    async def acquire(self) -> None:
        script, keys, arguments = self._acquire
        if (await self._run(script, keys=keys, args=arguments))[0] != 1:
            raise RuntimeError("The key is held by another.")

    async def release(self) -> None:
        script, keys, arguments = self._release
        if await self._run(script, keys=keys, args=arguments) != 1:
            raise RuntimeError("The lock was not released.")


class BlpopHandOver(Contender):
    """
    The quickest hand-over there is on such a server: whoever waits is blocked in BLPOP, in the order of arrival.

    It is no lock: nothing expires, and a holder that dies takes the key along.
    """

    distributions = ("redis", "hiredis")

    async def open(self, tasks: int) -> None:
        """Connect: a connection a waiter."""
        del tasks
        self._client = _redis_client(self.address, cluster=False)

    async def close(self) -> None:
        """Disconnect."""
        await self._client.aclose()

    def lock(self, key: str) -> AsyncLock:
        """A list of one element, which is the right to go."""
        return _OneElement(self._client, key)


class _OneElement:
    def __init__(self, client: Any, key: str) -> None:
        self._client = client
        self._right = f"{key}:right"
        self._made = f"{key}:made"
        self._asked = False

    async def acquire(self) -> None:
        if not self._asked:
            # The first of all tasks and processes puts the element there.
            if await self._client.set(self._made, 1, nx=True):
                await self._client.lpush(self._right, 1)
            self._asked = True
        await self._client.blpop([self._right], 0)

    async def release(self) -> None:
        await self._client.lpush(self._right, 1)


def _redis_client(address: Address, *, cluster: bool) -> Any:
    redis = import_module("redis.asyncio")
    if cluster:
        host, _, port = address.cluster[0].rpartition(":")
        return redis.RedisCluster(host=host, port=int(port), max_connections=_MANY)
    return redis.Redis(host=address.valkey_host, port=address.valkey_port, max_connections=_MANY, socket_timeout=None)


async def _load(client: Any, source: str) -> str:
    answer = await client.script_load(source)
    found = next(iter(answer.values())) if isinstance(answer, dict) else answer
    return found.decode() if isinstance(found, bytes) else str(found)
