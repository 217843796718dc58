"""
One replica of the shop: its web server, and its jobs under the locks, fired by a schedule of its own.

Resources are entered in the order in which they need each other, and left in the reverse: the web server first, which
lets requests under way end; the schedule, which lets running jobs end; then the locks, which hand every lease back;
then the connections, for a lease is handed back through one.
"""

import asyncio
import contextlib
import logging
import signal
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import httpx
from litestar import Litestar
from prometheus_client import CollectorRegistry
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from cat_store.admin.controls import JobControls
from cat_store.admin.watch import ControlledJob, JobWatch
from cat_store.database.engine import Sessions, create_engine, create_sessions
from cat_store.database.migrate import check_is_current
from cat_store.database.purge import RECORD_PURGE, RecordPurge
from cat_store.inventory.alerts import AlertBook
from cat_store.inventory.feed import WAREHOUSE_FEED, WarehouseFeed
from cat_store.inventory.reconciliation import STOCK_RECONCILIATION, StockReconciliation
from cat_store.inventory.stock import StockRepository
from cat_store.inventory.warehouse import WarehouseClient
from cat_store.invoices.accounting import AccountingClient
from cat_store.invoices.export import INVOICE_EXPORT, InvoiceExport
from cat_store.live.heartbeat import Heartbeat
from cat_store.live.log import LiveLog
from cat_store.live.part import Live, LiveOptions, open_live
from cat_store.orders.desk import OrderDesk
from cat_store.partners.connection import Partner, PartnerError
from cat_store.rehearsal import Deaths, PauseBeforeWrite, reach_nothing
from cat_store.scheduler import Cron, Scheduler
from cat_store.settings import Settings
from cat_store.waiting import wait_for_all
from cat_store.web.app import create_app
from cat_store.web.server import Listener, serving
from tenure import Locks, LockStore, TenureError, open_idempotency_store, open_store
from tenure.clock import Clock
from tenure.idempotency import Idempotency
from tenure.instrumentation import Hook, PrometheusHook, default_hooks
from tenure.testing.history import HistoryRecorder

__all__ = ["Replica", "app_of", "open_replica", "run", "schedule_of", "server_of"]

logger = logging.getLogger(__name__)

# The names of the jobs for people; a key of tenure's has its domain in front.
_EXPORT, _COUNT, _FEED = "invoice-export", "stock-reconciliation", "warehouse-feed"

# Partners that fail, leases that are lost, a database that is away.
_FORESEEN = (PartnerError, TenureError, DBAPIError, OSError)


@dataclass(frozen=True, slots=True)
class Replica:
    """
    What a replica is made of.

    Attributes:
        settings: What it was told.
        engine: The shop's database.
        sessions: The same, to work with.
        locks: Its locks; None where they are switched off.
        idempotency: What carries out once the requests that come twice.
        order_desk: Where orders are placed.
        invoice_export: One of its jobs.
        stock_reconciliation: Another one.
        record_purge: The last one.
        warehouse_feed: What the warehouse tells by itself; one instance listens. To be entered.
        job_watch: Hears what administrators tell the jobs. To be entered before them.
        live: The live page.
        registry: Its numbers, for Prometheus.
        pause: The pause of the demo, which does nothing until it is armed.
        deaths: The deaths of the demo; None in a shop.
    """

    settings: Settings
    engine: AsyncEngine
    sessions: Sessions
    locks: Locks | None
    idempotency: Idempotency
    order_desk: OrderDesk
    invoice_export: InvoiceExport
    stock_reconciliation: StockReconciliation
    record_purge: RecordPurge
    warehouse_feed: WarehouseFeed
    job_watch: JobWatch
    live: Live
    registry: CollectorRegistry
    pause: PauseBeforeWrite
    deaths: Deaths | None


