"""
tenure with APScheduler 3: jobs that every instance schedules and one runs, each scheduled time at most once.

    pip install "tenure[apscheduler]"

    @on_one_instance("invoices:nightly-export", slot=scheduled_time)
    @without_overlapping()
    async def export() -> None: ...

    scheduler = AsyncIOScheduler(executors={"default": TenureExecutor()}, timezone="Europe/Warsaw")
    scheduler.add_job(export, "cron", hour=2)

    async with Locks(store) as locks, running(scheduler):
        ...

The decorators need none of this: APScheduler calls them like any coroutine function. What is here is what a job cannot
have without it: the time that its run was scheduled for (`scheduled_time`), and an end in which runs that are under way
may finish (`running`).

Every instance has a scheduler of its own, with jobs in memory or in a job store of its own: on a job store that
schedulers share, each of them fires, and APScheduler 3 does not support it.

`slot=scheduled_time` needs triggers that name the same times on every instance: "cron" and "date" do, without `jitter`.
"interval" counts from the instance's own start, unless it has a `start_date` that is the same for all.

Functions that are no `async def` run in threads: decorate them with those of `tenure.sync`. `BackgroundScheduler` gets
its `scheduled_time` from `TenureThreadPoolExecutor`.
"""

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Sequence
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Final, final

from apscheduler import events  # type: ignore[import-untyped]
from apscheduler.executors.asyncio import AsyncIOExecutor  # type: ignore[import-untyped]
from apscheduler.executors.base import run_coroutine_job, run_job  # type: ignore[import-untyped]
from apscheduler.executors.pool import ThreadPoolExecutor  # type: ignore[import-untyped]
from apscheduler.schedulers.asyncio import AsyncIOScheduler  # type: ignore[import-untyped]
from apscheduler.util import iscoroutinefunction_partial  # type: ignore[import-untyped]

from tenure._durations import Duration, to_seconds
from tenure.errors import ConfigurationError
from tenure.locks import Locks, ambient

__all__ = ["TenureExecutor", "TenureThreadPoolExecutor", "running", "scheduled_time"]

_scheduled: Final[ContextVar[datetime | None]] = ContextVar("tenure_scheduled_time", default=None)

_RUN_ENDED: Final = events.EVENT_JOB_EXECUTED | events.EVENT_JOB_ERROR | events.EVENT_JOB_MISSED


def scheduled_time(*_: object, **__: object) -> datetime:
    """
    Tell when the run that is under way was scheduled for, in UTC: for `@on_one_instance(slot=scheduled_time)`.

    It takes whatever arguments the job has, and may be called by the job itself.

    Raises:
        ConfigurationError: No run of an executor of this module is under way.
    """
    time = _scheduled.get()
    if time is None:
        raise ConfigurationError(
            "Nothing is known of a scheduled time here: run the job by a scheduler with "
            'executors={"default": TenureExecutor()}, or TenureThreadPoolExecutor() for a BackgroundScheduler.'
        )
    return time


@final
class TenureExecutor(AsyncIOExecutor):  # type: ignore[misc]  # untyped
    """
    The executor of an `AsyncIOScheduler`, whose runs know the time that they were scheduled for.

        AsyncIOScheduler(executors={"default": TenureExecutor()})

    Args:
        locks: The `Locks` that jobs find which name none. Needed where a process has entered several; otherwise they
            find the one that is entered.
    """

    def __init__(self, locks: Locks | None = None) -> None:
        super().__init__()
        self._locks = locks

    def _do_submit_job(self, job: Any, run_times: Sequence[datetime]) -> None:
        """Run *job* for each of *run_times*; as the parent does it, with the time told."""
        if iscoroutinefunction_partial(job.func):
            work = self._eventloop.create_task(self._run(job, run_times))
        else:
            work = self._eventloop.run_in_executor(None, _run_in_thread, job, run_times, self._logger.name)
        self._pending_futures.add(work)
        work.add_done_callback(functools.partial(self._ended, job.id))

    async def _run(self, job: Any, run_times: Sequence[datetime]) -> list[Any]:
        found: list[Any] = []
        with contextlib.nullcontext() if self._locks is None else ambient.within(self._locks):
            for time in run_times:
                _scheduled.set(time.astimezone(UTC))
                found += await run_coroutine_job(job, job._jobstore_alias, [time], self._logger.name)  # noqa: SLF001 -- as every executor does
        return found

    def _ended(self, job_id: str, work: "asyncio.Future[list[Any]]") -> None:
        self._pending_futures.discard(work)
        error = asyncio.CancelledError() if work.cancelled() else work.exception()
        if error is not None:
            self._run_job_error(job_id, error, error.__traceback__)
        else:
            self._run_job_success(job_id, work.result())


