"""Pausing, resuming and moving jobs: told to one replica, heard by all."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from litestar import Litestar, Router
from litestar.di import Provide
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from cat_store.admin.controls import Control, JobControls
from cat_store.admin.holders import ScheduledHolder
from cat_store.admin.jobs import JobController
from cat_store.admin.token import ADMIN_TOKEN, AdministratorsOnly
from cat_store.admin.watch import ControlledJob, JobWatch
from cat_store.demo.partners import PartnersProcess
from cat_store.demo.shop import Shop
from cat_store.inventory.alerts import AlertBook
from cat_store.inventory.feed import WAREHOUSE_FEED, WarehouseFeed
from cat_store.inventory.reconciliation import STOCK_RECONCILIATION
from cat_store.invoices.export import INVOICE_EXPORT
from cat_store.partners.connection import Partner
from cat_store.partners.wire import WarehouseSwitches
from cat_store.replica import Replica
from cat_store.scheduler import Cron, Scheduler
from cat_store.web.problems import exception_handlers, problem_details
from cat_store.web.server import Listener, serving

Until = Callable[[Callable[[], object]], Awaitable[None]]
Log = Callable[[str], list[str]]

COUNT, EXPORT, FEED = "stock-reconciliation", "invoice-export", "warehouse-feed"
EVERY_S = 0.1
TOKEN = {ADMIN_TOKEN: "s3cret-administrator"}


@dataclass
class Instance:
    """One replica with its watch, its feed and its administrators' routes."""

    replica: Replica
    watch: JobWatch
    feed: WarehouseFeed
    http: httpx.AsyncClient

    async def tick(self, name: str = COUNT) -> Any:
        job = {COUNT: self.replica.stock_reconciliation.run, EXPORT: self.replica.invoice_export.run}[name]
        return await self.watch.unless_paused(name, job)()

    async def post(self, what: str, name: str = COUNT) -> httpx.Response:
        return await self.http.post(f"/admin/jobs/{name}/{what}")

    async def job(self, name: str = COUNT) -> dict[str, Any]:
        listed: list[dict[str, Any]] = (await self.http.get("/admin/jobs")).json()
        return next(each for each in listed if each["name"] == name)


Begin = Callable[..., Awaitable[Instance]]


def app_of(watch: JobWatch) -> Litestar:
    return Litestar(
        [Router("/admin", route_handlers=[JobController], middleware=[AdministratorsOnly("s3cret-administrator")])],
        dependencies={"watch": Provide(lambda: watch, sync_to_thread=False)},
        plugins=[problem_details()],
        exception_handlers=exception_handlers(),
        logging_config=None,
    )


@pytest.fixture
async def begin(start: Any) -> AsyncIterator[Begin]:
    """Begin one more instance; takes what `start` takes, and where the warehouse of the feed is."""
    async with contextlib.AsyncExitStack() as left:

        async def begin_one(*, feed_url: str = "http://127.0.0.1:1/warehouse", **changes: Any) -> Instance:
            replica = await start(**changes)
            locks = replica.locks
            partner = await left.enter_async_context(
                Partner("The warehouse", f"{feed_url}/", replica.settings.instance)
            )
            feed = WarehouseFeed(locks, partner, AlertBook(replica.engine))
            jobs = [
                ControlledJob.scheduled(EXPORT, locks, INVOICE_EXPORT),
                ControlledJob.scheduled(COUNT, locks, STOCK_RECONCILIATION),
                ControlledJob(FEED, WAREHOUSE_FEED, feed),
            ]
            watch = await left.enter_async_context(JobWatch(JobControls(replica.engine), locks, jobs, every_s=EVERY_S))
            await left.enter_async_context(feed)
            listener = left.enter_context(Listener("127.0.0.1", 0))
            await left.enter_async_context(serving(app_of(watch), listener, drain_s=2))
            http = await left.enter_async_context(httpx.AsyncClient(base_url=listener.url, headers=TOKEN, timeout=15))
            return Instance(replica, watch, feed, http)

        yield begin_one


