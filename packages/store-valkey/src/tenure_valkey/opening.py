"""Stores by URL: the client is made here, connects at its first call, and is closed with the store."""

import asyncio
import importlib
import re
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, final

from tenure._durations import to_ms
from tenure.errors import ConfigurationError
from tenure_valkey.address import Address, parse_address, split_options
from tenure_valkey.glide import GlideRunner
from tenure_valkey.idempotency_store import ValkeyIdempotencyStore
from tenure_valkey.keys import DEFAULT_PREFIX, DEFAULT_RECORD_PREFIX
from tenure_valkey.lock_store import ValkeyLockStore
from tenure_valkey.redis import RedisRunner
from tenure_valkey.redis_client import redis_client_for
from tenure_valkey.runner import Call, Script
from tenure_valkey.subscriptions import Heard, Subscriber

__all__ = ["open_valkey_idempotency_store", "open_valkey_store"]

_OPTIONS: Final = frozenset({"client", "prefix", "timeout", "max_connections", "tls_ca"})
"""What may stand in the URL of each store."""

_CLIENTS: Final = ("glide", "redis")


def open_valkey_store(url: str) -> ValkeyLockStore:
    """
    Open the lock store behind a URL; `tenure.open_store` calls it. Nothing is connected before the first call.

        valkey://user:password@host:6379/0       valkeys:// with TLS       redis:// and rediss:// likewise
        valkey+cluster://one,two:6380            some nodes of a cluster
        redis+sentinel://one,two:26380/service   the Sentinels, and the name by which they know the primary

    After `?` may stand `prefix` and `fence_retention` (see `ValkeyLockStore`), `timeout` (of a call, "2s"), `client`
    ("glide" or "redis"), `max_connections` (of redis-py, to a node, 50) and `tls_ca` (a file of certificates). By
    default `valkey` schemes take glide where it is installed and `redis` schemes redis-py; each takes the other where
    it is alone. Sentinel is redis-py's.

    Returns:
        A store that owns its client: leave it with `async with`, or call `aclose()`.

    Raises:
        ConfigurationError: The URL or an option of it cannot be, or no client is installed. The message does not hold
            the URL.
    """
    runner, options = _runner_of(url, _OPTIONS | {"fence_retention"})
    return ValkeyLockStore(
        runner,
        prefix=options.get("prefix", DEFAULT_PREFIX),
        fence_retention=options.get("fence_retention", "1m"),
        owns_runner=True,
    )


def open_valkey_idempotency_store(url: str) -> ValkeyIdempotencyStore:
    """
    Open the idempotency store behind a URL; `tenure.open_idempotency_store` calls it. Nothing is connected before the
    first call.

    The URL is one of `open_valkey_store`, with the same options but `fence_retention`; `prefix` is "idem:" where it is
    left out.

    Returns:
        A store that owns its client: leave it with `async with`, or call `aclose()`.

    Raises:
        ConfigurationError: The URL or an option of it cannot be, or no client is installed. The message does not hold
            the URL.
    """
    runner, options = _runner_of(url, _OPTIONS)
    return ValkeyIdempotencyStore(runner, prefix=options.get("prefix", DEFAULT_RECORD_PREFIX), owns_runner=True)


def _runner_of(url: str, allowed: frozenset[str]) -> tuple[Any, Mapping[str, str]]:
    """Make the runner of a URL, and read the options beside it."""
    base, options = split_options(url)
    for name in options:
        if name not in allowed:
            raise ConfigurationError(f"The URL has the option {name!r}: it may have {', '.join(sorted(allowed))}.")
    address = parse_address(base, tls_ca=options.get("tls_ca"))
    if address.tls_ca is not None and not address.tls:
        raise ConfigurationError("The URL has tls_ca and no TLS: begin it with valkeys:// or rediss://.")
    timeout = options.get("timeout", "2s")
    if _choose(address, options.get("client")) == "glide":
        if "max_connections" in options:
            raise ConfigurationError("The URL has max_connections: glide has one connection to a node. Leave it out.")
        return LazyGlide(address, to_ms(timeout, name="timeout")), options
    connections = _whole(options.get("max_connections", "50"), "max_connections")
    return OwnRedis(redis_client_for(address, timeout=timeout, max_connections=connections)), options


@final
class OwnRedis:
    """A `RedisRunner` with the client that was made for it."""

    def __init__(self, client: Any) -> None:
        self._client = client
        # What a URL says was chosen.
        self._runner = RedisRunner(client, warn=False)
        self.is_cluster = self._runner.is_cluster
        self.run = self._runner.run
        self.run_many = self._runner.run_many
        self.run_on_primaries = self._runner.run_on_primaries
        self.find_keys = self._runner.find_keys
        self.subscriber = self._runner.subscriber

    async def aclose(self) -> None:
        """Close the client."""
        await self._client.aclose()

    def __repr__(self) -> str:
        return repr(self._runner)


