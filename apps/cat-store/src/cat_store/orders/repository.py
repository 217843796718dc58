"""Reading and writing orders."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from uuid import UUID

from advanced_alchemy.repository import SQLAlchemyAsyncRepository
from sqlalchemy import Uuid, any_, func, literal, select, update
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import selectinload

from cat_store.inventory.models import Product
from cat_store.orders.models import PLACED, Order, OrderLine

__all__ = ["MOST_CENTS", "OrderRepository", "OrderTooLargeError", "UnknownProductError"]

MOST_CENTS = 1_000_000_000
"""What accounting takes for one invoice. An order beyond it would stop every export that it is in."""


class UnknownProductError(LookupError):
    """
    An order for products that the shop does not sell.

    Attributes:
        product_ids: Those products.
    """

    def __init__(self, product_ids: Sequence[str]) -> None:
        super().__init__(f"The shop sells no {', '.join(product_ids)}.")
        self.product_ids = tuple(product_ids)


class OrderTooLargeError(ValueError):
    """An order whose total is beyond `MOST_CENTS`."""


class OrderRepository(SQLAlchemyAsyncRepository[Order]):
    """Orders, in the session of the caller, who commits."""

    model_type = Order

    async def place(self, customer: str, quantities: Mapping[str, int]) -> Order:
        """
        Place an order at today's prices.

        Raises:
            UnknownProductError: It asks for something that the shop does not sell.
            OrderTooLargeError: Its total is beyond what accounting takes.
        """
        rows = await self.session.execute(
            select(Product.id, Product.price_cents).where(Product.id.in_(list(quantities)))
        )
        prices = {row.id: row.price_cents for row in rows}
        if unknown := [product for product in quantities if product not in prices]:
            raise UnknownProductError(unknown)
        lines = [
            OrderLine(product_id=product, quantity=quantity, price_cents=prices[product])
            for product, quantity in quantities.items()
        ]
        total = sum(line.quantity * line.price_cents for line in lines)
        if total > MOST_CENTS:
            raise OrderTooLargeError(f"The order is over {total} cents; the shop takes up to {MOST_CENTS}.")
        # Not refreshed: the insert has returned what the database filled in, and a refresh would lose the lines.
        return await self.add(Order(customer=customer, total_cents=total, lines=lines), auto_refresh=False)

    async def look_up(self, order_id: UUID) -> Order | None:
        """Look one order up, with its lines."""
        return await self.session.scalar(
            select(Order).where(Order.id == order_id).options(selectinload(Order.lines)),
        )

    async def page(self, limit: int, before: UUID | None) -> list[Order]:
        """
        List orders with their lines, newest first.

        Args:
            limit: How many at most.
            before: Only those that are older than this one. Ids grow with time, so no order is skipped or shown twice
                when others are placed between two pages.
        """
        statement = select(Order).options(selectinload(Order.lines)).order_by(Order.id.desc()).limit(limit)
        if before is not None:
            statement = statement.where(Order.id < before)
        return list(await self.session.scalars(statement))

    async def due(self) -> list[Order]:
        """
        Every placed order without an invoice and without a batch, oldest first.

        Not "yesterday's orders": a night on which the export did not run is caught up by the next one.
        """
        return await self.get_many(
            Order.status == PLACED,
            Order.invoiced_at.is_(None),
            Order.invoice_batch.is_(None),
            order_by=[(Order.placed_at, False), (Order.id, False)],
        )

    async def unfinished(self) -> dict[str, list[Order]]:
        """
        The orders of each batch whose upload was begun and not seen through, by batch.

        All of them, whatever became of one since: a batch that comes again must have the content of its first time.
        """
        orders = await self.get_many(
            Order.invoiced_at.is_(None),
            Order.invoice_batch.is_not(None),
            order_by=[(Order.invoice_batch, False), (Order.placed_at, False), (Order.id, False)],
        )
        return {batch or "": list(group) for batch, group in groupby(orders, key=lambda order: order.invoice_batch)}

    async def put_into_batch(self, order_ids: Sequence[UUID], batch_id: str, *, only_due: bool = False) -> int:
        """
        Write down in which batch orders are about to be uploaded, however many they are.

        Args:
            order_ids: The orders.
            batch_id: The batch.
            only_due: Leave those alone that are in a batch already.

        Returns:
            How many were put into the batch.
        """
        statement = update(Order).where(Order.id == any_(literal(list(order_ids), ARRAY(Uuid))))
        if only_due:
            statement = statement.where(Order.invoice_batch.is_(None))
        written = await self.session.execute(statement.values(invoice_batch=batch_id).returning(Order.id))
        return len(written.all())

    async def mark_invoiced(self, batch_id: str) -> None:
        """Write down that accounting has a batch."""
        await self.session.execute(
            update(Order)
            .where(Order.invoice_batch == batch_id, Order.invoiced_at.is_(None))
            .values(invoiced_at=func.now())
        )
