"""Taking keys: waiting, refusals before anything is sent, unknown outcomes, cancellation at every await."""

import asyncio
import functools
import threading
from datetime import timedelta
from typing import Any

import pytest

from tenure import (
    ConfigurationError,
    Held,
    InMemoryLockStore,
    LeaseStateError,
    LockNotAcquiredError,
    Locks,
    StoreReplyError,
    StoreTimeoutError,
)
from tenure.events import AcquireRefused, LeaseAcquired
from tenure.store import Acquired, QueuesWaiters, WakesWaiters
from tenure.testing import FaultyStore, LoopClock, ManualClock, run_virtual, virtual

TTL_S = 3.0


class World:
    """Instances on a store that can fail, on the loop's own (virtual) time."""

    def __init__(self, *, without: tuple[type, ...] = ()) -> None:
        self.clock = LoopClock()
        self.inner = InMemoryLockStore(self.clock)
        self.store = FaultyStore(self.inner, clock=self.clock, without=without)
        self.events: list[Any] = []

    def locks(self, instance: str = "a", **options: Any) -> Locks:
        return Locks(
            self.store, instance=instance, clock=self.clock, hooks=[self.events.append], **{"ttl": TTL_S, **options}
        )

    async def holders(self) -> list[str]:
        return [record.key for record in await self.inner.list_locks()]


def now() -> float:
    return asyncio.get_running_loop().time()


# ---------------------------------------------------------------------------------------------- waiting


class SaysNothingIsLeft(InMemoryLockStore):
    """A store whose rounding says 0 ms of a lock that lives on."""

    asked = 0

    async def acquire(self, key: str, owner: str, ttl_ms: int) -> Acquired | Held:
        self.asked += key == "k"
        reply = await super().acquire(key, owner, ttl_ms)
        return Held(0) if isinstance(reply, Held) else reply


@virtual
async def test_a_store_that_says_nothing_is_left_of_a_lock_is_not_asked_without_a_pause() -> None:
    clock = LoopClock()
    store = SaysNothingIsLeft(clock)
    plain = FaultyStore(store, clock=clock, without=[WakesWaiters, QueuesWaiters])
    await store.acquire("k", "other:1", 60_000)
    async with Locks(plain, ttl=TTL_S, clock=clock, hooks=[]) as locks:
        with pytest.raises(LockNotAcquiredError):
            await locks.acquire("k", wait=0.1)
    assert 1 < store.asked <= 102


@virtual
async def test_a_taken_key_is_none_for_who_tries_and_an_error_for_who_waited() -> None:
    world = World()
    async with world.locks("a") as a, world.locks("b") as b:
        held = await a.acquire("k")
        assert await b.try_acquire("k") is None
        with pytest.raises(LockNotAcquiredError, match="no wait was asked for"):
            await b.acquire("k")
        started_at = now()
        with pytest.raises(LockNotAcquiredError) as caught:
            await b.acquire("k", wait=2)
        assert now() == pytest.approx(started_at + 2)
        assert caught.value.waited_s == pytest.approx(2)
        assert [type(event) for event in world.events].count(AcquireRefused) == 3
        assert held.held


@virtual
async def test_a_waiter_is_woken_by_the_release_where_the_store_can() -> None:
    world = World()
    async with world.locks("a") as a, world.locks("b") as b:
        held = await a.acquire("k")
        waiting = asyncio.get_running_loop().create_task(b.acquire("k", wait=60))
        await asyncio.sleep(10.0)
        released_at = now()
        assert await held.release()
        lease = await waiting
        assert now() == released_at
        assert lease.after == "released"
        assert b.statistics().waiting == 0


@virtual
async def test_without_a_wake_up_a_waiter_polls_once_a_second_at_most() -> None:
    world = World(without=(WakesWaiters, QueuesWaiters))
    async with world.locks("a") as a, world.locks("b") as b:
        held = await a.acquire("k")
        waiting = asyncio.get_running_loop().create_task(b.acquire("k", wait=60))
        await asyncio.sleep(30.0)
        released_at = now()
        assert await held.release()
        await waiting
        assert released_at <= now() <= released_at + 1
        assert 30 <= world.store.calls["acquire"] <= 75


@virtual
async def test_a_waiter_comes_back_when_the_holders_lock_ends() -> None:
    world = World(without=(WakesWaiters, QueuesWaiters))
    async with world.locks("b") as b:
        await world.inner.acquire("k", "dead:1", 900)
        started_at = now()
        lease = await b.acquire("k", wait=60)
        assert now() <= started_at + 0.9 + 0.05
        assert lease.after == "expired"


@virtual
async def test_tokens_grow_from_lease_to_lease() -> None:
    world = World()
    async with world.locks() as locks:
        tokens = []
        for _ in range(20):
            async with locks.hold("k") as lease:
                tokens.append(lease.token)
        assert tokens == sorted(set(tokens))


