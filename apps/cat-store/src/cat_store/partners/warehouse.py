"""
The warehouse: it counts its shelves page by page, and knows how many counts go on at once.

A full count ends when its last page was fetched, or when nobody has asked for a page of it for a while: its shop
may have been killed.
"""

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from cat_store.partners.feed import AlertFeed
from cat_store.partners.held import Held
from cat_store.partners.wire import CountPage, OpenedCount, Shelf, StockAlert, WarehouseStatement, WarehouseSwitches

__all__ = ["PAGE_SIZE", "NoSuchPageError", "NoSuchShelfError", "Warehouse"]

# Small, so that the demo's dozen products take several pages.
PAGE_SIZE = 5
# A shop that works asks for the next page within milliseconds.
_ABANDONED_AFTER_S = 5.0


class NoSuchPageError(LookupError):
    """A page that its count does not have, or a page of a count that was never begun."""


class NoSuchShelfError(LookupError):
    """A product that has no shelf."""


@dataclass(slots=True)
class _Count:
    left: set[int]
    asking: int = 0
    asked_at: float = field(default_factory=time.monotonic)

    @property
    def goes_on(self) -> bool:
        recently = time.monotonic() - self.asked_at < _ABANDONED_AFTER_S
        return bool(self.left) and (self.asking > 0 or recently)


class Warehouse:
    """
    The shelves, the counts and the switches. One event loop; nothing is kept across a restart.

    Args:
        shelves: How many bags of each product there are.
        alert_every_s: How often its feed sends an alert by itself, in seconds; 0 for never.

    Attributes:
        feed: Its alert feed.
    """

    def __init__(self, shelves: Mapping[str, int], *, alert_every_s: float = 0.0) -> None:
        self._shelves = dict(shelves)
        self._switches = WarehouseSwitches()
        self._counts: dict[str, _Count] = {}
        self._senders: list[str] = []
        self._most_at_once = 0
        self._pages = Held()
        self.feed = AlertFeed(self._shelves, lambda: self._switches, alert_every_s=alert_every_s)

    @property
    def switches(self) -> WarehouseSwitches:
        """How it misbehaves."""
        return self._switches

    @switches.setter
    def switches(self, switches: WarehouseSwitches) -> None:
        self._switches = switches
        self._pages.look_again()
        self.feed.look_again()

    def begin_count(self, sender: str) -> OpenedCount:
        """Begin a full count."""
        pages = max(1, -(-len(self._shelves) // PAGE_SIZE))
        opened = OpenedCount(f"cnt_{secrets.token_hex(4)}", pages)
        self._counts[opened.count_id] = _Count(left=set(range(1, pages + 1)))
        self._senders.append(sender)
        self._most_at_once = max(self._most_at_once, self._open_counts())
        return opened

    async def page(self, count_id: str, number: int) -> CountPage:
        """
        Count the shelves of one page, as they are at the moment of the request.

        Raises:
            NoSuchPageError: There is no such count, or it has no such page.
        """
        count = self._counts.get(count_id)
        pages = max(1, -(-len(self._shelves) // PAGE_SIZE))
        if count is None or not 1 <= number <= pages:
            raise NoSuchPageError(count_id, number)
        products = sorted(self._shelves)[(number - 1) * PAGE_SIZE : number * PAGE_SIZE]
        counted = [Shelf(product, self._shelves[product]) for product in products]
        count.asking += 1
        try:
            # Counted already: what is sold while the answer is held back is not in it.
            await self._pages.until(lambda: not self._switches.hold_counts)
        finally:
            count.asking -= 1
            count.asked_at = time.monotonic()
        count.left.discard(number)
        return CountPage(number, counted)

    def set_shelf(self, product_id: str, count: int) -> Shelf:
        """
        Put *count* bags on a shelf: sold, shipped or delivered.

        Raises:
            NoSuchShelfError: The warehouse has no shelf for that product.
        """
        if product_id not in self._shelves:
            raise NoSuchShelfError(product_id)
        self._shelves[product_id] = count
        return Shelf(product_id, count)

    def alert(self, shelf: Shelf) -> StockAlert:
        """
        Change what lies on a shelf, and send an alert about it.

        Raises:
            NoSuchShelfError: The warehouse has no shelf for that product.
        """
        return self.feed.send(self.set_shelf(shelf.product_id, shelf.count).product_id)

    def statement(self) -> WarehouseStatement:
        """What it was asked to do so far."""
        return WarehouseStatement(
            full_counts=len(self._senders),
            open_counts=self._open_counts(),
            most_at_once=self._most_at_once,
            senders=list(self._senders),
            open_feeds=self.feed.open_now,
            most_feeds=self.feed.most,
            refused_feeds=self.feed.refused,
            alerts=self.feed.sent,
        )

    def _open_counts(self) -> int:
        return sum(count.goes_on for count in self._counts.values())
