"""The accounting system, as the shop sees it."""

from collections.abc import Sequence

from cat_store.orders.models import Order
from cat_store.partners.connection import Partner
from cat_store.partners.wire import Invoice, OpenedBatch, Receipt, Upload

__all__ = ["AccountingClient"]


class AccountingClient:
    """Opens batches and uploads them. An upload may be repeated: its batch id names it."""

    def __init__(self, partner: Partner) -> None:
        self._partner = partner

    async def open_batch(self) -> str:
        """Get the id for a new batch. One that is never uploaded is nothing in accounting's books."""
        return (await self._partner.ask("POST", "batches", OpenedBatch)).batch_id

    async def upload(self, batch_id: str, orders: Sequence[Order]) -> Receipt:
        """Upload the invoices of *orders* as the batch *batch_id*, for the first time or again."""
        invoices = [Invoice(str(order.id), order.customer, order.total_cents, order.placed_at) for order in orders]
        return await self._partner.ask("PUT", f"batches/{batch_id}", Receipt, Upload(invoices))
