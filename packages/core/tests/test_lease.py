"""The lease under slow, lost, hung and refused calls, a stalled loop and a suspend: rules R1 to R5."""

import asyncio
import contextlib
import os
import random
from collections.abc import Coroutine
from typing import Any

import pytest

from tenure import (
    InMemoryLockStore,
    LeaseLostError,
    LeaseStateError,
    Locks,
    LossReason,
    StoreTimeoutError,
    current_lease,
)
from tenure.events import LeaseLost, LeaseReleased, LeaseRenewedLate, ReleaseFailed, RenewalFailed
from tenure.testing import FaultyStore, LoopClock, ManualClock, run_virtual, virtual

TTL_S = 3.0
DEADLINE_S = TTL_S * 0.99


class World:
    """One instance on a store that can fail, on the loop's own (virtual) time."""

    def __init__(self, **options: Any) -> None:
        self.clock = LoopClock()
        self.inner = InMemoryLockStore(self.clock)
        self.store = FaultyStore(self.inner, clock=self.clock, without=options.pop("without", ()))
        self.events: list[Any] = []
        self.locks = Locks(self.store, ttl=TTL_S, instance="a", clock=self.clock, hooks=[self.events.append], **options)

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    async def holders(self) -> list[str]:
        return [record.key for record in await self.inner.list_locks()]


class NoJitter(random.Random):
    """Draws no difference: what was acquired together is due together, and nothing is early."""

    def random(self) -> float:
        return 0.0


def now() -> float:
    return asyncio.get_running_loop().time()


@virtual
async def test_a_held_lease_is_renewed_for_as_long_as_it_is_held() -> None:
    world = World()
    async with world.locks as locks:
        lease = await locks.acquire("k")
        await asyncio.sleep(100 * TTL_S)
        assert lease.held
        assert not lease.lost.is_set
        assert lease.lost.reason is None
        assert await world.holders() == ["k"]
        # One each third of a ttl, some of them a little early.
        assert 299 <= locks.statistics().renewals <= 340
        assert await lease.release()
        assert not lease.held
        assert await world.holders() == []
        sent = locks.statistics().renewals
        await asyncio.sleep(10 * TTL_S)
        assert locks.statistics().renewals == sent


@virtual
async def test_the_deadline_counts_from_the_sending_of_the_acquire_not_from_its_reply() -> None:
    world = World()
    async with world.locks as locks:
        world.store.on("acquire").slow_reply(2.0)
        sent_at = now()
        lease = await locks.acquire("k")
        world.store.on("renew").lose_request()
        assert now() == pytest.approx(sent_at + 2.0)
        await lease.lost.wait()
        assert now() == pytest.approx(sent_at + DEADLINE_S)
        assert lease.lost.reason is LossReason.EXPIRED


@virtual
async def test_a_slow_confirmation_moves_the_deadline_from_its_sending_only() -> None:
    world = World()
    async with world.locks as locks:
        lease = await locks.acquire("k")
        acquired_at = now()
        world.store.on("renew").slow_reply(1.5, times=1)
        await asyncio.sleep(1.01)
        world.store.on("renew").lose_request()
        await lease.lost.wait()
        assert now() == pytest.approx(acquired_at + 1.0 + DEADLINE_S)


@virtual
async def test_unknown_outcomes_move_nothing_and_are_tried_again_until_the_deadline() -> None:
    world = World()
    async with world.locks as locks:
        lease = await locks.acquire("k")
        acquired_at = now()
        world.store.on("renew").lose_reply()
        await lease.lost.wait()
        assert now() == pytest.approx(acquired_at + DEADLINE_S)
        assert lease.lost.reason is LossReason.EXPIRED
        assert len(world.of(RenewalFailed)) >= 4
        assert {event.error for event in world.of(RenewalFailed)} == {"FaultError"}


@virtual
async def test_a_store_that_comes_back_in_time_keeps_the_lease() -> None:
    world = World()
    async with world.locks as locks:
        lease = await locks.acquire("k")
        world.store.on("renew").lose_request()
        await asyncio.sleep(2.5)
        world.store.heal()
        await asyncio.sleep(10 * TTL_S)
        assert lease.held
        assert world.of(LeaseLost) == []


@virtual
async def test_a_refused_renewal_loses_the_lease_at_once() -> None:
    world = World()
    async with world.locks as locks:
        lease = await locks.acquire("k")
        acquired_at = now()
        world.store.on("renew").refuse()
        assert await lease.lost.wait() is LossReason.REFUSED
        assert now() == pytest.approx(acquired_at + 1.0)
        assert not lease.held
        with pytest.raises(LeaseLostError, match="refused") as caught:
            lease.lost.raise_if_set()
        assert (caught.value.key, caught.value.token) == ("k", lease.token)