@contextlib.asynccontextmanager
async def open_replica(
    settings: Settings,
    *,
    address: str | None = None,
    partners: httpx.AsyncBaseTransport | None = None,
    clock: Clock | None = None,
) -> AsyncIterator[Replica]:
    """
    Open a replica: connections, locks and jobs, without a schedule and a web server.

    Args:
        settings: What it is told.
        address: Where it answers, as its listener found out; by default as the settings say.
        partners: Where requests to partners go instead of the network, for tests.
        clock: The clock of the locks, for tests: an instance on one that stands still is a paused one.

    Raises:
        SchemaError: The database was not migrated.
        ConfigurationError: Locks or records would not be safe, such as with a table that is missing.
    """
    async with contextlib.AsyncExitStack() as left:
        engine = create_engine(settings.database_url)
        left.push_async_callback(engine.dispose)
        await check_is_current(engine)
        sessions = create_sessions(engine)
        accounting = await left.enter_async_context(
            Partner("Accounting", f"{settings.accounting_url}/", settings.instance, transport=partners)
        )
        warehouse = await left.enter_async_context(
            Partner("The warehouse", f"{settings.warehouse_url}/", settings.instance, transport=partners)
        )
        log, registry = LiveLog(), CollectorRegistry()
        hooks = [*default_hooks(), log, PrometheusHook(registry)]
        address = settings.address or address or f"http://{settings.host}:{settings.port}"
        # Before the locks and left after them: the last thing that it tells is that they were handed back.
        await left.enter_async_context(
            Heartbeat(settings.database_url, log, instance=settings.instance, address=address, locks=settings.locks)
        )
        idempotency = await _enter_idempotency(settings, left, hooks)
        locks = await _enter_locks(settings, left, hooks, clock)
        live = await left.enter_async_context(
            open_live(_live_options(settings, address), engine, locks and locks.store, partners=partners)
        )
        feed = WarehouseFeed(locks, warehouse, AlertBook(engine))
        watch = JobWatch(JobControls(engine), locks, _controlled(locks, feed))
        pause, deaths = PauseBeforeWrite(), Deaths() if settings.rehearsal else None
        yield Replica(
            settings=settings,
            engine=engine,
            sessions=sessions,
            locks=locks,
            idempotency=idempotency,
            order_desk=OrderDesk(
                sessions,
                records_in_database=settings.idempotency_url is None,
                reach=reach_nothing if deaths is None else deaths.reach,
            ),
            invoice_export=InvoiceExport(
                locks, AccountingClient(accounting), sessions, locks_in_database=settings.locks_url is None
            ),
            stock_reconciliation=StockReconciliation(locks, WarehouseClient(warehouse), StockRepository(engine, pause)),
            record_purge=RecordPurge(locks, idempotency.store),
            warehouse_feed=feed,
            job_watch=watch,
            live=live,
            registry=registry,
            pause=pause,
            deaths=deaths,
        )


def _controlled(locks: Locks | None, feed: WarehouseFeed) -> list[ControlledJob]:
    """Name what administrators may pause, resume and move."""
    return [
        ControlledJob.scheduled(_EXPORT, locks, INVOICE_EXPORT),
        ControlledJob.scheduled(_COUNT, locks, STOCK_RECONCILIATION),
        ControlledJob(_FEED, WAREHOUSE_FEED, feed),
    ]


def _live_options(settings: Settings, address: str) -> LiveOptions:
    return LiveOptions(
        instance=settings.instance,
        address=address,
        accounting_url=settings.accounting_url,
        warehouse_url=settings.warehouse_url,
        lock_ttl_s=settings.lock_ttl_s,
        timezone=settings.timezone,
        admin_token=settings.admin_token,
        demo_url=settings.demo_url,
    )


async def _enter_idempotency(settings: Settings, left: contextlib.AsyncExitStack, hooks: Sequence[Hook]) -> Idempotency:
    # A pool of its own, as for the locks: a request takes a connection of it for a moment before and after its work.
    # From the pool that the work uses, a hundred requests could take every connection and wait for one more each.
    store = await left.enter_async_context(open_idempotency_store(settings.idempotency_url or settings.database_url))
    return await left.enter_async_context(
        Idempotency(
            store,
            lock_ttl=settings.idempotency_lock_ttl_s,
            retention=settings.idempotency_retention_s,
            drain=settings.drain_s,
            instance=settings.instance,
            hooks=hooks,
        )
    )


