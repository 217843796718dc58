"""The leases of the jobs that an instance owns, kept between ticks."""

import asyncio
from typing import Final, final

from tenure._durations import Duration
from tenure.events import JobStarted
from tenure.lease import Lease, give_back_quietly
from tenure.locks import Locks

__all__ = ["JobLeases", "owner_key"]

_FRESH_S: Final = 1.0
"""
A job's lease is kept for this long after a run started, in seconds, even at shutdown. Instances fire the same tick
within their clocks' skew; handed back at once, the lease would let a late one run the tick a second time.
"""


def owner_key(key: str) -> str:
    """Name the lease of the job under *key*."""
    return f"{key}:owner"


@final
class JobLeases:
    """The leases of the jobs of one `Locks`, by their keys. A part of it."""

    def __init__(self, locks: Locks) -> None:
        self._locks = locks
        self._owned: dict[str, Lease] = {}
        self._asking: dict[str, asyncio.Task[Lease | None]] = {}
        self._run_at: dict[str, float] = {}

    async def take(self, key: str, name: str, ttl: Duration | None) -> Lease | None:
        """Return a job's lease, taking it if it is free; ticks that come together ask the store once."""
        lease = self.owned(key)
        if lease is not None:
            return lease
        asking = self._asking.get(key)
        if asking is None:
            # A task of its own: the lease belongs to the instance, not to the tick, which may be cancelled.
            asking = self._asking[key] = self._locks.spawn(self._ask(key, name, ttl))
            asking.add_done_callback(lambda _: self._asking.pop(key, None))
        return await asyncio.shield(asking)

    async def _ask(self, key: str, name: str, ttl: Duration | None) -> Lease | None:
        lease = await self._locks.try_acquire(key, ttl=ttl)
        if lease is not None:
            self._owned[key] = lease
            self._locks.emit(JobStarted(name, key, lease.token))
        return lease

    def run_starts(self, key: str) -> None:
        """Take note of a run, for the handover."""
        self._run_at[key] = self._locks.clock.now()

    def owned(self, key: str) -> Lease | None:
        """Return the lease that this instance has on a job, if it may believe in it."""
        lease = self._owned.get(key)
        return lease if lease is not None and lease.held else None

    async def step_down(self, key: str) -> bool:
        """Give one job's lease back while everything else goes on."""
        lease = self._owned.pop(key, None)
        if lease is None or not lease.held:
            return False
        await self._hand_back(key, lease)
        return True

    async def hand_back(self) -> None:
        """Give the jobs' leases back, but for those whose run has only just started: these end by themselves."""
        owned, self._owned = self._owned, {}
        await self._locks.together(self._hand_back(key, lease) for key, lease in owned.items())

    async def _hand_back(self, key: str, lease: Lease) -> None:
        rest_s = self._run_at.get(key, float("-inf")) + _FRESH_S - self._locks.clock.now()
        if rest_s > 0:
            await self._locks.acquirer.let_expire(lease, rest_s)
        else:
            await give_back_quietly(lease)
