"""The corners of the engine: what happens when two things happen at once."""

import asyncio
import os
import random
from collections.abc import Callable
from typing import Any

import pytest

from tenure import Held, InMemoryLockStore, LeaseLostError, LeaseStateError, Locks, LossReason, _kept
from tenure._lease_machine import LeaseEvent
from tenure.events import LeaseLost, LeaseReleased
from tenure.store import QueuesWaiters
from tenure.testing import FaultyStore, LoopClock, virtual

TTL_S = 3.0


class JumpingClock:
    """The loop's time, and jumps in it that no timer noticed: the process stood still."""

    def __init__(self) -> None:
        self._loop = LoopClock()
        self.jumped_s = 0.0

    def now(self) -> float:
        return self._loop.now() + self.jumped_s

    def call_at(self, when: float, callback: Callable[[], None]) -> Any:
        return self._loop.call_at(when - self.jumped_s, callback)


class NoJitter(random.Random):
    """Renewals go out to the moment, and retries as soon as they may."""

    def random(self) -> float:
        return 0.0


class World:
    def __init__(self, **options: Any) -> None:
        self.clock = JumpingClock()
        self.inner = InMemoryLockStore(LoopClock())
        self.store = FaultyStore(self.inner, clock=LoopClock(), without=options.pop("without", ()))
        self.events: list[Any] = []
        self.locks = Locks(self.store, ttl=TTL_S, clock=self.clock, hooks=[self.events.append], **options)

    def losses(self) -> list[LossReason]:
        return [event.reason for event in self.events if isinstance(event, LeaseLost)]


@virtual
async def test_a_failure_that_is_heard_after_a_standstill_is_a_loss_and_not_one_more_try() -> None:
    world = World()
    async with world.locks as locks:
        lease = await locks.acquire("k")

        def stand_still() -> Exception:
            world.clock.jumped_s += 10
            return ConnectionError()

        world.store.on("renew").fail(stand_still, times=1)
        assert await lease.lost.wait() is LossReason.STALLED
        assert world.store.calls["renew"] == 1


@virtual
async def test_a_retry_that_would_come_after_the_deadline_is_not_sent_beside_a_call_under_way() -> None:
    world = World(rng=NoJitter())
    async with world.locks as locks:
        lease = await locks.acquire("k")
        world.store.on("renew").hang(times=1)
        world.store.on("renew").slow_request(0.965)
        world.store.on("renew").lose_request()
        assert await lease.lost.wait() is LossReason.EXPIRED
        assert world.store.calls["renew"] == 2
        world.store.heal()


@virtual
async def test_a_child_of_the_process_reads_the_lease_as_forked() -> None:
    world = World()
    async with world.locks as locks:
        lease = await locks.acquire("k")
        ours, lease._kept._pid = lease._kept._pid, -1
        assert not lease.held
        assert lease.lost.reason is LossReason.FORKED
        lease._kept._pid = ours
        assert lease.held


@virtual
async def test_an_abandoned_call_that_was_told_held_is_followed_by_no_release() -> None:
    world = World()
    async with world.locks as locks:
        await world.inner.acquire("k", "other:1", 60_000)
        world.store.on("acquire").slow_reply(0.5)
        sent = world.store.calls["release"]
        asking = asyncio.get_running_loop().create_task(locks.try_acquire("k"))
        await asyncio.sleep(0.1)
        asking.cancel()
        await asyncio.sleep(1)
        assert asking.cancelled()
        assert world.store.calls["release"] == sent


@virtual
async def test_a_waiter_that_is_told_nothing_of_the_time_left_polls() -> None:
    world = World(without=(QueuesWaiters,))
    async with world.locks as locks:
        world.store.on("acquire").answer(Held(None), times=3)
        lease = await locks.acquire("k", wait=10)
        assert lease.held
        assert world.store.calls["acquire"] == 4


@virtual
async def test_a_key_that_the_store_lost_can_be_taken_again_and_the_first_lease_is_refused() -> None:
    world = World()
    async with world.locks as locks:
        first = await locks.acquire("k")
        world.inner._rows.clear()
        second = await asyncio.get_running_loop().create_task(locks.acquire("k"))
        assert await first.lost.wait() is LossReason.REFUSED
        assert second.held
        # The loss of the first did not make this forget the second.
        third = asyncio.get_running_loop().create_task(_hold_twice(locks))
        with pytest.raises(LeaseStateError, match="holds 'other' already"):
            await third


async def _hold_twice(locks: Locks) -> None:
    async with locks.hold("other"), locks.hold("other"):
        pass


@virtual
async def test_a_lease_that_ended_is_not_left_to_expire_a_second_time() -> None:
    world = World()
    async with world.locks as locks:
        lease = await locks.acquire("k")
        await lease.release()
        sent = world.store.calls["renew"]
        await locks.acquirer.let_expire(lease, 1.0)
        assert world.store.calls["renew"] == sent


class AnswersWithFutures(InMemoryLockStore):
    """A store whose methods are no coroutines."""

    def renew(self, key: str, owner: str, ttl_ms: int) -> Any:  # type: ignore[override]
        del key, owner, ttl_ms
        answered = asyncio.get_running_loop().create_future()
        answered.set_result(True)
        return answered


