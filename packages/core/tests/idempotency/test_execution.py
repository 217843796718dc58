"""Executions: kept alive while they run, told of a lost lock, settled once, and completed however the store fails."""

import asyncio

import pytest
from world import LOCK_S, World, begin, replayed

from tenure import LossReason, StoreReplyError, StoreTimeoutError
from tenure.events import (
    ExtensionFailed,
    IdempotencyOutcome,
)
from tenure.idempotency import (
    InFlightError,
    ResponseNotStoredError,
    Settled,
)
from tenure.testing import virtual

# ------------------------------------------------------------------------------------- heartbeat


@virtual
async def test_an_execution_of_ten_times_its_locks_life_is_never_taken_over() -> None:
    world = World()
    async with world.instance() as one, world.instance() as other:
        execution = await begin(one)
        for _ in range(100):
            await asyncio.sleep(LOCK_S / 10)
            with pytest.raises(InFlightError):
                await other.begin("k", "f")
        assert await execution.complete(b"done") is Settled.STORED
        assert await replayed(other) == b"done"
    assert world.lost() == []


@virtual
async def test_after_a_crash_the_key_is_usable_after_the_locks_life_and_the_next_one_knows() -> None:
    world = World()
    async with world.instance() as one, world.instance() as other:
        crashed = await begin(one)
        crashed._stop_extending()  # as a process that is gone
        with pytest.raises(InFlightError):
            await other.begin("k", "f")
        await asyncio.sleep(LOCK_S)
        second = await begin(other)
        assert second.context.attempt == 2
        assert await crashed.complete(b"late") is Settled.STALE
        assert await second.complete(b"second") is Settled.STORED
        assert await replayed(one) == b"second"
    assert IdempotencyOutcome.TAKEN_OVER in world.outcomes()
    assert IdempotencyOutcome.STALE in world.outcomes()


@virtual
async def test_extensions_that_fail_do_not_fail_the_request_and_are_reported() -> None:
    world = World()
    async with world.instance() as one:
        execution = await begin(one)
        world.store.on("extend").lose_request(times=2)
        await asyncio.sleep(LOCK_S)
        assert not execution.context.lost
        assert await execution.complete(b"done") is Settled.STORED
    failed = [event for event in world.events if isinstance(event, ExtensionFailed)]
    assert [(event.attempt, event.error) for event in failed] == [(1, "FaultError")] * 2
    assert all(event.record and "k" not in event.record[:1] for event in failed)


@virtual
async def test_a_store_that_is_away_for_longer_than_the_lock_lives_is_told_once_and_extended_again() -> None:
    world = World()
    async with world.instance() as one, world.instance(store=world.inner) as other:
        execution = await begin(one)
        world.store.down()
        await asyncio.sleep(2.5 * LOCK_S)
        assert execution.context.lost
        assert execution.context.lost_reason is LossReason.EXPIRED
        world.store.heal()
        await asyncio.sleep(LOCK_S / 2)
        # Nobody took it over meanwhile: its lock lives again, and a repeat does not run beside it.
        with pytest.raises(InFlightError):
            await other.begin("k", "f")
        assert await execution.complete(b"done") is Settled.STORED
    assert world.lost() == [LossReason.EXPIRED]


@virtual
async def test_an_execution_that_was_replaced_is_told_and_extends_no_more() -> None:
    world = World()
    async with world.instance() as one, world.instance(store=world.inner) as other:
        execution = await begin(one)
        world.store.on("extend").lose_request(times=50)
        await asyncio.sleep(LOCK_S)
        second = await begin(other)
        world.store.heal()
        await asyncio.sleep(LOCK_S)
        sent = world.store.calls["extend"]
        await asyncio.sleep(10 * LOCK_S)
        assert world.store.calls["extend"] == sent
        assert execution.context.lost
        assert await execution.complete(b"first") is Settled.STALE
        assert await second.complete(b"second") is Settled.STORED


@virtual
async def test_a_hung_execution_does_not_block_its_key_for_ever() -> None:
    world = World()
    async with world.instance(max_execution=10) as one, world.instance() as other:
        execution = await begin(one)
        await asyncio.sleep(10 + LOCK_S)
        assert execution.context.lost_reason is LossReason.MAX_HOLD
        assert (await begin(other)).context.attempt == 2
        assert await execution.complete(b"late") is Settled.STALE


@virtual
async def test_an_execution_ends_before_its_longest_time_without_a_word() -> None:
    world = World()
    async with world.instance() as one:
        execution = await begin(one, max_execution=10)
        await execution.complete(b"done")
        await asyncio.sleep(20)
    assert world.lost() == []


