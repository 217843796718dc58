"""APScheduler 3, the real one: jobs that find their locks, know their time, and end in good order."""

import asyncio
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from apscheduler.schedulers.asyncio import AsyncIOScheduler  # type: ignore[import-untyped]
from apscheduler.schedulers.background import BackgroundScheduler  # type: ignore[import-untyped]

from tenure import ConfigurationError, Locks, current_lease, on_one_instance, without_overlapping
from tenure.ext.apscheduler import TenureExecutor, TenureThreadPoolExecutor, running, scheduled_time
from tenure.memory import InMemoryLockStore
from tenure.testing import instances

PATIENCE_S = 60
DUE = datetime(2026, 12, 1, 2, tzinfo=UTC)
LONG_AGO_S = 10_000_000_000


def scheduler(executor: Any = None) -> AsyncIOScheduler:
    return AsyncIOScheduler(executors={"default": executor or TenureExecutor()}, timezone="UTC")


def at_once(made: Any, function: Any) -> None:
    made.add_job(function, "date", run_date=DUE, misfire_grace_time=LONG_AGO_S)


async def test_a_job_knows_the_time_that_it_was_due_and_finds_its_locks() -> None:
    told: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    @without_overlapping("test-apscheduler:count")
    async def count() -> None:
        lease = current_lease()
        assert lease is not None
        told.set_result((scheduled_time(), lease.key))

    made = scheduler()
    async with Locks(InMemoryLockStore(), hooks=[]), running(made):
        at_once(made, count)
        async with asyncio.timeout(PATIENCE_S):
            assert await told == (DUE, "test-apscheduler:count")


async def test_of_several_locks_the_executors_own_is_meant() -> None:
    told: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    @on_one_instance("test-apscheduler:own")
    async def job() -> None:
        from tenure.jobs import job_lease

        told.set_result("own" if job_lease("test-apscheduler:own", locks=own) else "another's")

    async with Locks(InMemoryLockStore(), hooks=[]) as own, Locks(InMemoryLockStore(), hooks=[]):
        made = scheduler(TenureExecutor(own))
        async with running(made):
            at_once(made, job)
            async with asyncio.timeout(PATIENCE_S):
                assert await told == "own"


async def test_a_scheduled_time_runs_once_over_all_instances() -> None:
    runs: list[str] = []

    @on_one_instance("test-apscheduler:slots", slot=scheduled_time)
    async def job() -> None:
        runs.append("run")

    async with instances(3) as shops:
        for shop in shops:
            made = scheduler(TenureExecutor(shop.locks))
            async with running(made, drain=PATIENCE_S):
                at_once(made, job)
                await asyncio.sleep(0.05)
        await shops[0].stop()
        made = scheduler(TenureExecutor(shops[1].locks))
        async with running(made, drain=PATIENCE_S):
            at_once(made, job)
            await asyncio.sleep(0.05)
    assert runs == ["run"]


async def test_leaving_lets_a_run_that_is_under_way_end_under_its_lease() -> None:
    begun, goes_on = asyncio.Event(), asyncio.Event()
    told: list[bool] = []

    @without_overlapping("test-apscheduler:long")
    async def long() -> None:
        begun.set()
        await goes_on.wait()
        lease = current_lease()
        assert lease is not None
        told.append(lease.held)

    made = scheduler()
    async with Locks(InMemoryLockStore(), hooks=[]), running(made, drain=PATIENCE_S):
        at_once(made, long)
        await begun.wait()
        asyncio.get_running_loop().call_later(0.05, goes_on.set)
    assert told == [True]
    assert not made.running


async def test_a_run_that_outlasts_the_drain_is_cancelled() -> None:
    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def long() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    made = scheduler()
    async with running(made, drain=0.05):
        at_once(made, long)
        await begun.wait()
    async with asyncio.timeout(PATIENCE_S):
        await cancelled.wait()


def test_a_background_schedulers_thread_knows_the_time_too() -> None:
    told: list[datetime] = []
    done = threading.Event()

    def job() -> None:
        told.append(scheduled_time())
        done.set()

    made = BackgroundScheduler(executors={"default": TenureThreadPoolExecutor(max_workers=1)}, timezone="UTC")
    # Not a date: its job is removed behind its run, and a shutdown that comes first has removed it.
    made.add_job(job, "interval", days=36_500, next_run_time=DUE, misfire_grace_time=LONG_AGO_S)
    made.start()
    try:
        assert done.wait(PATIENCE_S)
    finally:
        made.shutdown()
    assert told == [DUE]


async def test_a_function_that_is_no_coroutine_runs_in_a_thread_and_knows_the_time() -> None:
    told: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    loop = asyncio.get_running_loop()

    def job() -> None:
        time = scheduled_time()
        loop.call_soon_threadsafe(told.set_result, (time, threading.current_thread() is threading.main_thread()))

    made = scheduler()
    async with running(made):
        at_once(made, job)
        async with asyncio.timeout(PATIENCE_S):
            assert await told == (DUE, False)


async def test_a_job_that_fails_is_logged_and_others_run(caplog: pytest.LogCaptureFixture) -> None:
    ran = asyncio.Event()

    async def fails() -> None:
        raise ZeroDivisionError

    async def works() -> None:
        ran.set()

    made = scheduler()
    async with running(made):
        at_once(made, fails)
        at_once(made, works)
        async with asyncio.timeout(PATIENCE_S):
            await ran.wait()
    assert "ZeroDivisionError" in caplog.text


def test_outside_of_a_run_nothing_is_known_of_a_time() -> None:
    with pytest.raises(ConfigurationError, match=r"TenureExecutor\(\)"):
        scheduled_time()


async def test_two_times_that_came_together_are_told_one_by_one() -> None:
    told: list[datetime] = []
    executor, made = TenureExecutor(), AsyncIOScheduler(timezone="UTC")
    made.add_executor(executor)
    made.start(paused=True)

    async def job() -> None:
        told.append(scheduled_time())

    added = made.add_job(job, "date", run_date=DUE, misfire_grace_time=None)
    times = [DUE, DUE + timedelta(hours=1)]
    await executor._run(added, times)
    made.shutdown()
    await asyncio.sleep(0)
    assert told == times
