"""
tenure in a SAQ worker: its `Locks` from its start to its end, and jobs that run where and when they should.

    pip install "tenure[saq]"

    @on_one_instance("invoices:nightly-export")
    @without_overlapping()
    async def export(ctx) -> None: ...

    settings = {
        "queue": Queue.from_url(url, name=f"cron:{instance}"),
        "functions": [],
        "cron_jobs": [CronJob(export, cron="0 2 * * *", timeout=0)],
        **tenure_hooks(TenureConfig.from_env()),
    }

**Who gets a tick decides which decorator is right.** SAQ enters a tick once into each queue, and one worker of that
queue takes it, whichever is first.

| queues | a tick reaches | right is |
| --- | --- | --- |
| one for each worker, as above | every worker | `@on_one_instance`, and `@without_overlapping` under it |
| one for all workers | one worker, any | `@without_overlapping` alone |

`@on_one_instance` on a queue that workers share skips every tick that comes to another worker than the job's own: it is
run nowhere, and nothing fails. With a queue for each, name the queue after something that outlives a restart.

SAQ cancels a job after 10 seconds unless its `timeout` says otherwise; 0 is no limit. At shutdown it cancels what still
runs after `shutdown_grace_period_s`, and only then are the leases handed back.
"""

from collections.abc import Callable, Collection
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Any, Final

from tenure.errors import ConfigurationError
from tenure.ext._sources import LocksSource, check_source, opened
from tenure.locks import Locks

__all__ = ["scheduled_time", "tenure_hooks"]

_Hook = Callable[[Any], Any]

_OPENED: Final = "tenure.ext.saq"
"""Under which name a worker's context keeps what is to be closed: several workers may share the hooks."""


def tenure_hooks(
    locks: LocksSource, *, startup: _Hook | Collection[_Hook] = (), shutdown: _Hook | Collection[_Hook] = ()
) -> dict[str, Any]:
    """
    Make the start-up and shutdown hooks of a SAQ worker, to be merged into its settings.

    Jobs and `@locked` functions that the worker runs find its `Locks` by themselves, also where several workers run in
    one process; others take `ctx["locks"]`.

    Args:
        locks: A store's URL, settings, or a callable that makes a `Locks` at each start. The callable may take the
            worker's context. A `Locks` itself serves one start.
        startup: Hooks of your own, called before: they open the clients that the callable uses.
        shutdown: Hooks of your own, called after the leases were handed back: they close those clients.

    Returns:
        The settings `startup` and `shutdown`, as lists; what works under the locks is appended to the first, and put at
        the head of the second.

    Raises:
        ConfigurationError: *locks* is nothing that makes a `Locks`. At the worker's start, what `Locks` raises.
    """
    check_source(Locks, locks)

    async def open_locks(ctx: Any) -> None:
        async with AsyncExitStack() as left:
            ctx["locks"] = await left.enter_async_context(opened(Locks, locks, ctx))
            ctx[_OPENED] = left.pop_all()

    async def close_locks(ctx: Any) -> None:
        # SAQ calls the shutdown hooks after a start that failed, too.
        left: AsyncExitStack | None = ctx.pop(_OPENED, None)
        if left is not None:
            await left.aclose()

    return {"startup": [*_many(startup), open_locks], "shutdown": [close_locks, *_many(shutdown)]}


def scheduled_time(ctx: Any, **_: object) -> datetime:
    """
    Tell when the tick that is run now was due, in UTC: for `@on_one_instance(slot=scheduled_time)`.

    Every worker enters a cron's tick for the same second, so the slot is one, whoever comes first. It needs a fixed
    `cron_tz`, the same for all, as any schedule does. A retry of a failed run has the slot of its tick, and is skipped.

    Args:
        ctx: SAQ's context, the first argument of every job.

    Raises:
        ConfigurationError: The job was entered without a time: it is no cron's, and has no slot.
    """
    job = ctx["job"]
    if not job.scheduled:
        raise ConfigurationError(
            f"The job {job.function!r} was entered without a time (scheduled=), so it has no slot: leave slot= out for "
            "jobs that are not scheduled, or give a function that names their slot."
        )
    return datetime.fromtimestamp(job.scheduled, UTC)


def _many(hooks: _Hook | Collection[_Hook]) -> Collection[_Hook]:
    return [hooks] if callable(hooks) else hooks