@final
class TenureThreadPoolExecutor(ThreadPoolExecutor):  # type: ignore[misc]  # untyped
    """
    The executor of a `BackgroundScheduler`, whose runs know the time that they were scheduled for.

        BackgroundScheduler(executors={"default": TenureThreadPoolExecutor(max_workers=4)})
    """

    def _do_submit_job(self, job: Any, run_times: Sequence[datetime]) -> None:
        """Run *job* for each of *run_times*; as the parent does it, with the time told."""
        work = self._pool.submit(_run_in_thread, job, run_times, self._logger.name)
        work.add_done_callback(functools.partial(self._ended, job.id))

    def _ended(self, job_id: str, work: Any) -> None:
        error = work.exception()
        if error is not None:
            self._run_job_error(job_id, error, error.__traceback__)
        else:
            self._run_job_success(job_id, work.result())


def _run_in_thread(job: Any, run_times: Sequence[datetime], logger_name: str) -> list[Any]:
    found: list[Any] = []
    for time in run_times:
        told = _scheduled.set(time.astimezone(UTC))
        try:
            found += run_job(job, job._jobstore_alias, [time], logger_name)  # noqa: SLF001 -- as every executor does
        finally:
            _scheduled.reset(told)  # the pool's thread goes on with other jobs
    return found


@contextlib.asynccontextmanager
async def running(scheduler: AsyncIOScheduler, *, drain: Duration = 10) -> AsyncIterator[AsyncIOScheduler]:
    """
    Start a scheduler, and end it in good order: no new run begins, and those that are under way may finish.

    The scheduler's own `shutdown(wait=True)` does not wait: it cancels every coroutine that runs. Leave this before the
    `Locks` that the jobs use, so that a run ends under its lease.

        async with Locks(store) as locks, running(scheduler):
            ...

    Args:
        scheduler: One that was not started.
        drain: How long leaving waits for runs before it cancels them.
    """
    drain_s = to_seconds(drain, name="drain")
    runs = _Runs()
    scheduler.add_listener(runs.submitted, events.EVENT_JOB_SUBMITTED)
    scheduler.add_listener(runs.ended, _RUN_ENDED)
    scheduler.start()
    try:
        yield scheduler
    finally:
        try:
            if scheduler.running:
                scheduler.pause()
            await runs.wait_for_none(drain_s)
        finally:
            if scheduler.running:
                scheduler.shutdown()
            await asyncio.sleep(0)  # the shutdown runs in the loop's next turn
            for listener in (runs.submitted, runs.ended):
                scheduler.remove_listener(listener)


@final
class _Runs:
    """How many runs are under way, by what the scheduler tells; it may tell from threads."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._number = 0
        self._changed = asyncio.Event()

    def submitted(self, event: Any) -> None:
        self._loop.call_soon_threadsafe(self._add, len(event.scheduled_run_times))

    def ended(self, _: object) -> None:
        self._loop.call_soon_threadsafe(self._add, -1)

    async def wait_for_none(self, within_s: float) -> None:
        """Wait until no run is under way, or *within_s* have passed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await asyncio.sleep(0)  # what was told last is counted in the loop's next turn
                while self._number > 0:
                    self._changed.clear()
                    await self._changed.wait()

    def _add(self, runs: int) -> None:
        self._number += runs
        self._changed.set()