@virtual
async def test_a_hung_renewal_never_delays_the_loss() -> None:
    world = World()
    async with world.locks as locks:
        lease = await locks.acquire("k")
        acquired_at = now()
        world.store.on("renew").hang(ignore_cancellation=60)
        await lease.lost.wait()
        assert now() == pytest.approx(acquired_at + DEADLINE_S)
        assert world.store.calls["renew"] == 2
    assert now() < acquired_at + DEADLINE_S + 5


@virtual
async def test_a_lost_lease_is_never_held_again() -> None:
    world = World()
    async with world.locks as locks:
        lease = await locks.acquire("k")
        # Executed in time at the store, confirmed after the deadline here: too late.
        world.store.on("renew").slow_reply(5.0)
        await asyncio.sleep(DEADLINE_S + 0.001)
        assert not lease.held
        world.store.heal()
        for _ in range(50):
            await asyncio.sleep(0.2)
            assert not lease.held
            assert lease.lost.reason is LossReason.EXPIRED


@virtual
async def test_one_stuck_renewal_holds_up_no_other_lease() -> None:
    world = World(without=_grouping())
    async with world.locks as locks:
        leases = [await locks.acquire(f"k{number}") for number in range(50)]
        world.store.on("renew", key="k7").hang()
        await asyncio.sleep(20 * TTL_S)
        assert [lease.key for lease in leases if not lease.held] == ["k7"]


@virtual
async def test_leases_that_are_due_together_travel_in_one_call() -> None:
    world = World(rng=NoJitter())
    async with world.locks as locks:
        leases = [await locks.acquire(f"k{number}") for number in range(1200)]
        await asyncio.sleep(10.1 * TTL_S)
        assert all(lease.held for lease in leases)
        assert world.store.calls["renew"] == 0
        # 500 at most in a call, and three rounds a ttl.
        assert world.store.calls["renew_many"] <= 3 * 31
        assert len(asyncio.all_tasks()) == 1


@virtual
async def test_what_a_group_cannot_tell_is_asked_alone() -> None:
    world = World(rng=NoJitter())
    async with world.locks as locks:
        leases = [await locks.acquire(f"k{number}") for number in range(3)]
        world.store.on("renew_many").answer([True, None, True])
        await asyncio.sleep(5 * TTL_S)
        assert world.store.calls["renew"] >= 14
        assert leases[1].held


@pytest.mark.parametrize("reply", [None, 1, 0, "yes", [True], object()])
def test_a_reply_that_the_contract_does_not_allow_confirms_nothing(reply: object) -> None:
    async def main() -> None:
        world = World()
        async with world.locks as locks:
            lease = await locks.acquire("k")
            world.store.on("renew").answer(reply)
            assert await lease.lost.wait() is LossReason.EXPIRED
            assert {event.error for event in world.of(RenewalFailed)} == {"StoreReplyError"}

    run_virtual(main, within_s=600)


@pytest.mark.parametrize("reply", [None, True, [True], [True, 1], [True, True, True], "ab", {0: True, 1: True}])
def test_a_group_reply_that_the_contract_does_not_allow_confirms_nothing(reply: object) -> None:
    async def main() -> None:
        world = World(rng=NoJitter())
        async with world.locks as locks:
            first, second = await locks.acquire("k1"), await locks.acquire("k2")
            world.store.on("renew_many").answer(reply)
            await first.lost.wait()
            await second.lost.wait()
            assert {event.error for event in world.of(RenewalFailed)} == {"StoreReplyError"}

    run_virtual(main, within_s=600)


async def test_a_stalled_loop_is_told_of_before_the_next_line_runs() -> None:
    clock = ManualClock()
    store = InMemoryLockStore(clock)
    async with Locks(store, ttl=TTL_S, clock=clock, hooks=[]) as locks:
        lease = await locks.acquire("k")
        assert lease.held
        overdue = clock.stall(DEADLINE_S + 1)  # not awaited yet: time has passed, and nothing has run
        assert not lease.held
        assert lease.lost.reason is LossReason.STALLED
        with pytest.raises(LeaseLostError):
            lease.raise_unless_held()
        await overdue
        assert lease.lost.reason is LossReason.STALLED


