"""
Listening through redis-py's and valkey-py's asyncio clients: connections made as the client's own are, beside its pool.

Not the libraries' `PubSub`: it connects anew by itself without a word, which a waiter has to know of, and valkey-py's
has no sharded channels. Such a connection takes no place in the client's pool.
"""

import asyncio
import contextlib
import inspect
import math
from typing import Any, Final, final

from tenure_valkey.subscriptions import Heard

__all__ = ["RedisSubscriber"]

_QUIET_S: Final = 5.0
"""Seconds without a word after which a connection is asked whether it still is one."""

_ANSWER_S: Final = 2.0
"""Seconds until the server has to have answered."""


@final
class RedisSubscriber:
    """
    The channels of one store.

    Args:
        client: The application's client, whose settings the connections have.
        is_cluster: Whether it is a cluster's.
        heard: What is called with each message.
    """

    def __init__(self, client: Any, *, is_cluster: bool, heard: Heard) -> None:
        self._client = client
        self._is_cluster = is_cluster
        self._heard = heard
        self._lines: dict[str, _Line] = {}

    async def add(self, channel: bytes) -> None:
        """Subscribe to *channel*, at the primary of its slot; return once the server has said so."""
        if self._is_cluster:
            await self._client.initialize()
        node = self._node_of(channel)
        name = "" if node is None else node.name
        line = self._lines.get(name)
        if line is None or line.ended:
            line = self._lines[name] = _Line(self._connection_to(node), self._heard)
        await line.add(channel)
        for other in self._lines.values():
            if other is not line and channel in other.channels:
                await other.remove(channel)

    def hears(self, channel: bytes) -> bool:
        """Whether *channel* is subscribed, at what the client takes for its primary, and the server answers."""
        try:
            node = self._node_of(channel)
        except Exception:  # noqa: BLE001 -- a slot that the client knows no node of, in the middle of a failover
            return False
        line = self._lines.get("" if node is None else node.name)
        return line is not None and line.answers() and channel in line.channels

    async def remove(self, channel: bytes) -> None:
        """Give *channel* up, where it is subscribed."""
        for line in self._lines.values():
            if channel in line.channels:
                await line.remove(channel)

    def lose(self, channel: bytes) -> None:
        """Give up the connection on which *channel* is subscribed."""
        for line in self._lines.values():
            if channel in line.channels:
                line.end()

    async def aclose(self) -> None:
        """Close the connections."""
        lines, self._lines = self._lines, {}
        for line in lines.values():
            await line.aclose()

    def _node_of(self, channel: bytes) -> Any:
        return self._client.get_node_from_key(channel) if self._is_cluster else None

    def _connection_to(self, node: Any) -> Any:
        if node is None:
            return self._client.connection_pool.make_connection()
        return node.connection_class(**node.connection_kwargs)


@final
class _Line:
    """A connection, who reads it, and what it is subscribed to."""

    def __init__(self, connection: Any, heard: Heard) -> None:
        self._connection = connection
        self._heard = heard
        self._writing = asyncio.Lock()
        self._asked: dict[bytes, asyncio.Future[None]] = {}
        self._reader: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[None] | None = None
        self._connected = False
        self._heard_at = 0.0
        self._waits_since: float | None = None
        self.channels: set[bytes] = set()
        self.ended = False

    async def add(self, channel: bytes) -> None:
        loop = asyncio.get_running_loop()
        if self._reader is None:
            self._reader = loop.create_task(self._read())
        answer = self._asked.get(channel)
        if answer is None:
            answer = self._asked[channel] = loop.create_future()
            if self._waits_since is None:
                self._waits_since = loop.time()
            if self._connected:
                await self._subscribe(channel)
        await asyncio.shield(answer)

    async def remove(self, channel: bytes) -> None:
        self.channels.discard(channel)
        if self._connected:
            await self._send(b"SUNSUBSCRIBE" if b"{" in channel else b"UNSUBSCRIBE", channel)

    def answers(self) -> bool:
        """Whether the server is known to have answered lately; asked where it has been quiet."""
        now = asyncio.get_running_loop().time()
        if self._waits_since is not None:
            if now - self._waits_since > _ANSWER_S:
                # The server may be there, and the way to it not: whoever asks next takes a new connection.
                self.end()
        elif now - self._heard_at > _QUIET_S and self.channels:
            self._waits_since = now
            self._asking = asyncio.get_running_loop().create_task(self._ask())
        return not self.ended

    async def aclose(self) -> None:
        self.end()
        if self._reader is not None:
            await asyncio.wait([self._reader])

    def end(self) -> None:
        self.ended = True
        for task in (self._reader, self._asking):
            if task is not None:
                task.cancel()

    async def _ask(self) -> None:
        with contextlib.suppress(Exception):  # the reader hears of it
            # What is subscribed already is confirmed again; PING would be one more right that a user needs.
            await self._subscribe(next(iter(self.channels)))

    async def _subscribe(self, channel: bytes) -> None:
        await self._send(b"SSUBSCRIBE" if b"{" in channel else b"SUBSCRIBE", channel)

    async def _send(self, *words: bytes) -> None:
        async with self._writing:
            await self._connection.send_packed_command(self._connection.pack_command(*words), check_health=False)

    async def _read(self) -> None:
        failure: Exception = ConnectionError("The subscription was closed.")
        try:
            await self._connection.connect()
            self._connected = True
            _let_through(self._connection)
            for channel in [*self._asked]:
                await self._subscribe(channel)
            while True:
                # math.inf: neither redis-py nor valkey-py takes None for "no time-out".
                self._take(await self._connection.read_response(timeout=math.inf, push_request=True))
        except Exception as error:  # noqa: BLE001 -- whatever a client raises ends this connection, and goes to who asked
            failure = error
        finally:
            self.ended = True
            self.channels.clear()
            for answer in self._asked.values():
                if not answer.done():
                    answer.set_exception(failure)
                    answer.exception()  # looked at here: whoever asked may have left
            self._asked.clear()
            with contextlib.suppress(Exception):
                await self._connection.disconnect(nowait=True)

    def _take(self, reply: Any) -> None:
        self._heard_at = asyncio.get_running_loop().time()
        self._waits_since = None
        kind, *rest = [word.encode() if isinstance(word, str) else word for word in reply]
        if kind in (b"message", b"smessage"):
            self._heard(rest[-1])
        elif kind in (b"subscribe", b"ssubscribe"):
            self.channels.add(rest[0])
            answer = self._asked.pop(rest[0], None)
            if answer is not None and not answer.done():
                answer.set_result(None)
        elif kind in (b"unsubscribe", b"sunsubscribe"):
            # Also by the server itself, when the slot moves away.
            self.channels.discard(rest[0])


def _let_through(connection: Any) -> None:
    """Have the parser of RESP3 hand messages on and no more: it would log each at DEBUG, with the owner in it."""
    parser: Any = getattr(connection, "_parser", None)
    handler = getattr(parser, "pubsub_push_handler_func", None)
    if handler is not None and hasattr(parser, "set_pubsub_push_handler"):
        # Some await it and some do not, and what they have in place tells which.
        waits = inspect.iscoroutinefunction(handler)
        parser.set_pubsub_push_handler(_handed_on_later if waits else _handed_on)


def _handed_on(reply: Any) -> Any:
    return reply


async def _handed_on_later(reply: Any) -> Any:
    return reply
