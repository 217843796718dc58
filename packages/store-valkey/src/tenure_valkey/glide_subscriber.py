"""
Listening through valkey-glide: a second client with the settings of the first, because messages of a client that the
application made are the application's.

glide subscribes again by itself after a connection broke and after a slot has moved, within about three seconds. Until
then a release passes over those who wait there, and they poll. After a planned failover it stays where it is, at what
is a replica now, until it looks around by itself (a minute): `lose` has it connect anew.
"""

import asyncio
import copy
from typing import Any, Final, final

from tenure_valkey.subscriptions import Heard

__all__ = ["GlideSubscriber", "make_glide_subscriber"]

_ANSWER_MS: Final = 2000
"""How long the server may take to say that it subscribed."""


def make_glide_subscriber(client: Any, heard: Heard) -> "GlideSubscriber | None":
    """Return a subscriber with the settings of *client*; None where this release of glide cannot subscribe later."""
    return GlideSubscriber(client, heard) if hasattr(client, "subscribe") else None


@final
class GlideSubscriber:
    """
    The channels of one store.

    Args:
        client: The client whose settings it takes over.
        heard: What is called with each message.
    """

    def __init__(self, client: Any, heard: Heard) -> None:
        self._kind = type(client)
        self._config = copy.copy(client.config)
        # A client that connects while it is made holds up the event loop until the server answers.
        self._config.lazy_connect = True
        self._loop = asyncio.get_running_loop()
        settings = type(client.config).PubSubSubscriptions
        self._config.pubsub_subscriptions = settings({}, self._take, None)
        self._heard = heard
        self._making = asyncio.Lock()
        self._client: Any = None
        self._closing: asyncio.Task[None] | None = None
        self._channels: set[bytes] = set()
        self._ends: set[asyncio.Task[None]] = set()

    async def add(self, channel: bytes) -> None:
        """Subscribe to *channel*; return once the server has said so."""
        async with self._making:
            if self._client is None:
                self._client = await self._kind.create(self._config)
                self._closing = self._loop.create_task(_close_at_the_end(self._client))
        client = self._client
        try:
            await (client.ssubscribe if b"{" in channel else client.subscribe)({channel.decode()}, _ANSWER_MS)
        except Exception:
            # It would go on asking for this channel, without a pause where the server refuses it.
            await self._forget(client)
            raise
        self._channels.add(channel)

    def hears(self, channel: bytes) -> bool:
        """Whether *channel* was subscribed to; glide looks after it."""
        return channel in self._channels

    async def remove(self, channel: bytes) -> None:
        """Give *channel* up."""
        client = self._client
        if channel in self._channels and client is not None:
            self._channels.discard(channel)
            await (client.sunsubscribe_lazy if b"{" in channel else client.unsubscribe_lazy)({channel.decode()})

    def lose(self, channel: bytes) -> None:
        """Give up the client: another one learns where *channel* is now."""
        client = self._client
        if client is not None and channel in self._channels:
            self._let_go()
            self._ends.add(ending := self._loop.create_task(client.close()))
            ending.add_done_callback(self._ends.discard)

    async def aclose(self) -> None:
        """Close the client."""
        async with self._making:
            if self._client is not None:
                await self._forget(self._client)
        if self._ends:
            await asyncio.wait(self._ends)

    async def _forget(self, client: Any) -> None:
        if client is self._client:
            self._let_go()
        await client.close()

    def _let_go(self) -> None:
        self._client = None
        self._channels.clear()
        if self._closing is not None:
            self._closing.cancel()

    def _take(self, message: Any, _: Any) -> None:
        data = message.message
        words = data.encode() if isinstance(data, str) else data
        try:
            here = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            here = False
        if here:
            self._heard(words)
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._heard, words)


async def _close_at_the_end(client: Any) -> None:
    """Close *client* when the event loop ends before the store is closed: glide warns of one that is dropped."""
    try:
        await asyncio.get_running_loop().create_future()
    finally:
        await client.close()
