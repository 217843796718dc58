"""SAQ, the real one on a real Valkey: the hooks of a worker, and jobs that find its locks."""

import asyncio
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from saq import CronJob, Queue, Worker

from tenure import ConfigurationError, Locks, current_lease, on_one_instance, without_overlapping
from tenure.ext.saq import scheduled_time, tenure_hooks
from tenure.memory import InMemoryLockStore
from tenure_testbed import ValkeyServer

# SAQ calls what redis-py has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:Call to deprecated")

PATIENCE_S = 60
RUNS: list[str] = []
ENTERED: list[str] = []


@without_overlapping("test-saq:count")
async def count(ctx: Any) -> str:
    lease = current_lease()
    assert lease is not None
    assert isinstance(ctx["locks"], Locks)
    RUNS.append(ctx["locks"].instance)
    return lease.key


@on_one_instance("test-saq:export", slot=scheduled_time)
async def export(ctx: Any) -> None:
    RUNS.append(ctx["locks"].instance)


async def test_the_hooks_open_and_close_in_the_right_order() -> None:
    told: list[str] = []

    async def mine(ctx: Any) -> None:
        told.append(f"startup, locks: {'locks' in ctx}")

    async def after(ctx: Any) -> None:
        told.append(f"shutdown, {ctx['locks'].phase.value}")

    hooks = tenure_hooks(lambda ctx: Locks(InMemoryLockStore(), instance=ctx["name"]), startup=mine, shutdown=[after])
    ctx: dict[str, Any] = {"name": "worker-1"}
    for hook in hooks["startup"]:
        await hook(ctx)
    assert ctx["locks"].instance == "worker-1"
    for hook in hooks["shutdown"]:
        await hook(ctx)
    assert told == ["startup, locks: False", "shutdown, closed"]
    # SAQ calls them after a start that failed, too.
    for hook in tenure_hooks("memory://")["shutdown"]:
        await hook({})


def test_what_makes_no_locks_is_refused_where_it_is_written() -> None:
    with pytest.raises(ConfigurationError, match="makes no Locks"):
        tenure_hooks(7)  # type: ignore[arg-type]


def test_the_scheduled_time_is_that_of_the_tick() -> None:
    job = SimpleNamespace(scheduled=1_796_000_000, function="export")
    assert scheduled_time({"job": job}) == datetime.fromtimestamp(1_796_000_000, UTC)
    job.scheduled = 0
    with pytest.raises(ConfigurationError, match="'export' was entered without a time"):
        scheduled_time({"job": job})


@pytest.mark.matrix
async def test_a_job_of_a_worker_finds_its_locks(valkey_server: ValkeyServer) -> None:
    RUNS.clear()
    queue = Queue.from_url(valkey_server.url(scheme="redis"), name="test-saq-jobs")
    hooks = tenure_hooks(lambda: Locks(InMemoryLockStore(), instance="worker-1", hooks=[]))
    worker = Worker(queue, functions=[count], shutdown_grace_period_s=5, **hooks)
    working = asyncio.create_task(worker.start())
    try:
        # Tried again: a worker that starts sweeps away what it has just taken.
        assert await queue.apply("count", timeout=PATIENCE_S, retries=9) == "test-saq:count"
    finally:
        await worker.stop()
        await working
        await queue.disconnect()
    assert set(RUNS) == {"worker-1"}


@pytest.mark.matrix
async def test_of_two_workers_with_a_queue_each_one_runs_every_tick(valkey_server: ValkeyServer) -> None:
    RUNS.clear()
    store = InMemoryLockStore()
    workers, queues = [], []
    for name in ("one", "two"):
        queue = Queue.from_url(valkey_server.url(scheme="redis"), name=f"test-saq-cron:{name}")
        hooks = tenure_hooks(lambda name=name: Locks(store, instance=name, hooks=[]))  # type: ignore[misc]
        cron = CronJob(export, cron="* * * * * */1", timeout=0)
        workers.append(Worker(queue, functions=[], cron_jobs=[cron], timers={"schedule": 1}, **hooks))
        queues.append(queue)
    working = [asyncio.create_task(worker.start()) for worker in workers]
    try:
        async with asyncio.timeout(PATIENCE_S):
            while len(RUNS) < 3:
                await asyncio.sleep(0.05)
    finally:
        for worker in workers:
            await worker.stop()
        await asyncio.gather(*working)
        for queue in queues:
            await queue.disconnect()
    assert len(set(RUNS)) == 1