@pytest.fixture
async def engine(postgres_url: str, shop: Shop) -> AsyncIterator[AsyncEngine]:
    engine = create_async_engine(postgres_url)
    yield engine
    await engine.dispose()


# -------------------------------------------------------------------------------------------- pause


async def test_a_paused_job_skips_on_every_instance_and_says_why(begin: Begin, partners: Any, log: Log) -> None:
    owner, other = await begin(), await begin()
    await owner.tick()
    paused = await other.post("pause")
    assert paused.status_code == 200
    assert paused.json()["paused"]
    assert [await each.tick() for each in (owner, other)] == [None, None]
    assert partners.counts == 1
    assert len(log("Skipped stock-reconciliation: it is paused")) == 2
    assert await owner.tick(EXPORT) == []  # the others go on
    assert (await owner.job())["paused"]


async def test_a_resumed_job_goes_on_with_its_next_tick(begin: Begin, partners: Any) -> None:
    owner, other = await begin(), await begin()
    await owner.tick()
    await other.post("pause")
    await owner.tick()
    resumed = await owner.post("resume")
    assert (resumed.status_code, resumed.json()["paused"], resumed.json()["paused_at"]) == (200, False, None)
    assert await owner.tick() is not None
    assert partners.counts == 2


async def test_a_run_that_is_under_way_goes_on_through_a_pause(begin: Begin, partners: Any, until: Until) -> None:
    owner = await begin()
    partners.warehouse.switches = WarehouseSwitches(hold_counts=True)
    run = asyncio.create_task(owner.tick())
    await until(lambda: partners.counts == 1)
    await owner.post("pause")
    partners.warehouse.switches = WarehouseSwitches()
    assert (await run).written == 3


async def test_a_job_that_was_paused_stays_so_for_an_instance_that_starts_later(begin: Begin, partners: Any) -> None:
    await (await begin()).post("pause")
    assert await (await begin()).tick() is None
    assert partners.counts == 0


async def test_pausing_twice_is_pausing_once(begin: Begin) -> None:
    instance = await begin()
    first, second = await instance.post("pause"), await instance.post("pause")
    assert first.json()["paused_at"] == second.json()["paused_at"] is not None
    assert [(await instance.post("resume")).status_code for _ in range(2)] == [200, 200]


@pytest.mark.matrix
async def test_the_schedule_of_every_replica_skips_a_paused_job(
    begin: Begin, partners: Any, valkey_url: str, until: Until, log: Log
) -> None:
    instances = [await begin() for _ in range(2)]
    async with contextlib.AsyncExitStack() as left:
        for each in instances:
            run = each.watch.unless_paused(COUNT, each.replica.stock_reconciliation.run)
            crons = [Cron(COUNT, "* * * * * *", run)]
            name = each.replica.settings.instance
            await left.enter_async_context(Scheduler(valkey_url, name, crons, timezone="UTC", drain_s=5))
        await until(lambda: partners.counts >= 2)
        await instances[0].post("pause")
        counts = partners.counts
        # A tick that asked before the pause may still begin its count: it counts as under way.
        await until(lambda: len(log("Skipped stock-reconciliation: it is paused")) >= 4)
        assert partners.counts <= counts + 1
        await instances[1].post("resume")
        await until(lambda: partners.counts >= counts + 2)


test_the_schedule_of_every_replica_skips_a_paused_job = pytest.mark.filterwarnings(
    # SAQ 0.26 calls what redis-py 8 has deprecated.
    "ignore:Call to deprecated setex:DeprecationWarning"
)(test_the_schedule_of_every_replica_skips_a_paused_job)


