"""What the shop has in the end: the orders table, accounting's books, and what the replicas said of second attempts."""

from sqlalchemy import select

from cat_store.database.engine import create_engine
from cat_store.demo.journal import Journal
from cat_store.demo.partners import PartnersProcess
from cat_store.orders.models import Order
from cat_store_load.books import PlacedOrder

__all__ = ["announced_by", "booked_by", "orders_in"]


async def orders_in(database_url: str) -> list[PlacedOrder]:
    """Read the orders table."""
    engine = create_engine(database_url)
    try:
        async with engine.connect() as connection:
            rows = await connection.execute(select(Order.id, Order.customer, Order.total_cents))
            return [PlacedOrder(str(row.id), row.customer, row.total_cents) for row in rows]
    finally:
        await engine.dispose()


async def booked_by(partners: PartnersProcess) -> list[str]:
    """Read accounting's books: the id of an order for each time that it was booked."""
    statement = await partners.accounting()
    return [order_id for batch in statement.batches for order_id in batch.order_ids]


def announced_by(journal: Journal) -> frozenset[str]:
    """Read which orders the replicas placed by an attempt that was not the first one, and said so."""
    return frozenset(
        str(entry.fields["order"])
        for entry in journal.entries()
        if entry.event == "order.placed" and entry.fields.get("attempt", 0) > 1
    )
