"""
The invoice export: every placed order without an invoice goes to the accounting system, once.

    read what is due -> open a batch -> write the batch's id to the orders -> upload it under its id -> mark invoiced

Between the upload and the mark a process can die, and nothing in the database tells whether accounting has the
batch. So the id is written to the orders before the upload, under the proof that this run still holds its lease.
A successor finds a batch that was begun, uploads it again under the same id, and accounting recognises what it has.

The lease keeps two runs from reading the same orders as due; the id keeps one order from being booked twice when a
run dies. Neither replaces the other: three instances without a lease open three batches for the same orders.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cat_store.database.engine import Sessions
from cat_store.invoices.accounting import AccountingClient
from cat_store.orders.models import Order
from cat_store.orders.repository import OrderRepository
from tenure import Lease, LeaseLostError, Locks, LossReason, current_lease, on_one_instance, without_overlapping
from tenure_postgres import lease_guard

__all__ = ["INVOICE_EXPORT", "ExportedBatch", "InvoiceExport"]

logger = logging.getLogger(__name__)

INVOICE_EXPORT: Final = "invoices:nightly-export"
"""The key of a run, scheduled or by hand. Given, not derived: a renamed method must not run twice during a deploy."""


@dataclass(frozen=True, slots=True)
class ExportedBatch:
    """
    One batch that accounting has.

    Attributes:
        batch_id: Its id.
        invoices: How many invoices it holds.
        resumed: Whether a run before this one began it.
    """

    batch_id: str
    invoices: int
    resumed: bool


class InvoiceExport:
    """
    The job.

    Args:
        locks: Where the job's leases come from; None to run without any.
        accounting: Where invoices go.
        sessions: The shop's database.
        locks_in_database: Whether the locks are in it too, so that a transaction can prove its lease.
    """

    def __init__(
        self, locks: Locks | None, accounting: AccountingClient, sessions: Sessions, *, locks_in_database: bool = True
    ) -> None:
        self.locks = locks
        self._accounting = accounting
        self._sessions = sessions
        self._locks_in_database = locks_in_database

    @on_one_instance(INVOICE_EXPORT, locks="locks")
    @without_overlapping()
    async def run(self) -> list[ExportedBatch]:
        """Export what is due, if this instance is the one to do so and no run is in progress."""
        return await self.export(current_lease())

    async def run_without_locks(self) -> list[ExportedBatch]:
        """Export what is due, whoever else does so at the same time: the shop before it had locks."""
        return await self.export(None)

    async def export(self, lease: Lease | None) -> list[ExportedBatch]:
        """
        See through every batch that was begun, then export what is due in a batch of its own.

        Args:
            lease: The lease on `INVOICE_EXPORT` that the caller holds.

        Returns:
            The batches that accounting has now, without those that it had before; empty where nothing was due.

        Raises:
            PartnerError: Accounting failed. What was begun is seen through by the next run.
            LeaseLostError: Somebody else exports by now; nothing was begun.
        """
        async with self._sessions() as session:
            orders = OrderRepository(session=session)
            begun = await orders.unfinished()
            due = await orders.due()
        exported = [await self._see_through(batch_id, batch, resumed=True) for batch_id, batch in begun.items()]
        if due:
            batch_id = await self._begin(due, lease)
            exported.append(await self._see_through(batch_id, due, resumed=False))
        return exported

    async def _begin(self, due: Sequence[Order], lease: Lease | None) -> str:
        batch_id = await self._accounting.open_batch()
        order_ids = [order.id for order in due]
        async with self._sessions.begin() as session:
            orders = OrderRepository(session=session)
            if lease is None:
                await orders.put_into_batch(order_ids, batch_id)
                return batch_id
            # A run that was paused since it read what is due must not put these orders, which its successor has
            # exported by now, into a batch of its own. Where the locks are in this database the lease is proven until
            # the commit; wherever they are, orders that are in a batch already stay there.
            if self._locks_in_database:
                await lease_guard(await session.connection(), lease)
            if await orders.put_into_batch(order_ids, batch_id, only_due=True) < len(order_ids):
                raise LeaseLostError(lease.key, lease.token, LossReason.REFUSED)
        return batch_id

    async def _see_through(self, batch_id: str, orders: Sequence[Order], *, resumed: bool) -> ExportedBatch:
        receipt = await self._accounting.upload(batch_id, orders)
        async with self._sessions.begin() as session:
            await OrderRepository(session=session).mark_invoiced(batch_id)
        logger.info(
            "Exported %d invoices in batch %s%s",
            len(orders),
            batch_id,
            "" if not resumed else ", which a run before began" + ("" if receipt.recorded else " and had uploaded"),
            extra={
                "event": "invoices.exported",
                "batch": batch_id,
                "invoices": len(orders),
                "resumed": resumed,
                "recorded": receipt.recorded,
            },
        )
        return ExportedBatch(batch_id, len(orders), resumed)
