"""The runner over valkey-glide's asyncio clients."""

import asyncio
import sys
import warnings
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from typing import Any, Final, final

from tenure.errors import ConfigurationError, LeaseStateError
from tenure_valkey.errors import ClientSettingsWarning
from tenure_valkey.glide_batches import Batches, glide_script
from tenure_valkey.glide_cluster import ClusterLines
from tenure_valkey.glide_subscriber import GlideSubscriber, make_glide_subscriber
from tenure_valkey.group import Line, Pending, ask_all
from tenure_valkey.runner import Call, Script
from tenure_valkey.subscriptions import Heard

__all__ = ["GlideRunner"]

_SCAN_COUNT: Final = 500
"""Keys that the server looks at in one step of a scan: some 100 µs, in which it serves nobody else."""

_DEFAULT_TIMEOUT_MS: Final = 250
_SHORT_TIMEOUT_MS: Final = 500
"""Below it a failover, or a server that forks to save, looks like one that does not answer."""

_DEFAULT_IN_FLIGHT: Final = 1000
_FEW_IN_FLIGHT: Final = 20
"""Below it the store, with two groups to a node, and the application refuse each other's requests."""

_ABREAST: Final = 2
"""A batch takes a while to get to glide's threads and back; meanwhile the next one may be on its way."""


@final
class GlideRunner:
    """
    Runs the store's scripts through a `GlideClient` or a `GlideClusterClient`.

    A call that is alone goes at once; what comes while two groups are under way to its node travels in the next. The
    client stays the caller's: the runner opens and closes nothing.

    Args:
        client: The client, made by `create()` in the event loop that uses it.
        warn: Whether to warn of its settings.

    Raises:
        ConfigurationError: It is another client, or one that reads from replicas.

    Warns:
        ClientSettingsWarning: Its settings are dangerous: a request time-out that a failover outlasts (250 ms is
            glide's default), or too few requests in flight.
    """

    def __init__(self, client: Any, *, warn: bool = True) -> None:
        self.is_cluster = _refuse_unusable(client)
        for message in _dangers(client.config) if warn else ():
            warnings.warn(message, ClientSettingsWarning, stacklevel=2)
        self._client = client
        # glide keeps it to itself; a client of another loop hangs for ever once its own loop has closed.
        self._loop = getattr(client, "_loop", None)
        limit = client.config.inflight_requests_limit or _DEFAULT_IN_FLIGHT
        # glide refuses the request that is one too many. A script that a server has not seen counts twice.
        abreast = _ABREAST if limit >= _FEW_IN_FLIGHT else 1
        self._lines: ClusterLines | None = None
        if self.is_cluster:
            self._lines = ClusterLines(client, abreast=abreast, alone=max(1, limit * 2 // 5))
        self._line = Line(Batches(client, is_cluster=False), abreast=abreast, can_give_up=False)

    def run(self, script: Script, keys: Sequence[bytes], args: Sequence[bytes]) -> Coroutine[Any, Any, Any]:
        """Run *script*: glide loads it where the server has not seen it, and EVAL brings it where that was in vain."""
        self._refuse_other_loop()
        return self._line_of(keys).ask(Pending(script, keys, args))

    async def run_many(self, script: Script, calls: Sequence[Call]) -> Sequence[Any]:
        """Run *script* once for each of *calls*; exceptions stand in their call's place."""
        self._refuse_other_loop()
        return await ask_all((self._line_of(keys), Pending(script, keys, args)) for keys, args in calls)

    async def run_on_primaries(self, script: Script, args: Sequence[bytes]) -> Mapping[str, Any]:
        """Run *script*, which has no keys, on each primary."""
        self._refuse_other_loop()
        if not self.is_cluster:
            return {"the server": await self.run(script, (), args)}
        from glide import AllPrimaries

        replies = await self._client.invoke_script_route(glide_script(script), args=list(args), route=AllPrimaries())
        # A cluster of one primary gives its reply alone.
        if not isinstance(replies, Mapping):
            return {"the server": replies}
        return {node.decode() if isinstance(node, bytes) else node: reply for node, reply in replies.items()}

    async def find_keys(self, pattern: bytes) -> AsyncIterator[Sequence[bytes | str]]:
        """Yield the names that fit *pattern*, in batches: SCAN, on each primary in turn."""
        self._refuse_other_loop()
        if self.is_cluster:
            from glide import ClusterScanCursor

            place = ClusterScanCursor()  # type: ignore[no-untyped-call]  # glide's has no types
            while not place.is_finished():
                place, names = await self._client.scan(place, match=pattern, count=_SCAN_COUNT)
                yield names
            return
        cursor = b"0"
        while True:
            cursor, names = await self._client.scan(cursor, match=pattern, count=_SCAN_COUNT)
            yield names
            if cursor == b"0":
                return

    async def subscriber(self, heard: Heard) -> GlideSubscriber | None:
        """Return a subscriber, on a client of its own with the settings of this one."""
        self._refuse_other_loop()
        return make_glide_subscriber(self._client, heard)

    def __repr__(self) -> str:
        return f"GlideRunner({type(self._client).__name__})"

    def _line_of(self, keys: Sequence[bytes]) -> Line:
        return self._line if self._lines is None else self._lines.line_of(keys)

    def _refuse_other_loop(self) -> None:
        if self._loop is not None and self._loop is not asyncio.get_running_loop():
            raise LeaseStateError(
                "The glide client belongs to another event loop, and would never answer in this one. Create it in the "
                "loop that uses it."
            )


def _refuse_unusable(client: Any) -> bool:
    """Refuse a client that cannot work; tell whether it is a cluster's."""
    # A client of glide is there only where glide was imported; whoever has none need not have it installed.
    glide = sys.modules.get("glide")
    if glide is None or not isinstance(client, glide.GlideClient | glide.GlideClusterClient):
        raise ConfigurationError(
            f"GlideRunner was given a {type(client).__name__}: give it a GlideClient or a GlideClusterClient of "
            "`glide` (not of glide_sync). A client of redis-py or valkey-py goes into RedisRunner."
        )
    config = client.config
    if config.read_from != glide.ReadFrom.PRIMARY or getattr(config, "read_only", False):
        raise ConfigurationError(
            "The glide client reads from replicas (read_from, read_only): it marks every connection READONLY, and "
            "after a failover sends the scripts to the old primary, which refuses them for up to a minute. Give the "
            "store a client of its own that reads from the primary."
        )
    return isinstance(client, glide.GlideClusterClient)


def _dangers(config: Any) -> Iterator[str]:
    """Say what about a client's settings is dangerous, each with its remedy. 0 and None are glide's defaults."""
    timeout_ms = config.request_timeout or _DEFAULT_TIMEOUT_MS
    if timeout_ms < _SHORT_TIMEOUT_MS:
        yield (
            f"The client's request_timeout is {timeout_ms} ms, shorter than a failover, and the outcome of each call "
            "that it ends is unknown. Set request_timeout=2000."
        )
    limit = config.inflight_requests_limit or _DEFAULT_IN_FLIGHT
    if limit < _FEW_IN_FLIGHT:
        yield (
            f"The client's inflight_requests_limit is {limit}: requests beyond it are refused, and a script that a "
            f"server has not seen counts twice. Leave it at its default, or set {_FEW_IN_FLIGHT} or more."
        )
