"""
The accounting system: it takes batches of invoices, and books whatever it is sent.

A batch is opened first, and its id is good for one content: sending it again is recognised and changes nothing.
An order that comes in two batches is booked twice, for accounting cannot know which one was meant.
"""

import secrets
from collections import Counter
from dataclasses import dataclass

from cat_store.partners.held import Held
from cat_store.partners.wire import (
    AccountingStatement,
    AccountingSwitches,
    Invoice,
    OpenedBatch,
    Receipt,
    RecordedBatch,
)

__all__ = ["Accounting", "ContentChangedError", "NeverOpenedError"]


class NeverOpenedError(LookupError):
    """A batch under an id that was never given out."""


class ContentChangedError(ValueError):
    """A batch came again with other invoices than the first time."""


@dataclass(slots=True)
class _Booked:
    sender: str
    invoices: list[Invoice]
    repeats: int = 0


class Accounting:
    """The books, and the switches. One event loop; nothing is kept across a restart."""

    def __init__(self) -> None:
        self._switches = AccountingSwitches()
        self._opened: set[str] = set()
        self._books: dict[str, _Booked] = {}
        self._openings = Held()
        self._arrived = 0
        self._receipts = Held()

    @property
    def switches(self) -> AccountingSwitches:
        """How it misbehaves."""
        return self._switches

    @switches.setter
    def switches(self, switches: AccountingSwitches) -> None:
        self._switches = switches
        self._arrived = self._openings.waiting
        self._openings.look_again()
        self._receipts.look_again()

    async def open_batch(self) -> OpenedBatch:
        """Give out the id of a new batch."""
        self._arrived += 1
        # The one that completes the number frees those before it, so the number counts arrivals, not who waits.
        await self._openings.until(lambda: self._arrived >= self._switches.openings_wait_for)
        batch_id = f"acc_{secrets.token_hex(4)}"
        self._opened.add(batch_id)
        return OpenedBatch(batch_id)

    async def upload(self, batch_id: str, invoices: list[Invoice], sender: str) -> Receipt:
        """
        Book a batch.

        Raises:
            NeverOpenedError: Nobody opened a batch with that id.
            ContentChangedError: It was booked before, with other invoices.
        """
        if batch_id not in self._opened:
            raise NeverOpenedError(batch_id)
        booked = self._books.get(batch_id)
        if booked is None:
            self._books[batch_id] = _Booked(sender, invoices)
        elif sorted(booked.invoices, key=_order) == sorted(invoices, key=_order):
            booked.repeats += 1
        else:
            raise ContentChangedError(batch_id)
        await self._receipts.until(lambda: not self._switches.hold_receipts)
        return Receipt(batch_id, recorded=booked is None)

    def statement(self) -> AccountingStatement:
        """What it was asked to do so far."""
        booked = Counter(invoice.order_id for batch in self._books.values() for invoice in batch.invoices)
        return AccountingStatement(
            opened=len(self._opened),
            waiting=self._openings.waiting + self._receipts.waiting,
            batches=[
                RecordedBatch(batch_id, batch.sender, [i.order_id for i in batch.invoices], batch.repeats)
                for batch_id, batch in self._books.items()
            ],
            duplicate_invoices=booked.total() - len(booked),
            repeated_uploads=sum(batch.repeats for batch in self._books.values()),
        )


def _order(invoice: Invoice) -> str:
    return invoice.order_id
