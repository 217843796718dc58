"""
The runner over redis-py's asyncio clients; valkey-py's are the same classes under other names, and fit as well.

Nothing here imports either: a client is known by what it has.
"""

import asyncio
import codecs
import inspect
import warnings
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, Final, final

from tenure.errors import ConfigurationError
from tenure_valkey.errors import ClientSettingsWarning
from tenure_valkey.runner import Call, Script

__all__ = ["RedisRunner"]

_SCAN_COUNT: Final = 500
"""Keys that the server looks at in one step of a scan: some 100 µs, in which it serves nobody else."""

_FEW_CONNECTIONS: Final = 8
"""
Below it a handful of calls at once use up a pool. A call has its connection for one round trip, and the keeper renews
over one; what needs more is how many keys are asked for at the same moment.
"""


_NO_LIMIT: Final = 2**31
"""What redis-py itself takes for a pool without a limit."""


@final
class RedisRunner:
    """
    Runs the store's scripts through an asyncio client of redis-py or valkey-py.

    A standalone `Redis`, a `RedisCluster`, or the client of a primary that `Sentinel.master_for()` gives. The client
    stays the caller's: the runner opens and closes nothing. `create_redis_client` makes one whose settings fit.

    Args:
        client: The client. For a lock store its replies may be decoded as UTF-8 (`decode_responses`), or not; an
            idempotency store refuses one that decodes, because a response is bytes of any kind.
        warn: Whether to warn of its settings.

    Raises:
        ConfigurationError: The client cannot work: a synchronous one, one that reads from replicas, one that decodes
            replies as something else than UTF-8.

    Warns:
        ClientSettingsWarning: Its settings are dangerous: no time-out, calls that are sent again when their reply was
            lost, dead connections that are not noticed, too few connections.
    """

    def __init__(self, client: Any, *, warn: bool = True) -> None:
        _refuse_unusable(client)
        for message in _dangers(client) if warn else ():
            warnings.warn(message, ClientSettingsWarning, stacklevel=2)
        self._client = client
        self.is_cluster = _is_cluster(client)
        self.decodes_replies = bool(client.get_encoder().decode_responses)
        # A pool of redis-py fails the call for which it has no connection; here that one waits in line.
        self._line = asyncio.Semaphore(_connections(client) or _NO_LIMIT)

    async def run(self, script: Script, keys: Sequence[bytes], args: Sequence[bytes]) -> Any:
        """Run *script*: EVALSHA, and EVAL where the server has not seen it."""
        async with self._line:
            await self._know_the_cluster()
            try:
                return await self._client.execute_command("EVALSHA", script.sha1, len(keys), *keys, *args)
            except Exception as error:
                if not _is_noscript(error):
                    raise
            return await self._client.execute_command("EVAL", script.source, len(keys), *keys, *args)

    async def run_many(self, script: Script, calls: Sequence[Call]) -> Sequence[Any]:
        """Run *script* once for each of *calls*, in one pipeline a node; exceptions stand in their call's place."""
        replies = await self._send("EVALSHA", script.sha1, calls)
        unseen = [place for place, reply in enumerate(replies) if _is_noscript(reply)]
        if unseen:
            again = await self._send("EVAL", script.source, [calls[place] for place in unseen])
            for place, reply in zip(unseen, again, strict=True):
                replies[place] = reply
        return replies

    async def run_on_primaries(self, script: Script, args: Sequence[bytes]) -> Mapping[str, Any]:
        """Run *script*, which has no keys, on each primary that the client knows."""
        words = ("EVAL", script.source, 0, *args)
        async with self._line:
            await self._know_the_cluster()
            if not self.is_cluster:
                return {"the server": await self._client.execute_command(*words)}
            replies = await self._client.execute_command(*words, target_nodes=self._client.PRIMARIES)
        # A cluster of one primary gives its reply alone.
        return replies if isinstance(replies, Mapping) else {"the server": replies}

    async def find_keys(self, pattern: bytes) -> AsyncIterator[Sequence[bytes | str]]:
        """Yield the names that fit *pattern*, in batches: SCAN, on each primary in turn."""
        async with self._line:
            await self._know_the_cluster()
        nodes: list[dict[str, Any]] = [{}]
        if self.is_cluster:
            nodes = [{"target_nodes": node} for node in self._client.get_primaries()]
        for node in nodes:
            cursor: Any = 0
            while True:
                # One step at a time: whoever reads the names needs a connection as well.
                async with self._line:
                    cursor, names = await self._client.scan(cursor, match=pattern, count=_SCAN_COUNT, **node)
                yield names
                # A cluster's client tells the cursor of each node that it asked, by name.
                cursor = next(iter(cursor.values())) if isinstance(cursor, Mapping) else cursor
                if int(cursor) == 0:
                    break

    async def _know_the_cluster(self) -> None:
        # A cluster client that looks around within its first call sends the calls beside that one to any node.
        if self.is_cluster:
            await self._client.initialize()

    async def _send(self, command: str, script: str, calls: Sequence[Call]) -> list[Any]:
        # raise_on_error=False also keeps the commands, with their keys and owners, out of the errors' texts.
        pipeline = self._client.pipeline() if self.is_cluster else self._client.pipeline(transaction=False)
        async with self._line, pipeline:
            await self._know_the_cluster()
            for keys, args in calls:
                # Not pipeline.evalsha(), which a cluster's pipeline refuses; the command itself it routes by its keys.
                pipeline.execute_command(command, script, len(keys), *keys, *args)
            replies: list[Any] = await pipeline.execute(raise_on_error=False)
            return replies

    def __repr__(self) -> str:
        # Not the client's own, which may hold its password.
        return f"RedisRunner({type(self._client).__name__})"