@virtual
async def test_of_many_waiters_each_holds_alone() -> None:
    world = World()
    inside: list[int] = []
    async with world.locks("a") as a, world.locks("b") as b:

        async def work(locks: Locks) -> None:
            async with locks.hold("k", wait=float("inf")):
                inside.append(1)
                assert len(inside) == 1
                await asyncio.sleep(0.3)
                inside.pop()

        await asyncio.gather(*(work(locks) for locks in (a, b) * 10))
        assert a.statistics().acquired + b.statistics().acquired == 20


# ------------------------------------------------------------------------- refused before anything is sent


@pytest.mark.parametrize("key", ["", "x" * 501, "a\0b", "\ud800", 7, None, b"k"])
def test_a_key_outside_the_rules_is_refused_before_anything_is_sent(key: Any) -> None:
    async def main() -> None:
        world = World()
        async with world.locks() as locks:
            for call in (locks.try_acquire(key), locks.acquire(key, wait=1)):
                with pytest.raises(ConfigurationError, match="key"):
                    await call
            with pytest.raises(ConfigurationError, match="key"):
                async with locks.hold(key):
                    pass
            assert world.store.calls["acquire"] == 0

    run_virtual(main)


@pytest.mark.parametrize("bad", [0, -1, True, float("nan"), float("inf"), 0.0001, "soon", "5", timedelta(0), None])
def test_a_ttl_outside_the_rules_is_refused_at_construction(bad: Any) -> None:
    with pytest.raises(ConfigurationError, match="ttl"):
        Locks(InMemoryLockStore(), ttl=bad)


@virtual
async def test_durations_outside_the_rules_are_refused_before_anything_is_sent() -> None:
    world = World()
    async with world.locks() as locks:
        for options in ({"wait": -1}, {"wait": True}, {"ttl": 0}, {"ttl": 1.00005}, {"wait": "soon"}):
            with pytest.raises(ConfigurationError):
                await locks.acquire("k", **options)
        with pytest.raises(ConfigurationError, match="max_hold"):
            async with locks.hold("k", max_hold=0):
                pass
        assert world.store.calls["acquire"] == 0


@pytest.mark.parametrize("ttl", [3, 3.0, "3s", "3000ms", timedelta(seconds=3)])
def test_a_duration_may_be_seconds_a_timedelta_or_a_string(ttl: Any) -> None:
    assert Locks(InMemoryLockStore(), ttl=ttl).ttl_ms == 3000


def test_a_store_timeout_longer_than_the_ttl_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="store_timeout"):
        Locks(InMemoryLockStore(), ttl=3, store_timeout=4)


def test_what_is_no_store_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"no lock store.*acquire"):
        Locks("postgresql+asyncpg://localhost/db")  # type: ignore[arg-type]


@virtual
async def test_locks_before_the_start_and_after_the_close_are_refused() -> None:
    world = World()
    locks = world.locks()
    with pytest.raises(LeaseStateError, match="not started"):
        await locks.try_acquire("k")
    async with locks:
        pass
    with pytest.raises(LeaseStateError, match="closed"):
        await locks.acquire("k", wait=1)
    with pytest.raises(LeaseStateError, match="entered once"):
        await locks.__aenter__()
    assert world.store.calls["acquire"] == 0
    await locks.close()


@virtual
async def test_a_task_that_asks_again_for_its_own_key_is_refused_at_once() -> None:
    world = World()
    async with world.locks() as locks:
        async with locks.hold("k"):
            asked = world.store.calls["acquire"]
            with pytest.raises(LeaseStateError, match="holds 'k' already"):
                await locks.acquire("k", wait=60)
            assert world.store.calls["acquire"] == asked
            # Another task of the process is another contender: it waits, or is told.
            assert await asyncio.get_running_loop().create_task(locks.try_acquire("k")) is None
        async with locks.hold("k"):
            pass


async def test_another_event_loop_is_refused() -> None:
    async with Locks(InMemoryLockStore(), hooks=[]) as locks:
        caught: list[BaseException] = []

        def elsewhere() -> None:
            try:
                asyncio.run(_take(locks))
            except LeaseStateError as error:
                caught.append(error)

        thread = threading.Thread(target=elsewhere)
        thread.start()
        while thread.is_alive():
            await asyncio.sleep(0.01)
        assert "another event loop" in str(caught[0])


async def _take(locks: Locks) -> None:
    await locks.try_acquire("k")


# ------------------------------------------------------------------------------------- unknown outcomes


@virtual
async def test_behind_an_acquire_whose_reply_was_lost_goes_a_release() -> None:
    world = World()
    async with world.locks() as locks:
        world.store.on("acquire").lose_reply(times=1)
        with pytest.raises(Exception, match="reply"):
            await locks.acquire("k")
        await asyncio.sleep(0.01)
        assert await world.holders() == []


