"""A SAQ worker that lives in its host's event loop and leaves signals, and the end of running jobs, to its host."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from datetime import tzinfo
from typing import Any, Final

from saq import CronJob, Worker
from saq.queue.redis import RedisQueue

__all__ = ["Tick", "start_worker", "stop_worker", "wipe"]

Tick = Callable[[Any], Awaitable[None]]
"""What a cron fires: called with SAQ's context."""

# Cancelled tasks unwind within milliseconds; the second is for a busy machine.
_UNWIND_S: Final = 1


class _HostedWorker(Worker[Any]):
    # The host has handlers of its own for SIGTERM and SIGINT, and SAQ would replace them.
    SIGNALS: list[Any] = []  # noqa: RUF012 -- declared so by SAQ


def start_worker(
    queue: RedisQueue, crons: Mapping[str, tuple[str, Tick]], zone: tzinfo
) -> "tuple[_HostedWorker, asyncio.Task[None]]":
    """
    Start a worker for *crons*: expression and tick by name.

    The job has no time-out of SAQ's (`timeout=0`): a full count takes as long as it takes, and the run lock is
    renewed for as long. It is not kept after its end (`ttl=-1`): nobody reads its result.
    """
    jobs = [_job(name, expression, tick) for name, (expression, tick) in crons.items()]
    worker = _HostedWorker(
        queue,
        [],
        cron_jobs=jobs,
        cron_tz=zone,
        # One slot a job: a long count must not keep the export waiting for a slot.
        concurrency=len(jobs),
        shutdown_grace_period_s=_UNWIND_S,
        after_process=_look_again,
    )
    return worker, asyncio.create_task(worker.start(), name=f"worker of {queue.name}")


def _job(name: str, expression: str, tick: Tick) -> CronJob[Any]:
    async def fire(context: Any) -> None:
        await tick(context)

    fire.__qualname__ = name  # SAQ finds a job by it, whatever its module
    return CronJob(fire, expression, timeout=0, ttl=-1)


async def _look_again(context: Any) -> None:
    """
    Enter the next tick as soon as one was dealt with.

    SAQ looks at its crons once a second, and enters no tick while the last one is not dealt with. A job due every
    second would be entered at every other look.
    """
    # SAQ takes a cancellation in here for an error of the hook and logs its traceback; the worker ends all the same.
    with contextlib.suppress(asyncio.CancelledError):
        await context["worker"].schedule()


async def stop_worker(worker: _HostedWorker, task: "asyncio.Task[None]") -> None:
    """
    Stop a worker at once, whatever still runs in it.

    SAQ's own stop waits for its upkeep polls, which sleep for up to a minute, so it burns its whole grace period and
    dequeues new jobs meanwhile. Here each of its tasks is cancelled first.
    """
    worker.event.set()
    for each in list(worker.tasks):
        each.cancel()
    await worker.stop()
    await asyncio.wait({task}, timeout=_UNWIND_S)


async def wipe(queue: RedisQueue, names: Mapping[str, Any]) -> None:
    """
    Remove what a queue of this name left behind.

    A replica that was killed during a run leaves its tick unfinished, and without a time-out it would stay so: SAQ
    would never enter that cron again. The queue is this replica's own, so nothing in it is anybody else's.
    """
    keys = [queue.namespace(part) for part in ("incomplete", "queued", "active", "schedule", "sweep")]
    keys += [queue.job_id(f"cron:{name}") for name in names]
    await queue.redis.delete(*keys)
