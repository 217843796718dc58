"""Products over HTTP."""

import msgspec
from litestar import Controller, get
from litestar.di import NamedDependency
from sqlalchemy import select

from cat_store.database.engine import Sessions
from cat_store.inventory.models import Product

__all__ = ["ProductController", "ProductView"]


class ProductView(msgspec.Struct, frozen=True):
    """A product, its price of today, and how many the warehouse counted."""

    id: str
    name: str
    price_cents: int
    in_stock: int


class ProductController(Controller):
    """What the shop sells."""

    path = "/products"
    tags = ["products"]  # noqa: RUF012 -- declared so by Litestar

    @get()
    async def list_products(self, sessions: NamedDependency[Sessions]) -> list[ProductView]:
        """List every product, by its id."""
        async with sessions() as session:
            products = await session.scalars(select(Product).order_by(Product.id))
            return [ProductView(each.id, each.name, each.price_cents, each.in_stock) for each in products]
