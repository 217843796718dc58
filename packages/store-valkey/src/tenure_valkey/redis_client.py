"""Clients of redis-py whose settings fit locks: time-outs that are short, and no call that is sent twice."""

from typing import Any, Final

from tenure._durations import Duration, to_ms
from tenure.errors import ConfigurationError
from tenure_valkey.address import Address, parse_address

__all__ = ["create_redis_client", "redis_client_for"]

_MAX_CONNECTIONS: Final = 50
"""The store itself needs one to a node, and one more where calls are redirected; the rest is the application's."""


def create_redis_client(
    url: str, *, timeout: Duration = 2, max_connections: int = _MAX_CONNECTIONS, **options: Any
) -> Any:
    """
    Make a client of redis-py (`redis.asyncio`) for locks: one server, a cluster, or a primary behind Sentinel.

    It sends nothing twice, notices connections that the server closed, gives up a call after *timeout*, and keeps its
    connections when a slot moves. It connects at its first call, and is the caller's to close: `await client.aclose()`.

    Args:
        url: As for `open_valkey_store`, without its options after `?`.
        timeout: How long connecting, and an answer, may each take.
        max_connections: Connections at most, to a node. All calls of the stores on it share one.
        options: More arguments of redis-py's client, which win.

    Returns:
        A `redis.asyncio.Redis`, or a `redis.asyncio.RedisCluster`.

    Raises:
        ConfigurationError: The URL cannot be, or redis-py is not installed.
    """
    return redis_client_for(parse_address(url), timeout=timeout, max_connections=max_connections, **options)


def redis_client_for(address: Address, *, timeout: Duration, max_connections: int, **options: Any) -> Any:
    """Make the client of a URL that was read; see `create_redis_client`."""
    try:
        from redis import asyncio as redis
        from redis.asyncio.cluster import ClusterNode
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff
    except ImportError:
        raise ConfigurationError("redis-py is not installed: pip install tenure-valkey[redis]") from None
    timeout_s = to_ms(timeout, name="timeout") / 1000
    settings: dict[str, Any] = {
        "username": address.username,
        "password": address.password,
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "retry": Retry(NoBackoff(), 0),
        **_without_maintenance_notifications(),
        **_tls(address),
    }
    if address.mode == "cluster":
        nodes = [ClusterNode(host, port) for host, port in address.hosts]
        settings |= {
            "startup_nodes": nodes,
            "ssl": address.tls,
            "max_connections": max_connections,
            # It would close its connections under the calls of others at every fifth MOVED answer.
            "reinitialize_steps": 0,
        }
        return redis.RedisCluster(**settings | options)
    settings |= {"db": address.database, "max_connections": max_connections} | options
    if address.mode == "sentinel":
        return _behind_sentinel(redis, address, settings)
    [(host, port)] = address.hosts
    return redis.Redis(host=host, port=port, ssl=address.tls, **settings)


def _behind_sentinel(redis: Any, address: Address, settings: dict[str, Any]) -> Any:
    class Pool(redis.SentinelConnectionPool):  # type: ignore[misc]  # a class of a library that is there at run time only
        """A pool that closes the clients of its Sentinels as well; redis-py leaves them open."""

        async def aclose(self) -> None:
            await super().aclose()
            for sentinel in self.sentinel_manager.sentinels:
                await sentinel.aclose()

    to_sentinels = {name: settings[name] for name in ("socket_timeout", "socket_connect_timeout", "retry")}
    to_sentinels |= {name: value for name, value in settings.items() if name.startswith("ssl")}
    sentinel = redis.Sentinel(
        address.hosts, sentinel_kwargs={**to_sentinels, "ssl": address.tls}, ssl=address.tls, **settings
    )
    return sentinel.master_for(address.service, connection_pool_class=Pool)


def _tls(address: Address) -> dict[str, Any]:
    return {"ssl_ca_certs": address.tls_ca} if address.tls and address.tls_ca else {}


def _without_maintenance_notifications() -> dict[str, Any]:
    """
    With retries at 0 and these on, redis-py 7 and later do not notice that the server closed an idle connection: the
    stores do, and what else is asked on the client fails.
    """
    try:
        from redis.maint_notifications import MaintNotificationsConfig
    except ImportError:
        return {}
    return {"maint_notifications_config": MaintNotificationsConfig(enabled=False)}
