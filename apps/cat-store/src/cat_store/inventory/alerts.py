"""Applying the warehouse's alerts: each once, in their order, and none by a leader that was replaced."""

import logging
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import BigInteger, String, func, literal, select, text, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import Mapped, mapped_column

from cat_store.database.registry import Model
from cat_store.inventory.models import Product
from cat_store.partners.wire import StockAlert
from tenure import Lease, LeaseLostError, LossReason
from tenure_postgres import fence

__all__ = ["AlertBook", "AlertWrite", "FeedPlace", "Place"]

logger = logging.getLogger(__name__)

_FEED: Final = "stock-alerts"


class FeedPlace(Model):
    """
    How far a feed was read: one row a feed.

    Attributes:
        token: The fencing token of the leader that reads it; one with a lower token changes nothing any more. In this
            row and not in the products': a new leader has its token here from its first moment on, so that a paused
            one is refused whichever product it writes to. Tokens of different keys cannot be compared, so the
            reconciliation's, which stand in the products, could not serve here.
        ledger: What the warehouse numbers its alerts in.
        position: The number of the last alert that was applied.
    """

    __tablename__ = "warehouse_feed"

    feed: Mapped[str] = mapped_column(String(100), primary_key=True)
    token: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    ledger: Mapped[str] = mapped_column(String(100), server_default=text("''"))
    position: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))


@dataclass(frozen=True, slots=True)
class Place:
    """How far the alerts were applied: the last number, and the ledger that it belongs to."""

    ledger: str
    position: int


@dataclass(frozen=True, slots=True)
class AlertWrite:
    """
    What became of an alert.

    Attributes:
        applied: Whether it was applied now; False for one that was before.
        sold: Whether the shop sells its product; the stock of one that it does not is nowhere to be written.
    """

    applied: bool
    sold: bool = True


class AlertBook:
    """
    The alerts in the shop's database.

    Each call is one statement and its own transaction, as for the stock: no row stays locked for a process that is
    paused. Without a lease (`None`) nothing is fenced, and whoever comes first applies an alert.

    Args:
        engine: The shop's database.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine: Final = engine

    async def take_over(self, lease: Lease | None) -> Place:
        """
        Become the one who applies alerts, and learn where to go on. Every earlier leader is refused from now on.

        Raises:
            LeaseLostError: Somebody else became it under a greater token.
        """
        first = insert(FeedPlace).values(feed=_FEED, token=0 if lease is None else lease.token, ledger="", position=0)
        taken: dict[str, Any] = {"feed": _FEED}
        allowed = None
        if lease is not None:
            fenced = fence(FeedPlace.token, lease)
            taken, allowed = fenced.values, fenced.allows
        statement = first.on_conflict_do_update(index_elements=[FeedPlace.feed], set_=taken, where=allowed).returning(
            FeedPlace.ledger, FeedPlace.position
        )
        row = await self._one(statement)
        if row is None:
            await self._refuse_replaced(lease)
            raise _replaced(lease)
        return Place(row.ledger, row.position)

    async def begin(self, ledger: str, lease: Lease | None) -> None:
        """
        Read on in another ledger, from its beginning; nothing changes where it is the one that is read already.

        Raises:
            LeaseLostError: As `apply`.
        """
        statement = update(FeedPlace).where(FeedPlace.feed == _FEED, FeedPlace.ledger != ledger)
        statement = statement.values(ledger=ledger, position=0)
        if lease is not None:
            statement = fence(FeedPlace.token, lease).guard(statement)
        if await self._one(statement.returning(FeedPlace.feed)) is None:
            await self._refuse_replaced(lease)

    async def apply(self, alert: StockAlert, lease: Lease | None) -> AlertWrite:
        """
        Write what an alert says, unless that was done before.

        Atomic: the place moves on and the stock is written in one statement, so that an alert that comes again after
        whatever interruption is known.

        Raises:
            LeaseLostError: A new leader reads the feed by now; nothing was written.
        """
        move = update(FeedPlace).where(FeedPlace.feed == _FEED, FeedPlace.position < alert.number)
        move = move.values(position=alert.number)
        if lease is not None:
            move = fence(FeedPlace.token, lease).guard(move)
        moved = move.returning(literal(alert.product_id).label("product_id")).cte("moved")
        write = update(Product).where(Product.id == moved.c.product_id)
        written = write.values(in_stock=alert.count).returning(Product.id).cte("written")
        row = await self._one(
            select(
                select(func.count()).select_from(moved).scalar_subquery().label("moved"),
                select(func.count()).select_from(written).scalar_subquery().label("written"),
            )
        )
        assert row is not None
        if not row.moved:
            await self._refuse_replaced(lease)
        return AlertWrite(applied=bool(row.moved), sold=bool(row.written) or not row.moved)

    async def _refuse_replaced(self, lease: Lease | None) -> None:
        """Tell a statement that had nothing to do from one that was refused."""
        row = await self._one(select(FeedPlace.token).where(FeedPlace.feed == _FEED))
        if lease is None or row is None or row.token <= lease.token:
            return
        logger.warning(
            "Refused a write of the warehouse feed: a newer leader (token > %d) reads it",
            lease.token,
            extra={"event": "feed.late_write_refused", "token": lease.token},
        )
        raise _replaced(lease)

    async def _one(self, statement: Any) -> Any:
        async with self._engine.connect() as connection:
            await connection.execution_options(isolation_level="AUTOCOMMIT")
            return (await connection.execute(statement)).one_or_none()


def _replaced(lease: Lease | None) -> LeaseLostError:
    assert lease is not None  # without one nothing is refused
    return LeaseLostError(lease.key, lease.token, LossReason.REFUSED)
