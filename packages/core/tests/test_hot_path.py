"""What a call through `Locks` does without, and what it may not do without for that."""

import asyncio
import gc
import logging
import os
import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from tenure import InMemoryLockStore, Locks, StoreTimeoutError, _acquirer
from tenure._keeper import Keeper
from tenure.clock import Alarm
from tenure.events import AcquireRefused, Event, LeaseAcquired, LeaseReleased
from tenure.instrumentation import LoggingHook, hears_of
from tenure.testing import FaultyStore, LoopClock, ManualClock, virtual


class Deaf:
    """A hook that wants to hear of releases only."""

    def __init__(self) -> None:
        self.heard: list[Event] = []

    def hears(self, kind: type[Event]) -> bool:
        return kind is LeaseReleased

    def __call__(self, event: Event, /) -> None:
        self.heard.append(event)


@virtual
async def test_an_event_that_no_hook_hears_of_is_counted_all_the_same() -> None:
    hook = Deaf()
    store = InMemoryLockStore(LoopClock())
    async with Locks(store, clock=LoopClock(), hooks=[hook]) as locks:
        await store.acquire("k", "other:1", 60_000)
        assert await locks.try_acquire("k") is None
        lease = await locks.acquire("free")
        await lease.release()
        told = locks.statistics()
    assert (told.acquired, told.refused, told.released) == (1, 1, 1)
    kinds = {type(event) for event in hook.heard}
    assert LeaseReleased in kinds
    assert kinds.isdisjoint({LeaseAcquired, AcquireRefused})


@virtual
async def test_a_hook_that_does_not_say_hears_of_everything_beside_one_that_does() -> None:
    heard: list[type] = []
    async with Locks(
        InMemoryLockStore(LoopClock()), clock=LoopClock(), hooks=[Deaf(), lambda event: heard.append(type(event))]
    ) as locks:
        await (await locks.acquire("k")).release()
    assert {LeaseAcquired, LeaseReleased} <= set(heard)


def test_the_log_hears_of_what_its_logger_lets_through_now() -> None:
    logger = logging.getLogger("tenure.test_hot_path")
    hears = hears_of(LoggingHook(logger))
    logger.setLevel(logging.INFO)
    assert not hears(LeaseAcquired)
    logger.setLevel(logging.DEBUG)
    assert hears(LeaseAcquired)


def test_owners_are_drawn_from_the_kernel_and_a_child_draws_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = {_acquirer.draw_owner("shop-1") for _ in range(1000)}
    assert len(drawn) == 1000
    assert all(re.fullmatch(r"shop-1:[0-9a-f]{32}", owner) for owner in drawn)
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python 3.12 warns of a fork beside threads, which a test runner may have
        child = os.fork()
    if child == 0:
        os.write(writer, _acquirer.draw_owner("shop-1").encode())
        os._exit(0)
    os.waitpid(child, 0)
    childs = os.read(reader, 100).decode()
    os.close(reader)
    os.close(writer)
    assert re.fullmatch(r"shop-1:[0-9a-f]{32}", childs)
    assert childs not in drawn | {_acquirer.draw_owner("shop-1") for _ in range(1000)}
    asked: list[int] = []
    monkeypatch.setattr(os, "urandom", lambda octets: asked.append(octets) or b"\xab" * octets)
    assert _acquirer.draw_owner("shop-1") == "shop-1:" + "ab" * 16
    assert asked == [16]


# ----------------------------------------------------------------------------------------- calls


def keeper_on(clock: Any) -> Keeper:
    import random

    return Keeper(clock, lambda _: None, random.Random(1))


@virtual
async def test_a_call_that_is_cancelled_before_it_began_leaves_nothing_unawaited_and_nobody_waiting() -> None:
    keeper = keeper_on(LoopClock())

    async def never() -> None:
        raise AssertionError("it was cancelled before")

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        asked = keeper.ask("acquire", never(), now=0.0, timeout_s=1e9)
        asked.task.cancel()
        await asked.over
        assert asked.task.cancelled()
        gc.collect()
    assert [str(warning.message) for warning in said] == []
    await keeper.close()