async def _enter_locks(
    settings: Settings, left: contextlib.AsyncExitStack, hooks: Sequence[Hook], clock: Clock | None
) -> Locks | None:
    if not settings.locks:
        logger.warning("Locks are off: every instance runs every job")
        return None
    store: LockStore = await left.enter_async_context(open_store(settings.locks_url or settings.database_url))
    if settings.lock_history is not None:
        recorder = left.enter_context(HistoryRecorder(settings.lock_history, process=settings.instance))
        store, hooks = recorder.around(store), [*hooks, recorder]
    return await left.enter_async_context(
        Locks(
            store,
            ttl=settings.lock_ttl_s,
            instance=settings.instance,
            hooks=hooks,
            clock=clock,
        )
    )


def app_of(replica: Replica) -> Litestar:
    """Build the web application of a replica."""
    return create_app(
        engine=replica.engine,
        sessions=replica.sessions,
        desk=replica.order_desk,
        invoice_export=replica.invoice_export,
        locks=replica.locks,
        idempotency=replica.idempotency,
        admin_token=replica.settings.admin_token,
        live=replica.live,
        watch=replica.job_watch,
        registry=replica.registry,
    )


def server_of(replica: Replica, listener: Listener) -> contextlib.AbstractAsyncContextManager[None]:
    """Build the web server of a replica, to be entered last."""
    app = app_of(replica)
    served = app if replica.deaths is None else replica.deaths.around(app)
    return serving(served, listener, drain_s=replica.settings.drain_s)


def schedule_of(replica: Replica) -> Scheduler:
    """Build the schedule of a replica's jobs, to be entered."""
    settings, export, stock = replica.settings, replica.invoice_export, replica.stock_reconciliation
    purge, watch = replica.record_purge, replica.job_watch
    return Scheduler(
        settings.valkey_url,
        settings.instance,
        [
            Cron(
                INVOICE_EXPORT,
                settings.invoice_export_cron,
                watch.unless_paused(_EXPORT, export.run if settings.locks else export.run_without_locks),
                _FORESEEN,
            ),
            Cron(
                STOCK_RECONCILIATION,
                settings.stock_reconciliation_cron,
                watch.unless_paused(_COUNT, stock.run if settings.locks else stock.run_without_locks),
                _FORESEEN,
            ),
            Cron(
                RECORD_PURGE,
                settings.record_purge_cron,
                purge.run if settings.locks else purge.purge,
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
    with Listener(settings.host, settings.port) as listener:
        if await _found(settings, stop):
            await _run_until(stop, settings, listener)
    logger.info("Replica %s has stopped", settings.instance, extra={"event": "replica.stopped"})


async def _found(settings: Settings, stop: asyncio.Event) -> bool:
    """Wait for what the replica needs; whoever stops it meanwhile does not wait."""
    waiting = asyncio.create_task(wait_for_all(settings))
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({waiting, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if waiting.done():
            waiting.result()
        return waiting.done()
    finally:
        waiting.cancel()
        stopped.cancel()


async def _run_until(stop: asyncio.Event, settings: Settings, listener: Listener) -> None:
    loop = asyncio.get_running_loop()
    opened = open_replica(settings, address=listener.url)
    async with (
        opened as replica,
        replica.job_watch,
        replica.warehouse_feed,
        schedule_of(replica) as schedule,
        server_of(replica, listener),
    ):
        if settings.rehearsal:
            loop.add_signal_handler(signal.SIGUSR1, replica.pause.arm)
        logger.info("Replica %s is up", settings.instance, extra={"event": "replica.up"})
        await stop.wait()
        logger.info("Replica %s is stopping", settings.instance, extra={"event": "replica.stopping"})
        # Requests may take their whole drain to end; no run is begun meanwhile that would have to be waited for next.
        schedule.stop_firing()
        # A page that is looked at would hold up the drain for as long as it is open.
        replica.live.end_streams()
        # Nobody has to wait for requests and runs to end before the next instance listens to the warehouse.
        await replica.warehouse_feed.close()
