"""How one replica hears what the jobs were told: before every tick, and once a second."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from cat_store.admin.controls import NOTHING_TOLD, Control, JobControls
from cat_store.admin.holders import Holder, ScheduledHolder
from tenure import Locks
from tenure.store import ListsLocks, LockRecord

__all__ = ["ControlledJob", "JobWatch"]

logger = logging.getLogger(__name__)

_EVERY_S: Final = 1.0
"""How often a replica looks, in seconds: a step-down and the pause of the feed wait for it."""

_LIST_WITHIN_S: Final = 2.0
"""How long the store of the locks may take to say who holds what, in seconds: a person waits."""


@dataclass(frozen=True, slots=True)
class ControlledJob:
    """
    A job that administrators may pause, resume and move.

    Attributes:
        name: Its name in addresses, in the log and in the table.
        lease_key: The key of the lease that its holder has.
        holder: The job on this instance.
    """

    name: str
    lease_key: str
    holder: Holder

    @classmethod
    def scheduled(cls, name: str, locks: Locks | None, key: str) -> Self:
        """Describe a job of the schedule, by its key."""
        return cls(name, f"{key}:owner", ScheduledHolder(locks, key))


class JobWatch:
    """
    Looks at the controls while it is entered, and does on this instance what they ask for.

    Entered after the locks and before what it controls, and left after it.

    Args:
        controls: The table.
        locks: The locks of this instance; None where they are switched off.
        jobs: The jobs.
        every_s: How often to look, in seconds.
    """

    def __init__(
        self, controls: JobControls, locks: Locks | None, jobs: Sequence[ControlledJob], *, every_s: float = _EVERY_S
    ) -> None:
        self.controls: Final = controls
        self.locks: Final = locks
        self.jobs: Final[Mapping[str, ControlledJob]] = {job.name: job for job in jobs}
        self._every_s = every_s
        self._known: dict[str, bool] = {}
        self._look_now = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None
        self._failing = False

    async def __aenter__(self) -> Self:
        """Look once, so that what was paused before this instance started begins nothing; then start to watch."""
        await self._look()
        self._watching = asyncio.create_task(self._watch(), name="job controls")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait({self._watching})

    def unless_paused(self, name: str, run: Callable[[], Awaitable[Any]]) -> Callable[[], Awaitable[Any]]:
        """
        Wrap a job for the schedule: a tick of a paused one is skipped, and says why.

        Args:
            name: The name of one of the jobs.
            run: What a tick runs.
        """
        holder = self.jobs[name].holder

        async def tick() -> Any:
            if await self.controls.is_paused(name):
                return _skip(name, "it is paused")
            if isinstance(holder, ScheduledHolder) and not await holder.lets_tick():
                return _skip(name, "this instance stepped down, and the others have the first chance")
            return await run()

        return tick

    def look_soon(self) -> None:
        """Look at once, for something was told through this replica."""
        self._look_now.set()

    async def holders(self) -> Mapping[str, LockRecord] | None:
        """Ask the store of the locks who holds which job, by name; None where it cannot tell, or not in time."""
        store: object = None if self.locks is None else self.locks.store
        if not isinstance(store, ListsLocks):
            return None
        # Not cancelled when it takes too long: that would cost a connection.
        listing = asyncio.create_task(_listed(store, [job.lease_key for job in self.jobs.values()]))
        await asyncio.wait({listing}, timeout=_LIST_WITHIN_S)
        records = listing.result() if listing.done() else None
        if records is None:
            return None
        return {name: records[job.lease_key] for name, job in self.jobs.items() if job.lease_key in records}

    async def _watch(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._every_s):
                    await self._look_now.wait()
            self._look_now.clear()
            try:
                await self._look()
                self._failing = False
            except Exception as error:  # noqa: BLE001 -- whatever a driver raises: the next look may succeed
                level = logging.DEBUG if self._failing else logging.WARNING
                self._failing = True
                logger.log(level, "Could not read what the jobs were told: %s; trying again", type(error).__name__)

    async def _look(self) -> None:
        told = await self.controls.read()
        for job in self.jobs.values():
            control = told.get(job.name, NOTHING_TOLD)
            self._note(job.name, control)
            job.holder.told(paused=control.paused)
            if control.step_down_asked and job.holder.holds() and await self.controls.claim_step_down(job.name):
                logger.info(
                    "Stepping down from %s, as an administrator asked", job.name, extra=_event("stepping_down", job)
                )
                await job.holder.step_down()

    def _note(self, name: str, control: Control) -> None:
        before, self._known[name] = self._known.get(name, False), control.paused
        if before != control.paused:
            word = "paused" if control.paused else "resumed"
            logger.info("%s is %s", name, word, extra={"event": f"job.{word}", "job": name})


def _skip(name: str, why: str) -> None:
    logger.info("Skipped %s: %s", name, why, extra={"event": "job.skipped", "job": name, "reason": why})


def _event(kind: str, job: ControlledJob) -> dict[str, str]:
    return {"event": f"job.{kind}", "job": job.name}


async def _listed(store: ListsLocks, keys: Sequence[str]) -> Mapping[str, LockRecord] | None:
    try:
        # By key, for an application may hold a lock an order beside those of its jobs.
        lists = await asyncio.gather(*(store.list_locks(key) for key in keys))
    except Exception as error:  # noqa: BLE001 -- whatever a driver raises: nobody knows who holds what
        logger.warning("Could not list the locks: %s", type(error).__name__)
        return None
    return {record.key: record for records in lists for record in records}