@virtual
async def test_a_store_may_answer_with_a_future() -> None:
    clock = LoopClock()
    async with Locks(AnswersWithFutures(clock), ttl=TTL_S, clock=clock, hooks=[]) as locks:
        lease = await locks.acquire("a")
        await asyncio.sleep(2 * TTL_S)
        assert lease.held


@virtual
async def test_a_body_is_cut_short_once() -> None:
    world = World()
    async with world.locks as locks:
        with pytest.raises((LeaseLostError, asyncio.CancelledError)):
            async with locks.hold("k"):
                (scope,) = locks._guards
                scope.cut_short()
                scope.cut_short()
                await asyncio.sleep(1)
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0


def test_this_process_is_known_again_after_a_fork() -> None:
    _kept._be_another_process()
    assert _kept.this_process() == os.getpid()


@virtual
async def test_a_lease_that_is_left_to_expire_does_so_in_time_though_a_renewal_was_under_way() -> None:
    """It would reach the store after the shorter ttl, and give the lock its whole ttl again."""
    world = World()
    async with world.locks as locks:
        lease = await locks.acquire("k")
        for method in ("renew", "renew_many"):
            world.store.on(method).slow_request(0.5, times=1)
        while not lease._kept.attempts:
            await asyncio.sleep(0.05)
        leaving = asyncio.create_task(locks.acquirer.let_expire(lease, 0.25))
        await asyncio.sleep(0)
        assert [event for event in world.events if isinstance(event, LeaseReleased)], (
            "it is told before it is waited for"
        )
        await leaving
        await asyncio.sleep(0.3)
        assert await world.store.list_locks() == []


# ------------------------------------------------------------------------------------------------- scopes


@virtual
async def test_a_loss_in_the_bodys_last_step_leaves_no_cancellation_behind() -> None:
    world = World()
    async with world.locks as locks:
        with pytest.raises(LeaseLostError):
            async with locks.hold("k") as lease:
                locks._keeper.end(lease._kept, LeaseEvent.OVERDUE)  # the scope cancels; the body is at its end
        for _ in range(3):
            await asyncio.sleep(0.01)
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0


@virtual
async def test_a_loss_and_a_cancellation_from_outside_in_the_bodys_last_step_are_a_cancellation() -> None:
    world = World()

    async def body() -> None:
        async with world.locks.hold("k") as lease:
            world.locks._keeper.end(lease._kept, LeaseEvent.OVERDUE)
            task.cancel()

    async with world.locks:
        task = asyncio.get_running_loop().create_task(body())
        await asyncio.wait([task])
        assert task.cancelled()
        await asyncio.sleep(0.1)
        assert await world.inner.list_locks() == []


@virtual
async def test_an_exception_of_the_bodys_own_goes_out_although_the_lease_was_lost() -> None:
    world = World()
    async with world.locks as locks:
        with pytest.raises(ZeroDivisionError):
            async with locks.hold("k"):
                world.store.on("renew").refuse()
                try:
                    await asyncio.sleep(60)
                finally:
                    raise ZeroDivisionError
        await asyncio.sleep(0.1)
        assert world.losses() == [LossReason.REFUSED]


@virtual
async def test_closing_does_not_cancel_a_body_again_that_is_cleaning_up_after_a_loss() -> None:
    world = World(drain=0)
    cleaned: list[bool] = []

    async def body() -> None:
        async with world.locks.hold("k"):
            try:
                await asyncio.sleep(60)
            finally:
                await asyncio.sleep(0.5)
                cleaned.append(True)

    await world.locks.__aenter__()
    task = asyncio.get_running_loop().create_task(body())
    await asyncio.sleep(0.1)
    world.store.on("renew").refuse()
    await asyncio.sleep(1.1)
    await world.locks.close()
    with pytest.raises(LeaseLostError, match="refused"):
        await task
    assert cleaned == [True]


@virtual
async def test_a_guard_outside_of_any_task_is_refused() -> None:
    world = World()
    async with world.locks as locks:
        lease = await locks.acquire("k")
        told: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()

        def outside() -> None:
            try:
                locks.lead_guard(lease).__aenter__().send(None)
            except LeaseStateError as error:
                told.set_result(error)

        asyncio.get_running_loop().call_soon(outside)
        assert "guards a task" in str(await told)


@virtual
async def test_a_deadline_is_never_gathered_with_the_renewal_of_another_lease() -> None:
    world = World()
    async with world.locks as locks:
        started_at = locks.clock.now()
        doomed = await locks.acquire("doomed")
        world.store.on("renew", key="doomed").hang()
        await asyncio.sleep(1.95)
        other = await locks.acquire("other")  # due 20 ms before the other's deadline: within a hundredth of a ttl
        await asyncio.sleep(1.01)
        assert doomed.held
        await doomed.lost.wait()
        assert locks.clock.now() == pytest.approx(started_at + TTL_S * 0.99)
        assert other.held
        world.store.heal()
