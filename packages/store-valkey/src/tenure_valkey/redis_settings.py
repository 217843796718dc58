"""What about a client of redis-py or valkey-py cannot work, and what about its settings is dangerous."""

import codecs
import inspect
from collections.abc import Iterator
from typing import Any

from tenure.errors import ConfigurationError
from tenure_valkey.redis_connection import FEW_CONNECTIONS

__all__ = ["connections", "dangers", "is_cluster", "refuse_unusable"]


def is_cluster(client: Any) -> bool:
    """Tell a cluster's client."""
    return hasattr(client, "nodes_manager")


def connections(client: Any) -> int | None:
    """Return how many connections the client may have, to a node; None where it does not tell."""
    if is_cluster(client):
        limit = client.connection_kwargs.get("max_connections")
    else:
        limit = getattr(client.connection_pool, "max_connections", None)
    return limit if isinstance(limit, int) and limit > 0 else None


def refuse_unusable(client: Any) -> None:
    """
    Refuse a client that cannot work.

    Raises:
        ConfigurationError: What it is, and what to use instead.
    """
    kind = type(client).__name__
    if not (is_cluster(client) or hasattr(client, "connection_pool")):
        raise ConfigurationError(
            f"RedisRunner was given a {kind}: give it an asyncio client of redis-py or valkey-py (Redis, RedisCluster, "
            "Sentinel.master_for()). For another client write a runner: one method, see ScriptRunner."
        )
    if not inspect.iscoroutinefunction(client.execute_command):
        raise ConfigurationError(
            f"RedisRunner was given a synchronous {kind}, which would stop the event loop: "
            "import it from redis.asyncio."
        )
    if getattr(client, "read_from_replicas", False) or getattr(client, "load_balancing_strategy", None):
        raise ConfigurationError(
            "The cluster client reads from replicas (read_from_replicas, load_balancing_strategy): it marks every "
            "connection READONLY, and after a failover sends the scripts to the old primary, which refuses them. Give "
            "the store a client of its own without these settings."
        )
    if not is_cluster(client) and not getattr(client.connection_pool, "is_master", True):
        raise ConfigurationError(
            "The client leads to a replica, which takes no writes: use Sentinel.master_for(), not slave_for()."
        )
    encoder = client.get_encoder()
    if encoder.decode_responses and codecs.lookup(encoder.encoding).name != "utf-8":
        raise ConfigurationError(
            f"The client decodes replies as {encoder.encoding}, and keys are in UTF-8: leave out encoding=, or "
            "decode_responses=True."
        )


def dangers(client: Any) -> Iterator[str]:
    """Say what about a client's settings is dangerous, each with its remedy."""
    if is_cluster(client):
        timeout_s = client.connection_kwargs.get("socket_timeout")
        yield from _dangers_of_a_cluster(client)
    else:
        # A connection as the pool would make it, unconnected: what it really gives.
        sample = client.connection_pool.make_connection()
        timeout_s = sample.socket_timeout
        retries = _retries(sample.retry)
        if retries:
            yield (
                f"The client tries to connect up to {retries} times more, with pauses in between, before it fails a "
                "call (retry=): the engine's time runs out under calls that nobody waits for any more. Set "
                "retry=Retry(NoBackoff(), 0), or make the client with create_redis_client()."
            )
    if timeout_s is None:
        yield (
            "The client has no socket_timeout: calls to a server that stops answering stay in it, and keep their "
            "connections, until TCP gives up. Set socket_timeout=2, or make it with create_redis_client()."
        )
    limit = connections(client)
    if limit is not None and limit < FEW_CONNECTIONS:
        yield (
            f"The client's pool has {limit} connections: what the store sends, and what the application asks for "
            f"itself, wait for each other or fail. Set max_connections to {FEW_CONNECTIONS} or more."
        )


def _dangers_of_a_cluster(client: Any) -> Iterator[str]:
    retries = _cluster_retries(client)
    if getattr(client, "cluster_error_retry_attempts", None) == 0:
        yield (
            "The client is valkey-py's with cluster_error_retry_attempts=0, with which its pipelines, and so calls "
            "that travel together, fail. Set cluster_error_retry_attempts=1."
        )
    if retries:
        yield (
            f"The client sends a call again, up to {retries} times, when its reply was lost (retry=): the engine's "
            "time runs out under calls that nobody waits for any more. Set retry=Retry(NoBackoff(), 0), or make the "
            "client with create_redis_client()."
        )
    elif getattr(client, "reinitialize_steps", None):
        yield (
            f"The cluster client closes all its connections at every {client.reinitialize_steps}th MOVED answer "
            "(reinitialize_steps), and with retries at 0 calls under way on them fail, in the middle of a failover. "
            "Set reinitialize_steps=0, with which it follows each answer, or make it with create_redis_client()."
        )


def _retries(retry: Any) -> int:
    """How often a call is sent again; valkey-py keeps the number to itself."""
    if retry is None:
        return 0
    count = retry.get_retries() if hasattr(retry, "get_retries") else getattr(retry, "_retries", 0)
    return int(count)


def _cluster_retries(client: Any) -> int:
    # valkey-py has a number for calls that it sends again, beside the Retry of its connections; it cannot do with less
    # than one.
    attempts = getattr(client, "cluster_error_retry_attempts", None)
    return _retries(client.retry) if attempts is None else int(attempts > 1) * int(attempts)
