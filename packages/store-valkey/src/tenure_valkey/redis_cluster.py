"""
Groups of calls to a cluster, by redis-py's or valkey-py's own pipelines: one line a node, so that a slow one holds up
nobody else, and a dead one fails its own calls alone. MOVED, ASK and TRYAGAIN stay the client's.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final, final

from tenure_valkey.group import Line, Pending, ask_all
from tenure_valkey.redis_connection import FEW_CONNECTIONS, is_a, is_noscript
from tenure_valkey.runner import Call, Script

__all__ = ["Cluster"]

_NO_LIMIT: Final = 2**31

_NO_NODE: Final = ""
"""The line of the calls for which no node is known: those without a key, and of slots that nobody serves."""


@final
class Cluster:
    """
    What a runner does on a cluster.

    Args:
        client: The cluster's client.
        connections: How many connections it may have to a node; None where it does not tell.
    """

    def __init__(self, client: Any, connections: int | None) -> None:
        self._client = client
        self._lines: dict[str, Line] = {}
        # A client fails the call for which it has no connection to a node; where there are few, that one waits.
        limit = _NO_LIMIT if connections is None or connections >= FEW_CONNECTIONS else connections
        self._room = asyncio.Semaphore(limit)

    async def run(self, script: Script, keys: Sequence[bytes], args: Sequence[bytes]) -> Any:
        """Run *script* on the primary of *keys*."""
        await self._look_around()
        return await self._line_of(keys).ask(Pending(script, keys, args))

    async def run_many(self, script: Script, calls: Sequence[Call]) -> list[Any]:
        """Run *script* once for each of *calls*, on all nodes at the same time."""
        await self._look_around()
        return await ask_all((self._line_of(keys), Pending(script, keys, args)) for keys, args in calls)

    async def run_on_primaries(self, script: Script, args: Sequence[bytes]) -> Mapping[str, Any]:
        """Run *script*, which has no keys, on each primary that the client knows."""
        await self._look_around()
        async with self._room:
            replies = await self._client.execute_command(
                "EVAL", script.source, 0, *args, target_nodes=self._client.PRIMARIES
            )
        # A cluster of one primary gives its reply alone.
        return replies if isinstance(replies, Mapping) else {"the server": replies}

    async def find_keys(self, pattern: bytes, count: int) -> AsyncIterator[Sequence[bytes | str]]:
        """Yield the names that fit *pattern*, about *count* at a time, of each primary in turn."""
        await self._look_around()
        for node in self._client.get_primaries():
            cursor: Any = 0
            while True:
                # One step at a time: whoever reads the names needs a connection as well.
                async with self._room:
                    cursor, names = await self._client.scan(cursor, match=pattern, count=count, target_nodes=node)
                yield names
                # The client tells the cursor of each node that it asked, by name.
                cursor = next(iter(cursor.values())) if isinstance(cursor, Mapping) else cursor
                if int(cursor) == 0:
                    break

    async def _look_around(self) -> None:
        # A client that looks around within its first call sends the calls beside that one to any node.
        await self._client.initialize()

    def _line_of(self, keys: Sequence[bytes]) -> Line:
        name = self._node_of(keys)
        line = self._lines.get(name)
        if line is None:
            line = self._lines[name] = Line(_Pipelines(self._client, name, self._room))
        return line

    def _node_of(self, keys: Sequence[bytes]) -> str:
        if not keys:
            return _NO_NODE
        try:
            name: str = self._client.get_node_from_key(keys[0]).name
        except Exception as error:
            if not is_a(error, "SlotNotCoveredError"):
                raise
            return _NO_NODE
        return name


@final
class _Pipelines:
    """What carries the groups of one node."""

    def __init__(self, client: Any, name: str, room: asyncio.Semaphore) -> None:
        self._client = client
        self._name = name
        self._room = room
        self._lost_sight = False

    async def ready(self) -> None:
        """Know who serves what."""
        await self._client.initialize()
        if self._lost_sight:
            self._lost_sight = False
            # A pipeline whose node does not answer says so, and goes on sending there after a failover. Where nobody
            # tells, the calls fail by themselves.
            with contextlib.suppress(Exception):
                await self._client.nodes_manager.initialize()

    async def carry(self, calls: Sequence[Pending]) -> None:
        """Send *calls* in one pipeline; those whose script a node has not seen again, with its text."""
        try:
            async with self._room:
                unseen = await self._send("EVALSHA", calls)
                again = [call for call, _ in unseen if not call.answer.done()]
                for call, error in await self._send("EVAL", again) if again else ():
                    call.fail(error)
        except Exception as error:
            self._look_at(error)
            raise

    async def rest(self) -> None:
        """Nothing is kept."""

    def forget(self) -> None:
        """Nothing is kept."""

    async def _send(self, command: str, calls: Sequence[Pending]) -> list[tuple[Pending, Exception]]:
        if len(calls) == 1:
            replies = [await self._send_alone(command, calls[0])]
        else:
            # raise_on_error=False also keeps the commands, with their keys and owners, out of the errors' texts.
            pipeline = self._client.pipeline()
            node = self._client.get_node(node_name=self._name) if self._name else None
            target = {} if node is None else {"target_nodes": node}
            for call in calls:
                pipeline.execute_command(*_words(command, call), **target)
            replies = await pipeline.execute(raise_on_error=False)
        unseen: list[tuple[Pending, Exception]] = []
        for call, reply in zip(calls, replies, strict=True):
            if not isinstance(reply, Exception):
                call.reply(reply)
            elif is_noscript(reply):
                unseen.append((call, reply))
            else:
                self._look_at(reply)
                call.fail(reply)
        return unseen

    async def _send_alone(self, command: str, call: Pending) -> Any:
        try:
            return await self._client.execute_command(*_words(command, call))
        except Exception as error:  # noqa: BLE001 -- whatever a client raises, as a pipeline does
            return error

    def _look_at(self, error: Exception) -> None:
        if is_a(error, "ConnectionError", "TimeoutError", "ClusterDownError", "SlotNotCoveredError"):
            self._lost_sight = True


def _words(command: str, call: Pending) -> tuple[Any, ...]:
    script = call.script.sha1 if command == "EVALSHA" else call.script.source
    return (command, script, len(call.keys), *call.keys, *call.args)