@pytest.mark.matrix
async def test_a_paused_feed_has_no_connection_on_any_instance_until_it_is_resumed(begin: Begin, until: Until) -> None:
    async with PartnersProcess() as warehouse:
        instances = [await begin(feed_url=warehouse.warehouse_url, lock_ttl_s=2) for _ in range(2)]
        await until(lambda: any(each.feed.connected for each in instances))
        await instances[1].post("pause", FEED)
        await until(lambda: not any(each.feed.connected for each in instances))
        assert (await instances[0].job(FEED))["held_by"] is not None
        await instances[0].post("resume", FEED)
        await until(lambda: any(each.feed.connected for each in instances))
        assert (await warehouse.warehouse()).most_feeds == 1


async def test_a_feed_that_was_paused_before_the_start_is_not_connected_to(
    begin: Begin, engine: AsyncEngine, until: Until, log: Log
) -> None:
    await JobControls(engine).pause(FEED)
    async with PartnersProcess() as warehouse:
        instance = await begin(feed_url=warehouse.warehouse_url)
        await until(instance.feed.holds)
        await asyncio.sleep(3 * EVERY_S)
        assert not log("Connected to the warehouse feed")
        assert (await warehouse.warehouse()).most_feeds == 0


# ---------------------------------------------------------------------------------------- step down


@pytest.mark.parametrize("locks", ["postgres", "valkey"])
async def test_a_step_down_moves_the_job_whichever_replica_is_asked(
    *, begin: Begin, partners: Any, valkey_url: str, until: Until, locks: str
) -> None:
    where = {"locks_url": valkey_url} if locks == "valkey" else {}
    owner, other = await begin(**where), await begin(**where)
    assert await owner.tick() is not None
    assert await other.tick() is None
    before = await other.job()
    assert before["held_by"] == owner.replica.settings.instance
    asked = await other.post("step-down")
    assert asked.status_code == 202
    await until(lambda: not owner.watch.jobs[COUNT].holder.holds())
    # Both fire at the same moment: the one that stepped down lets the other one have it, which may take a while, for
    # the lease of a run that has only just begun is kept for the rest of its first second.
    async with asyncio.timeout(15):
        while (ticks := await asyncio.gather(owner.tick(), other.tick())) == [None, None]:
            await asyncio.sleep(0.05)
    assert ticks[0] is None
    after = await owner.job()
    assert after["held_by"] == other.replica.settings.instance
    assert after["token"] > before["token"]
    assert not after["step_down_asked"]
    await asyncio.sleep(3 * EVERY_S)
    assert other.watch.jobs[COUNT].holder.holds()  # it was not asked
    assert partners.counts == 2


async def test_a_run_that_is_under_way_goes_on_through_a_step_down_and_no_other_begins_beside_it(
    begin: Begin, partners: Any, until: Until, log: Log
) -> None:
    owner, other = await begin(), await begin()
    partners.warehouse.switches = WarehouseSwitches(hold_counts=True)
    run = asyncio.create_task(owner.tick())
    await until(lambda: partners.counts == 1)
    await other.post("step-down")
    await until(lambda: not owner.watch.jobs[COUNT].holder.holds())
    async with asyncio.timeout(15):
        while not log("StockReconciliation.run: a run is still in progress"):
            assert await other.tick() is None
    assert other.watch.jobs[COUNT].holder.holds()
    partners.warehouse.switches = WarehouseSwitches()
    assert (await run).written == 3
    assert partners.counts == 1
    assert (await other.tick()).written == 3


@pytest.mark.matrix
async def test_a_job_that_nobody_else_takes_goes_on_where_it_was(begin: Begin, partners: Any, until: Until) -> None:
    owner = await begin()
    await owner.tick()
    await owner.post("step-down")
    await until(lambda: not owner.watch.jobs[COUNT].holder.holds())
    async with asyncio.timeout(15):
        while await owner.tick() is None:
            await asyncio.sleep(0.05)
    assert partners.counts == 2


