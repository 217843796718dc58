"""The table of products."""

from sqlalchemy import BigInteger, CheckConstraint, String, text
from sqlalchemy.orm import Mapped, mapped_column

from cat_store.database.registry import Model

__all__ = ["Product"]


class Product(Model):
    """
    One product.

    Attributes:
        stock_token: The fencing token of the reconciliation run that wrote `in_stock`: a run with a lower one is
            refused. 0 where no run under a lease has written it yet.
    """

    __tablename__ = "products"
    __table_args__ = (
        CheckConstraint("price_cents >= 0", name="price_not_negative"),
        CheckConstraint("in_stock >= 0", name="stock_not_negative"),
    )

    id: Mapped[str] = mapped_column(String(100), primary_key=True)
    name: Mapped[str] = mapped_column(String(200))
    price_cents: Mapped[int]
    in_stock: Mapped[int] = mapped_column(server_default=text("0"))
    stock_token: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
