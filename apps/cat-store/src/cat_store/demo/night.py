"""The scene of the night that has 02:00 twice."""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from typing import Final
from uuid import UUID
from zoneinfo import ZoneInfo

from croniter import croniter  # type: ignore[import-untyped]  # it ships no types

from cat_store.database.engine import create_engine, create_sessions
from cat_store.demo.facts import DstNight
from cat_store.demo.journal import NotSeenError
from cat_store.demo.narrator import Narrator
from cat_store.demo.stage import INSTANCES, Stage
from cat_store.invoices.accounting import AccountingClient
from cat_store.invoices.export import INVOICE_EXPORT, InvoiceExport
from cat_store.partners.connection import Partner
from cat_store.settings import PREFIX, VARIABLES
from tenure import Locks, open_store

__all__ = ["play_the_night", "ticks_of_the_night"]

_NIGHT: Final = (datetime(2026, 10, 24, 12, tzinfo=UTC), datetime(2026, 10, 25, 12, tzinfo=UTC))
"""From noon to noon: at 03:00 Warsaw turns its clocks back to 02:00."""

_ORDERS: Final = 2
"""How many orders come before each tick."""

_FREE_WITHIN_S: Final = 15.0
_LOOK_EVERY_S: Final = 0.05


async def play_the_night(stage: Stage, narrator: Narrator) -> DstNight:
    """
    Run the export at each tick of the night of 25 October 2026, without waiting for it.

    Real are the cron's expression, its time zone and the library that the schedule asks for its ticks; the export with
    its locks, twice, as on two replicas; the database, the orders and accounting. Played is the time: the ticks are
    asked for from a start at noon, and the export is called at one after the other, at once. The replicas are stopped
    meanwhile, for their own ticks come every few seconds. Between two ticks both exports are left and entered anew, so
    that the second 02:00 has no memory of the first but what the database and accounting have.
    """
    narrator.scene(
        "The night that has two o'clock twice",
        "The export is due at 02:00 in Warsaw, and on 25 October 2026 there are two of them. It is run at both, on two "
        "replicas each time. What was exported at the first is not due at the second: every order is booked once.",
    )
    await stage.stop()
    ticks = ticks_of_the_night()
    placed: list[UUID] = []
    for number, tick in enumerate(ticks):
        placed += await stage.shop.place_orders(_ORDERS)
        narrator.step(f"It is {tick:%H:%M %Z}: tick {number + 1} of {len(ticks)}.")
        # The other one is asked first each time.
        await _tick(stage, INSTANCES[:2] if number % 2 == 0 else INSTANCES[1::-1])
    books = await stage.partners.accounting()
    orders = {str(order_id) for order_id in placed}
    booked = Counter(order_id for batch in books.batches for order_id in batch.order_ids if order_id in orders)
    facts = DstNight(
        ticks=[tick.isoformat() for tick in ticks],
        orders=len(orders),
        duplicate_invoices=booked.total() - len(booked),
        lost_orders=len(orders) - len(booked),
    )
    narrator.result(
        f"02:00 came {len(ticks)} times; {facts.orders} orders, {facts.duplicate_invoices} booked twice, "
        f"{facts.lost_orders} lost"
    )
    await narrator.breathe()
    return facts


def ticks_of_the_night() -> list[datetime]:
    """Tell when the shop's own schedule fires the export that night: asked for again after each tick, as SAQ does."""
    expression, zone = VARIABLES["invoice_export_cron"].default, ZoneInfo(VARIABLES["timezone"].default or "UTC")
    now, end = _NIGHT
    ticks = []
    while (now := datetime.fromtimestamp(croniter(expression, now.astimezone(zone)).get_next(), zone)) < end:
        ticks.append(now)
    return ticks


async def _tick(stage: Stage, names: Sequence[str]) -> None:
    """Fire the export on some replicas at once, when nobody has it any more: an hour has passed."""
    # A lease that was handed back is kept for the rest of the second in which its run began.
    until = time.monotonic() + _FREE_WITHIN_S
    while (owner := await stage.owner_of(INVOICE_EXPORT)) is not None:
        if time.monotonic() > until:
            raise NotSeenError(f"{owner} has ended, and has the export's lease {_FREE_WITHIN_S:g} s later.")
        await asyncio.sleep(_LOOK_EVERY_S)
    async with contextlib.AsyncExitStack() as left:
        exports = [await left.enter_async_context(_export_of(stage, name)) for name in names]
        await asyncio.gather(*(export.run() for export in exports))


@contextlib.asynccontextmanager
async def _export_of(stage: Stage, name: str) -> AsyncIterator[InvoiceExport]:
    """Put the export together as a replica does."""
    told = stage.environment
    database_url, locks_url = told[f"{PREFIX}DATABASE_URL"], told.get(f"{PREFIX}LOCKS_URL")
    async with contextlib.AsyncExitStack() as left:
        engine = create_engine(database_url)
        left.push_async_callback(engine.dispose)
        partner = await left.enter_async_context(Partner("Accounting", f"{stage.partners.accounting_url}/", name))
        store = await left.enter_async_context(open_store(locks_url or database_url))
        locks = await left.enter_async_context(Locks(store, ttl=stage.options.ttl_s, instance=name))
        yield InvoiceExport(
            locks, AccountingClient(partner), create_sessions(engine), locks_in_database=locks_url is None
        )