@pytest.mark.matrix
async def test_a_step_down_moves_the_feed(begin: Begin, until: Until) -> None:
    async with PartnersProcess() as warehouse:
        instances = [await begin(feed_url=warehouse.warehouse_url, lock_ttl_s=2) for _ in range(2)]
        await until(lambda: any(each.feed.connected for each in instances))
        leader = next(each for each in instances if each.feed.connected)
        other = next(each for each in instances if each is not leader)
        assert (await other.post("step-down", FEED)).status_code == 202
        await until(lambda: other.feed.connected)
        assert not leader.feed.connected
        assert (await warehouse.warehouse()).most_feeds == 1


async def test_a_request_to_step_down_is_obeyed_once(engine: AsyncEngine) -> None:
    controls = JobControls(engine)
    await controls.ask_to_step_down(COUNT)
    assert (await controls.read())[COUNT] == Control(None, step_down_asked=True)
    assert sorted(await asyncio.gather(*(controls.claim_step_down(COUNT) for _ in range(5)))) == [False] * 4 + [True]
    assert (await controls.read())[COUNT] == Control()


async def test_a_request_to_step_down_that_nobody_heard_in_time_lapses(engine: AsyncEngine) -> None:
    controls = JobControls(engine)
    await controls.ask_to_step_down(COUNT)
    async with engine.begin() as connection:
        await connection.execute(text("UPDATE job_controls SET step_down_until = now() - interval '1 ms'"))
    assert not (await controls.read())[COUNT].step_down_asked
    assert not await controls.claim_step_down(COUNT)


# ------------------------------------------------------------------------------------------- refused


async def test_who_sends_no_token_is_told_nothing_and_changes_nothing(begin: Begin) -> None:
    instance = await begin()
    async with httpx.AsyncClient(base_url=instance.http.base_url) as stranger:
        answers = [await stranger.get("/admin/jobs"), await stranger.post(f"/admin/jobs/{COUNT}/pause")]
    assert [answer.status_code for answer in answers] == [403, 403]
    assert not (await instance.job())["paused"]


@pytest.mark.parametrize("what", ["pause", "resume", "step-down"])
async def test_an_unknown_job_is_not_found_and_the_known_ones_are_named(begin: Begin, what: str) -> None:
    answer = await (await begin()).post(what, "no-such-job")
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"
    assert (answer.json()["type"], "invoice-export" in answer.json()["detail"]) == ("urn:cat-store:no-such-job", True)


async def test_a_job_that_nobody_holds_cannot_be_moved(begin: Begin) -> None:
    answer = await (await begin()).post("step-down", EXPORT)
    assert (answer.status_code, answer.json()["type"]) == (409, "urn:cat-store:nobody-holds")


async def test_without_locks_a_job_can_be_paused_and_not_moved(begin: Begin) -> None:
    instance = await begin(locks=False)
    assert (await instance.post("step-down")).json()["type"] == "urn:cat-store:locks-off"
    await instance.post("pause")
    count = instance.watch.unless_paused(COUNT, instance.replica.stock_reconciliation.run_without_locks)
    assert await count() is None
    await instance.post("resume")
    assert (await count()).written == 3


async def test_a_database_that_does_not_answer_starts_no_tick_and_ends_no_watch(
    begin: Begin, engine: AsyncEngine, partners: Any, until: Until, log: Log
) -> None:
    owner, other = await begin(), await begin()
    await owner.tick()
    async with engine.begin() as connection:
        await connection.execute(text("ALTER TABLE job_controls RENAME TO job_controls_away"))
    await until(lambda: log("Could not read what the jobs were told"))
    with pytest.raises(Exception, match="job_controls"):
        await owner.tick()
    assert partners.counts == 1
    async with engine.begin() as connection:
        await connection.execute(text("ALTER TABLE job_controls_away RENAME TO job_controls"))
    assert (await other.post("step-down")).status_code == 202
    await until(lambda: not owner.watch.jobs[COUNT].holder.holds())


async def test_giving_back_what_is_not_held_does_nothing(start: Any) -> None:
    replica = await start()
    for locks in (None, replica.locks):
        holder = ScheduledHolder(locks, STOCK_RECONCILIATION)
        assert not holder.holds()
        await holder.step_down()
        assert await holder.lets_tick()