@final
class LazyGlide:
    """A `GlideRunner` whose client is made at its first call: glide makes one in the event loop that will use it."""

    def __init__(self, address: Address, timeout_ms: int) -> None:
        self._address = address
        self._timeout_ms = timeout_ms
        self._client: Any = None
        self._runner: GlideRunner | None = None
        self._making = asyncio.Lock()
        self.is_cluster = address.mode == "cluster"

    def run(self, script: Script, keys: Sequence[bytes], args: Sequence[bytes]) -> Coroutine[Any, Any, Any]:
        """Run *script*, through a client that is made now if there is none."""
        return self._make_and_run(script, keys, args) if self._runner is None else self._runner.run(script, keys, args)

    async def _make_and_run(self, script: Script, keys: Sequence[bytes], args: Sequence[bytes]) -> Any:
        return await (await self._made()).run(script, keys, args)

    async def run_many(self, script: Script, calls: Sequence[Call]) -> Sequence[Any]:
        """Run *script* once for each of *calls*."""
        return await (await self._made()).run_many(script, calls)

    async def run_on_primaries(self, script: Script, args: Sequence[bytes]) -> Mapping[str, Any]:
        """Run *script* on each primary."""
        return await (await self._made()).run_on_primaries(script, args)

    async def find_keys(self, pattern: bytes) -> AsyncIterator[Sequence[bytes | str]]:
        """Yield the names that fit *pattern*, in batches."""
        async for names in (await self._made()).find_keys(pattern):
            yield names

    async def subscriber(self, heard: Heard) -> Subscriber | None:
        """Return a subscriber, on a client of its own."""
        return await (await self._made()).subscriber(heard)

    async def aclose(self) -> None:
        """Close the client, if one was made."""
        async with self._making:
            if self._client is not None:
                await self._client.close()

    def __repr__(self) -> str:
        return f"GlideRunner({'GlideClusterClient' if self.is_cluster else 'GlideClient'})"

    async def _made(self) -> GlideRunner:
        if self._runner is not None:
            return self._runner
        async with self._making:
            if self._runner is None:
                self._client = await _create_glide(self._address, self._timeout_ms)
                # What a URL says was chosen.
                self._runner = GlideRunner(self._client, warn=False)
            return self._runner


async def _create_glide(address: Address, timeout_ms: int) -> Any:
    # It takes half a second: in the event loop, a second store that is opened would stall the leases of the first.
    glide = await asyncio.to_thread(importlib.import_module, "glide")

    advanced = (
        glide.AdvancedGlideClusterClientConfiguration
        if address.mode == "cluster"
        else (glide.AdvancedGlideClientConfiguration)
    )
    tls = None
    if address.tls_ca is not None:
        tls = glide.TlsAdvancedConfiguration(root_pem_cacerts=Path(address.tls_ca).read_bytes())  # noqa: ASYNC240
    settings: dict[str, Any] = {
        "addresses": [glide.NodeAddress(host, port) for host, port in address.hosts],
        "use_tls": address.tls,
        "request_timeout": timeout_ms,
        # A client that connects while it is made holds up the event loop until the server answers.
        "lazy_connect": True,
        "advanced_config": advanced(connection_timeout=timeout_ms, tls_config=tls),
    }
    if address.password is not None:
        settings["credentials"] = glide.ServerCredentials(address.password, address.username)
    if address.mode == "cluster":
        return await glide.GlideClusterClient.create(glide.GlideClusterClientConfiguration(**settings))
    settings["database_id"] = address.database
    return await glide.GlideClient.create(glide.GlideClientConfiguration(**settings))


def _choose(address: Address, wanted: str | None) -> str:
    """Choose a client that is installed and can do it."""
    if wanted is not None and wanted not in _CLIENTS:
        raise ConfigurationError(f"The URL's client is {wanted!r}: it has to be {' or '.join(_CLIENTS)}.")
    if address.mode == "sentinel":
        if wanted == "glide":
            raise ConfigurationError("glide does not ask Sentinels: leave client=glide out of the URL.")
        order: tuple[str, ...] = ("redis",)
    elif wanted is not None:
        order = (wanted,)
    else:
        order = _CLIENTS if address.product == "valkey" else _CLIENTS[::-1]
    for client in order:
        if find_spec(client) is not None:
            return client
    remedy = " or ".join(f"pip install tenure-valkey[{client}]" for client in order)
    raise ConfigurationError(f"No client for the URL is installed: {remedy}")


def _whole(value: str, name: str) -> int:
    if not re.fullmatch(r"[1-9]\d{0,5}", value, re.ASCII):
        raise ConfigurationError(f"The URL's {name} is {value!r}: it has to be a whole number from 1 on.")
    return int(value)
