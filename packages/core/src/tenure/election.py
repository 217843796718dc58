"""Leader election: a lease that one instance holds for as long as it leads. See `tenure._election_machine`."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Self, final

from tenure._acquirer import shielded
from tenure._claims import Claimant, ambient_claims
from tenure._durations import Duration, to_ms
from tenure._election_machine import CandidateEvent, CandidateState, step
from tenure._keys import check_key
from tenure._lease_machine import RENEWALS_PER_TTL
from tenure.clock import sleep_until
from tenure.errors import ConfigurationError, LeaseLostError, LossReason
from tenure.events import LeadershipAcquired, LeadershipLost
from tenure.lease import Lease
from tenure.locks import Locks
from tenure.store import ListsLocks

__all__ = ["LeaderElection"]

_JITTER = 0.2
"""Campaigns come a fifth earlier or later than every third of a ttl, so that candidates do not march in step."""

_REST_CAMPAIGNS = 1.5
"""Who stood down rests for longer than the others' longest pause between campaigns: they get the first chance."""

_log = logging.getLogger("tenure")


@final
class LeaderElection:
    """
    Runs `lead(lease)` on one instance at a time, for as long as that instance lives.

        async def feed(lease: Lease) -> None:
            async with connect(headers={"fence": str(lease.token)}) as alerts: ...

        async with LeaderElection(locks, "inventory:warehouse-feed", feed):
            ...

    Every instance campaigns, every third of a ttl. `lead` runs on the one that was elected, and is cancelled when the
    lease is lost, when the instance steps down, and at shutdown; only after it has ended is the lease given back. A
    `lead` that returns or raises frees the lease, and this instance rests while the others campaign. A crashed leader
    is replaced within a ttl and a campaign; one that shuts down, at the others' next campaign.

    Args:
        locks: The `Locks` to use; closing it ends the election.
        key: The election's key, 1 to 500 characters; no job's and no other election's.
        lead: What the leader does. Whatever it does on the group's behalf should carry `lease.token`.
        ttl: The lease's ttl; by default that of the `Locks`.

    Raises:
        ConfigurationError: The key or the ttl is wrong, or a job or another election uses the key.
    """

    def __init__(
        self,
        locks: Locks,
        key: str,
        lead: Callable[[Lease], Awaitable[object]],
        *,
        ttl: Duration | None = None,
    ) -> None:
        self.key = check_key(key)
        self._locks = locks
        self._lead = lead
        self._ttl_s = locks.ttl_s if ttl is None else to_ms(ttl, name="ttl") / 1000
        self._state = CandidateState.IDLE
        self._lease: Lease | None = None
        self._campaign: asyncio.Task[None] | None = None
        self._leading: asyncio.Task[None] | None = None
        self._stands_down = False
        claimant = Claimant(f'Election "{key}"', self, frozenset({key}))
        ambient_claims.check(claimant)
        locks.claims.add(self, claimant)

    @property
    def is_leader(self) -> bool:
        """Whether this instance leads, as of now: the clock is compared at each reading."""
        return self._lease is not None and self._lease.held

    async def leader(self) -> str | None:
        """
        Ask the store who leads.

        Returns:
            The leader's instance name, or None where nobody leads. By the time it is read it may be another.

        Raises:
            ConfigurationError: The store cannot list its locks.
        """
        store = self._locks.store
        if not isinstance(store, ListsLocks):
            raise ConfigurationError(f"{type(store).__name__} cannot tell who leads: it has no list_locks().")
        records = await store.list_locks(self.key)
        return next((record.instance for record in records if record.key == self.key), None)

    async def step_down(self) -> None:
        """Stop leading, and let the others campaign first. Does nothing on an instance that does not lead."""
        leading = self._leading
        if leading is None or leading.done():
            return
        self._stands_down = True
        leading.cancel()
        await asyncio.wait([leading])

    async def __aenter__(self) -> Self:
        """
        Start to campaign.

        Raises:
            LeaseStateError: The `Locks` is not open.
        """
        self._locks.refuse_unless_open()
        self._state = step(self._state, CandidateEvent.START)
        self._locks.join(self)
        self._campaign = self._locks.spawn(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        """Step down, and campaign no more; finished however often it is cancelled."""
        await shielded(self._locks.spawn(self.hand_back()))

    async def hand_back(self) -> None:
        """Step down, and campaign no more; what the `Locks` calls when it closes. Twice does nothing more."""
        self._state = step(self._state, CandidateEvent.STOP)
        await self.step_down()
        if self._campaign is not None and self._campaign is not asyncio.current_task():
            self._campaign.cancel()
            await asyncio.wait([self._campaign])
        self._locks.claims.drop(self)
        self._locks.leave(self)

    @property
    def _stopped(self) -> bool:
        return self._state is CandidateState.STOPPED

    async def _run(self) -> None:
        while not self._stopped:
            lease = await self._stand()
            if lease is None:
                self._state = step(self._state, CandidateEvent.REFUSED)
                await self._pause(1 + _JITTER * (2 * self._locks.rng.random() - 1))
                continue
            ended = await self._serve(lease)
            if not self._stopped:
                self._state = step(self._state, ended)
                await self._rest_after(ended)

    async def _rest_after(self, ended: CandidateEvent) -> None:
        if ended is CandidateEvent.DONE:
            await self._pause(_REST_CAMPAIGNS)
            self._state = step(self._state, CandidateEvent.RESTED)

    async def _stand(self) -> Lease | None:
        try:
            return await self._locks.try_acquire(self.key, ttl=self._ttl_s)
        except Exception as error:  # noqa: BLE001 -- a store that fails now may answer the next campaign
            _log.warning('Could not campaign for "%s": %s; trying again', self.key, type(error).__name__)
            return None

    async def _serve(self, lease: Lease) -> CandidateEvent:
        """Lead until the lease is lost, the lead ends, or it is told to stand down."""
        self._state = step(self._state, CandidateEvent.GRANTED)
        self._lease, self._stands_down = lease, False
        self._locks.emit(LeadershipAcquired(self.key, lease.token))
        led_from = self._locks.clock.now()
        self._leading = self._locks.spawn(self._lead_under(lease))
        try:
            await asyncio.wait([self._leading])
        finally:
            if not self._leading.done():  # the campaign itself was cancelled: the lead ends before the lease does
                self._leading.cancel()
                await asyncio.wait([self._leading])
            if lease.held:  # cancelled before its first step, it never had the lease to give back
                with contextlib.suppress(Exception):
                    await lease.release()
            reason = self._read_end(lease, self._leading)
            self._lease = self._leading = None
            led_s = self._locks.clock.now() - led_from
            self._locks.emit(LeadershipLost(self.key, lease.token, reason, led_s))
        return CandidateEvent.DONE if reason is None else CandidateEvent.LOST

    async def _lead_under(self, lease: Lease) -> None:
        async with self._locks.lead_guard(lease):
            await self._lead(lease)

    def _read_end(self, lease: Lease, leading: "asyncio.Task[Any]") -> LossReason | None:
        """Read how the lead ended; its own error is logged, for nobody awaits it."""
        if leading.cancelled():
            return lease.lost.reason
        error = leading.exception()
        if isinstance(error, LeaseLostError) and error.key == self.key and error.token == lease.token:
            return error.reason
        if error is not None:
            _log.error('The lead of "%s" failed; this instance stands down', self.key, exc_info=error)
        return lease.lost.reason

    async def _pause(self, campaigns: float) -> None:
        clock = self._locks.clock
        await sleep_until(clock, clock.now() + campaigns * self._ttl_s / RENEWALS_PER_TTL)