@virtual
async def test_behind_an_acquire_that_did_not_answer_goes_a_release() -> None:
    world = World()
    async with world.locks(store_timeout=1) as locks:
        world.store.on("acquire").execute_late(after=1.5, times=1)
        started_at = now()
        with pytest.raises(StoreTimeoutError, match="acquire"):
            await locks.acquire("k")
        assert now() == pytest.approx(started_at + 1)
        # It runs at the store after the release behind it did: the orphan lives for a ttl at most.
        await asyncio.sleep(TTL_S + 1)
        assert await world.holders() == []


@virtual
async def test_a_grant_that_comes_after_its_deadline_is_no_grant() -> None:
    world = World()
    async with world.locks(store_timeout=TTL_S) as locks:
        world.store.on("acquire").slow_reply(TTL_S * 0.995, times=1)
        with pytest.raises(StoreTimeoutError):
            await locks.acquire("k")
        await asyncio.sleep(0.01)
        assert await world.holders() == []
        assert locks.statistics().held == 0


async def test_a_grant_that_the_process_slept_through_is_no_grant() -> None:
    clock = ManualClock()
    store = FaultyStore(InMemoryLockStore(clock), clock=clock)
    async with Locks(store, ttl=TTL_S, clock=clock, hooks=[]) as locks:
        store.on("acquire").slow_reply(0.5, times=1)
        taking = asyncio.get_running_loop().create_task(locks.acquire("k"))
        await store.executed("acquire")
        await clock.stall(10)
        with pytest.raises(StoreTimeoutError):
            await taking
        assert locks.statistics().held == 0


@pytest.mark.parametrize(
    "reply",
    [None, True, 5, Acquired(0), Acquired(2**53), Acquired("7"), Acquired(True), (7,)],  # type: ignore[arg-type]
)
def test_a_reply_that_the_contract_does_not_allow_is_an_error_and_never_a_grant(reply: object) -> None:
    async def main() -> None:
        world = World()
        async with world.locks() as locks:
            world.store.on("acquire").answer(reply, times=1)
            with pytest.raises(StoreReplyError, match="acquire"):
                await locks.acquire("k")
            await asyncio.sleep(0.01)
            assert await world.holders() == []

    run_virtual(main)


@virtual
async def test_a_held_answer_is_followed_by_no_release() -> None:
    world = World()
    async with world.locks() as locks:
        await world.inner.acquire("k", "other:1", 60_000)
        sent = world.store.calls["release"]
        assert await locks.try_acquire("k") is None
        world.store.on("acquire").answer(Held(None), times=1)
        assert await locks.try_acquire("k2") is None
        await asyncio.sleep(1)
        assert world.store.calls["release"] == sent


@virtual
async def test_a_store_call_that_cancels_itself_is_an_error_and_not_a_cancellation() -> None:
    world = World()
    async with world.locks() as locks:
        world.store.on("acquire").fail(asyncio.CancelledError, times=1)  # type: ignore[arg-type]
        with pytest.raises(StoreReplyError, match="cancelled itself"):
            await locks.acquire("k")


# --------------------------------------------------------------------------------- cancelled everywhere


@pytest.mark.parametrize("cancels", [1, 2])
@pytest.mark.parametrize("seed", [None, 1, 2])
def test_a_call_cancelled_at_any_await_leaves_no_key_held_and_no_task_behind(cancels: int, seed: int | None) -> None:
    async def scenario(locks: Locks) -> None:
        async with locks.hold("k", wait=1):
            await asyncio.sleep(0.005)
        lease = await locks.acquire("k")
        await lease.release()
        async with await locks.acquire("k"):
            await asyncio.sleep(0.001)

    async def main(step: int) -> bool:
        world = World()
        for method in ("acquire", "release", "renew"):
            world.store.on(method).slow_request(0.001)
            world.store.on(method).slow_reply(0.001)
        locks = world.locks()
        async with locks:
            task = asyncio.get_running_loop().create_task(scenario(locks))
            await asyncio.sleep(step * 0.000_25)
            for _ in range(cancels):
                task.cancel()
                await asyncio.sleep(0.000_3)
            await asyncio.wait([task])
            finished = not task.cancelled()
            await asyncio.sleep(1.0)
            assert await world.holders() == []
            assert locks.statistics().held == 0
        await world.store.aclose()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return finished

    steps = 0
    while not run_virtual(functools.partial(main, steps), seed=seed):
        steps += 1
    assert steps > 40


@virtual
async def test_statistics_say_what_was_done() -> None:
    world = World()
    async with world.locks("a") as a, world.locks("b") as b:
        async with a.hold("k"):
            assert await b.try_acquire("k") is None
            assert a.statistics().held == a.statistics().guarded == 1
        assert (a.statistics().acquired, a.statistics().released, b.statistics().refused) == (1, 1, 1)
    acquired = next(event for event in world.events if isinstance(event, LeaseAcquired))
    assert (acquired.key, acquired.waited_s, acquired.after) == ("k", 0.0, None)
