"""
The channels on which a store hears of grants: opened when somebody waits, given up when nobody has for a while.

On one server a store has one channel, `<prefix>queue:<id>`. In a cluster it has one for each lock that it waits for,
`<prefix>{<tag>}:queue:<id>`, which is in the lock's slot, as whatever a script publishes has to be.
"""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Coroutine
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, final

from tenure_valkey.runner import ScriptRunner, read_script
from tenure_valkey.subscriptions import Heard, Subscriber, Subscribes

__all__ = ["Channels"]

_LOG: Final = logging.getLogger("tenure")

_MAY_LISTEN: Final = read_script("may_listen")

_PATIENCE_S: Final = 0.5
"""How long a waiter waits for its channel, at most, in seconds; then it polls."""

_FIRST_BACKOFF_S: Final = 0.5
_LONGEST_BACKOFF_S: Final = 30.0
"""How long no channel is opened after one could not be had, in seconds; twice as long each time in a row."""

_IDLE_S: Final = 60.0
"""
For how long nobody has to have waited, in seconds, before the connections are closed: a store need not be closed where
its client is the application's, and what it opened itself must not stay for ever.
"""

_MOST_IDLE: Final = 256
"""Channels beyond which those that nobody has asked for in a while are given up."""

_LOOKED_AT: Final = 16
"""Channels that are looked at whenever one is opened beyond those."""


@dataclass(slots=True)
class _Channel:
    """
    A channel.

    Attributes:
        used_at: When a waiter last asked for it, in seconds of the event loop.
        opening: What subscribes to it.
        opened_at: When that began.
    """

    used_at: float
    opening: "asyncio.Task[None] | None" = None
    opened_at: float = 0.0


