"""Three instances of the shop in one process, on one real database, with both partners in memory."""

import asyncio
import contextlib
import http.server
import itertools
import logging
import re
import sys
import threading
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import pytest
from sqlalchemy.exc import SADeprecationWarning

with warnings.catch_warnings():
    # advanced-alchemy 1.12 still uses a decorator that SQLAlchemy 2.1 deprecates; its first import warns of it.
    warnings.simplefilter("ignore", SADeprecationWarning)
    import advanced_alchemy.base  # noqa: F401

import tenure_testbed
from cat_store.demo.shop import Shop
from cat_store.inventory.catalogue import CATALOGUE
from cat_store.partners.accounting import Accounting
from cat_store.partners.app import create_app
from cat_store.partners.warehouse import Warehouse
from cat_store.replica import Replica, open_replica, server_of
from cat_store.settings import Settings
from cat_store.web.server import Listener

# Three products fit on one page of a count, so that a held page holds a whole count that was read.
PRODUCTS = 3
# A generous bound for what a busy machine does in milliseconds otherwise.
PATIENCE_S = 15.0
# Some interpreters that start at once on a busy machine.
PROCESS_UP_S = 60.0


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
Serve = Callable[..., Awaitable[httpx.AsyncClient]]
Launch = Callable[..., Awaitable[list["Process"]]]


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
        port=0,
        admin_token="s3cret-administrator",
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
async def serve(start: StartInstance) -> AsyncIterator[Serve]:
    """Start one more instance with its web server, and return a client of it; takes what `start` takes."""
    async with contextlib.AsyncExitStack() as left:

        async def serve_one(**changes: Any) -> httpx.AsyncClient:
            replica = await start(**changes)
            listener = left.enter_context(Listener("127.0.0.1", 0))
            await left.enter_async_context(server_of(replica, listener))
            return await left.enter_async_context(httpx.AsyncClient(base_url=listener.url, timeout=PATIENCE_S))

        yield serve_one


class Process(tenure_testbed.Replica):
    """A replica as a process, and where it answers."""

    @property
    def url(self) -> str:
        """Where it answers, once it serves."""
        return next(
            re.findall(r'"url":"([^"]+)"', line.text)[0] for line in self.lines[::-1] if "web.serving" in line.text
        )


@pytest.fixture(scope="session")
def partners_url() -> Iterator[str]:
    """Where something answers every request with an error: partners that are there, and no more."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.fixture
async def launch(settings: Settings, shop: Shop, valkey_url: str, partners_url: str) -> AsyncIterator[Launch]:
    """
    Start replicas as processes, and wait until they are up: `await launch(3, DRAIN="1")`.

    All are killed at the end. Their jobs are not due for the next hours.
    """
    del shop  # its database has to be migrated first
    environment = {
        "DATABASE_URL": settings.database_url,
        "VALKEY_URL": valkey_url,
        "ACCOUNTING_URL": partners_url,
        "WAREHOUSE_URL": partners_url,
        "STOCK_RECONCILIATION_CRON": "0 2 * * *",
        "RECORD_PURGE_CRON": "0 2 * * *",
        "PORT": "0",
        "LOG_FORMAT": "json",
        "REHEARSAL": "on",
    }
    with contextlib.ExitStack() as left:
        count = itertools.count(1)

        async def launch_some(number: int, *, up: bool = True, **changes: str) -> list[Process]:
            started = []
            for _ in range(number):
                told = environment | {"INSTANCE": f"cat-store-{next(count)}"} | changes
                process = Process(
                    [sys.executable, "-m", "cat_store", "replica"],
                    env={f"CAT_STORE_{name}": value for name, value in told.items()},
                    kept_lines=20_000,
                )
                left.callback(process.close)
                process.start()
                started.append(process)
            if up:
                await asyncio.gather(
                    *(asyncio.to_thread(each.wait_for_line, "replica.up", PROCESS_UP_S) for each in started)
                )
            return started

        yield launch_some


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