@virtual
async def test_calls_of_many_bounds_are_each_given_up_at_their_own() -> None:
    """One timer stands for all of them."""
    clock = LoopClock()
    keeper = keeper_on(clock)
    start, ends = clock.now(), dict[float, float]()

    async def ask(bound_s: float) -> None:
        hung: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with pytest.raises(StoreTimeoutError):
            await keeper.call("acquire", hung, timeout_s=bound_s)
        ends[bound_s] = clock.now() - start

    async with asyncio.TaskGroup() as group:
        for bound_s in (5.0, 1.0, 3.0, 2.0, 4.0, 0.5):
            group.create_task(ask(bound_s))
    assert ends == pytest.approx({bound_s: bound_s for bound_s in ends})
    await keeper.close()


async def test_a_bound_is_kept_on_a_clock_that_a_test_moves() -> None:
    clock = ManualClock()
    keeper = keeper_on(clock)

    async def quick() -> str:
        return "answered"

    for _ in range(100):
        assert await keeper.call("acquire", quick(), timeout_s=10) == "answered"
    assert clock.timers == 1
    await keeper.close()
    assert clock.timers == 0


def test_an_alarm_is_set_to_earlier_moments_only_and_goes_off_once() -> None:
    class Timer:
        cancelled = False

        def cancel(self) -> None:
            self.cancelled = True

    class Clock:
        def __init__(self) -> None:
            self.set: list[tuple[float, Callable[[], None], Timer]] = []

        def now(self) -> float:
            return 0.0

        def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
            self.set.append((when, callback, Timer()))
            return self.set[-1][2]

    clock, rang = Clock(), list[float]()
    alarm = Alarm(clock, lambda: rang.append(alarm.at))
    for when in (5.0, 7.0, 3.0, 4.0, float("inf")):
        alarm.set(when)
    assert [when for when, _, _ in clock.set] == [5.0, 3.0]
    assert clock.set[0][2].cancelled
    clock.set[1][1]()
    assert rang == [float("inf")], "it may be set again from its callback"
    alarm.set(9.0)
    alarm.call_off()
    assert clock.set[-1][2].cancelled
    assert alarm.at == float("inf")


# --------------------------------------------------------------------------------------- release


@virtual
async def test_a_release_whose_caller_is_cancelled_again_and_again_is_reported_once_it_has_ended() -> None:
    store = FaultyStore(InMemoryLockStore(LoopClock()), clock=LoopClock())
    heard: list[Event] = []
    async with Locks(store, ttl=30, clock=LoopClock(), hooks=[heard.append]) as locks:
        lease = await locks.acquire("k")
        store.on("release").slow_reply(2.0)
        releasing = asyncio.create_task(lease.release())
        for _ in range(3):
            await asyncio.sleep(0.5)
            releasing.cancel()
        assert not releasing.done()
        with pytest.raises(asyncio.CancelledError):
            await releasing
        assert [event for event in heard if isinstance(event, LeaseReleased)]
        assert not locks._keeper._others()


@virtual
async def test_the_task_that_took_a_lease_is_not_kept_alive_by_it() -> None:
    import weakref

    async with Locks(InMemoryLockStore(LoopClock()), clock=LoopClock()) as locks:
        task = asyncio.create_task(locks.acquire("k"))
        taker = weakref.ref(task)
        lease = await task
        del task
        await asyncio.sleep(0)
        gc.collect()
        assert taker() is None
        assert lease.held


@virtual
async def test_a_lease_that_ended_is_freed_without_the_collector() -> None:
    import weakref

    async with Locks(InMemoryLockStore(LoopClock()), clock=LoopClock()) as locks:
        gc.collect()
        gc.disable()
        try:
            lease = await locks.acquire("k")
            assert not lease.lost.is_set
            await lease.release()
            gone = weakref.ref(lease)
            del lease
            await asyncio.sleep(0)
            assert gone() is None
        finally:
            gc.enable()
