"""The warehouse feed: one connection for the shop, whoever dies; each alert once; and nothing of a replaced leader."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from cat_store.demo.shop import Shop
from cat_store.inventory.alerts import AlertBook, AlertWrite
from cat_store.inventory.catalogue import CATALOGUE, SALMON_KIBBLE
from cat_store.inventory.feed import WarehouseFeed
from cat_store.partners.accounting import Accounting
from cat_store.partners.app import create_app
from cat_store.partners.connection import Partner
from cat_store.partners.warehouse import Warehouse
from cat_store.partners.wire import Shelf, StockAlert, WarehouseSwitches
from cat_store.settings import Settings
from cat_store.web.server import Listener, serving
from tenure import LeaseLostError, LossReason
from tenure.testing import ManualClock
from tenure_testbed import Replica as Process

Until = Callable[[Callable[[], object]], Awaitable[None]]
Log = Callable[[str], list[str]]
Listen = Callable[..., Awaitable[WarehouseFeed]]
Launch = Callable[[], Awaitable[Process]]

TTL_S = 1.5
# Some interpreters that start at once on a busy machine.
PROCESS_UP_S = 60.0


class RealWarehouse:
    """A warehouse that answers on a port."""

    def __init__(self) -> None:
        self.shelves = {item.id: item.on_shelf for item in CATALOGUE}
        self.listener = Listener("127.0.0.1", 0)
        self.url = f"{self.listener.url}/warehouse"
        self._left = contextlib.AsyncExitStack()

    async def open(self) -> None:
        self.inside = Warehouse(self.shelves)
        self._left.callback(self.inside.feed.end)
        app = create_app(Accounting(), self.inside)
        await self._left.enter_async_context(serving(app, self.listener, drain_s=2))
        self._left.callback(self.inside.feed.end)

    async def restart(self) -> None:
        await self._left.aclose()
        self.listener.socket.close()
        self.listener = Listener("127.0.0.1", self.listener.port)
        await self.open()

    async def close(self) -> None:
        await self._left.aclose()
        self.listener.socket.close()

    @property
    def feed(self) -> Any:
        return self.inside.feed

    def alert(self, count: int, product_id: str = SALMON_KIBBLE) -> None:
        self.inside.alert(Shelf(product_id, count))


@pytest.fixture
async def warehouse() -> AsyncIterator[RealWarehouse]:
    real = RealWarehouse()
    await real.open()
    yield real
    await real.close()


@pytest.fixture
async def engine(postgres_url: str, shop: Shop) -> AsyncIterator[AsyncEngine]:
    engine = create_async_engine(postgres_url)
    yield engine
    await engine.dispose()


@pytest.fixture
async def listen(start: Any, warehouse: RealWarehouse) -> AsyncIterator[Listen]:
    """Have one more instance in this process campaign for the feed; takes what `start` takes."""
    async with contextlib.AsyncExitStack() as left:

        async def listen_one(*, longest_pause_s: float = 0.5, silent_s: float = 5.0, **changes: Any) -> WarehouseFeed:
            # Long against the pauses of a busy machine; who measures a takeover asks for less.
            replica = await start(**({"lock_ttl_s": 6} | changes))
            partner = await left.enter_async_context(
                Partner("The warehouse", f"{warehouse.url}/", replica.settings.instance)
            )
            feed = WarehouseFeed(
                replica.locks,
                partner,
                AlertBook(replica.engine),
                silent_s=silent_s,
                longest_pause_s=longest_pause_s,
            )
            return await left.enter_async_context(feed)

        yield listen_one


@pytest.fixture
async def launch(settings: Settings, shop: Shop, warehouse: RealWarehouse, valkey_url: str) -> AsyncIterator[Launch]:
    """Have one more process campaign for the feed."""
    processes: list[Process] = []

    async def launch_one() -> Process:
        told = {
            "DATABASE_URL": settings.database_url,
            "VALKEY_URL": valkey_url,
            "ACCOUNTING_URL": settings.accounting_url,
            "WAREHOUSE_URL": warehouse.url,
            "INSTANCE": f"cat-store-{len(processes) + 1}",
            "LOCK_TTL": str(TTL_S),
        }
        process = Process(
            [sys.executable, str(Path(__file__).with_name("feed_process.py"))],
            env={f"CAT_STORE_{name}": value for name, value in told.items()},
        )
        processes.append(process)
        process.start()
        await asyncio.to_thread(process.wait_for_line, "up", PROCESS_UP_S)
        return process

    yield launch_one
    for process in processes:
        process.close()


async def stock_is(shop: Shop, count: int, product_id: str = SALMON_KIBBLE) -> None:
    async with asyncio.timeout(15):
        while (await shop.stock_of(product_id)).in_stock != count:
            await asyncio.sleep(0.02)


def has(process: Process, text: str) -> bool:
    return any(text in line.text for line in process.lines)


# ------------------------------------------------------------------------------------ one connection


async def test_three_instances_have_one_connection_and_the_alerts_reach_the_stock(
    listen: Listen, warehouse: RealWarehouse, shop: Shop, until: Until
) -> None:
    feeds = [await listen() for _ in range(3)]
    await until(lambda: any(feed.connected for feed in feeds))
    warehouse.alert(2)
    await stock_is(shop, 2)
    assert [feed.connected for feed in feeds].count(True) == 1
    assert [feed.holds() for feed in feeds].count(True) == 1
    assert (warehouse.feed.open_now, warehouse.feed.most, warehouse.feed.refused) == (1, 1, 0)


async def test_a_connection_lasts_for_as_long_as_its_leader(
    listen: Listen, warehouse: RealWarehouse, until: Until, log: Log
) -> None:
    warehouse.feed._beat_s, warehouse.feed._silent_s = 0.1, 0.6
    feed = await listen()
    await until(lambda: feed.connected)
    await asyncio.sleep(2)  # three times as long as a silent shop is listened to
    assert feed.connected
    assert len(log("Connected to the warehouse feed")) == 1


@pytest.mark.parametrize("locks", ["postgres", "valkey"])
async def test_a_leader_that_leaves_hands_the_feed_over_and_no_alert_is_missed(
    *, listen: Listen, warehouse: RealWarehouse, shop: Shop, valkey_url: str, until: Until, locks: str
) -> None:
    where = {"locks_url": valkey_url} if locks == "valkey" else {}
    leader = await listen(**where)
    await until(lambda: leader.connected)
    other = await listen(**where)
    await leader.close()
    assert not leader.connected
    warehouse.alert(3)  # nobody may be listening now
    await until(lambda: other.connected)
    await stock_is(shop, 3)
    assert warehouse.feed.most == 1


@pytest.mark.matrix
async def test_a_leader_that_is_told_to_step_down_moves_the_feed_and_stays_a_candidate(
    listen: Listen, warehouse: RealWarehouse, until: Until
) -> None:
    leader = await listen()
    await until(lambda: leader.connected)
    other = await listen()
    await leader.step_down()
    await until(lambda: other.connected)
    assert not leader.holds()
    await other.step_down()
    await until(lambda: leader.connected)
    assert warehouse.feed.most == 1


@pytest.mark.chaos
async def test_the_feed_of_a_killed_leader_is_taken_over_after_its_ttl(
    launch: Launch, warehouse: RealWarehouse, shop: Shop, until: Until
) -> None:
    leader = await launch()
    await until(lambda: has(leader, "feed.connected"))
    other = await launch()
    await asyncio.to_thread(leader.kill)
    warehouse.alert(4)
    await until(lambda: has(other, "feed.connected"))
    await stock_is(shop, 4)
    assert warehouse.feed.most == 1


@pytest.mark.chaos
async def test_a_paused_leader_is_hung_up_on_its_successor_waits_and_its_return_changes_nothing(
    launch: Launch, warehouse: RealWarehouse, shop: Shop, until: Until
) -> None:
    leader = await launch()
    await until(lambda: has(leader, "feed.connected"))
    other = await launch()
    await asyncio.to_thread(leader.pause)
    warehouse.alert(9)  # over the connection of the paused one, which has not read it yet
    await until(lambda: has(other, "feed.waiting"))
    await until(lambda: has(other, "feed.connected"))
    assert warehouse.feed.refused > 0
    await stock_is(shop, 9)
    warehouse.alert(1)
    await stock_is(shop, 1)
    await asyncio.to_thread(leader.resume)
    await until(lambda: has(leader, "feed.disconnected"))
    warehouse.alert(5)
    await stock_is(shop, 5)
    assert warehouse.feed.most == 1
    assert not has(leader, '"feed.alert"')


async def test_a_leader_that_notices_its_loss_is_disconnected_at_once(
    listen: Listen, warehouse: RealWarehouse, until: Until, log: Log
) -> None:
    clock = ManualClock()
    leader = await listen(clock=clock, lock_ttl_s=TTL_S)
    await until(lambda: leader.connected)
    other = await listen(lock_ttl_s=TTL_S)
    await until(other.holds)  # the lease expired in the store: the leader's clock stands still
    await clock.advance("1s")  # its next renewal is refused
    await until(lambda: not leader.connected)
    await until(lambda: other.connected)
    assert log('Lost the lease on "inventory:warehouse-feed"')
    assert warehouse.feed.most == 1


async def test_without_locks_every_instance_asks_and_the_warehouse_refuses_all_but_one(
    listen: Listen, warehouse: RealWarehouse, shop: Shop, until: Until
) -> None:
    feeds = [await listen(locks=False) for _ in range(3)]
    await until(lambda: any(feed.connected for feed in feeds) and warehouse.feed.refused >= 2)
    warehouse.alert(2)
    await stock_is(shop, 2)
    assert not any(feed.holds() for feed in feeds)


# --------------------------------------------------------------------------------- each alert once


async def test_an_alert_that_comes_again_is_known(engine: AsyncEngine, shop: Shop) -> None:
    book = AlertBook(engine)
    await book.take_over(None)
    await book.begin("led_1", None)
    assert await book.apply(StockAlert(1, SALMON_KIBBLE, 7), None) == AlertWrite(applied=True)
    assert await book.apply(StockAlert(2, SALMON_KIBBLE, 8), None) == AlertWrite(applied=True)
    assert await book.apply(StockAlert(1, SALMON_KIBBLE, 7), None) == AlertWrite(applied=False)
    assert (await shop.stock_of(SALMON_KIBBLE)).in_stock == 8
    place = await book.take_over(None)
    assert (place.ledger, place.position) == ("led_1", 2)


async def test_the_late_alert_of_a_replaced_leader_is_refused_whichever_product_it_is_about(
    engine: AsyncEngine, shop: Shop, start: Any, log: Log
) -> None:
    clock = ManualClock()
    paused, other = await start(clock=clock, lock_ttl_s=1), await start(lock_ttl_s=1)
    book = AlertBook(engine)
    late = await paused.locks.acquire("feed")
    await book.take_over(late)
    await book.begin("led_1", late)
    current = await other.locks.acquire("feed", wait=10)
    await book.take_over(current)
    assert late.held  # its clock stands still
    for write in (
        book.apply(StockAlert(1, SALMON_KIBBLE, 7), late),
        book.begin("led_2", late),
        book.take_over(late),
    ):
        with pytest.raises(LeaseLostError) as caught:
            await write
        assert caught.value.reason is LossReason.REFUSED
    assert (await shop.stock_of(SALMON_KIBBLE)).in_stock == 0
    assert len(log("Refused a write of the warehouse feed: a newer leader")) == 3
    assert await book.apply(StockAlert(1, SALMON_KIBBLE, 6), current) == AlertWrite(applied=True)
    assert (await shop.stock_of(SALMON_KIBBLE)).in_stock == 6


async def test_the_reconciliation_and_the_feed_do_not_refuse_each_other(
    listen: Listen, start: Any, warehouse: RealWarehouse, shop: Shop, until: Until
) -> None:
    counting = await start()
    for _ in range(3):
        await counting.stock_reconciliation.run()
    feed = await listen()
    await until(lambda: feed.connected)
    warehouse.alert(2)
    await stock_is(shop, 2)
    await counting.stock_reconciliation.run()
    await stock_is(shop, 12)  # what the other warehouse, that of the counts, has


async def test_a_warehouse_that_restarted_numbers_from_one_again_and_is_read_from_there(
    listen: Listen, warehouse: RealWarehouse, shop: Shop, until: Until
) -> None:
    feed = await listen()
    await until(lambda: feed.connected)
    for count in (5, 4, 3):
        warehouse.alert(count)
    await stock_is(shop, 3)
    await warehouse.restart()
    warehouse.alert(8)
    await stock_is(shop, 8)


async def test_an_alert_about_a_product_that_the_shop_does_not_sell_is_passed_over(
    listen: Listen, warehouse: RealWarehouse, shop: Shop, until: Until, log: Log
) -> None:
    feed = await listen()
    await until(lambda: feed.connected)
    warehouse.inside._shelves["dog-bone"] = 1
    warehouse.alert(1, "dog-bone")
    warehouse.alert(2)
    await stock_is(shop, 2)
    assert len(log("Alert 1 is about a product that this shop does not sell")) == 1


# -------------------------------------------------------------------------------------- bad partners


@pytest.mark.parametrize(
    ("switches", "said"),
    [
        (WarehouseSwitches(fail_with=500), "ended its feed|answered GET feed with 500"),
        (WarehouseSwitches(fail_with=403), "refused GET feed with 403"),
        (WarehouseSwitches(garbage=True), "something over its feed that was not agreed"),
        (WarehouseSwitches(hold_feed=True), "gave no answer to GET feed"),
    ],
    ids=["500", "403", "garbage", "never"],
)
async def test_a_warehouse_that_fails_is_reported_and_the_feed_keeps_its_place(
    *,
    listen: Listen,
    warehouse: RealWarehouse,
    shop: Shop,
    until: Until,
    caplog: pytest.LogCaptureFixture,
    switches: WarehouseSwitches,
    said: str,
) -> None:
    feed = await listen(silent_s=1.5)
    await until(lambda: feed.connected)
    warehouse.alert(6)
    await stock_is(shop, 6)
    warehouse.inside.switches = switches
    await until(lambda: any(getattr(each, "event", "") == "feed.lost" for each in caplog.records))
    warehouse.alert(5)
    warehouse.alert(4, "catnip-mouse")
    await until(lambda: any(any(part in each.message for part in said.split("|")) for each in caplog.records))
    assert all(each.levelname == "ERROR" for each in caplog.records if getattr(each, "event", "") == "feed.lost")
    assert feed.holds()  # another instance would have the same warehouse
    warehouse.inside.switches = WarehouseSwitches()
    await stock_is(shop, 5)
    await stock_is(shop, 4, "catnip-mouse")
    assert warehouse.feed.most == 1


@pytest.mark.matrix
async def test_garbage_amid_the_alerts_costs_the_connection_and_no_alert(
    listen: Listen, warehouse: RealWarehouse, shop: Shop, until: Until, log: Log
) -> None:
    feed = await listen()
    await until(lambda: feed.connected)
    switches = warehouse.feed._switches
    warehouse.feed._switches = lambda: WarehouseSwitches(garbage=True)  # in the stream, and nowhere else
    warehouse.alert(2)
    await until(lambda: log("connects again: The warehouse sent something over its feed that was not agreed"))
    warehouse.feed._switches = switches
    await stock_is(shop, 2)


async def test_a_database_that_fails_costs_the_connection_and_no_alert(
    *, listen: Listen, warehouse: RealWarehouse, shop: Shop, engine: AsyncEngine, until: Until, log: Log
) -> None:
    feed = await listen()
    await until(lambda: feed.connected)
    async with engine.begin() as connection:
        await connection.exec_driver_sql("ALTER TABLE products RENAME TO products_away")
    warehouse.alert(2)
    await until(lambda: log("Lost the warehouse feed, and connects again: The database failed"))
    async with engine.begin() as connection:
        await connection.exec_driver_sql("ALTER TABLE products_away RENAME TO products")
    await stock_is(shop, 2)


async def test_a_line_that_does_not_end_is_given_up(until: Until) -> None:
    async def endless(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(b"x" * 10_000)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(endless, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    async with server, Partner("The warehouse", url, "cat-store-1") as partner:
        with pytest.raises(Exception, match="a line that does not end"):
            async with partner.listen("feed", {}, line_within_s=5) as lines:
                await anext(lines)


# ------------------------------------------------------------------------------------------- paused


async def test_a_paused_feed_is_left_its_leader_stays_and_what_was_missed_comes_after_the_pause(
    listen: Listen, warehouse: RealWarehouse, shop: Shop, until: Until
) -> None:
    feeds = [await listen() for _ in range(2)]
    await until(lambda: any(feed.connected for feed in feeds))
    leader = next(feed for feed in feeds if feed.connected)
    for feed in feeds:
        feed.told(paused=True)
    await until(lambda: warehouse.feed.open_now == 0)
    assert leader.holds()
    warehouse.alert(2)
    for feed in feeds:
        feed.told(paused=False)
    await stock_is(shop, 2)
    assert warehouse.feed.most == 1
