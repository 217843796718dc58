"""The stock reconciliation under its locks: one count a tick, and no stale count over a fresh one."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from cat_store.demo.shop import Shop
from cat_store.inventory.catalogue import SALMON_KIBBLE
from cat_store.inventory.stock import StockRepository, StockWrite
from cat_store.inventory.uninterrupted import uninterrupted
from cat_store.partners.wire import Shelf, WarehouseSwitches
from cat_store.replica import Replica
from tenure import LeaseLostError
from tenure.testing import ManualClock

Start = Callable[..., Awaitable[Replica]]
Until = Callable[[Callable[[], object]], Awaitable[None]]
Log = Callable[[str], list[str]]
Paused = tuple[asyncio.Task[StockWrite | None], Any, ManualClock]


async def tick(*instances: Replica) -> list[StockWrite | None]:
    return await asyncio.gather(*(instance.stock_reconciliation.run() for instance in instances))


async def take_over(instance: Replica) -> StockWrite:
    async with asyncio.timeout(15):
        while (written := await instance.stock_reconciliation.run()) is None:
            await asyncio.sleep(0.05)
    return written


@pytest.fixture
async def engine(postgres_url: str) -> AsyncIterator[AsyncEngine]:
    engine = create_async_engine(postgres_url)
    yield engine
    await engine.dispose()


@pytest.fixture
async def paused_while_another_took_over(start: Start, gate: Any, partners: Any, until: Until) -> AsyncIterator[Paused]:
    """The first instance read 12 bags of salmon kibble and stopped; the second took over, and wrote 9."""
    held, clock = gate("GET"), ManualClock()
    paused = await start(clock=clock, lock_ttl_s=1, transport=held)
    other = await start(lock_ttl_s=1)
    stale = asyncio.create_task(paused.stock_reconciliation.run())
    await until(lambda: held.holds)
    partners.warehouse.set_shelf(SALMON_KIBBLE, 9)
    await take_over(other)
    yield stale, held, clock
    await asyncio.wait({stale})


async def test_the_stock_is_counted_once_a_tick(start: Start, shop: Shop, partners: Any, log: Log) -> None:
    instances = [await start() for _ in range(3)]
    await tick(*instances)
    await tick(*instances)
    assert partners.counts == 2
    assert len(log('(lease "inventory:stock-reconciliation:owner", fencing token')) == 1
    assert len(log("StockReconciliation.run: it runs on another instance")) == 4
    assert (await shop.stock_of(SALMON_KIBBLE)).in_stock == 12


async def test_each_run_writes_under_a_greater_token(start: Start, shop: Shop) -> None:
    owner = await start()
    tokens = []
    for _ in range(3):
        await tick(owner)
        tokens.append((await shop.stock_of(SALMON_KIBBLE)).token)
    assert 0 < tokens[0] < tokens[1] < tokens[2]


async def test_every_tick_during_a_long_count_is_skipped_and_the_next_one_runs(
    start: Start, partners: Any, until: Until, log: Log
) -> None:
    owner, other = await start(), await start()
    partners.warehouse.switches = WarehouseSwitches(hold_counts=True)
    first = asyncio.create_task(owner.stock_reconciliation.run())
    await until(lambda: partners.counts == 1)
    for _ in range(3):
        assert await tick(owner, other) == [None, None]
    assert partners.counts == 1
    assert len(log("StockReconciliation.run: a run is still in progress")) == 3
    assert len(log("StockReconciliation.run: it runs on another instance")) == 3
    partners.warehouse.switches = WarehouseSwitches()
    assert await first == StockWrite(written=3, stale=0)
    await tick(owner, other)
    assert partners.counts == 2


async def test_the_late_write_of_a_paused_instance_is_refused(
    paused_while_another_took_over: Paused, shop: Shop, log: Log
) -> None:
    stale, held, _ = paused_while_another_took_over
    before = await shop.stock_of(SALMON_KIBBLE)
    assert before.in_stock == 9
    held.open()  # it wakes up before it noticed anything, and writes
    assert await stale == StockWrite(written=0, stale=3)
    assert await shop.stock_of(SALMON_KIBBLE) == before
    assert len(log("Skipped 3 stale stock writes: a newer run (token > ")) == 1


async def test_an_instance_that_notices_its_loss_stops_before_it_writes(
    paused_while_another_took_over: Paused, shop: Shop, log: Log
) -> None:
    stale, held, clock = paused_while_another_took_over
    await clock.advance("1s")  # its next renewal is refused, and the run is cancelled
    with pytest.raises(LeaseLostError):
        await stale
    held.open()
    assert (await shop.stock_of(SALMON_KIBBLE)).in_stock == 9
    assert log('Lost the lease on "inventory:stock-reconciliation')
    assert log("stale stock writes") == []


@pytest.mark.parametrize("times", [1, 2], ids=["cancelled", "cancelled twice"])
async def test_a_write_on_its_way_comes_to_its_end_although_its_run_is_cancelled(
    engine: AsyncEngine, shop: Shop, times: int
) -> None:
    sent = asyncio.Event()
    stock = StockRepository(engine, sent.set)
    async with engine.begin() as other:
        await other.execute(text("SELECT 1 FROM products WHERE id = :id FOR UPDATE"), {"id": SALMON_KIBBLE})
        run = asyncio.create_task(uninterrupted(stock.write([Shelf(SALMON_KIBBLE, 4)], None)))
        await sent.wait()
        for _ in range(times):
            run.cancel()
            await asyncio.sleep(0)
        assert run.done() == (times > 1)
    with pytest.raises(asyncio.CancelledError):
        await run
    async with asyncio.timeout(15):
        while (await shop.stock_of(SALMON_KIBBLE)).in_stock != 4:
            await asyncio.sleep(0.01)


async def test_a_count_of_a_product_that_the_shop_does_not_sell_is_neither_written_nor_stale(
    start: Start, engine: AsyncEngine
) -> None:
    owner = await start()
    async with engine.begin() as connection:
        await connection.execute(text("DELETE FROM products WHERE id = :id"), {"id": SALMON_KIBBLE})
    assert await owner.stock_reconciliation.run() == StockWrite(written=2, stale=0)


@pytest.mark.parametrize(
    "switches",
    [WarehouseSwitches(fail_with=500), WarehouseSwitches(fail_with=404), WarehouseSwitches(garbage=True)],
    ids=["500", "404", "garbage"],
)
async def test_a_warehouse_that_fails_costs_a_tick_and_no_stock(
    start: Start, shop: Shop, partners: Any, switches: WarehouseSwitches
) -> None:
    owner, other = await start(), await start()
    await tick(owner)
    partners.warehouse.switches = switches
    before = await shop.stock_of(SALMON_KIBBLE)
    with pytest.raises(Exception, match=r"The warehouse (refused|answered)"):
        await owner.stock_reconciliation.run()
    assert await shop.stock_of(SALMON_KIBBLE) == before
    assert await other.stock_reconciliation.run() is None
    partners.warehouse.switches = WarehouseSwitches()
    assert await owner.stock_reconciliation.run() == StockWrite(written=3, stale=0)


@pytest.mark.parametrize("count", [-1, 1_000_001], ids=["negative", "absurd"])
async def test_a_count_that_cannot_be_is_refused_whole(start: Start, shop: Shop, partners: Any, count: int) -> None:
    owner = await start()
    partners.warehouse.set_shelf(SALMON_KIBBLE, count)
    with pytest.raises(Exception, match="something that is no CountPage"):
        await owner.stock_reconciliation.run()
    assert (await shop.stock_of("chicken-kibble-2kg")).token == 0
