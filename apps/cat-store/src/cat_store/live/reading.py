"""Reading what all replicas share: five short statements on one connection, and the partners' two statements."""

from collections.abc import Callable
from types import TracebackType
from typing import Final, Self, TypeVar, final

import httpx
import msgspec
from sqlalchemy import func, literal, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from cat_store.inventory.models import Product
from cat_store.live.facts import (
    COUNTED_UP_TO,
    EventFact,
    OrderFact,
    PartnersFact,
    ReplicaFact,
    SharedFacts,
    ShopFacts,
    StockFact,
)
from cat_store.live.heartbeat import SESSIONS
from cat_store.live.models import EventRow, ReplicaRow
from cat_store.orders.models import PLACED, Order

__all__ = ["SHOWN_EVENTS", "DatabaseReader", "PartnersReader"]

SHOWN_EVENTS: Final = 100
_SHOWN_ORDERS: Final = 8
_SHOWN_PRODUCTS: Final = 30
_MOST_REPLICAS: Final = 20
_ANSWER_WITHIN_S: Final = 1.0
"""A partner that is slow to tell its counters leaves the last ones standing, in seconds."""

Read = tuple[SharedFacts, ShopFacts]
Statement = TypeVar("Statement")


@final
class DatabaseReader:
    """
    Reads the shop's database.

    Args:
        engine: The replica's.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine: Final = engine.execution_options(isolation_level="AUTOCOMMIT")

    async def read(self) -> Read:
        """Read replicas, events, orders and stock; raises what the driver raises."""
        async with self._engine.connect() as connection:
            shared = SharedFacts(await _replicas(connection), await _events(connection))
            return shared, await _shop(connection)


async def _replicas(connection: AsyncConnection) -> list[ReplicaFact]:
    now = func.clock_timestamp()
    connected = (
        select(literal(1))
        .where(SESSIONS.c.pid == ReplicaRow.backend_pid, SESSIONS.c.backend_start == ReplicaRow.backend_start)
        .exists()
    )
    # The last ones that were heard of, should containers with names at random have come and gone.
    rows = await connection.execute(
        select(
            ReplicaRow.instance,
            ReplicaRow.address,
            ReplicaRow.locks,
            ReplicaRow.leads,
            ReplicaRow.tokens,
            func.extract("epoch", now - ReplicaRow.started_at).label("up_for_s"),
            func.extract("epoch", now - ReplicaRow.seen_at).label("silent_for_s"),
            ReplicaRow.stopped_at.is_not(None).label("stopped"),
            connected.label("connected"),
        )
        .order_by(ReplicaRow.seen_at.desc())
        .limit(_MOST_REPLICAS)
    )
    found = [
        ReplicaFact(
            row.instance,
            row.address,
            row.locks,
            row.leads,
            row.tokens,
            float(row.up_for_s),
            float(row.silent_for_s),
            row.stopped,
            row.connected,
        )
        for row in rows
    ]
    return sorted(found, key=lambda replica: replica.instance)


async def _events(connection: AsyncConnection) -> list[EventFact]:
    # Ids grow, but a batch with smaller ones may be committed after one with greater ones: the last hundred are read
    # every time, and what is new among them is told by comparing.
    last = select(EventRow.__table__).order_by(EventRow.id.desc()).limit(SHOWN_EVENTS).subquery()
    rows = await connection.execute(select(last).order_by(last.c.at.desc(), last.c.id.desc()))
    return [EventFact(row.id, row.at, row.instance, row.level, row.kind, row.message, row.times) for row in rows]


async def _shop(connection: AsyncConnection) -> ShopFacts:
    bounded = select(literal(1)).select_from(Order).limit(COUNTED_UP_TO + 1).subquery()
    placed = await connection.scalar(select(func.count()).select_from(bounded))
    # The condition of the partial index, which has these rows and no others.
    due = await connection.execute(
        select(func.count().label("due"), func.count(Order.invoice_batch).label("begun")).where(
            Order.status == PLACED, Order.invoiced_at.is_(None)
        )
    )
    counted = due.one()
    # Ids of orders grow with time.
    orders = await connection.execute(
        select(Order.id, Order.total_cents, Order.placed_at, Order.invoice_batch, Order.invoiced_at)
        .order_by(Order.id.desc())
        .limit(_SHOWN_ORDERS)
    )
    products = await connection.execute(
        select(Product.id, Product.name, Product.in_stock, Product.stock_token)
        .order_by(Product.name)
        .limit(_SHOWN_PRODUCTS)
    )
    return ShopFacts(
        placed=placed or 0,
        due=counted.due,
        begun=counted.begun,
        orders=[
            OrderFact(str(row.id), row.total_cents, row.placed_at, row.invoice_batch, row.invoiced_at is not None)
            for row in orders
        ],
        stock=[StockFact(row.id, row.name, row.in_stock, row.stock_token) for row in products],
    )


class _Accounting(msgspec.Struct):
    batches: list[msgspec.Raw]
    duplicate_invoices: int
    repeated_uploads: int


class _Warehouse(msgspec.Struct):
    full_counts: int
    open_counts: int
    most_at_once: int
    # A warehouse of an earlier version has no feed, and one of a later version may tell more.
    open_feeds: int | None = None
    most_feeds: int | None = None
    refused_feeds: int | None = None


@final
class PartnersReader:
    """
    Asks the partners what they were asked to do.

    Args:
        accounting_url: The accounting system.
        warehouse_url: The warehouse.
        transport: Where requests go instead of the network, for tests.
    """

    def __init__(
        self, accounting_url: str, warehouse_url: str, *, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self._accounting_url: Final = f"{accounting_url.rstrip('/')}/statement"
        self._warehouse_url: Final = f"{warehouse_url.rstrip('/')}/statement"
        self._http: Final = httpx.AsyncClient(timeout=_ANSWER_WITHIN_S, transport=transport)

    async def read(self) -> PartnersFact:
        """Read both statements; raises what httpx and msgspec raise."""
        books = await self._get(self._accounting_url, msgspec.json.Decoder(_Accounting).decode)
        shelves = await self._get(self._warehouse_url, msgspec.json.Decoder(_Warehouse).decode)
        return PartnersFact(
            batches=len(books.batches),
            duplicate_invoices=books.duplicate_invoices,
            repeated_uploads=books.repeated_uploads,
            full_counts=shelves.full_counts,
            open_counts=shelves.open_counts,
            most_counts=shelves.most_at_once,
            feeds=shelves.open_feeds,
            most_feeds=shelves.most_feeds,
            refused_feeds=shelves.refused_feeds,
        )

    async def _get(self, url: str, decode: Callable[[bytes], Statement]) -> Statement:
        return decode((await self._http.get(url)).raise_for_status().content)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()
