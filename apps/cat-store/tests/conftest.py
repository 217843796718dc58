"""Three instances of the shop in one process, on one real database, with both partners in memory."""

import asyncio
import contextlib
import logging
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import pytest
from sqlalchemy.exc import SADeprecationWarning

with warnings.catch_warnings():
    # advanced-alchemy 1.12 still uses a decorator that SQLAlchemy 2.1 deprecates; its first import warns of it.
    warnings.simplefilter("ignore", SADeprecationWarning)
    import advanced_alchemy.base  # noqa: F401

from cat_store.demo.shop import Shop
from cat_store.inventory.catalogue import CATALOGUE
from cat_store.partners.accounting import Accounting
from cat_store.partners.app import create_app
from cat_store.partners.warehouse import Warehouse
from cat_store.replica import Replica, open_replica
from cat_store.settings import Settings

# Three products fit on one page of a count, so that a held page holds a whole count that was read.
PRODUCTS = 3
# A generous bound for what a busy machine does in milliseconds otherwise.
PATIENCE_S = 15.0


@dataclass
class Partners:
    """The two partners, and the way to them."""

    accounting: Accounting = field(default_factory=Accounting)
    warehouse: Warehouse = field(
        default_factory=lambda: Warehouse({item.id: item.on_shelf for item in CATALOGUE[:PRODUCTS]})
    )

    def __post_init__(self) -> None:
        self.transport = httpx.ASGITransport(create_app(self.accounting, self.warehouse))

    @property
    def booked(self) -> list[set[str]]:
        """The orders of each batch in accounting's books."""
        return [set(batch.order_ids) for batch in self.accounting.statement().batches]

    @property
    def counts(self) -> int:
        """How many full counts the warehouse was asked for."""
        return self.warehouse.statement().full_counts


class Gate(httpx.AsyncBaseTransport):
    """
    One instance's way to the partners, on which some answers are held back or lost.

    The partner has done what it was asked to do by then, or has read what it was asked for.
    """

    def __init__(self, inner: httpx.AsyncBaseTransport, method: str) -> None:
        self._inner = inner
        self._method = method
        self._open = asyncio.Event()
        self.holds = 0
        self.lost = False
        self.refused = False

    def open(self) -> None:
        """Let the answers through, those held back as well."""
        self._open.set()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if request.method != self._method:
            return await self._inner.handle_async_request(request)
        if self.refused:
            raise httpx.ConnectError("refused", request=request)
        response = await self._inner.handle_async_request(request)
        if self.lost:
            raise httpx.ReadError("lost", request=request)
        self.holds += 1
        await self._open.wait()
        return response


StartInstance = Callable[..., Awaitable[Replica]]


@pytest.fixture
def partners() -> Partners:
    return Partners()


@pytest.fixture
def gate(partners: Partners) -> Callable[[str], Gate]:
    """Make a way to the partners that holds back the answers to one method: `gate("GET")` holds pages of counts."""
    return lambda method: Gate(partners.transport, method)


@pytest.fixture
async def shop(postgres_url: str) -> AsyncIterator[Shop]:
    async with Shop(postgres_url) as opened:
        yield opened


@pytest.fixture
def settings(postgres_url: str) -> Settings:
    # Nothing listens on the partners' port: requests go to the applications in this process.
    return Settings(
        database_url=postgres_url,
        valkey_url="redis://127.0.0.1:1/0",
        accounting_url="http://127.0.0.1:1/accounting",
        warehouse_url="http://127.0.0.1:1/warehouse",
        instance="cat-store-1",
        lock_ttl_s=10,
    )


@pytest.fixture
async def start(settings: Settings, partners: Partners, shop: Shop) -> AsyncIterator[StartInstance]:
    """Start one more instance: `await start(lock_ttl_s=1, clock=…)`. All are left at the end, the last one first."""
    del shop  # its database has to be migrated first
    count = 0
    async with contextlib.AsyncExitStack() as left:

        async def start_one(
            *, clock: Any = None, transport: httpx.AsyncBaseTransport | None = None, **changes: Any
        ) -> Replica:
            nonlocal count
            count += 1
            mine = replace(settings, instance=f"cat-store-{count}", **changes)
            opened = open_replica(mine, partners=transport or partners.transport, clock=clock)
            return await left.enter_async_context(opened)

        yield start_one


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Callable[[str], list[str]]:
    """Ask for the messages that hold a text, skipped ticks included: `log("Skipped")`."""
    for name in ("cat_store", "tenure"):
        caplog.set_level(logging.DEBUG, logger=name)
    return lambda text: [message for message in caplog.messages if text in message]


@pytest.fixture
def until() -> Callable[[Callable[[], object]], Awaitable[None]]:
    """Poll until something is so: `await until(lambda: partners.counts == 1)`."""

    async def poll(reached: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not reached():
                await asyncio.sleep(0.01)

    return poll
