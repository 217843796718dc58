"""
The runner over redis-py's asyncio clients; valkey-py's are the same classes under other names, and fit as well.

Nothing here imports either: a client is known by what it has.
"""

import warnings
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from typing import Any, Final, final

from tenure_valkey.errors import ClientSettingsWarning
from tenure_valkey.redis_cluster import Cluster
from tenure_valkey.redis_connection import OneServer
from tenure_valkey.redis_settings import connections, dangers, is_cluster, refuse_unusable
from tenure_valkey.redis_subscriber import RedisSubscriber
from tenure_valkey.runner import Call, Script
from tenure_valkey.subscriptions import Heard

__all__ = ["RedisRunner"]

_SCAN_COUNT: Final = 500
"""Keys that the server looks at in one step of a scan: some 100 µs, in which it serves nobody else."""


@final
class RedisRunner:
    """
    Runs the store's scripts through an asyncio client of redis-py or valkey-py.

    A standalone `Redis`, a `RedisCluster`, or the client of a primary that `Sentinel.master_for()` gives. A call that
    is alone goes at once; what comes while it is under way travels in the next group, over one connection of the
    client's pool, or in one pipeline to a node. The client stays the caller's: what it closes is closed.
    `create_redis_client` makes one whose settings fit.

    Args:
        client: The client. For a lock store its replies may be decoded as UTF-8 (`decode_responses`), or not; an
            idempotency store refuses one that decodes, because a response is bytes of any kind.
        warn: Whether to warn of its settings.

    Raises:
        ConfigurationError: The client cannot work: a synchronous one, one that reads from replicas, one that decodes
            replies as something else than UTF-8.

    Warns:
        ClientSettingsWarning: Its settings are dangerous: no time-out, connecting that is tried again and again, a
            cluster's calls that are sent again when their reply was lost, too few connections.
    """

    def __init__(self, client: Any, *, warn: bool = True) -> None:
        refuse_unusable(client)
        for message in dangers(client) if warn else ():
            warnings.warn(message, ClientSettingsWarning, stacklevel=2)
        self._client = client
        self.is_cluster = is_cluster(client)
        self.decodes_replies = bool(client.get_encoder().decode_responses)
        self._server = Cluster(client, connections(client)) if self.is_cluster else OneServer(client)

    def run(self, script: Script, keys: Sequence[bytes], args: Sequence[bytes]) -> Coroutine[Any, Any, Any]:
        """Run *script*: EVALSHA, and EVAL where the server has not seen it."""
        return self._server.run(script, keys, args)

    async def run_many(self, script: Script, calls: Sequence[Call]) -> Sequence[Any]:
        """Run *script* once for each of *calls*; exceptions stand in their call's place."""
        return await self._server.run_many(script, calls)

    async def run_on_primaries(self, script: Script, args: Sequence[bytes]) -> Mapping[str, Any]:
        """Run *script*, which has no keys, on each primary that the client knows."""
        return await self._server.run_on_primaries(script, args)

    def find_keys(self, pattern: bytes) -> AsyncIterator[Sequence[bytes | str]]:
        """Yield the names that fit *pattern*, in batches: SCAN, on each primary in turn."""
        return self._server.find_keys(pattern, _SCAN_COUNT)

    async def subscriber(self, heard: Heard) -> RedisSubscriber:
        """Return a subscriber, on connections beside the client's pool."""
        return RedisSubscriber(self._client, is_cluster=self.is_cluster, heard=heard)

    def __repr__(self) -> str:
        # Not the client's own, which may hold its password.
        return f"RedisRunner({type(self._client).__name__})"
