"""The runner over valkey-glide's asyncio clients."""

import asyncio
import atexit
import sys
import warnings
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, Final, final

from tenure.errors import ConfigurationError, LeaseStateError
from tenure_valkey.errors import ClientSettingsWarning
from tenure_valkey.runner import Call, Script

__all__ = ["GlideRunner"]

_SCAN_COUNT: Final = 500
"""Keys that the server looks at in one step of a scan: some 100 µs, in which it serves nobody else."""

_DEFAULT_TIMEOUT_MS: Final = 250
_SHORT_TIMEOUT_MS: Final = 500
"""Below it a failover, or a server that forks to save, looks like one that does not answer."""

_DEFAULT_IN_FLIGHT: Final = 1000
_FEW_IN_FLIGHT: Final = 100
"""Below it a few dozen calls at once are refused: a script that a server has not seen counts twice."""

_SHARE: Final = 4
"""Many renewals take a quarter of the client's requests in flight at a time: the rest is for everybody else."""


@final
class GlideRunner:
    """
    Runs the store's scripts through a `GlideClient` or a `GlideClusterClient`.

    All calls share the client's connection to a node, so any number of them travel together. The client stays the
    caller's: the runner opens and closes nothing.

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
        self._together = max(1, limit // _SHARE)
        # glide refuses the call that is one too many; here it waits in line. Less than half of the limit: a script that
        # a server has not seen counts twice, and a call counts on for a moment after its answer.
        self._line = asyncio.Semaphore(max(1, limit * 2 // 5))
        self._calls: set[asyncio.Task[Any]] = set()

    async def run(self, script: Script, keys: Sequence[bytes], args: Sequence[bytes]) -> Any:
        """Run *script*: glide loads it where the server has not seen it, and EVAL brings it where that was in vain."""
        self._refuse_other_loop()
        await self._line.acquire()
        # A task of its own: glide goes on with a call that was cancelled, and counts it until it has the answer.
        call = asyncio.get_running_loop().create_task(self._invoke(script, keys, args))
        self._calls.add(call)
        call.add_done_callback(self._answered)
        try:
            return await asyncio.shield(call)
        except asyncio.CancelledError:
            # So it ends here when it ends there, within the client's time-out: a release that is sent behind it would
            # come before it otherwise, and free nothing. Whoever cancels twice does not wait.
            await asyncio.wait([call])
            raise

    async def _invoke(self, script: Script, keys: Sequence[bytes], args: Sequence[bytes]) -> Any:
        try:
            return await self._client.invoke_script(_glide_script(script), keys=list(keys), args=list(args))
        except Exception as error:
            # glide loads a script once and asks again. Where it was flushed in between, too, its text goes along.
            if not _is_noscript(error):
                raise
        return await self._client.custom_command(["EVAL", script.source, str(len(keys)), *keys, *args])

    def _answered(self, call: "asyncio.Task[Any]") -> None:
        self._calls.discard(call)
        self._line.release()
        if not call.cancelled():
            call.exception()  # looked at here: whoever asked may have left

    async def run_many(self, script: Script, calls: Sequence[Call]) -> Sequence[Any]:
        """Run *script* once for each of *calls*, a share of the client's requests at a time."""
        replies: list[Any] = []
        for start in range(0, len(calls), self._together):
            together = (self.run(script, keys, args) for keys, args in calls[start : start + self._together])
            replies.extend(await asyncio.gather(*together, return_exceptions=True))
        for reply in replies:
            if isinstance(reply, BaseException) and not isinstance(reply, Exception):
                raise reply
        return replies

    async def run_on_primaries(self, script: Script, args: Sequence[bytes]) -> Mapping[str, Any]:
        """Run *script*, which has no keys, on each primary."""
        self._refuse_other_loop()
        if not self.is_cluster:
            return {"the server": await self.run(script, (), args)}
        from glide import AllPrimaries

        replies = await self._client.invoke_script_route(_glide_script(script), args=list(args), route=AllPrimaries())
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

    def __repr__(self) -> str:
        return f"GlideRunner({type(self._client).__name__})"

    def _refuse_other_loop(self) -> None:
        if self._loop is not None and self._loop is not asyncio.get_running_loop():
            raise LeaseStateError(
                "The glide client belongs to another event loop, and would never answer in this one. Create it in the "
                "loop that uses it."
            )


_scripts: dict[str, Any] = {}

# While the interpreter is whole: glide's scripts free something when they go, and complain if they go after it.
atexit.register(_scripts.clear)


def _glide_script(script: Script) -> Any:
    """Return glide's form of *script*, kept for good: glide forgets the text of one that is dropped while it runs."""
    if script.sha1 not in _scripts:
        from glide import Script as GlideScript

        _scripts[script.sha1] = GlideScript(script.source)  # type: ignore[no-untyped-call]  # glide's has no types
    return _scripts[script.sha1]


def _is_noscript(error: Exception) -> bool:
    # glide has one error for everything that a server says, and its text for the rest.
    return type(error).__name__ == "RequestError" and ("NoScriptError" in str(error) or "NOSCRIPT" in str(error))


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
            f"The client's inflight_requests_limit is {limit}: calls beyond it are refused, and a script that a server "
            f"has not seen counts twice. Leave it at its default, or set {_FEW_IN_FLIGHT} or more."
        )