async def test_a_stall_that_ends_in_time_is_reported_and_survived() -> None:
    clock = ManualClock()
    events: list[Any] = []
    async with Locks(InMemoryLockStore(clock), ttl=TTL_S, clock=clock, hooks=[events.append]) as locks:
        lease = await locks.acquire("k")
        await clock.stall(2.0)
        await clock.advance("1m")
        assert lease.held
        assert [event.late_s for event in events if isinstance(event, LeaseRenewedLate)] == [pytest.approx(1.0)]


async def test_after_a_fork_the_child_holds_nothing_and_says_so() -> None:
    clock = ManualClock()
    async with Locks(InMemoryLockStore(clock), ttl=TTL_S, clock=clock, hooks=[]) as locks:
        lease = await locks.acquire("k")
        pid = os.fork()
        if pid == 0:
            told = (
                not lease.held
                and lease.lost.reason is LossReason.FORKED
                and isinstance(await _error_of(locks.try_acquire("other")), LeaseStateError)
            )
            os._exit(0 if told else 1)
        _, status = await asyncio.to_thread(os.waitpid, pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert lease.held


async def _error_of(call: Coroutine[Any, Any, Any]) -> LeaseStateError | None:
    try:
        await call
    except LeaseStateError as error:
        return error
    return None


# ------------------------------------------------------------------------------------------------- hold


@virtual
async def test_hold_cancels_its_body_at_the_loss_and_raises_in_place_of_the_cancellation() -> None:
    world = World()
    reached = []
    async with world.locks as locks:
        with pytest.raises(LeaseLostError) as caught:
            async with locks.hold("k") as lease:
                world.store.on("renew").refuse()
                try:
                    await asyncio.sleep(60)
                    reached.append("end")
                finally:
                    await asyncio.sleep(0.5)
                    reached.append("cleanup")
        assert reached == ["cleanup"]
        assert caught.value.reason is LossReason.REFUSED
        assert lease.lost.is_set
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0


@virtual
async def test_a_body_that_swallows_its_cancellation_still_meets_the_loss() -> None:
    world = World()
    async with world.locks as locks:
        with pytest.raises(LeaseLostError):
            async with locks.hold("k"):
                world.store.on("renew").refuse()
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(60)
        await asyncio.sleep(0)


@virtual
async def test_a_body_that_ends_in_the_step_of_its_loss_leaves_no_cancellation_behind() -> None:
    world = World()
    async with world.locks as locks:
        with pytest.raises(LeaseLostError):
            async with locks.hold("k") as lease:
                await locks.acquirer.release(lease._kept, trusted=False)
                world.store.on("renew").refuse()
                # The scope cancels the task, and the body runs on to its end without another await.
                await lease.lost.wait()
        for _ in range(3):
            await asyncio.sleep(0.01)


@virtual
async def test_a_cancellation_from_outside_wins_over_a_loss_in_the_same_step() -> None:
    world = World()

    async def body() -> None:
        async with world.locks.hold("k") as lease:
            # Called right after the scope has heard of the loss, and before the body runs again.
            lease._kept.watch(lambda _: task.cancel())
            world.store.on("renew").refuse()
            await asyncio.sleep(60)

    async with world.locks:
        task = asyncio.get_running_loop().create_task(body())
        await asyncio.wait([task])
        assert task.cancelled()
        assert len(world.of(LeaseLost)) == 1


@virtual
async def test_an_outer_timeout_that_comes_first_is_a_timeout() -> None:
    world = World()
    async with world.locks as locks:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                async with locks.hold("k"):
                    await asyncio.sleep(60)
        assert await world.holders() == []


@virtual
async def test_the_bodys_own_exception_goes_out_as_it_is() -> None:
    world = World()
    async with world.locks as locks:
        world.store.on("release").lose_reply(times=1)
        with pytest.raises(ZeroDivisionError):
            async with locks.hold("k"):
                raise ZeroDivisionError
        assert [event.error for event in world.of(ReleaseFailed)] == ["FaultError"]


@virtual
async def test_max_hold_caps_the_whole_hold_and_frees_the_key_after_the_body_has_ended() -> None:
    world = World()
    async with world.locks as locks:
        started_at = now()
        with pytest.raises(LeaseLostError, match="max_hold"):
            async with locks.hold("k", max_hold=7):
                try:
                    await asyncio.sleep(60)
                finally:
                    assert await world.holders() == ["k"]
        assert now() == pytest.approx(started_at + 7)
        assert await world.holders() == []


@virtual
async def test_a_loss_that_only_the_release_finds_is_raised() -> None:
    world = World()
    async with world.locks as locks:
        with pytest.raises(LeaseLostError) as caught:
            async with locks.hold("k"):
                world.store.on("release").refuse(times=1)
        assert caught.value.reason is LossReason.REFUSED


@virtual
async def test_a_hung_release_does_not_hold_its_caller_for_longer_than_a_third_of_the_ttl() -> None:
    world = World()
    async with world.locks as locks:
        world.store.on("release").hang(ignore_cancellation=60)
        async with locks.hold("k"):
            ended_at = now()
        assert now() == pytest.approx(ended_at + TTL_S / 3)
        lease = await locks.acquire("other")
        with pytest.raises(StoreTimeoutError, match="release"):
            await lease.release()
        world.store.heal()


@virtual
async def test_after_a_loss_nobody_waits_for_the_release() -> None:
    world = World()
    async with world.locks as locks:
        with pytest.raises(LeaseLostError):
            async with locks.hold("k"):
                world.store.on("*").hang()
                lost_at = now() + DEADLINE_S
                await asyncio.sleep(60)
        assert now() == pytest.approx(lost_at)
        world.store.heal()


@virtual
async def test_a_release_is_sent_and_waited_for_however_often_its_caller_is_cancelled() -> None:
    world = World()

    async def body() -> None:
        async with world.locks.hold("k"):
            await asyncio.sleep(60)

    async with world.locks:
        world.store.on("release").slow_request(0.5)
        task = asyncio.get_running_loop().create_task(body())
        await asyncio.sleep(0.1)
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0.1)
            assert not task.done()
        await asyncio.wait([task])
        assert task.cancelled()
        assert await world.holders() == []
        assert len(world.of(LeaseReleased)) == 1


