import asyncio
import math
from collections.abc import Sequence
from typing import Any

import pytest

from tenure.errors import ConfigurationError
from tenure.memory import InMemoryLockStore
from tenure.store import (
    Acquired,
    ChecksServer,
    Claim,
    Finding,
    Held,
    ListsLocks,
    QueuesWaiters,
    RenewsMany,
    WakesWaiters,
)
from tenure.testing import FaultError, FaultyStore, ManualClock

CAPABILITIES = (RenewsMany, ListsLocks, ChecksServer, WakesWaiters, QueuesWaiters)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> FaultyStore:
    return FaultyStore(InMemoryLockStore(clock), clock=clock)


def begun(clock: ManualClock, call: Any) -> "asyncio.Task[Any]":
    task = asyncio.create_task(call)
    clock.store_call_started(task)
    return task


class Checked:
    """A store that can check its server, and nothing else."""

    def __init__(self) -> None:
        self.inner = InMemoryLockStore()

    async def acquire(self, key: str, owner: str, ttl_ms: int) -> Acquired | Held:
        return await self.inner.acquire(key, owner, ttl_ms)

    async def renew(self, key: str, owner: str, ttl_ms: int) -> bool:
        return await self.inner.renew(key, owner, ttl_ms)

    async def release(self, key: str, owner: str) -> bool:
        return await self.inner.release(key, owner)

    async def check(self) -> Sequence[Finding]:
        return [Finding("code", False, "A message.", "A remedy.")]


def offered(store: object) -> set[type]:
    return {capability for capability in CAPABILITIES if isinstance(store, capability)}


# ------------------------------------------------------------------------------------------ the store


def test_it_has_the_capabilities_of_the_inner_store_and_no_others() -> None:
    assert offered(FaultyStore(InMemoryLockStore())) == offered(InMemoryLockStore())
    assert offered(FaultyStore(Checked())) == {ChecksServer}
    assert isinstance(FaultyStore(Checked()), FaultyStore)


def test_capabilities_can_be_hidden() -> None:
    assert offered(FaultyStore(InMemoryLockStore(), without=[RenewsMany])) == {ListsLocks, WakesWaiters, QueuesWaiters}


def test_a_faulty_store_can_be_wrapped_again_and_made_from_its_own_class() -> None:
    once = FaultyStore(InMemoryLockStore())
    assert offered(FaultyStore(once)) == offered(once)
    assert offered(type(once)(InMemoryLockStore())) == offered(once)
    assert type(FaultyStore(InMemoryLockStore())) is type(once)


def test_it_reaches_as_far_as_the_inner_store() -> None:
    assert FaultyStore(InMemoryLockStore()).reach == "process"
    assert FaultyStore(Checked()).reach == "cluster"
    assert repr(FaultyStore(Checked())) == "FaultyStore(Checked)"


async def test_without_faults_every_call_passes_through_and_is_counted(store: FaultyStore) -> None:
    assert isinstance(store, RenewsMany)
    assert isinstance(store, ListsLocks)
    granted = await store.acquire("k", "o", 1000)
    assert isinstance(granted, Acquired)
    assert await store.renew("k", "o", 1000) is True
    assert await store.renew_many([Claim("k", "o", 1000)]) == [True]
    assert [record.key for record in await store.list_locks("k")] == ["k"]
    assert await store.release("k", "o") is True
    assert store.calls == {"acquire": 1, "renew": 1, "renew_many": 1, "list_locks": 1, "release": 1}
    assert store.executions == store.calls
    assert store.fired == {}


async def test_check_and_released_pass_through_too(store: FaultyStore) -> None:
    checked = FaultyStore(Checked())
    assert isinstance(checked, ChecksServer)
    assert [finding.code for finding in await checked.check()] == ["code"]
    assert isinstance(store, WakesWaiters)
    await store.acquire("k", "o", 1000)
    waiter = asyncio.create_task(store.released("k"))
    await store.called("released")
    await store.release("k", "o")
    await waiter


# ------------------------------------------------------------------------------------------ the faults


async def test_a_lost_request_raises_and_executes_nothing(store: FaultyStore) -> None:
    store.on("acquire").lose_request(times=1)
    with pytest.raises(FaultError, match=r"request of acquire\(\) was lost"):
        await store.acquire("k", "a", 1000)
    assert store.executions["acquire"] == 0
    assert isinstance(await store.acquire("k", "b", 1000), Acquired)


