"""Writing stock: one statement for a whole count, fenced by the run that read it."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Integer, String, Update, any_, bindparam, column, func, literal, select, update
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from cat_store.inventory.models import Product
from cat_store.partners.wire import Shelf
from tenure import Lease
from tenure_postgres import fence

__all__ = ["StockRepository", "StockWrite"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StockWrite:
    """
    What became of a count.

    Attributes:
        written: Products whose stock was written.
        stale: Products that a run with a greater fencing token had written already; they were left alone.
    """

    written: int
    stale: int


class StockRepository:
    """
    The stock of the products.

    Args:
        engine: The shop's database.
        before_write: Called right before a write is sent, after everything that went before it; the demo pauses
            the process there.
    """

    def __init__(self, engine: AsyncEngine, before_write: Callable[[], None] | None = None) -> None:
        self._engine: Final = engine
        self._before_write = before_write

    async def write(self, shelves: Sequence[Shelf], lease: Lease | None) -> StockWrite:
        """
        Write the counts that a run read.

        Under a lease a product that a newer run (a greater token) wrote is left alone: a run that was paused between
        its reading and this write would otherwise put back what was sold meanwhile. Without a lease the last to
        write wins, whatever it read.

        Atomic: one statement compares the token and writes, and no row stays locked for a process that is paused:
        the statement is its own transaction.
        """
        ordered = sorted(shelves, key=lambda shelf: shelf.product_id)
        product_ids = [shelf.product_id for shelf in ordered]
        values = {"product_ids": product_ids, "counts": [shelf.count for shelf in ordered]}
        async with self._engine.connect() as connection:
            await connection.execution_options(isolation_level="AUTOCOMMIT")
            statement = _write_statement(lease)
            if self._before_write is not None:
                self._before_write()
            written = len((await connection.execute(statement, values)).all())
            stale = 0
            if lease is not None and written < len(ordered):
                stale = await _newer(connection, product_ids, lease.token)
        if lease is not None and stale:
            logger.warning(
                "Skipped %d stale stock writes: a newer run (token > %d) wrote those products",
                stale,
                lease.token,
                extra={"event": "stock.stale_writes_refused", "stale": stale, "token": lease.token},
            )
        return StockWrite(written, stale)


def _write_statement(lease: Lease | None) -> Update:
    counted = (
        func.unnest(bindparam("product_ids", type_=ARRAY(String)), bindparam("counts", type_=ARRAY(Integer)))
        .table_valued(column("product_id", String), column("count", Integer))
        .render_derived(name="counted")
    )
    statement = (
        update(Product).where(Product.id == counted.c.product_id).values(in_stock=counted.c.count).returning(Product.id)
    )
    return statement if lease is None else fence(Product.stock_token, lease).guard(statement)


async def _newer(connection: AsyncConnection, product_ids: Sequence[str], token: int) -> int:
    """Tell the products that a newer run wrote from those that the shop does not sell."""
    return (
        await connection.scalar(
            select(func.count()).where(
                Product.id == any_(literal(list(product_ids), ARRAY(String))), Product.stock_token > token
            )
        )
        or 0
    )
