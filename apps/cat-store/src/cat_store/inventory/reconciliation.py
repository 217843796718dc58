"""The stock reconciliation: asks the warehouse for a full count, and writes it to the products."""

import logging
from typing import Final

from cat_store.inventory.stock import StockRepository, StockWrite
from cat_store.inventory.uninterrupted import uninterrupted
from cat_store.inventory.warehouse import WarehouseClient
from tenure import Lease, Locks, current_lease, on_one_instance, without_overlapping

__all__ = ["STOCK_RECONCILIATION", "StockReconciliation"]

logger = logging.getLogger(__name__)

STOCK_RECONCILIATION: Final = "inventory:stock-reconciliation"
"""The job's key. Given, not derived: a renamed method must not run twice during a rolling deploy."""


class StockReconciliation:
    """
    The job.

    A full count pages through the whole catalogue and may take longer than the time between two ticks; the ticks
    during it are skipped.

    Args:
        locks: Where the job's leases come from; None to run without any.
        warehouse: Whom to ask.
        stock: Where to write.
    """

    def __init__(self, locks: Locks | None, warehouse: WarehouseClient, stock: StockRepository) -> None:
        self.locks = locks
        self._warehouse = warehouse
        self._stock = stock

    @on_one_instance(STOCK_RECONCILIATION, locks="locks")
    @without_overlapping()
    async def run(self) -> StockWrite:
        """Reconcile the stock, if this instance is the one to do so and no run is in progress."""
        return await self.reconcile(current_lease())

    async def run_without_locks(self) -> StockWrite:
        """Reconcile the stock, whoever else does so at the same time: the shop before it had locks."""
        return await self.reconcile(None)

    async def reconcile(self, lease: Lease | None) -> StockWrite:
        """Count, and write what was counted, fenced by *lease* where there is one."""
        shelves = await self._warehouse.full_count()
        result = await uninterrupted(self._stock.write(shelves, lease))
        token = 0 if lease is None else lease.token
        logger.info(
            "Reconciled stock for %d products (fencing token %d)",
            result.written,
            token,
            extra={"event": "stock.reconciled", "written": result.written, "token": token},
        )
        return result
