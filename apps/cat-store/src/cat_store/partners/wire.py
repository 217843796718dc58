"""What travels between the shop and its partners. Both sides read and check these structures."""

from datetime import datetime
from typing import Annotated

import msgspec

__all__ = [
    "AccountingStatement",
    "AccountingSwitches",
    "Beat",
    "CountPage",
    "FeedLine",
    "FeedOpened",
    "Health",
    "Invoice",
    "OpenedBatch",
    "OpenedCount",
    "Receipt",
    "RecordedBatch",
    "Shelf",
    "StockAlert",
    "Switches",
    "Upload",
    "WarehouseStatement",
    "WarehouseSwitches",
]

Id = Annotated[str, msgspec.Meta(min_length=1, max_length=100)]
Cents = Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)]
# A shelf with more than a million bags is a reading error, and a negative one is, too: neither may reach the shop.
Bags = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=600)]
Number = Annotated[int, msgspec.Meta(ge=1, le=2**53)]
ErrorStatus = Annotated[int, msgspec.Meta(ge=400, le=599)]

SENDER = "x-sender"
"""The header that names the replica that asks."""


class Health(msgspec.Struct, frozen=True):
    """Who answers on a port: a starter compares the process id with that of its child."""

    service: str
    pid: int


class Invoice(msgspec.Struct, frozen=True):
    """One placed order, as accounting wants it. Money is in cents, the time in UTC."""

    order_id: Id
    customer: Id
    total_cents: Cents
    placed_at: datetime


class OpenedBatch(msgspec.Struct, frozen=True):
    """The id under which accounting takes one batch."""

    batch_id: Id


class Upload(msgspec.Struct, frozen=True):
    """The content of a batch."""

    invoices: Annotated[list[Invoice], msgspec.Meta(min_length=1)]


class Receipt(msgspec.Struct, frozen=True):
    """
    What accounting did with an upload.

    Attributes:
        batch_id: The batch.
        recorded: True where it was recorded now; False for the repeat of one recorded before.
    """

    batch_id: Id
    recorded: bool


class RecordedBatch(msgspec.Struct, frozen=True):
    """A batch in accounting's books: its orders, who sent it, and how often it came again."""

    batch_id: str
    sender: str
    order_ids: list[str]
    repeats: int = 0


class AccountingStatement(msgspec.Struct, frozen=True):
    """
    What accounting was asked to do.

    Attributes:
        opened: How many batches were opened.
        waiting: How many requests it holds open at the moment.
        batches: What is in the books, in the order of its arrival.
        duplicate_invoices: How often an order stands in the books beyond its first time.
        repeated_uploads: Uploads of a recorded batch that came again, and were recognised.
    """

    opened: int
    waiting: int
    batches: list[RecordedBatch]
    duplicate_invoices: int
    repeated_uploads: int


class Shelf(msgspec.Struct, frozen=True):
    """How many bags of a product lie on its shelf."""

    product_id: Id
    count: Bags


class OpenedCount(msgspec.Struct, frozen=True):
    """A full count that began, and how many pages it has."""

    count_id: Id
    pages: Annotated[int, msgspec.Meta(ge=1, le=10_000)]


class CountPage(msgspec.Struct, frozen=True):
    """One page of a full count; pages are numbered from 1."""

    page: int
    shelves: list[Shelf]


class FeedOpened(msgspec.Struct, frozen=True, tag="opened", tag_field="kind"):
    """
    The first line of the alert feed.

    Attributes:
        feed_id: The connection.
        ledger: What the alerts are numbered in; a new one begins at 1.
    """

    feed_id: Id
    ledger: Id


class StockAlert(msgspec.Struct, frozen=True, tag="alert", tag_field="kind"):
    """Little is left of a product. Numbers are consecutive in their ledger."""

    number: Number
    product_id: Id
    count: Bags


class Beat(msgspec.Struct, frozen=True, tag="beat", tag_field="kind"):
    """There is nothing to say; the last alert was that one."""

    last: Annotated[int, msgspec.Meta(ge=0, le=2**53)]


FeedLine = FeedOpened | StockAlert | Beat
"""A line of the alert feed."""


class WarehouseStatement(msgspec.Struct, frozen=True):
    """
    What the warehouse was asked to do.

    Attributes:
        full_counts: How many full counts were begun.
        open_counts: How many of them go on at the moment.
        most_at_once: The most that ever went on at the same time.
        senders: Who began them, in their order.
        open_feeds: How many connections to the alert feed there are.
        most_feeds: The most that there ever were at the same time.
        refused_feeds: How many were refused because there was one.
        alerts: How many alerts were sent.
    """

    full_counts: int
    open_counts: int
    most_at_once: int
    senders: list[str]
    open_feeds: int = 0
    most_feeds: int = 0
    refused_feeds: int = 0
    alerts: int = 0


class Switches(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    How a partner misbehaves.

    Attributes:
        fail_with: Answer every request with this status; None to work.
        garbage: Answer every request with something that is no JSON.
        delay_s: Seconds before each answer.
    """

    fail_with: ErrorStatus | None = None
    garbage: bool = False
    delay_s: Seconds = 0.0


class AccountingSwitches(Switches, frozen=True, forbid_unknown_fields=True):
    """
    How accounting misbehaves.

    Attributes:
        openings_wait_for: Answer no opening of a batch until that many wait together; 0 for none.
        hold_receipts: Record uploads, and hold their answers back.
    """

    openings_wait_for: Annotated[int, msgspec.Meta(ge=0, le=100)] = 0
    hold_receipts: bool = False


class WarehouseSwitches(Switches, frozen=True, forbid_unknown_fields=True):
    """
    How the warehouse misbehaves.

    Attributes:
        hold_counts: Answer no page of a full count.
        hold_feed: Say nothing over the alert feed.
        alert_every_s: How often an alert is sent by itself, in seconds; 0 for never, None for the warehouse's own pace.
    """

    hold_counts: bool = False
    hold_feed: bool = False
    alert_every_s: Seconds | None = None