@virtual
async def test_a_second_release_says_no_and_sends_nothing() -> None:
    world = World()
    async with world.locks as locks:
        lease = await locks.acquire("k")
        assert await lease.release()
        sent = world.store.calls["release"]
        assert not await lease.release()
        assert world.store.calls["release"] == sent
        assert await lease.lost.wait() is None
        with pytest.raises(LeaseStateError, match="given back"):
            lease.raise_unless_held()


@virtual
async def test_a_lost_lease_that_is_released_frees_the_key_in_the_background() -> None:
    world = World()
    async with world.locks as locks:
        lease = await locks.acquire("k", ttl=30)
        world.store.on("renew").lose_request()
        await lease.lost.wait()
        assert await world.holders() == ["k"]
        assert not await lease.release()
        await asyncio.sleep(0.01)
        assert await world.holders() == []


# ---------------------------------------------------------------------------------------- current_lease


@virtual
async def test_the_guarded_code_and_its_tasks_find_the_innermost_lease() -> None:
    world = World()
    async with world.locks as locks:
        assert current_lease() is None
        async with locks.hold("outer") as outer:
            assert current_lease() is outer
            async with await locks.acquire("inner") as inner:
                assert current_lease() is inner
                found = await asyncio.get_running_loop().create_task(_find())
                assert found is inner
            assert current_lease() is outer
            assert not inner.held
        assert current_lease() is None


async def _find() -> Any:
    return current_lease()


@virtual
async def test_in_a_task_that_outlives_its_guard_the_lease_reads_as_ended() -> None:
    world = World()

    async def outlives() -> bool:
        await asyncio.sleep(1)
        lease = current_lease()
        assert lease is not None
        return lease.held

    async with world.locks as locks:
        async with locks.hold("k"):
            task = asyncio.get_running_loop().create_task(outlives())
        assert await task is False


@virtual
async def test_a_lease_that_is_lost_cannot_be_entered() -> None:
    world = World()
    async with world.locks as locks:
        lease = await locks.acquire("k")
        world.store.on("renew").refuse()
        await lease.lost.wait()
        with pytest.raises(LeaseLostError):
            async with lease:
                pass


@virtual
async def test_no_repr_holds_an_owner() -> None:
    world = World()
    async with world.locks as locks:
        lease = await locks.acquire("k")
        owner = (await world.inner.list_locks())[0].owner
        for shown in (repr(lease), repr(lease.lost), repr(locks), repr(lease._kept.claim), repr(world.events)):
            assert owner not in shown
            assert owner.rpartition(":")[2] not in shown
        assert "held" in repr(lease)
        world.store.on("renew").refuse()
        await lease.lost.wait()
        assert "refused" in repr(lease)
        assert "refused" in repr(lease.lost)


def _grouping() -> tuple[type, ...]:
    from tenure.store import RenewsMany

    return (RenewsMany,)
