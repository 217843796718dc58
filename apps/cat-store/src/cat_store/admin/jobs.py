"""Pausing, resuming and moving jobs, on all replicas at once."""

from datetime import datetime

import msgspec
from litestar import Controller, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath

from cat_store.admin.controls import NOTHING_TOLD
from cat_store.admin.watch import JobWatch
from cat_store.web.problems import described, problem

__all__ = ["JobController", "JobView"]

_FORBIDDEN = described("The token is missing or wrong.")
_UNKNOWN = described("There is no job with that name.")


class JobView(msgspec.Struct, frozen=True):
    """
    A job.

    Attributes:
        name: Its name.
        paused: Whether its ticks are skipped on every replica; the feed is not listened to.
        paused_at: Since when.
        step_down_asked: Whether its holder is asked to give it back, and has not yet.
        held_by: The replica that holds it; null where none does, or nobody can tell.
        token: The fencing token of that replica's lease.
    """

    name: str
    paused: bool
    paused_at: datetime | None
    step_down_asked: bool
    held_by: str | None
    token: int | None


class JobController(Controller):
    """The jobs, for somebody who has to stop one, or to move one away from a replica."""

    path = "/jobs"
    tags = ["admin"]  # noqa: RUF012 -- declared so by Litestar

    @get(responses={403: _FORBIDDEN})
    async def list_jobs(self, watch: NamedDependency[JobWatch]) -> list[JobView]:
        """List the jobs: who holds them, and what they were told."""
        return await _views(watch)

    @post("/{name:str}/pause", status_code=200, responses={403: _FORBIDDEN, 404: _UNKNOWN})
    async def pause(self, watch: NamedDependency[JobWatch], name: FromPath[str]) -> JobView:
        """
        Pause a job: no tick of it begins on any replica from now on.

        A run that is under way goes on to its end, for half an export helps nobody. The feed is left within two
        seconds. The export by hand is not paused: who asks for it, means it.
        """
        _refuse_unknown(watch, name)
        await watch.controls.pause(name)
        return await _told(watch, name)

    @post("/{name:str}/resume", status_code=200, responses={403: _FORBIDDEN, 404: _UNKNOWN})
    async def resume(self, watch: NamedDependency[JobWatch], name: FromPath[str]) -> JobView:
        """Let a paused job go on, from its next tick."""
        _refuse_unknown(watch, name)
        await watch.controls.resume(name)
        return await _told(watch, name)

    @post(
        "/{name:str}/step-down",
        status_code=202,
        responses={
            403: _FORBIDDEN,
            404: _UNKNOWN,
            409: described("Nobody holds the job, or the locks are off."),
        },
    )
    async def step_down(self, watch: NamedDependency[JobWatch], name: FromPath[str]) -> JobView:
        """
        Ask the replica that holds a job to give it to another one, whichever replica is asked.

        It hears of it within a second. A run that is under way goes on to its end, and no other begins beside it.
        Where no other replica takes the job, the same one goes on with it.
        """
        _refuse_unknown(watch, name)
        if watch.locks is None:
            raise problem(409, "locks-off", "The locks are off: every replica runs every job, and there is no holder.")
        # A store that cannot tell who holds what may still have somebody who does.
        if (holders := await watch.holders()) is not None and name not in holders:
            raise problem(409, "nobody-holds", f"No replica holds {name} at the moment. It is taken at a next tick.")
        await watch.controls.ask_to_step_down(name)
        return await _told(watch, name)


def _refuse_unknown(watch: JobWatch, name: str) -> None:
    if name not in watch.jobs:
        raise problem(404, "no-such-job", f"There is no job with that name. The jobs are: {', '.join(watch.jobs)}.")


async def _told(watch: JobWatch, name: str) -> JobView:
    watch.look_soon()
    return next(view for view in await _views(watch) if view.name == name)


async def _views(watch: JobWatch) -> list[JobView]:
    told, holders = await watch.controls.read(), await watch.holders() or {}
    views = []
    for name in watch.jobs:
        control, record = told.get(name, NOTHING_TOLD), holders.get(name)
        views.append(
            JobView(
                name=name,
                paused=control.paused,
                paused_at=control.paused_at,
                step_down_asked=control.step_down_asked,
                held_by=None if record is None else record.instance,
                token=None if record is None else record.token,
            )
        )
    return views