def _is_noscript(error: object) -> bool:
    # By name: redis-py and valkey-py each have a class of their own.
    return any(kind.__name__ == "NoScriptError" for kind in type(error).__mro__)


def _is_cluster(client: Any) -> bool:
    return hasattr(client, "nodes_manager")


def _connections(client: Any) -> int | None:
    """How many connections the client may have, to a node; None where it does not tell."""
    if _is_cluster(client):
        limit = client.connection_kwargs.get("max_connections")
    else:
        limit = getattr(client.connection_pool, "max_connections", None)
    return limit if isinstance(limit, int) and limit > 0 else None


def _refuse_unusable(client: Any) -> None:
    kind = type(client).__name__
    if not (_is_cluster(client) or hasattr(client, "connection_pool")):
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
    if not _is_cluster(client) and not getattr(client.connection_pool, "is_master", True):
        raise ConfigurationError(
            "The client leads to a replica, which takes no writes: use Sentinel.master_for(), not slave_for()."
        )
    encoder = client.get_encoder()
    if encoder.decode_responses and codecs.lookup(encoder.encoding).name != "utf-8":
        raise ConfigurationError(
            f"The client decodes replies as {encoder.encoding}, and keys are in UTF-8: leave out encoding=, or "
            "decode_responses=True."
        )


def _dangers(client: Any) -> Iterator[str]:
    """Say what about a client's settings is dangerous, each with its remedy."""
    if _is_cluster(client):
        timeout_s = client.connection_kwargs.get("socket_timeout")
        retries = _cluster_retries(client)
        if getattr(client, "cluster_error_retry_attempts", None) == 0:
            yield (
                "The client is valkey-py's with cluster_error_retry_attempts=0, with which its pipelines, and so "
                "renewals of many locks, fail. Set cluster_error_retry_attempts=1."
            )
    else:
        # A connection as the pool would make it, unconnected: what it really gives.
        sample = client.connection_pool.make_connection()
        timeout_s = sample.socket_timeout
        retries = _retries(sample.retry)
    if timeout_s is None:
        yield (
            "The client has no socket_timeout: calls to a server that stops answering stay in it, and keep their "
            "connections, until TCP gives up. Set socket_timeout=2, or make it with create_redis_client()."
        )
    if retries:
        yield (
            f"The client sends a call again, up to {retries} times, when its reply was lost (retry=): the engine's "
            "time runs out under calls that nobody waits for any more. Set retry=Retry(NoBackoff(), 0), or make the "
            "client with create_redis_client()."
        )
    elif _misses_dead_connections(client):
        yield (
            "The client has maintenance notifications on, with which it does not notice that the server closed an idle "
            "connection, and with retries at 0 the next call on it fails. Set maint_notifications_config="
            "MaintNotificationsConfig(enabled=False), or make it with create_redis_client()."
        )
    if _is_cluster(client) and not retries and getattr(client, "reinitialize_steps", None):
        yield (
            f"The cluster client closes all its connections at every {client.reinitialize_steps}th MOVED answer "
            "(reinitialize_steps), and with retries at 0 calls under way on them fail, in the middle of a failover. "
            "Set reinitialize_steps=0, with which it follows each answer, or make it with create_redis_client()."
        )
    connections = _connections(client)
    if connections is not None and connections < _FEW_CONNECTIONS:
        yield (
            f"The client's pool has {connections} connections, one a call: renewals wait in line behind whoever asks "
            f"for a lock. Set max_connections to {_FEW_CONNECTIONS} or more."
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


def _misses_dead_connections(client: Any) -> bool:
    enabled = getattr(getattr(client, "connection_pool", None), "maint_notifications_enabled", None)
    return bool(enabled and enabled())
