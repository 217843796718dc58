"""The products that the demo's shop sells, put into a shop that has none: `cat-store migrate --catalogue`."""

from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncEngine

from cat_store.inventory.catalogue import CATALOGUE
from cat_store.inventory.models import Product

__all__ = ["fill"]


async def fill(engine: AsyncEngine) -> None:
    """Add the products of the catalogue that are missing, with nothing in stock; the rest stays as it is."""
    rows = [{"id": item.id, "name": item.name, "price_cents": item.price_cents} for item in CATALOGUE]
    async with engine.begin() as connection:
        await connection.execute(insert(Product).on_conflict_do_nothing(), rows)