async def test_a_lost_reply_raises_after_it_was_executed(store: FaultyStore) -> None:
    store.on("acquire").lose_reply(times=1)
    with pytest.raises(FaultError, match=r"reply of acquire\(\) was lost"):
        await store.acquire("k", "a", 1000)
    assert store.executions["acquire"] == 1
    assert isinstance(await store.acquire("k", "b", 1000), Held)
    assert isinstance(await store.acquire("k", "a", 1000), Acquired)


async def test_an_error_of_choice_is_raised(store: FaultyStore) -> None:
    error = TimeoutError("pool")
    store.on("renew").fail(error, times=1)
    store.on("release").fail(ValueError, times=1)
    with pytest.raises(TimeoutError) as raised:
        await store.renew("k", "o", 1000)
    assert raised.value is error
    with pytest.raises(ValueError, match=r"^$"):
        await store.release("k", "o")
    assert store.executions == {}


async def test_a_refusal_says_no_without_looking(store: FaultyStore) -> None:
    assert isinstance(store, RenewsMany)
    await store.acquire("k", "o", 1000)
    for method in ("acquire", "renew", "release", "renew_many"):
        store.on(method).refuse(times=1)
    assert await store.acquire("k", "o", 1000) == Held()
    assert await store.renew("k", "o", 1000) is False
    assert await store.release("k", "o") is False
    assert await store.renew_many([Claim("k", "o", 1000), Claim("j", "o", 1000)]) == [False, False]
    assert await store.renew("k", "o", 1000) is True


async def test_a_refusal_of_everything_lets_what_cannot_refuse_pass(store: FaultyStore) -> None:
    assert isinstance(store, ListsLocks)
    store.on("*").refuse()
    assert await store.renew("k", "o", 1000) is False
    assert await store.list_locks() == []
    with pytest.raises(ConfigurationError, match="these can: acquire, renew, release, renew_many"):
        store.on("list_locks").refuse()


async def test_a_wrong_answer_is_given_after_the_call_was_executed(store: FaultyStore) -> None:
    store.on("acquire").answer("OK", times=1)
    reply: object = await store.acquire("k", "a", 1000)
    assert reply == "OK"
    assert isinstance(await store.acquire("k", "b", 1000), Held)


async def test_a_slow_request_is_executed_late(clock: ManualClock, store: FaultyStore) -> None:
    store.on("acquire").slow_request("5s", times=1)
    call = begun(clock, store.acquire("k", "late", 1000))
    await clock.advance(4)
    assert store.executions["acquire"] == 0
    assert isinstance(await store.acquire("k", "first", 500), Acquired)
    await clock.advance(1)
    assert isinstance(call.result(), Acquired)  # the first one's lock has expired meanwhile


async def test_a_slow_request_is_taken_back_by_a_caller_that_gives_up(clock: ManualClock, store: FaultyStore) -> None:
    store.on("acquire").slow_request("5s", times=1)
    call = begun(clock, store.acquire("k", "o", 1000))
    await clock.advance(1)
    call.cancel()
    await clock.advance(10)
    assert call.cancelled()
    assert store.executions["acquire"] == 0
    assert clock.timers == 0


async def test_a_slow_reply_comes_long_after_it_was_executed(clock: ManualClock, store: FaultyStore) -> None:
    store.on("acquire").slow_reply("5s", times=1)
    call = begun(clock, store.acquire("k", "o", 60_000))
    await clock.settle()
    assert store.executions["acquire"] == 1
    assert not call.done()
    await clock.advance(5)
    assert isinstance(call.result(), Acquired)


async def test_delays_add_up_and_the_first_fault_that_ends_the_call_ends_it(
    clock: ManualClock, store: FaultyStore
) -> None:
    store.on("renew").slow_request(1)
    store.on("renew").slow_request(2)
    store.on("renew").lose_reply()
    store.on("renew").refuse()
    start = clock.now()
    call = begun(clock, store.renew("k", "o", 1000))
    await clock.advance(2.9)
    assert not call.done()
    await clock.advance(0.1)
    assert isinstance(call.exception(), FaultError)
    assert clock.now() == start + 3
    assert store.fired == {"slow_request": 2, "lose_reply": 1, "refuse": 1}
    assert store.executions["renew"] == 0


