"""Orders over HTTP."""

from typing import Annotated
from uuid import UUID

from litestar import Controller, Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody, QueryParameter

from cat_store.database.engine import Sessions
from cat_store.orders.desk import OrderDesk
from cat_store.orders.repository import OrderRepository, OrderTooLargeError, UnknownProductError
from cat_store.orders.wire import NewOrder, OrderPage, OrderView
from cat_store.web.problems import described, problem
from cat_store.web.retries import PLACING
from cat_store.web.strict import strictly
from tenure.idempotency import IdempotencyContext

__all__ = ["OrderController"]

Limit = Annotated[int, QueryParameter(ge=1, le=100, description="How many orders at most.")]
Before = Annotated[
    UUID | None, QueryParameter(description="Only orders that are older than this one; taken from `next`.")
]


class OrderController(Controller):
    """Placing orders, and looking at them."""

    path = "/orders"
    tags = ["orders"]  # noqa: RUF012 -- declared so by Litestar

    @post(
        before_request=strictly(NewOrder),
        opt=PLACING,
        responses={400: described("The order cannot be placed.")},
    )
    async def place_order(
        self,
        desk: NamedDependency[OrderDesk],
        data: JSONBody[NewOrder],
        idempotency_context: NamedDependency[IdempotencyContext | None],
    ) -> Response[OrderView]:
        """
        Place an order.

        Send an `Idempotency-Key` of your own, and the order is placed once however often the request is repeated.
        """
        try:
            order = await desk.place(data, idempotency_context)
        except UnknownProductError as error:
            raise problem(400, "unknown-product", str(error), product_ids=error.product_ids) from None
        except OrderTooLargeError as error:
            raise problem(400, "order-too-large", str(error)) from None
        return Response(OrderView.of(order), status_code=201, headers={"Location": f"/orders/{order.id}"})

    @get(responses={400: described("A parameter of the query is none that it may be.")})
    async def list_orders(
        self, sessions: NamedDependency[Sessions], limit: Limit = 20, before: Before = None
    ) -> OrderPage:
        """List orders, newest first, page by page."""
        async with sessions() as session:
            # One more than asked for tells whether there is a next page.
            orders = await OrderRepository(session=session).page(limit + 1, before)
        following = f"/orders?limit={limit}&before={orders[limit - 1].id}" if len(orders) > limit else None
        return OrderPage([OrderView.of(order) for order in orders[:limit]], following)

    @get("/{order_id:uuid}", responses={404: described("There is no such order.")})
    async def show_order(self, sessions: NamedDependency[Sessions], order_id: FromPath[UUID]) -> OrderView:
        """Show one order."""
        async with sessions() as session:
            order = await OrderRepository(session=session).look_up(order_id)
        if order is None:
            raise problem(404, "unknown-order", "There is no order with that id.")
        return OrderView.of(order)
