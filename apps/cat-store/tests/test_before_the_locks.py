"""The problem, proven: three instances whose schedulers fire the same tick, without locks."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from cat_store.demo.shop import Shop
from cat_store.inventory.catalogue import SALMON_KIBBLE
from cat_store.partners.wire import AccountingSwitches, WarehouseSwitches
from cat_store.replica import Replica

Start = Callable[..., Awaitable[Replica]]
Until = Callable[[Callable[[], object]], Awaitable[None]]
Log = Callable[[str], list[str]]


async def test_accounting_records_every_invoice_three_times(start: Start, shop: Shop, partners: Any, log: Log) -> None:
    orders = {str(order) for order in await shop.place_orders(3)}
    partners.accounting.switches = AccountingSwitches(openings_wait_for=3)
    instances = [await start(locks=False) for _ in range(3)]
    await asyncio.gather(*(each.invoice_export.run_without_locks() for each in instances))
    assert partners.booked == [orders, orders, orders]
    assert partners.accounting.statement().duplicate_invoices == 6
    assert len(log("Exported 3 invoices in batch")) == 3
    # Each order has a batch and is invoiced, and nothing is due: nobody notices until accounting calls.
    assert await instances[0].invoice_export.run_without_locks() == []


async def test_the_warehouse_is_asked_for_three_full_counts_at_once(
    start: Start, partners: Any, until: Until, log: Log
) -> None:
    partners.warehouse.switches = WarehouseSwitches(hold_counts=True)
    instances = [await start(locks=False) for _ in range(3)]
    runs = [asyncio.create_task(each.stock_reconciliation.run_without_locks()) for each in instances]
    await until(lambda: partners.warehouse.statement().open_counts == 3)
    partners.warehouse.switches = WarehouseSwitches()
    await asyncio.gather(*runs)
    assert partners.counts == partners.warehouse.statement().most_at_once == 3
    assert len(log("Reconciled stock for 3 products (fencing token 0)")) == 3


async def test_a_paused_instance_overwrites_the_fresh_count_with_its_stale_one(
    start: Start, gate: Any, shop: Shop, partners: Any, until: Until
) -> None:
    held = gate("GET")
    paused, other = await start(locks=False, transport=held), await start(locks=False)
    stale = asyncio.create_task(paused.stock_reconciliation.run_without_locks())
    await until(lambda: held.holds)
    partners.warehouse.set_shelf(SALMON_KIBBLE, 9)
    await other.stock_reconciliation.run_without_locks()
    assert (await shop.stock_of(SALMON_KIBBLE)).in_stock == 9
    held.open()
    await stale
    assert (await shop.stock_of(SALMON_KIBBLE)).in_stock == 12  # three bags that the shop does not have
