"""
The warehouse's alert feed: one connection, over which it says of which products little is left.

A shop that has the connection says again and again that it listens. One that is silent is hung up on: its process may
be paused, or its network gone, and nothing in the connection itself would ever tell.
"""

import asyncio
import contextlib
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from cat_store.partners.wire import Beat, FeedLine, FeedOpened, StockAlert, WarehouseSwitches

__all__ = ["GARBAGE", "AlertFeed", "FeedTakenError", "Listener", "NoSuchFeedError"]

GARBAGE: Final = b"<html>Scheduled maintenance</html>"

_BEAT_S: Final = 1.0
"""How often a line comes at least, so that a shop can tell a quiet warehouse from a dead one."""

_SILENT_S: Final = 3.0
"""How long a shop may say nothing before it is hung up on: three beats."""

_FEWEST: Final = 3
"""Alerts that come by themselves are about one of so many products with the fewest bags, in turn."""

_KEPT: Final = 1000
"""How many alerts are kept for a shop that was away; what is older, its next full count tells."""


class FeedTakenError(Exception):
    """A connection while there is one."""


class NoSuchFeedError(LookupError):
    """A connection that has ended, or never was."""


@dataclass(slots=True)
class Listener:
    """
    One connection.

    Attributes:
        feed_id: Its id, which the shop names when it says that it listens.
        sent: The last alert that was sent over it, or that the shop had before.
    """

    feed_id: str
    sent: int
    heard_at: float = field(default_factory=time.monotonic)
    beat_at: float = field(default_factory=time.monotonic)
    ended: bool = False


class AlertFeed:
    """
    The alerts, and who listens. One event loop; nothing is kept across a restart, and the ledger's name tells.

    Args:
        shelves: How many bags of each product there are, as it changes. An alert that waited for its shop tells what
            there is when it is sent: the shop may have counted meanwhile, and must not be told what was.
        switches: Tells how the warehouse misbehaves.
        alert_every_s: How often an alert is sent by itself while somebody listens, in seconds; 0 for never.
        beat_s: How often a line comes at least, in seconds.
        silent_s: How long a shop may say nothing, in seconds.
    """

    def __init__(
        self,
        shelves: Mapping[str, int],
        switches: Callable[[], WarehouseSwitches],
        *,
        alert_every_s: float = 0.0,
        beat_s: float = _BEAT_S,
        silent_s: float = _SILENT_S,
    ) -> None:
        self.ledger: Final = f"led_{secrets.token_hex(4)}"
        self.most = 0
        self.refused = 0
        self._shelves = shelves
        self._switches = switches
        self._alert_every_s = alert_every_s
        self._beat_s = beat_s
        self._silent_s = silent_s
        self._alerts: deque[tuple[int, str]] = deque(maxlen=_KEPT)
        self._last = 0
        self._turn = 0
        self._alerted_at = time.monotonic()
        self._listeners: list[Listener] = []
        self._changed = asyncio.Event()
        self._ended = False

    @property
    def open_now(self) -> int:
        """How many connections there are."""
        return len(self._listeners)

    @property
    def sent(self) -> int:
        """The number of the last alert."""
        return self._last

    def send(self, product_id: str) -> StockAlert:
        """Send an alert, now or when somebody listens."""
        self._last += 1
        self._alerts.append((self._last, product_id))
        self._alerted_at = time.monotonic()
        self.look_again()
        return StockAlert(self._last, product_id, self._shelves[product_id])

    def open(self, ledger: str, after: int) -> Listener:
        """
        Connect.

        Args:
            ledger: The ledger that the shop has read in; another one's numbers mean nothing here.
            after: The last alert that the shop has of it.

        Raises:
            FeedTakenError: Somebody is connected.
        """
        for listener in list(self._listeners):
            if self._is_silent(listener):
                self._hang_up(listener)
        if self._listeners or self._ended:
            self.refused += 1
            raise FeedTakenError
        listener = Listener(f"feed_{secrets.token_hex(4)}", after if ledger == self.ledger else 0)
        self._listeners.append(listener)
        self.most = max(self.most, len(self._listeners))
        return listener

    def hear(self, feed_id: str) -> Beat:
        """
        Note that a shop listens.

        Raises:
            NoSuchFeedError: It was hung up on.
        """
        for listener in self._listeners:
            if listener.feed_id == feed_id:
                listener.heard_at = time.monotonic()
                return Beat(self._last)
        raise NoSuchFeedError(feed_id)

    async def lines(self, listener: Listener) -> AsyncIterator[bytes]:
        """Say what there is to say over one connection, line by line, until it ends."""
        try:
            yield _encoded(FeedOpened(listener.feed_id, self.ledger))
            while (line := await self._next(listener)) is not None:
                yield line
        finally:
            self._hang_up(listener)

    def look_again(self) -> None:
        """Have every connection look at once at what has changed."""
        self._changed.set()
        self._changed = asyncio.Event()

    def end(self) -> None:
        """End every connection, and take none: a server that is told to stop would wait for their ends in vain."""
        self._ended = True
        for listener in list(self._listeners):
            self._hang_up(listener)

    async def _next(self, listener: Listener) -> bytes | None:
        while not listener.ended:
            on = self._switches()
            if on.fail_with is not None or self._is_silent(listener):
                return None
            self._alert_if_due(on)
            if not on.hold_feed and (line := self._due(listener, garbage=on.garbage)) is not None:
                return line
            changed = self._changed
            # A beat is due by then; an alert and a switch wake it before.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._beat_s / 2):
                    await changed.wait()
        return None

    def _due(self, listener: Listener, *, garbage: bool) -> bytes | None:
        alert = next((each for each in self._alerts if each[0] > listener.sent), None)
        now = time.monotonic()
        if alert is None and now < listener.beat_at:
            return None
        listener.beat_at = now + self._beat_s
        if garbage:
            return GARBAGE + b"\n"
        if alert is None:
            return _encoded(Beat(self._last))
        listener.sent, product_id = alert
        return _encoded(StockAlert(listener.sent, product_id, self._shelves[product_id]))

    def _alert_if_due(self, on: WarehouseSwitches) -> None:
        every_s = self._alert_every_s if on.alert_every_s is None else on.alert_every_s
        products = sorted(self._shelves, key=lambda product: (self._shelves[product], product))[:_FEWEST]
        if not every_s or not products or time.monotonic() - self._alerted_at < every_s:
            return
        self._turn += 1
        self.send(products[self._turn % len(products)])

    def _is_silent(self, listener: Listener) -> bool:
        return time.monotonic() - listener.heard_at > self._silent_s

    def _hang_up(self, listener: Listener) -> None:
        listener.ended = True
        if listener in self._listeners:
            self._listeners.remove(listener)
        self.look_again()


def _encoded(line: FeedLine) -> bytes:
    return msgspec.json.encode(line) + b"\n"
