"""What customers send and see of orders."""

from datetime import datetime
from typing import Annotated
from uuid import UUID

import msgspec

from cat_store.orders.models import Order

__all__ = ["LineView", "NewLine", "NewOrder", "OrderPage", "OrderView"]

# No control characters: PostgreSQL refuses NUL in text, and the rest has no place on an invoice. A name has to have
# something in it to be seen.
Customer = Annotated[
    str, msgspec.Meta(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f\x7f]*[^\x00-\x20\x7f][^\x00-\x1f\x7f]*$")
]
ProductId = Annotated[str, msgspec.Meta(min_length=1, max_length=100, pattern=r"^[a-z0-9-]+$")]
# Who needs more of one product than a thousand bags calls.
Quantity = Annotated[int, msgspec.Meta(ge=1, le=1000)]


class NewLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many of one product are ordered."""

    product_id: ProductId
    quantity: Quantity


class NewOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An order as a customer sends it: at most fifty lines, each for a product of its own."""

    customer: Customer
    lines: Annotated[list[NewLine], msgspec.Meta(min_length=1, max_length=50)]

    def __post_init__(self) -> None:
        """Refuse two lines for one product: whether they add up, or one corrects the other, nobody can tell."""
        if len({line.product_id for line in self.lines}) < len(self.lines):
            raise ValueError("Two lines are for the same product: put its whole quantity into one")

    @property
    def quantities(self) -> dict[str, int]:
        """How many of each product, by its id."""
        return {line.product_id: line.quantity for line in self.lines}


class LineView(msgspec.Struct, frozen=True):
    """One line of a placed order, at the price of that day."""

    product_id: str
    quantity: int
    price_cents: int


class OrderView(msgspec.Struct, frozen=True):
    """A placed order."""

    id: UUID
    customer: str
    status: str
    total_cents: int
    placed_at: datetime
    invoiced_at: datetime | None
    lines: list[LineView]

    @classmethod
    def of(cls, order: Order) -> "OrderView":
        """Look at an order whose lines are loaded."""
        lines = sorted(order.lines, key=lambda line: line.product_id)
        return cls(
            order.id,
            order.customer,
            order.status,
            order.total_cents,
            order.placed_at,
            order.invoiced_at,
            [LineView(line.product_id, line.quantity, line.price_cents) for line in lines],
        )


class OrderPage(msgspec.Struct, frozen=True):
    """
    Some orders, newest first.

    Attributes:
        orders: The orders.
        next: Where the older ones are; None on the last page.
    """

    orders: list[OrderView]
    next: str | None
