"""The schedule on a real Valkey: every replica fires every tick, and nothing that dies stops the next one."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from itertools import pairwise

import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as ValkeyConnectionError
from saq.job import Status
from saq.queue.redis import RedisQueue

from cat_store.scheduler import Cron, Scheduler
from tenure_testbed import ValkeyServer, free_port

# SAQ 0.26 calls what redis-py 8 has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning")

Until = Callable[[Callable[[], object]], Awaitable[None]]

EVERY_SECOND = "* * * * * *"


class Job:
    """Counts its runs; can fail, and can last until it is told to end."""

    def __init__(self, *, fails: bool = False, lasts: bool = False) -> None:
        self.began_at: list[float] = []
        self.ended = 0
        self.cancelled = False
        self.fails = fails
        self.lasts = lasts
        self.finish = asyncio.Event()

    @property
    def began(self) -> int:
        return len(self.began_at)

    async def run(self) -> None:
        self.began_at.append(asyncio.get_running_loop().time())
        try:
            if self.fails:
                raise RuntimeError("no such partner")
            if self.lasts:
                await self.finish.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        self.ended += 1


def schedule(
    url: str, job: Job, *, instance: str = "cat-store-1", drain_s: float = 5.0, name: str = "job"
) -> Scheduler:
    return Scheduler(url, instance, [Cron(name, EVERY_SECOND, job.run)], timezone="UTC", drain_s=drain_s)


@pytest.mark.matrix
async def test_every_replica_fires_every_tick(valkey_url: str, until: Until) -> None:
    jobs = [Job() for _ in range(3)]
    async with contextlib.AsyncExitStack() as left:
        replicas = [schedule(valkey_url, job, instance=f"cat-store-{n}") for n, job in enumerate(jobs)]
        await asyncio.gather(*(left.enter_async_context(replica) for replica in replicas))
        before = [job.ended for job in jobs]
        await until(lambda: all(job.ended >= earlier + 2 for job, earlier in zip(jobs, before, strict=True)))
        ran = [job.ended - earlier for job, earlier in zip(jobs, before, strict=True)]
    # Ticks a second apart on the same wall clock: no replica can be far ahead of another.
    assert max(ran) - min(ran) <= 1


@pytest.mark.matrix
async def test_a_job_due_every_second_runs_every_second_beside_one_that_takes_longer(
    valkey_url: str, until: Until
) -> None:
    long, short = Job(lasts=True), Job()
    crons = [Cron("long", EVERY_SECOND, long.run), Cron("short", EVERY_SECOND, short.run)]
    async with Scheduler(valkey_url, "cat-store-1", crons, timezone="UTC", drain_s=5):
        await until(lambda: short.ended >= 4)
        assert long.began == 1  # this replica's next tick of it waits for the end of the run
        long.finish.set()
    assert (long.ended, long.cancelled) == (1, False)
    # A busy machine is late for some of them; SAQ by itself would take two seconds for each.
    assert min(later - earlier for earlier, later in pairwise(short.began_at)) < 1.7


@pytest.mark.matrix
async def test_a_job_that_fails_is_told_and_runs_again_at_the_next_tick(
    valkey_url: str, until: Until, caplog: pytest.LogCaptureFixture
) -> None:
    mistaken, unlucky = Job(fails=True), Job(fails=True)
    crons = [
        Cron("mistaken", EVERY_SECOND, mistaken.run),
        Cron("unlucky", EVERY_SECOND, unlucky.run, foreseen=(RuntimeError,)),
    ]
    async with Scheduler(valkey_url, "cat-store-1", crons, timezone="UTC", drain_s=5):
        await until(lambda: mistaken.began >= 2 and unlucky.began >= 2)
    told = {record.getMessage(): bool(record.exc_info) for record in caplog.records if record.levelname == "ERROR"}
    # What was foreseen needs no traceback: it would bury what the message says.
    assert told == {
        "mistaken failed, and the next tick runs it again: no such partner": True,
        "unlucky failed, and the next tick runs it again: no such partner": False,
    }


@pytest.mark.matrix
async def test_leaving_waits_for_a_running_job_and_begins_no_other(valkey_url: str, until: Until) -> None:
    job = Job(lasts=True)
    async with schedule(valkey_url, job):
        await until(lambda: job.began == 1)
        asyncio.get_running_loop().call_later(0.5, job.finish.set)
    assert (job.began, job.ended, job.cancelled) == (1, 1, False)


async def test_leaving_cancels_a_job_that_does_not_end_in_time(valkey_url: str, until: Until) -> None:
    job = Job(lasts=True)
    began = asyncio.get_running_loop().time()
    async with schedule(valkey_url, job, drain_s=0.3):
        await until(lambda: job.began == 1)
    assert job.cancelled
    # Generous: the start takes up to two seconds of it. SAQ's own stop would take its upkeep's full minute.
    assert asyncio.get_running_loop().time() - began < 15


async def test_leaving_an_idle_schedule_waits_for_nothing_and_leaves_no_tick_behind(
    valkey_url: str, valkey_server: ValkeyServer, until: Until, caplog: pytest.LogCaptureFixture
) -> None:
    job = Job()
    async with schedule(valkey_url, job):
        await until(lambda: job.ended == 1)
    assert "grace period" not in caplog.text
    keys = valkey_server.execute("KEYS", "saq:*")
    assert [key for key in keys if ":stats" not in key and ":worker_info:" not in key] == []


async def test_a_replica_that_was_killed_during_a_run_fires_again_after_its_restart(
    valkey_url: str, until: Until
) -> None:
    # What the killed one left: its tick taken from the queue, never ended, and without a time-out.
    queue = RedisQueue(Redis.from_url(valkey_url, socket_timeout=None), name="cron:cat-store-1")
    await queue.connect()
    await queue.enqueue("job", key="cron:job", timeout=0)
    taken = await queue.dequeue(timeout=1)
    await taken.update(status=Status.ACTIVE)
    await queue.disconnect()
    job = Job()
    async with schedule(valkey_url, job):
        await until(lambda: job.ended >= 1)


@pytest.mark.matrix
async def test_ticks_go_on_after_valkey_was_restarted(own_valkey: ValkeyServer, until: Until) -> None:
    job = Job()
    async with schedule(own_valkey.url(), job):
        await until(lambda: job.ended >= 1)
        await asyncio.to_thread(own_valkey.restart)
        ended = job.ended
        await until(lambda: job.ended >= ended + 2)


@pytest.mark.matrix
async def test_a_valkey_that_is_not_there_fails_the_start() -> None:
    job = Job()
    with pytest.raises(ValkeyConnectionError):
        async with schedule(f"redis://127.0.0.1:{free_port()}/0", job):
            pass
    assert job.began == 0
