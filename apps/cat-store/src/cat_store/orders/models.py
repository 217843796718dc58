"""The tables of orders."""

from datetime import datetime
from uuid import UUID

from advanced_alchemy.mixins import UUIDv7PrimaryKey
from advanced_alchemy.types import DateTimeUTC
from sqlalchemy import CheckConstraint, ForeignKey, Index, String, text
from sqlalchemy.orm import Mapped, mapped_column, relationship

from cat_store.database.registry import Model

__all__ = ["PLACED", "Order", "OrderLine"]

PLACED = "placed"
"""The status of an order that is to be invoiced."""


class Order(UUIDv7PrimaryKey, Model):
    """
    One order.

    An order is due for an invoice while it is placed and `invoiced_at` is empty. `invoice_batch` is written before
    the batch is uploaded: an order with a batch and without `invoiced_at` belongs to an upload that somebody began.
    """

    __tablename__ = "orders"
    __table_args__ = (
        CheckConstraint("total_cents >= 0", name="total_not_negative"),
        # The export asks for these rows at every tick, and they are a handful among all that were ever invoiced.
        Index("ix_orders_due", "placed_at", postgresql_where=text("status = 'placed' AND invoiced_at IS NULL")),
    )

    customer: Mapped[str] = mapped_column(String(100))
    status: Mapped[str] = mapped_column(String(20), default=PLACED)
    total_cents: Mapped[int]
    placed_at: Mapped[datetime] = mapped_column(DateTimeUTC(timezone=True), server_default=text("now()"))
    invoice_batch: Mapped[str | None] = mapped_column(String(100), index=True)
    invoiced_at: Mapped[datetime | None] = mapped_column(DateTimeUTC(timezone=True))

    lines: Mapped[list["OrderLine"]] = relationship(cascade="all, delete-orphan", passive_deletes=True, lazy="raise")


class OrderLine(Model):
    """How many of one product an order has, at the price of that day."""

    __tablename__ = "order_lines"
    __table_args__ = (CheckConstraint("quantity > 0", name="quantity_positive"),)

    order_id: Mapped[UUID] = mapped_column(ForeignKey("orders.id", ondelete="CASCADE"), primary_key=True)
    product_id: Mapped[str] = mapped_column(ForeignKey("products.id"), primary_key=True)
    quantity: Mapped[int]
    price_cents: Mapped[int]
