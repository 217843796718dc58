"""The partners' HTTP interface: what a shop calls, and beside it the statements and the switches."""

import asyncio
import os
from collections.abc import Callable
from typing import Annotated, Any

from litestar import Controller, Litestar, Request, Response, Router, get, post, put
from litestar.di import NamedDependency, Provide
from litestar.exceptions import ClientException, HTTPException, NotFoundException
from litestar.params import FromPath, HeaderParameter, JSONBody, QueryParameter
from litestar.response import Stream

from cat_store.partners.accounting import Accounting, ContentChangedError, NeverOpenedError
from cat_store.partners.feed import GARBAGE, FeedTakenError, NoSuchFeedError
from cat_store.partners.warehouse import NoSuchPageError, NoSuchShelfError, Warehouse
from cat_store.partners.wire import (
    SENDER,
    AccountingStatement,
    AccountingSwitches,
    Beat,
    CountPage,
    Health,
    OpenedBatch,
    OpenedCount,
    Receipt,
    Shelf,
    StockAlert,
    Switches,
    Upload,
    WarehouseStatement,
    WarehouseSwitches,
)

__all__ = ["create_app"]

Books = NamedDependency[Accounting]
Shelves = NamedDependency[Warehouse]
Sender = Annotated[str, HeaderParameter(name=SENDER)]


class BatchController(Controller):
    """What a shop calls at the accounting system."""

    path = "/batches"

    @post()
    async def open_batch(self, accounting: Books) -> OpenedBatch:
        """Give out the id of a new batch."""
        return await accounting.open_batch()

    @put("/{batch_id:str}")
    async def upload(
        self, accounting: Books, batch_id: FromPath[str], data: JSONBody[Upload], sender: Sender
    ) -> Receipt:
        """Book a batch under its id; again is recognised."""
        try:
            return await accounting.upload(batch_id, data.invoices, sender)
        except NeverOpenedError:
            raise NotFoundException("No batch with that id was opened.") from None
        except ContentChangedError:
            raise ClientException("That batch was booked with other invoices.", status_code=409) from None


class AccountingController(Controller):
    """What a demo and a test ask the accounting system."""

    @get("/statement", sync_to_thread=False)
    def statement(self, accounting: Books) -> AccountingStatement:
        """Tell what accounting was asked to do."""
        return accounting.statement()

    @put("/switches", sync_to_thread=False)
    def set_switches(self, accounting: Books, data: JSONBody[AccountingSwitches]) -> AccountingSwitches:
        """Set every switch; one that is left out is off."""
        accounting.switches = data
        return data


class CountController(Controller):
    """What a shop calls at the warehouse."""

    path = "/counts"

    @post(sync_to_thread=False)
    def begin_count(self, warehouse: Shelves, sender: Sender) -> OpenedCount:
        """Begin a full count."""
        return warehouse.begin_count(sender)

    @get("/{count_id:str}/pages/{number:int}")
    async def page(self, warehouse: Shelves, count_id: FromPath[str], number: FromPath[int]) -> CountPage:
        """Count one page of shelves."""
        try:
            return await warehouse.page(count_id, number)
        except NoSuchPageError:
            raise NotFoundException("No such page, or no such count.") from None


class FeedController(Controller):
    """The alert feed: one connection, and what its shop says while it has it."""

    path = "/feed"

    @get()
    async def listen(
        self,
        warehouse: Shelves,
        sender: Sender,
        ledger: Annotated[str, QueryParameter(max_length=100)] = "",
        after: Annotated[int, QueryParameter(ge=0, le=2**53)] = 0,
    ) -> Stream:
        """Send every alert after one, and those to come, a line each; 409 while somebody listens."""
        del sender  # it says who it is, like everybody
        try:
            listener = warehouse.feed.open(ledger, after)
        except FeedTakenError:
            raise ClientException("This shop has a connection to the feed.", status_code=409) from None
        return Stream(warehouse.feed.lines(listener), media_type="application/x-ndjson")

    @put("/{feed_id:str}/listening", sync_to_thread=False)
    def still_listening(self, warehouse: Shelves, feed_id: FromPath[str]) -> Beat:
        """Hear from the shop that has the connection; one that is silent for long is hung up on."""
        try:
            return warehouse.feed.hear(feed_id)
        except NoSuchFeedError:
            raise NotFoundException("That connection has ended.") from None


class WarehouseController(Controller):
    """What a demo and a test ask the warehouse."""

    @get("/statement", sync_to_thread=False)
    def statement(self, warehouse: Shelves) -> WarehouseStatement:
        """Tell what the warehouse was asked to do."""
        return warehouse.statement()

    @put("/switches", sync_to_thread=False)
    def set_switches(self, warehouse: Shelves, data: JSONBody[WarehouseSwitches]) -> WarehouseSwitches:
        """Set every switch; one that is left out is off."""
        warehouse.switches = data
        return data

    @put("/shelves", sync_to_thread=False)
    def set_shelf(self, warehouse: Shelves, data: JSONBody[Shelf]) -> Shelf:
        """Change what lies on a shelf."""
        try:
            return warehouse.set_shelf(data.product_id, data.count)
        except NoSuchShelfError:
            raise NotFoundException("The warehouse has no shelf for that product.") from None

    @post("/alerts", sync_to_thread=False)
    def alert(self, warehouse: Shelves, data: JSONBody[Shelf]) -> StockAlert:
        """Change what lies on a shelf, and send an alert about it."""
        try:
            return warehouse.alert(data)
        except NoSuchShelfError:
            raise NotFoundException("The warehouse has no shelf for that product.") from None


@get("/health", sync_to_thread=False)
def health() -> Health:
    """Tell who answers here."""
    return Health("partners", os.getpid())


def create_app(accounting: Accounting, warehouse: Warehouse) -> Litestar:
    """
    Build the service.

    Args:
        accounting: Served under `/accounting`.
        warehouse: Served under `/warehouse`.
    """
    books = Router("", route_handlers=[BatchController], before_request=_misbehave(lambda: accounting.switches))
    shelves = Router("", route_handlers=[CountController], before_request=_misbehave(lambda: warehouse.switches))
    # Its switch to be slow is for answers. A shop that could not say in time that it listens would be hung up on.
    feed = Router(
        "", route_handlers=[FeedController], before_request=_misbehave(lambda: warehouse.switches, slow=False)
    )
    return Litestar(
        route_handlers=[
            health,
            Router("/accounting", route_handlers=[books, AccountingController]),
            Router("/warehouse", route_handlers=[shelves, feed, WarehouseController]),
        ],
        dependencies={
            "accounting": Provide(lambda: accounting, sync_to_thread=False),
            "warehouse": Provide(lambda: warehouse, sync_to_thread=False),
        },
        openapi_config=None,
        logging_config=None,  # the process that serves it decides what is logged
    )


def _misbehave(switches: Callable[[], Switches], *, slow: bool = True) -> Callable[[Request[Any, Any, Any]], object]:
    async def before(_: Request[Any, Any, Any]) -> Response[bytes] | None:
        on = switches()
        if slow and on.delay_s:
            await asyncio.sleep(on.delay_s)
        if on.fail_with is not None:
            raise HTTPException("Out of order.", status_code=on.fail_with)
        if on.garbage:
            return Response(GARBAGE, media_type="text/html")
        return None

    return before
