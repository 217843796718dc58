"""The demo's hand in the shop's database: customers who order, and somebody who looks at the stock."""

import random
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import NamedTuple, Self
from uuid import UUID

from sqlalchemy import select

from cat_store.database.engine import create_engine, create_sessions
from cat_store.database.fill import fill
from cat_store.database.migrate import migrate
from cat_store.inventory.catalogue import CATALOGUE
from cat_store.inventory.models import Product
from cat_store.orders.models import Order
from cat_store.orders.repository import OrderRepository

__all__ = ["Shop", "Stock"]

_CUSTOMERS = ("alice", "bob", "carol", "dave", "erin", "frank")


class Stock(NamedTuple):
    """What the products table has of one product."""

    in_stock: int
    token: int


class Shop:
    """
    The shop's database, migrated and with products in it.

    Attributes:
        placed: Every order that was placed through this object.
    """

    def __init__(self, url: str) -> None:
        self._engine = create_engine(url)
        self._sessions = create_sessions(self._engine)
        self._random = random.Random(20)  # noqa: S311 -- the same customers at every run
        self.placed: list[UUID] = []

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as left:
            left.push_async_callback(self._engine.dispose)
            await migrate(self._engine)
            await fill(self._engine)
            left.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._engine.dispose()

    async def place_orders(self, count: int) -> Sequence[UUID]:
        """Place orders, all at once: the next export sees all of them or none."""
        async with self._sessions.begin() as session:
            orders = OrderRepository(session=session)
            placed = []
            for _ in range(count):
                items = self._random.sample(CATALOGUE, k=2)
                order = await orders.place(
                    self._random.choice(_CUSTOMERS), {item.id: self._random.randint(1, 3) for item in items}
                )
                placed.append(order.id)
        self.placed += placed
        return placed

    async def offer(self, product_id: str, name: str, price_cents: int) -> None:
        """Add a product to what the shop sells."""
        async with self._sessions.begin() as session:
            session.add(Product(id=product_id, name=name, price_cents=price_cents))

    async def orders_of(self, customers: Collection[str]) -> Counter[str]:
        """Count the orders of each of some customers."""
        async with self._sessions() as session:
            found = await session.scalars(select(Order.customer).where(Order.customer.in_(customers)))
            return Counter(found)

    async def stock_of(self, product_id: str) -> Stock:
        """Look at the stock of one product."""
        async with self._sessions() as session:
            row = (
                await session.execute(select(Product.in_stock, Product.stock_token).where(Product.id == product_id))
            ).one()
        return Stock(row.in_stock, row.stock_token)