@final
class Channels:
    """
    The channels of one store.

    Args:
        runner: The store's runner; where it cannot listen, there is no channel.
        prefix: What the store's keys begin with.
        heard: What is called with each message.
    """

    def __init__(self, runner: ScriptRunner, prefix: str, heard: Heard) -> None:
        self._asks = runner
        self._runner = runner if isinstance(runner, Subscribes) else None
        self._id = secrets.token_hex(8)
        self._nobody = f"{prefix}{{tenure:start}}".encode()
        self._one = None if getattr(runner, "is_cluster", False) else f"{prefix}queue:{self._id}".encode()
        self._heard = heard
        self._loop: asyncio.AbstractEventLoop | None = None
        self._subscriber: Subscriber | None = None
        self._channels: dict[bytes, _Channel] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle: asyncio.TimerHandle | None = None
        self._used_at = 0.0
        self._retry_at = 0.0
        self._failures = 0

    def ready(self, lock: bytes) -> bytes | None:
        """Return the channel for *lock*, where it is open."""
        if self._runner is None or self._subscriber is None:
            return None
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._forget()
            return None
        name = self._name(lock)
        channel = self._channels.get(name)
        if channel is None:
            return None
        channel.used_at = self._used_at = loop.time()
        return name if self._subscriber.hears(name) else None

    async def open(self, lock: bytes, within_s: float = _PATIENCE_S) -> bytes | None:
        """Open the channel for *lock*; return it, or None where that failed or takes longer than a moment."""
        if self._runner is None:
            return None
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._forget()
            self._loop = loop
        name, now = self._name(lock), loop.time()
        channel = self._channels.setdefault(name, _Channel(now))
        channel.used_at = self._used_at = now
        if channel.opening is None:
            if now < self._retry_at:
                return None
            channel.opened_at = now
            channel.opening = self._start(self._subscribe(lock, name, channel))
        left_s = channel.opened_at + min(within_s, _PATIENCE_S) - now
        if left_s > 0:
            await asyncio.wait([channel.opening], timeout=left_s)
        return self.ready(lock)

    def counted(self, name: bytes, listeners: int) -> None:
        """
        Take note of how many listen to the channel *name* where its lock lives; -1 where the server does not say.

        None do where what a subscription was made on is a primary no more: after a failover, of which a connection
        that stands tells nothing. It is given up then, and made anew by the next poll.
        """
        if listeners:
            self._failures = 0
            return
        channel, loop = self._channels.get(name), asyncio.get_running_loop()
        if loop is self._loop and self._subscriber is not None and channel is not None and channel.opening is None:
            del self._channels[name]
            self._subscriber.lose(name)
            self._back_off(loop)

    def commands(self) -> tuple[tuple[bytes, ...], ...]:
        """What a user has to have the right to: words of commands, on a channel that is nobody's."""
        if self._runner is None:
            return ()
        name = self._name(self._nobody)
        kind = b"S" if b"{" in name else b""
        count = (b"PUBSUB", b"SHARDNUMSUB" if kind else b"NUMSUB", name)
        listening = ((kind + b"PUBLISH", name, b""), (kind + b"SUBSCRIBE", name), count)
        # One server has one channel, which is never given up.
        return (*listening, (b"SUNSUBSCRIBE", name)) if kind else listening

    async def aclose(self) -> None:
        """Close the connections. A later `open` opens them again."""
        subscriber, tasks = self._subscriber, [*self._tasks]
        same_loop = asyncio.get_running_loop() is self._loop
        self._forget()
        if not same_loop:
            return
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if subscriber is not None:
            await subscriber.aclose()

    def _name(self, lock: bytes) -> bytes:
        return self._one or b"%b:queue:%b" % (lock, self._id.encode())

    def _start(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _subscribe(self, lock: bytes, name: bytes, channel: _Channel) -> None:
        loop = asyncio.get_running_loop()
        try:
            subscriber = self._subscriber or await self._made(lock, name)
            if subscriber is None:
                return
            await subscriber.add(name)
        except Exception as error:  # noqa: BLE001 -- whatever a client raises; who waits polls
            self._back_off(loop)
            _LOG.debug("Waiters are not told of releases for now, and poll: %s", type(error).__name__)
            return
        finally:
            channel.opening = None
        self._watch_idleness(loop)
        if len(self._channels) > _MOST_IDLE and subscriber is self._subscriber:
            await self._give_up_unused(subscriber, loop.time())

    def _back_off(self, loop: asyncio.AbstractEventLoop) -> None:
        """Open no channel for a while, longer each time until one is heard on."""
        self._retry_at = loop.time() + min(_FIRST_BACKOFF_S * 2**self._failures, _LONGEST_BACKOFF_S)
        self._failures = min(self._failures + 1, 10)

    async def _made(self, lock: bytes, name: bytes) -> Subscriber | None:
        """Have the runner make a subscriber, once for all channels, if the user may have one."""
        if self._runner is not None:
            if await self._asks.run(_MAY_LISTEN, (lock,), (name,)) != 1:
                raise PermissionError("The user may not subscribe to channels of the prefix.")
            made = await self._runner.subscriber(self._heard)
            if made is None:
                self._runner = None
            # Whoever asked for another channel meanwhile may have been faster.
            self._subscriber = self._subscriber or made
        return self._subscriber

    async def _give_up_unused(self, subscriber: Subscriber, now: float) -> None:
        """Look at some channels, and go on behind them the next time."""
        for name in [*islice(self._channels, _LOOKED_AT)]:
            channel = self._channels.pop(name)
            if channel.opening is not None or channel.used_at + _IDLE_S > now:
                self._channels[name] = channel
                continue
            with contextlib.suppress(Exception):
                await subscriber.remove(name)

    def _watch_idleness(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._idle is None:
            self._idle = loop.call_at(self._used_at + _IDLE_S, self._look_for_idleness)

    def _look_for_idleness(self) -> None:
        self._idle = None
        loop = asyncio.get_running_loop()
        if loop is not self._loop or self._subscriber is None:
            return
        if loop.time() < self._used_at + _IDLE_S:
            self._watch_idleness(loop)
            return
        subscriber = self._subscriber
        self._subscriber = None
        self._channels.clear()
        self._start(subscriber.aclose())

    def _forget(self) -> None:
        """Forget all that was open; what belongs to an event loop that has gone ended with it."""
        self._subscriber = None
        self._channels.clear()
        self._tasks = set()
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        self._retry_at, self._failures = 0.0, 0