async def test_a_hung_call_ends_when_the_store_heals_with_a_broken_connection(
    clock: ManualClock, store: FaultyStore
) -> None:
    store.on("acquire").hang()
    call = begun(clock, store.acquire("k", "o", 1000))
    await clock.advance("1h")
    assert not call.done()
    store.heal()
    await clock.settle()
    assert isinstance(call.exception(), FaultError)
    assert store.executions["acquire"] == 0
    assert isinstance(await store.acquire("k", "o", 1000), Acquired)


async def test_a_hung_call_can_be_cancelled(clock: ManualClock, store: FaultyStore) -> None:
    store.on("acquire").hang()
    call = begun(clock, store.acquire("k", "o", 1000))
    await store.called("acquire")
    call.cancel()
    await asyncio.wait([call])
    assert call.cancelled()
    store.heal()


async def test_a_driver_that_does_not_answer_a_cancellation_is_cancelled_late(
    clock: ManualClock, store: FaultyStore
) -> None:
    store.on("acquire").hang(ignore_cancellation="10s")
    call = begun(clock, store.acquire("k", "o", 1000))
    await store.called("acquire")
    for _ in range(3):
        call.cancel()
        await clock.advance(3)
        assert not call.done()
    await clock.advance(1)
    assert call.cancelled()
    assert clock.timers == 0


async def test_a_driver_that_never_answers_a_cancellation_ends_when_the_store_heals(
    clock: ManualClock, store: FaultyStore
) -> None:
    store.on("acquire").hang(ignore_cancellation=math.inf)
    call = begun(clock, store.acquire("k", "o", 1000))
    await store.called("acquire")
    call.cancel()
    await clock.advance("30d")
    assert not call.done()
    store.heal()
    await clock.settle()
    assert call.cancelled()
    assert clock.timers == 0


async def test_a_frozen_server_executes_what_it_was_sent_once_it_thaws(clock: ManualClock, store: FaultyStore) -> None:
    store.on("acquire").execute_late(times=1)
    call = begun(clock, store.acquire("k", "o", 60_000))
    await clock.advance("1m")
    assert store.executions["acquire"] == 0
    store.heal()
    await clock.settle()
    assert isinstance(call.result(), Acquired)


async def test_an_acquire_that_was_given_up_on_takes_the_key_late(clock: ManualClock, store: FaultyStore) -> None:
    store.on("acquire").execute_late(after="5s", times=1)
    call = begun(clock, store.acquire("k", "given up", 60_000))
    await clock.advance(1)
    call.cancel()
    await clock.settle()
    assert call.cancelled()
    await clock.advance(4)
    assert store.executions["acquire"] == 1
    assert isinstance(await store.acquire("k", "other", 1000), Held)
    assert await store.release("k", "given up") is True


async def test_the_error_of_a_late_execution_that_nobody_waits_for_is_not_reported_as_unseen(
    clock: ManualClock, store: FaultyStore
) -> None:
    seen: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: seen.append(context))
    store.on("acquire").execute_late(times=1)
    call = begun(clock, store.acquire("", "no key", 1000))
    await store.called("acquire")
    call.cancel()
    await asyncio.wait([call])
    store.heal()
    await store.executed("acquire")
    await clock.settle()
    del call
    assert seen == []


async def test_closing_heals_and_waits_for_what_runs_late(clock: ManualClock) -> None:
    async with FaultyStore(InMemoryLockStore(clock), clock=clock) as store:
        store.on("acquire").execute_late()
        call = asyncio.create_task(store.acquire("k", "o", 60_000))
        await store.called("acquire")
        call.cancel()
    assert store.executions["acquire"] == 1
    assert call.cancelled()


async def test_a_store_that_is_down_fails_every_method_until_it_heals(store: FaultyStore) -> None:
    assert isinstance(store, ListsLocks)
    store.down()
    for call in (store.acquire("k", "o", 1), store.renew("k", "o", 1), store.release("k", "o"), store.list_locks()):
        with pytest.raises(FaultError):
            await call
    store.heal()
    assert isinstance(await store.acquire("k", "o", 1000), Acquired)