# -------------------------------------------------------------------------------------- settling


@virtual
async def test_an_execution_is_settled_once() -> None:
    world = World()
    async with world.instance() as one:
        execution = await begin(one)
        assert execution.settled is None
        assert await execution.complete(b"first") is Settled.STORED
        assert await execution.complete(b"second") is Settled.STORED
        assert await execution.leave_tombstone() is Settled.STORED
        assert not await execution.release()
        execution.abandon()
        assert execution.settled is Settled.STORED
        assert await replayed(one) == b"first"
        assert one.running == 0
        assert world.store.calls["complete"] == 1


@virtual
async def test_a_tombstone_tells_its_summary_and_never_runs_again() -> None:
    world = World()
    async with world.instance() as one:
        execution = await begin(one)
        assert await execution.leave_tombstone(b"201 /orders/7") is Settled.STORED
        with pytest.raises(ResponseNotStoredError) as told:
            await one.begin("k", "f")
        assert told.value.summary == b"201 /orders/7"
        assert "7" not in str(told.value)
    assert IdempotencyOutcome.TOMBSTONE in world.outcomes()


@virtual
async def test_a_completion_that_fails_answers_its_caller_and_is_stored_later() -> None:
    world = World()
    async with world.instance() as one, world.instance(store=world.inner) as other:
        execution = await begin(one)
        world.store.on("complete").lose_request()
        world.store.on("extend").slow_reply(0.01)
        assert await execution.complete(b"done") is Settled.PENDING
        assert one.running == 1
        for _ in range(20):
            await asyncio.sleep(LOCK_S / 2)
            with pytest.raises(InFlightError):
                await other.begin("k", "f")
        world.store.heal()
        await asyncio.sleep(6)
        assert execution.settled is Settled.STORED
        assert await replayed(other) == b"done"
        assert one.running == 0
    assert world.outcomes().count(IdempotencyOutcome.STORE_ERROR) == 1
    assert world.lost() == []


@virtual
async def test_a_completion_whose_reply_was_lost_is_repeated_and_its_first_bytes_stay() -> None:
    world = World()
    async with world.instance() as one:
        execution = await begin(one)
        world.store.on("complete").lose_reply(times=1)
        assert await execution.complete(b"done") is Settled.PENDING
        await asyncio.sleep(1)
        assert execution.settled is Settled.STORED
        assert await replayed(one) == b"done"
        assert world.store.executions["complete"] == 2


@virtual
async def test_a_store_that_hangs_holds_a_response_up_for_a_third_of_the_lock_at_most() -> None:
    world = World()
    async with world.instance(store_timeout=LOCK_S) as one:
        execution = await begin(one)
        world.store.on("complete").hang(times=1)
        before = world.clock.now()
        assert await execution.complete(b"done") is Settled.PENDING
        assert world.clock.now() - before <= LOCK_S / 3 + 0.01
        await asyncio.sleep(2)
        assert execution.settled is Settled.STORED
        world.store.heal()


@virtual
async def test_a_completion_is_given_up_at_its_deadline_and_the_key_becomes_usable() -> None:
    world = World()
    async with world.instance(completion_deadline=20) as one:
        execution = await begin(one)
        world.store.on("complete").lose_request()
        assert await execution.complete(b"done") is Settled.PENDING
        await asyncio.sleep(22 + LOCK_S)
        assert execution.settled is Settled.ABANDONED
        assert (await begin(one)).context.attempt == 2
        world.store.heal()
    assert world.outcomes().count(IdempotencyOutcome.ABANDONED) == 1


@virtual
async def test_a_late_completion_that_was_replaced_while_it_was_tried_again_is_stale() -> None:
    world = World()
    async with world.instance() as one, world.instance(store=world.inner) as other:
        execution = await begin(one)
        world.store.down()
        assert await execution.complete(b"first") is Settled.PENDING
        await asyncio.sleep(1.5 * LOCK_S)
        second = await begin(other)
        assert await second.complete(b"second") is Settled.STORED
        world.store.heal()
        await asyncio.sleep(6)
        assert execution.settled is Settled.STALE
        assert await replayed(other) == b"second"


@virtual
async def test_a_caller_that_is_cancelled_while_it_completes_still_completes() -> None:
    world = World()
    async with world.instance() as one:
        execution = await begin(one)
        world.store.on("complete").slow_reply(0.5, times=1)
        completing = asyncio.create_task(execution.complete(b"done"))
        await world.store.executed("complete")
        completing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await completing
        assert execution.settled is Settled.STORED
        assert await replayed(one) == b"done"


