"""Waiting for a key: one line a process whose head alone asks, and its place in the queue of a store that keeps one."""

import asyncio
import functools
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tenure import (
    Held,
    InMemoryLockStore,
    Lease,
    LeaseStateError,
    LockNotAcquiredError,
    Locks,
    StoreReplyError,
    StoreTimeoutError,
)
from tenure._acquirer.line import Lines
from tenure.store import Acquired, QueuesWaiters, WakesWaiters
from tenure.testing import FaultyStore, LoopClock, ManualClock, run_virtual, virtual
from tenure.testing.errors import FaultError

TTL_S = 3.0
MARGIN = 0.01
PAUSE_S = 1.0
"""The longest pause of a waiter: a third of the ttl, and a second at most."""


class World:
    """Instances on a store that can fail, on the loop's own (virtual) time."""

    def __init__(self, *, without: tuple[type, ...] = ()) -> None:
        self.clock = LoopClock()
        self.inner = InMemoryLockStore(self.clock)
        self.store = FaultyStore(self.inner, clock=self.clock, without=without)

    def locks(self, instance: str = "a", **options: Any) -> Locks:
        return Locks(self.store, instance=instance, clock=self.clock, hooks=[], **{"ttl": TTL_S, **options})

    @property
    def asked(self) -> int:
        return self.store.calls["acquire"] + self.store.calls["acquire_queued"]

    def placed(self, key: str = "k") -> list[str]:
        """The instances in the queue of a key."""
        return [owner.partition(":")[0] for owner in self.inner._queues.get(key, {})]


def polling() -> World:
    """A store that neither queues nor wakes."""
    return World(without=(QueuesWaiters, WakesWaiters))


def waking() -> World:
    """A store that wakes who waits, and keeps no queue."""
    return World(without=(QueuesWaiters,))


def now() -> float:
    return asyncio.get_running_loop().time()


