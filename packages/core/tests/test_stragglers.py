"""Calls that nobody waits for any more: they cost no lease, outlive no close, and are never left unawaited."""

import asyncio
import contextlib
import gc
import random
import warnings

import pytest

from tenure import Acquired, Held, InMemoryLockStore, Locks
from tenure._acquirer import shielded
from tenure.errors import LeaseStateError, StoreTimeoutError
from tenure.store import RenewsMany
from tenure.testing import FaultyStore, LoopClock, virtual

KEY = "invoices"


class NoJitter(random.Random):
    """Renewals go out to the moment."""

    def random(self) -> float:
        return 0.0


def faulty() -> FaultyStore:
    return FaultyStore(InMemoryLockStore(LoopClock()), clock=LoopClock())


@virtual
async def test_renewals_that_hang_now_and_then_cost_no_lease() -> None:
    """Each is covered for by the next one; were it counted as under way from then on, the second would be the last."""
    store = faulty()
    async with Locks(store, ttl=3, clock=LoopClock()) as locks:
        lease = await locks.acquire(KEY)
        for _ in range(20):
            store.on("renew").hang(times=1)
            await asyncio.sleep(7)
            assert lease.held
        assert store.fired["hang"] == 20
        await lease.release()


@virtual
async def test_a_renewal_that_hangs_is_cancelled_once_a_later_one_was_confirmed() -> None:
    store = faulty()
    async with Locks(store, ttl=3, clock=LoopClock()) as locks:
        lease = await locks.acquire(KEY)
        store.on("renew").hang(times=1)
        await asyncio.sleep(3.5)
        (kept,) = locks._keeper
        assert kept.attempts == ()
        assert len(locks._keeper._tasks) == 0
        await lease.release()


@virtual
async def test_closing_waits_for_what_goes_behind_an_acquire_that_it_cancels() -> None:
    store = faulty()
    locks = Locks(store, ttl=30, drain=0.1, clock=LoopClock())
    async with locks:
        store.on("acquire").hang()
        asking = asyncio.ensure_future(locks.acquire(KEY))  # noqa: TID251 -- a task of the user's, not of the engine's
        await store.called("acquire")
    assert store.calls["release"] >= 4, "three measure the round trip at the start; one goes behind the acquire"
    assert locks._keeper._tasks == {}
    with pytest.raises(LeaseStateError, match="closed while the store's acquire"):
        await asking


class GoesOn(InMemoryLockStore):
    """A driver that carries an acquire out three seconds late, whatever it is told meanwhile."""

    async def acquire(self, key: str, owner: str, ttl_ms: int) -> Acquired | Held:
        with contextlib.suppress(asyncio.CancelledError):
            await shielded(asyncio.create_task(asyncio.sleep(3)))
        return await super().acquire(key, owner, ttl_ms)


@virtual
async def test_a_grant_of_a_driver_that_goes_on_after_its_call_was_given_up_is_freed() -> None:
    """The release behind the call came before it, and freed nothing: one more goes behind its end."""
    store = GoesOn(LoopClock())
    async with Locks(store, ttl=30, store_timeout=0.5, clock=LoopClock()) as locks:
        with pytest.raises(StoreTimeoutError):
            await locks.acquire(KEY)
        await asyncio.sleep(2)
        assert await store.list_locks() == []
        await asyncio.sleep(1)
        assert await store.list_locks() == []
        assert store._rows[KEY].token > 0, "it was granted in between"


@virtual
async def test_a_lease_that_is_lost_in_the_turn_of_its_renewal_leaves_no_call_unawaited() -> None:
    store = FaultyStore(InMemoryLockStore(LoopClock()), clock=LoopClock(), without=[RenewsMany])
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        async with Locks(store, ttl=3, clock=LoopClock(), rng=NoJitter()) as locks:
            with pytest.raises(Exception, match="max_hold"):
                async with locks.hold(KEY, max_hold=1):
                    await asyncio.sleep(2)
        gc.collect()
    assert [str(warning.message) for warning in said] == []
