"""What the live page is made from, as values, wherever it was read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, final

from cat_store.live.demo_link import DemoState
from tenure.store import LockRecord

__all__ = [
    "COUNTED_UP_TO",
    "EventFact",
    "Facts",
    "OrderFact",
    "PartnersFact",
    "ReplicaFact",
    "SharedFacts",
    "ShopFacts",
    "StockFact",
]

COUNTED_UP_TO: Final = 10_000
"""Orders are counted up to here: a shop with millions has better to do, once a second, than count them."""


@final
@dataclass(frozen=True, slots=True)
class ReplicaFact:
    """
    A replica, as its row tells of it.

    Attributes:
        instance: Its name.
        address: Where browsers reach it.
        locks: Whether its jobs run under locks.
        leads: The elections that it leads: token by key.
        tokens: The last token that it was given, by key.
        up_for_s: Seconds since it started.
        silent_for_s: Seconds since it told of itself.
        stopped: Whether it said goodbye.
        connected: Whether the session that it wrote through goes on.
    """

    instance: str
    address: str
    locks: bool
    leads: Mapping[str, int]
    tokens: Mapping[str, int]
    up_for_s: float
    silent_for_s: float
    stopped: bool
    connected: bool


@final
@dataclass(frozen=True, slots=True)
class EventFact:
    """Something that happened on a replica; `at` is on the database's clock."""

    id: int
    at: datetime
    instance: str
    level: str
    kind: str
    message: str
    times: int = 1


@final
@dataclass(frozen=True, slots=True)
class OrderFact:
    """An order, without its customer: the page is for everybody."""

    id: str
    total_cents: int
    placed_at: datetime
    batch: str | None
    invoiced: bool


@final
@dataclass(frozen=True, slots=True)
class StockFact:
    """What the shop knows of a product's stock, and the fencing token of the run that wrote it."""

    product_id: str
    name: str
    in_stock: int
    token: int


@final
@dataclass(frozen=True, slots=True)
class ShopFacts:
    """
    Orders and stock.

    Attributes:
        placed: How many orders there are, counted up to a bound.
        due: How many wait for an invoice.
        begun: How many of them are in a batch whose upload was begun.
        orders: The last ones, newest first.
        stock: The products.
    """

    placed: int
    due: int
    begun: int
    orders: Sequence[OrderFact]
    stock: Sequence[StockFact]


@final
@dataclass(frozen=True, slots=True)
class SharedFacts:
    """What the replicas tell each other: replicas by name, and events, newest first."""

    replicas: Sequence[ReplicaFact]
    events: Sequence[EventFact]


@final
@dataclass(frozen=True, slots=True)
class PartnersFact:
    """
    The partners' counters.

    Attributes:
        batches: Batches in accounting's books.
        duplicate_invoices: How often an order stands in the books beyond its first time.
        repeated_uploads: Uploads that came again and were recognised.
        full_counts: Full counts that were begun.
        open_counts: How many of them go on.
        most_counts: The most that went on at once.
        feeds: Connections to the alert feed; None where the warehouse does not tell.
        most_feeds: The most that there were at once; None where the warehouse does not tell.
        refused_feeds: How many were refused because there was one; None where the warehouse does not tell.
    """

    batches: int
    duplicate_invoices: int
    repeated_uploads: int
    full_counts: int
    open_counts: int
    most_counts: int
    feeds: int | None = None
    most_feeds: int | None = None
    refused_feeds: int | None = None


@final
@dataclass(frozen=True, slots=True)
class Facts:
    """
    Everything at one moment. A part that could not be read is the one of before, or None where there was none yet.

    Attributes:
        now_ms: The moment, in milliseconds on this process's monotonic clock.
        shared: What the replicas tell.
        shared_at_ms: When that was read.
        shop: Orders and stock.
        locks: The live locks; None where the store cannot list them, or locks are off here.
        locks_at_ms: When the locks were read.
        partners: The partners' counters.
        demo: What the demo's supervisor tells; None where there is none.
        troubles: A sentence for each part that could not be read.
    """

    now_ms: int
    shared: SharedFacts | None = None
    shared_at_ms: int = 0
    shop: ShopFacts | None = None
    locks: Sequence[LockRecord] | None = None
    locks_at_ms: int = 0
    partners: PartnersFact | None = None
    demo: DemoState | None = None
    troubles: Sequence[str] = field(default_factory=tuple)
