"""Who holds a job on this instance, and how it gives the job's lease back while it runs on."""

import asyncio
from typing import Final, Protocol, final

from tenure import Locks
from tenure.jobs import job_lease, step_down

__all__ = ["Holder", "ScheduledHolder"]

_FIRST_CHANCE_S: Final = 1.0
"""
How long an instance that stepped down holds its next tick back, in seconds. All instances fire a tick at the same
moment, within their clocks' skew; without it the one that gave the lease back might be the first to ask for it again.
"""

_STANDS_BACK_S: Final = 3.0
"""
How long it lets every tick pass before that, in seconds. The lease of a run that had only just begun lives on for a
second, so that a job that is due every second would have no tick at which the others are alone to ask.
"""


class Holder(Protocol):
    """One job, as this instance may hold it."""

    def holds(self) -> bool:
        """Whether this instance holds the job, as of now."""
        ...

    async def step_down(self) -> None:
        """Give the job's lease back, and let the others have the first chance."""
        ...

    def told(self, *, paused: bool) -> None:
        """Hear whether the job is paused, at every look."""
        ...


@final
class ScheduledHolder:
    """
    A job of the schedule under `@on_one_instance` and `@without_overlapping`.

    A run that is under way goes on when the job's lease is given back: it has a lock of its own, so whoever takes the
    job skips its ticks until that run has ended.

    Args:
        locks: The locks of this instance; None where they are switched off, and nobody holds anything.
        key: The job's key.
    """

    def __init__(self, locks: Locks | None, key: str) -> None:
        self._locks: Final = locks
        self._key: Final = key
        self._stepped_down_at: float | None = None

    def holds(self) -> bool:
        """Whether this instance has the job's lease, as of now."""
        return self._locks is not None and job_lease(self._key, locks=self._locks) is not None

    async def step_down(self) -> None:
        """Give the job's lease back; if its run began less than a second ago, at the end of that second."""
        if self._locks is None or not self.holds():
            return
        # Before the lease goes: a tick of this instance's, fired meanwhile, would take it again.
        self._stepped_down_at = asyncio.get_running_loop().time()
        await step_down(self._key, locks=self._locks)

    def told(self, *, paused: bool) -> None:
        """Do nothing: a tick asks for itself, so that none begins after the pause."""

    async def lets_tick(self) -> bool:
        """
        Let the others take the job first, after a step-down; if none did, this instance takes it again.

        Returns:
            Whether this tick may ask for the job; maybe only after a moment.
        """
        if self._stepped_down_at is None:
            return True
        if asyncio.get_running_loop().time() < self._stepped_down_at + _STANDS_BACK_S:
            return False
        self._stepped_down_at = None
        await asyncio.sleep(_FIRST_CHANCE_S)
        return True
