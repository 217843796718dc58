"""
One replica of the shop: its jobs under the locks, fired by a schedule of its own.

Resources are entered in the order in which they need each other, and left in the reverse: the schedule first, which
lets running jobs end; then the locks, which hand every lease back; then the connections, for a lease is handed back
through one.
"""

import asyncio
import contextlib
import logging
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass

import httpx
from sqlalchemy.exc import DBAPIError

from cat_store.database.engine import create_engine, create_sessions
from cat_store.database.migrate import check_is_current
from cat_store.inventory.reconciliation import STOCK_RECONCILIATION, StockReconciliation
from cat_store.inventory.stock import StockRepository
from cat_store.inventory.warehouse import WarehouseClient
from cat_store.invoices.accounting import AccountingClient
from cat_store.invoices.export import INVOICE_EXPORT, InvoiceExport
from cat_store.partners.connection import Partner, PartnerError
from cat_store.rehearsal import PauseBeforeWrite
from cat_store.scheduler import Cron, Scheduler
from cat_store.settings import Settings
from tenure import Locks, TenureError, open_store
from tenure.clock import Clock

__all__ = ["Replica", "open_replica", "run", "schedule_of"]

logger = logging.getLogger(__name__)

# Partners that fail, leases that are lost, a database that is away.
_FORESEEN = (PartnerError, TenureError, DBAPIError, OSError)


@dataclass(frozen=True, slots=True)
class Replica:
    """
    What a replica is made of.

    Attributes:
        settings: What it was told.
        locks: Its locks; None where they are switched off.
        invoice_export: One of its jobs.
        stock_reconciliation: The other one.
        pause: The pause of the demo, which does nothing until it is armed.
    """

    settings: Settings
    locks: Locks | None
    invoice_export: InvoiceExport
    stock_reconciliation: StockReconciliation
    pause: PauseBeforeWrite


@contextlib.asynccontextmanager
async def open_replica(
    settings: Settings, *, partners: httpx.AsyncBaseTransport | None = None, clock: Clock | None = None
) -> AsyncIterator[Replica]:
    """
    Open a replica: connections, locks and jobs, without a schedule.

    Args:
        settings: What it is told.
        partners: Where requests to partners go instead of the network, for tests.
        clock: The clock of the locks, for tests: an instance on one that stands still is a paused one.

    Raises:
        SchemaError: The database was not migrated.
        ConfigurationError: Locks would not be safe, such as with a lock table that is missing.
    """
    async with contextlib.AsyncExitStack() as left:
        engine = create_engine(settings.database_url)
        left.push_async_callback(engine.dispose)
        await check_is_current(engine)
        accounting = await left.enter_async_context(
            Partner("Accounting", f"{settings.accounting_url}/", settings.instance, transport=partners)
        )
        warehouse = await left.enter_async_context(
            Partner("The warehouse", f"{settings.warehouse_url}/", settings.instance, transport=partners)
        )
        locks = None
        if settings.locks:
            store = await left.enter_async_context(open_store(settings.locks_url or settings.database_url))
            locks = Locks(store, ttl=settings.lock_ttl_s, instance=settings.instance, clock=clock)
            await left.enter_async_context(locks)
        else:
            logger.warning("Locks are off: every instance runs every job")
        pause = PauseBeforeWrite()
        yield Replica(
            settings,
            locks,
            InvoiceExport(
                locks,
                AccountingClient(accounting),
                create_sessions(engine),
                locks_in_database=settings.locks_url is None,
            ),
            StockReconciliation(locks, WarehouseClient(warehouse), StockRepository(engine, pause)),
            pause,
        )


def schedule_of(replica: Replica) -> Scheduler:
    """Build the schedule of a replica's jobs, to be entered."""
    settings, export, stock = replica.settings, replica.invoice_export, replica.stock_reconciliation
    return Scheduler(
        settings.valkey_url,
        settings.instance,
        [
            Cron(
                INVOICE_EXPORT,
                settings.invoice_export_cron,
                export.run if settings.locks else export.run_without_locks,
                _FORESEEN,
            ),
            Cron(
                STOCK_RECONCILIATION,
                settings.stock_reconciliation_cron,
                stock.run if settings.locks else stock.run_without_locks,
                _FORESEEN,
            ),
        ],
        timezone=settings.timezone,
        drain_s=settings.drain_s,
    )


async def run(settings: Settings) -> None:
    """Run a replica until SIGTERM or SIGINT, then hand its leases back and return."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with open_replica(settings) as replica, schedule_of(replica):
        if settings.rehearsal:
            loop.add_signal_handler(signal.SIGUSR1, replica.pause.arm)
        logger.info("Replica %s is up", settings.instance, extra={"event": "replica.up"})
        await stop.wait()
        logger.info("Replica %s is stopping", settings.instance, extra={"event": "replica.stopping"})
    logger.info("Replica %s has stopped", settings.instance, extra={"event": "replica.stopped"})
