"""The desk where orders are placed: one transaction, whether a request comes once or again after a crash."""

import logging
from typing import Final

from cat_store.database.engine import Sessions
from cat_store.orders.models import Order
from cat_store.orders.repository import OrderRepository
from cat_store.orders.wire import NewOrder
from cat_store.rehearsal import Mark, Reach, reach_nothing
from tenure.idempotency import IdempotencyContext

__all__ = ["OrderDesk"]

logger = logging.getLogger(__name__)


class OrderDesk:
    """
    Places orders.

    Args:
        sessions: The shop's database.
        records_in_database: Whether the records of idempotency keys are in it too, so that an order and the proof that
            it was placed commit together.
        reach: Told of the moments at which a rehearsal may kill the process; does nothing in a shop.
    """

    def __init__(self, sessions: Sessions, *, records_in_database: bool = True, reach: Reach = reach_nothing) -> None:
        self._sessions: Final = sessions
        self._records_in_database: Final = records_in_database
        self._reach: Final = reach

    async def place(self, order: NewOrder, context: IdempotencyContext | None) -> Order:
        """
        Place an order at today's prices.

        Args:
            order: The order.
            context: The execution under the request's key; None for a request without one, which is placed as often as
                it comes.

        Exactly once, where the records are in the shop's database: `assert_owner` notes in the very transaction that
        has the order that the request had its effect. A replica that dies right after the commit leaves a request that
        nobody carries out again; one that was replaced meanwhile is refused here, and its order rolls back. Elsewhere
        the order and the record are two writes, and a repeat after a crash between them places the order again: it is
        told so (`context.attempt`), and so is the log.

        Raises:
            UnknownProductError: It asks for something that the shop does not sell.
            OrderTooLargeError: Its total is beyond what accounting takes.
            ExecutionLostError: Another replica carries the request out by now. Nothing was placed.
        """
        await self._reach(Mark.BEFORE_THE_HANDLER)
        async with self._sessions.begin() as session:
            if context is not None and self._records_in_database:
                await context.assert_owner(await session.connection())
            placed = await OrderRepository(session=session).place(order.customer, order.quantities)
            await self._reach(Mark.INSIDE_THE_TRANSACTION)
        await self._reach(Mark.AFTER_THE_COMMIT)
        attempt = 0 if context is None else context.attempt
        logger.info(
            "Placed order %s over %d cents%s",
            placed.id,
            placed.total_cents,
            f", attempt {attempt}: an earlier one may have placed it too"
            if attempt > 1 and not self._records_in_database
            else "",
            extra={"event": "order.placed", "order": str(placed.id), "attempt": attempt},
        )
        return placed