def start(work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
    return asyncio.get_running_loop().create_task(work)


async def turns(count: int = 20) -> None:
    """Let everything run that can at this moment."""
    for _ in range(count):
        await asyncio.sleep(0)


def in_each(*values: Any) -> Callable[[Callable[[Any], Coroutine[Any, Any, None]]], Callable[[Any], None]]:
    """Run an async test on virtual time, once with each of *values*."""

    def decorate(test: Callable[[Any], Coroutine[Any, Any, None]]) -> Callable[[Any], None]:
        @pytest.mark.parametrize("value", values)
        @functools.wraps(test)
        def run(value: Any) -> None:
            run_virtual(lambda: test(value), within_s=3600)

        # Left by wraps: pytest would look at the arguments, and at the loop, of what is wrapped.
        del run.__wrapped__
        each: Callable[[Any], None] = run
        return each

    return decorate


# --------------------------------------------------------------------------------------------- the line


@in_each(World, waking, polling)
async def test_those_of_one_process_are_served_in_the_order_in_which_they_came(world_of: Callable[[], World]) -> None:
    world, order = world_of(), []
    async with world.locks() as locks:

        async def work(number: int) -> None:
            async with locks.hold("k", wait=1000):
                order.append(number)
                await asyncio.sleep(0.1)

        working = []
        for number in range(12):
            working.append(start(work(number)))
            await asyncio.sleep(0.001)
        await asyncio.gather(*working)
    assert order == list(range(12))


@in_each(World, waking, polling)
async def test_only_the_head_of_a_line_asks(world_of: Callable[[], World]) -> None:
    world = world_of()
    await world.inner.acquire("k", "other:1", 1_000_000)
    async with world.locks() as locks:
        first = start(locks.acquire("k", wait=60))
        await asyncio.sleep(10)
        alone = world.asked
        others = [start(locks.acquire("k", wait=60)) for _ in range(50)]
        await asyncio.sleep(10)
        # One that is alone asks as often: but for the short pauses at first, and jitter.
        assert world.asked - alone <= alone + 5
        assert locks.statistics().waiting == 51
        for task in (first, *others):
            task.cancel()
        await asyncio.wait([first, *others])
        assert locks.statistics().waiting == 0
        assert len(locks.acquirer.lines) == 0


@virtual
async def test_lines_of_different_keys_know_nothing_of_each_other() -> None:
    world = World()
    await world.inner.acquire("k", "other:1", 1_000_000)
    async with world.locks() as locks:
        waiting = start(locks.acquire("k", wait=60))
        await asyncio.sleep(1)
        before = now()
        async with locks.hold("another", wait=60):
            assert now() == before
        waiting.cancel()


@virtual
async def test_one_behind_whose_time_is_up_leaves_without_a_call() -> None:
    world = World()
    await world.inner.acquire("k", "other:1", 1_000_000)
    async with world.locks() as locks:
        head = start(locks.acquire("k", wait=60))
        await turns()
        asked, began = world.asked, now()
        with pytest.raises(LockNotAcquiredError) as caught:
            await locks.acquire("k", wait=0.25)
        assert now() == pytest.approx(began + 0.25)
        assert caught.value.waited_s == pytest.approx(0.25)
        assert world.asked == asked
        head.cancel()


@virtual
async def test_who_only_tries_joins_no_line_and_is_told_by_the_store() -> None:
    world = World()
    await world.inner.acquire("k", "other:1", 1_000_000)
    async with world.locks() as locks:
        head = start(locks.acquire("k", wait=60))
        await turns()
        asked, began = world.asked, now()
        assert await locks.try_acquire("k") is None
        assert (world.asked, now()) == (asked + 1, began)
        # The release grants the lock to the waiter: a try in the same moment takes nothing from it.
        await world.inner.release("k", "other:1")
        assert await locks.try_acquire("k") is None
        assert (await head).held


@virtual
async def test_the_next_is_head_at_once_when_the_head_is_cancelled_fails_or_gives_up() -> None:
    world = polling()
    await world.inner.acquire("k", "other:1", 1_000_000)
    async with world.locks() as locks:
        for leaves in ("cancelled", "failed", "up"):
            head = start(locks.acquire("k", wait=0.2 if leaves == "up" else 60))
            await turns()
            behind = start(locks.acquire("k", wait=60))
            await turns()
            asked = world.store.calls["acquire"]
            if leaves == "cancelled":
                head.cancel()
            elif leaves == "failed":
                world.store.on("acquire").lose_request(times=1)
            await asyncio.wait([head])
            error = None if head.cancelled() else head.exception()
            expected = {"cancelled": type(None), "failed": FaultError, "up": LockNotAcquiredError}[leaves]
            assert isinstance(error, expected)
            await turns()
            assert world.store.calls["acquire"] > asked
            assert not behind.done(), "an error of the head is its own"
            behind.cancel()
            await asyncio.wait([behind])


@virtual
async def test_one_that_is_cancelled_in_the_moment_of_its_turn_passes_it_on() -> None:
    world = World()
    async with world.locks() as locks:
        held = await locks.acquire("k", wait=1)
        first, second, third = (start(locks.acquire("k", wait=60)) for _ in range(3))
        await turns()
        first.cancel()
        # The turn is given in this turn of the loop; whose it is is cancelled before it can run.
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.wait([first, second])
        await held.release()
        assert (await third).held
        assert len(locks.acquirer.lines) == 0


@in_each(World, waking, polling)
async def test_each_in_a_line_keeps_its_own_ttl(world_of: Callable[[], World]) -> None:
    world = world_of()
    async with world.locks() as locks:
        held = await locks.acquire("k")
        waiting = [start(locks.acquire("k", wait=60, ttl=ttl)) for ttl in (5, 50)]
        await turns()
        for task, ttl_s in zip(waiting, (5, 50), strict=True):
            await held.release()
            held = await task
            (record,) = await world.inner.list_locks()
            assert record.expires_in_ms == pytest.approx(ttl_s * 1000, abs=1000)


@in_each(World, waking, polling)
async def test_closing_reaches_everybody_in_line(world_of: Callable[[], World]) -> None:
    world = world_of()
    await world.inner.acquire("k", "other:1", 1_000_000)
    locks = world.locks(drain=0.5)
    async with locks:
        waiting = [start(locks.acquire("k", wait=float("inf"))) for _ in range(5)]
        await turns()
        closed_at = now()
    done, _ = await asyncio.wait(waiting, timeout=10)
    assert now() <= closed_at + 2 * PAUSE_S
    assert len(done) == 5
    assert all(isinstance(task.exception(), LeaseStateError) for task in waiting)
    assert world.placed() == []


# -------------------------------------------------------------------------------------------- the queue


@virtual
async def test_a_key_that_is_free_is_taken_without_a_place() -> None:
    world = World()
    async with world.locks() as locks, locks.hold("k", wait=60):
        assert world.store.calls["acquire_queued"] == 0


@virtual
async def test_processes_take_turns_in_the_order_in_which_their_heads_came() -> None:
    world, order = World(), []
    async with world.locks("a") as a, world.locks("b") as b, world.locks("c") as c:

        async def work(name: str, locks: Locks) -> None:
            for _ in range(5):
                async with locks.hold("k", wait=1000):
                    order.append(name)
                    await asyncio.sleep(0.1)

        await asyncio.gather(work("a", a), work("b", b), work("c", c))
    assert order == ["a", "b", "c"] * 5


@virtual
async def test_a_grant_is_heard_in_the_moment_of_the_release() -> None:
    world = World()
    async with world.locks("a") as a, world.locks("b") as b:
        held = await a.acquire("k")
        waiting = start(b.acquire("k", wait=60))
        await asyncio.sleep(10.3)
        asked, released_at = world.asked, now()
        await held.release()
        lease = await waiting
        assert now() == released_at
        assert world.asked == asked
        assert (lease.after, lease.token > held.token) == ("released", True)
        await asyncio.sleep(10)
        assert lease.held


async def granted_late(world: World, locks: Locks) -> Lease:
    """Let a waiter hear of its grant just before it would ask again."""
    await world.inner.acquire("k", "other:1", 1_000_000)
    waiting = start(locks.acquire("k", wait=60))
    await world.store.called("acquire_queued", times=3)
    await asyncio.sleep(PAUSE_S * 0.49)
    await world.inner.release("k", "other:1")
    lease: Lease = await waiting
    return lease


@virtual
async def test_a_grant_is_believed_from_the_last_asking_that_was_answered() -> None:
    world = World()
    async with world.locks() as locks:
        world.store.on("renew").hang()
        world.store.on("renew_many").hang()
        lease = await granted_late(world, locks)
        granted_at = now()
        await lease.lost.wait()
        assert now() == pytest.approx(granted_at - PAUSE_S * 0.49 + TTL_S * (1 - MARGIN), abs=1e-6)


@virtual
async def test_a_lost_message_costs_one_poll() -> None:
    world = World()
    world.store.on("granted").hang()
    async with world.locks("a") as a, world.locks("b") as b:
        held = await a.acquire("k")
        waiting = start(b.acquire("k", wait=60))
        await asyncio.sleep(5.0)
        await held.release()
        released_at = now()
        assert (await waiting).held
        assert now() <= released_at + PAUSE_S


@virtual
async def test_messages_that_fail_are_no_reason_to_ask_more_often() -> None:
    for world, method in ((World(), "granted"), (waking(), "released")):
        world.store.on(method).fail(ConnectionError("no messages"))
        await world.inner.acquire("k", "other:1", 1_000_000)
        async with world.locks() as locks:
            with pytest.raises(LockNotAcquiredError):
                await locks.acquire("k", wait=20)
        assert 20 <= world.asked <= 60


@virtual
async def test_a_queue_is_asked_a_second_at_most_apart_and_not_later_than_the_lock_ends() -> None:
    world = World()
    await world.inner.acquire("k", "dead:1", 2500)
    async with world.locks(ttl=60) as locks:
        began = now()
        lease = await locks.acquire("k", wait=60)
        assert lease.after == "expired"
        assert now() == pytest.approx(began + 2.5, abs=0.01)
        assert 4 <= world.asked <= 9


@in_each("cancelled", "time up", "error", "cancelled while it asks")
async def test_a_waiter_that_leaves_gives_its_place_back(how: str) -> None:
    world = World()
    await world.inner.acquire("k", "other:1", 1_000_000)
    async with world.locks() as locks:
        waiting = start(locks.acquire("k", wait=2 if how == "time up" else 60))
        await world.store.executed("acquire_queued", times=2)
        assert world.placed() == ["a"]
        if how == "cancelled":
            await asyncio.sleep(0.1)
            waiting.cancel()
        elif how == "error":
            world.store.on("acquire_queued").lose_reply(times=1)
        elif how == "cancelled while it asks":
            world.store.on("acquire_queued").slow_request(0.3, times=1)
            await world.store.called("acquire_queued", times=3)
            waiting.cancel()
        await asyncio.wait([waiting])
        await asyncio.sleep(1.5)
        assert world.placed() == []
        # Nobody has the key now but its holder, and after it nobody.
        await world.inner.release("k", "other:1")
        assert await world.inner.list_locks() == []


@virtual
async def test_a_grant_that_crosses_the_end_of_the_wait_is_given_back_or_taken() -> None:
    rng = random.Random(7)
    taken = 0
    for _ in range(60):
        world = World()
        world.store.on("acquire_queued").slow_reply(0.004)
        world.store.on("granted").slow_reply(0.004)
        await world.inner.acquire("k", "other:1", 1_000_000)
        async with world.locks() as locks:
            waiting = start(locks.acquire("k", wait=1.0))
            await asyncio.sleep(1.0 + rng.uniform(-0.01, 0.02))
            await world.inner.release("k", "other:1")
            await asyncio.wait([waiting])
            if waiting.exception() is None:
                taken += 1
                assert waiting.result().held
                await waiting.result().release()
            await asyncio.sleep(0.1)
            assert await world.inner.list_locks() == []
    assert 0 < taken < 60


@virtual
async def test_a_grant_in_the_moment_in_which_the_time_is_up_is_taken() -> None:
    world = World()
    await world.inner.acquire("k", "other:1", 1_000_000)
    async with world.locks() as locks:
        waiting = start(locks.acquire("k", wait=1.0))
        # The last look is sent between 0.5 and 1.0 s; its answer, "held", arrives after the release.
        world.store.on("acquire_queued", after=1).slow_reply(0.7)
        await asyncio.sleep(1.1)
        await world.inner.release("k", "other:1")
        assert (await waiting).held


@virtual
async def test_the_message_of_a_grant_that_has_expired_meanwhile_is_not_believed() -> None:
    world = World()
    clock, inner, store = world.clock, world.inner, world.store
    async with world.locks(store_timeout=TTL_S) as locks:
        await inner.acquire("k", "first:1", 1_000_000)
        store.on("granted").slow_reply(TTL_S * 0.985, times=1)
        waiting = start(locks.acquire("k", wait=60))
        await store.executed("acquire_queued")
        # The process stands still: its next asking is under way for longer than a ttl, in which the lock is granted to
        # it, expires, and is somebody else's. All that it hears afterwards is a message of before.
        store.on("acquire_queued").slow_request(TTL_S * 0.98, times=1)
        await store.called("acquire_queued", times=2)
        await inner.release("k", "first:1")
        (granted,) = await inner.list_locks()
        await asyncio.sleep(TTL_S * 0.97)
        inner._rows["k"].expires_at = clock.now()
        await inner.acquire("k", "second:1", 1_000_000)
        await store.executed("acquire_queued", times=2)
        await store.executed("granted")
        await asyncio.sleep(TTL_S * 0.008)
        assert not waiting.done()
        (record,) = await inner.list_locks()
        assert (record.owner, record.token > granted.token) == ("second:1", True)
        await inner.release("k", "second:1")
        assert (await waiting).held


async def test_an_answer_of_the_queue_that_the_process_slept_through_is_no_grant() -> None:
    clock = ManualClock()
    store = FaultyStore(InMemoryLockStore(clock), clock=clock)
    async with Locks(store, ttl=TTL_S, clock=clock, hooks=[]) as locks:
        store.on("acquire").answer(Held(1), times=1)
        store.on("acquire_queued").slow_reply(0.5, times=1)
        taking = start(locks.acquire("k", wait=60))
        while not taking.done() and not store.calls["acquire_queued"]:
            await clock.advance(0.001)
        await store.executed("acquire_queued")
        await clock.stall(10)
        with pytest.raises(StoreTimeoutError):
            await taking
        await clock.settle()
        assert await store.list_locks() == []


async def test_a_turn_that_was_given_up_in_this_very_moment_goes_to_the_one_behind() -> None:
    lines = Lines(LoopClock())
    assert lines.begin("k")
    first, second = (start(lines.turn("k", float("inf"))) for _ in range(2))
    await turns(2)
    first.cancel()  # and has had no moment yet to leave the line
    lines.call_next("k")
    assert await second
    assert "k" in lines
    lines.call_next("k")
    assert "k" not in lines


@virtual
async def test_a_grant_with_a_token_that_is_none_is_an_error_and_is_given_back() -> None:
    world = World()
    await world.inner.acquire("k", "other:1", 1_000_000)
    world.store.on("granted").answer(Acquired(0))
    async with world.locks() as locks:
        waiting = start(locks.acquire("k", wait=60))
        await world.store.executed("acquire_queued")
        await world.inner.release("k", "other:1")
        with pytest.raises(StoreReplyError):
            await waiting
        await asyncio.sleep(0.1)
        assert await world.inner.list_locks() == []


@virtual
async def test_what_is_heard_and_is_no_grant_is_none() -> None:
    world = World()
    await world.inner.acquire("k", "other:1", 1_000_000)
    world.store.on("granted").answer(Held())
    async with world.locks() as locks:
        waiting = start(locks.acquire("k", wait=60))
        await world.store.executed("acquire_queued")
        await world.inner.release("k", "other:1")
        lease = await waiting  # found by asking
        assert lease.held
        assert world.asked <= 5