@virtual
async def test_a_completion_of_a_record_that_ended_is_gone() -> None:
    world = World()
    async with world.instance(grace="1s") as one:
        execution = await begin(one)
        execution._stop_extending()
        await asyncio.sleep(LOCK_S + 1)
        assert await execution.complete(b"late") is Settled.GONE
    assert IdempotencyOutcome.GONE in world.outcomes()


@virtual
async def test_a_release_that_fails_is_reported_and_the_lock_runs_out() -> None:
    world = World()
    async with world.instance() as one:
        execution = await begin(one)
        world.store.on("release").lose_request(times=1)
        assert not await execution.release()
        with pytest.raises(InFlightError):
            await one.begin("k", "f")
        await asyncio.sleep(LOCK_S)
        assert (await begin(one)).context.attempt == 2
    assert IdempotencyOutcome.STORE_ERROR in world.outcomes()


@virtual
async def test_the_release_of_an_execution_that_was_replaced_leaves_its_successor_alone() -> None:
    world = World()
    async with world.instance() as one:
        first = await begin(one)
        first._stop_extending()
        await asyncio.sleep(LOCK_S)
        second = await begin(one)
        assert not await first.release()
        assert await second.complete(b"second") is Settled.STORED


# ------------------------------------------------------------------------------------- beginning


@virtual
async def test_an_acquire_whose_reply_was_lost_is_asked_again_and_runs() -> None:
    world = World()
    async with world.instance() as one:
        world.store.on("acquire").lose_reply(times=1)
        execution = await begin(one)
        assert execution.context.attempt == 1
        assert world.store.executions["acquire"] == 2
        await execution.complete(b"done")


@virtual
async def test_an_acquire_that_fails_twice_fails_and_leaves_nothing_behind() -> None:
    world = World()
    async with world.instance() as one:
        world.store.on("acquire").lose_reply(times=2)
        with pytest.raises(ConnectionError):
            await one.begin("k", "f")
        await asyncio.sleep(0.1)
        assert (await begin(one)).context.attempt == 1
    assert IdempotencyOutcome.STORE_ERROR in world.outcomes()


@virtual
async def test_an_acquire_that_runs_long_after_it_was_given_up_blocks_nobody_for_longer_than_its_lock_lives() -> None:
    world = World()
    async with world.instance() as one:
        world.store.on("acquire").execute_late(after=1.5, times=1)
        with pytest.raises(StoreTimeoutError):
            await one.begin("k", "f")
        await asyncio.sleep(1)
        assert world.store.executions["acquire"] == 1
        with pytest.raises(InFlightError):
            await one.begin("k", "f")
        await asyncio.sleep(LOCK_S)
        await begin(one)


@virtual
async def test_a_grant_that_comes_after_the_time_is_over_is_released() -> None:
    world = World()
    async with world.instance() as one:
        world.store.on("acquire").slow_reply(1.5, times=1)
        with pytest.raises(StoreTimeoutError):
            await one.begin("k", "f")
        await asyncio.sleep(2)
        assert (await begin(one)).context.attempt == 1


@virtual
async def test_a_caller_that_is_cancelled_while_it_acquires_leaves_nothing_behind() -> None:
    world = World()
    async with world.instance() as one:
        world.store.on("acquire").slow_reply(0.5, times=1)
        beginning = asyncio.create_task(one.begin("k", "f"))
        await world.store.executed("acquire")
        beginning.cancel()
        with pytest.raises(asyncio.CancelledError):
            await beginning
        await asyncio.sleep(1)
        assert (await begin(one)).context.attempt == 1


@virtual
async def test_an_answer_that_the_contract_does_not_allow_never_lets_an_execution_begin() -> None:
    world = World()
    async with world.instance() as one:
        for reply in (True, None, ("acquired", 1)):
            world.store.on("acquire").answer(reply, times=1)
            with pytest.raises(StoreReplyError):
                await one.begin("k", "f")
            await asyncio.sleep(0.1)
        assert (await begin(one)).context.attempt == 1


@virtual
async def test_a_completion_that_answers_nonsense_is_tried_again() -> None:
    world = World()
    async with world.instance() as one:
        execution = await begin(one)
        world.store.on("complete").answer(True, times=1)
        assert await execution.complete(b"done") is Settled.PENDING
        await asyncio.sleep(1)
        assert execution.settled is Settled.STORED
