"""The contract on stores that keep it, in every way in which it can be run."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from unittest import SkipTest

import pytest

from tenure.errors import ConfigurationError
from tenure.memory import InMemoryLockStore
from tenure.store import Acquired, ChecksServer, Held, ListsLocks, QueuesWaiters, RenewsMany, WakesWaiters
from tenure.testing import (
    Case,
    FaultyStore,
    LoopClock,
    ManualClock,
    lock_store_contract,
    lock_store_mutants,
    run_all,
    run_virtual,
)

HAS = {RenewsMany, ListsLocks, WakesWaiters, QueuesWaiters}
manual = ManualClock()


@pytest.mark.parametrize(
    "case",
    lock_store_contract(
        lambda: InMemoryLockStore(manual), concurrent=True, advance_time=manual.advance, capabilities=HAS
    ),
    ids=str,
)
async def test_the_in_memory_store_keeps_the_contract_on_a_manual_clock(case: Case) -> None:
    await case.run()


@pytest.mark.parametrize(
    "case",
    lock_store_contract(
        lambda: FaultyStore(InMemoryLockStore(manual), clock=manual),
        concurrent=32,
        advance_time=manual.advance,
        capabilities=HAS,
    ),
    ids=str,
)
async def test_a_faulty_store_without_faults_keeps_the_contract(case: Case) -> None:
    await case.run()


async def test_the_in_memory_store_keeps_the_contract_in_real_time() -> None:
    # 1.5 s: half of it is what a loaded machine may lose before a look half-way finds the lock expired.
    await run_all(lock_store_contract(InMemoryLockStore, concurrent=4, rounds=3, ttl_ms=1500, capabilities=HAS))


def test_in_real_time_one_after_the_other_the_cases_take_less_than_25_seconds() -> None:
    async def main() -> float:
        cases = lock_store_contract(lambda: InMemoryLockStore(LoopClock()), concurrent=True, capabilities=HAS)
        loop = asyncio.get_running_loop()
        start = loop.time()
        await run_all(cases, parallel=False)
        return loop.time() - start

    # Virtual seconds: what the waits add up to, on a server that answers at once.
    assert run_virtual(main) < 25


def test_side_by_side_they_take_as_long_as_the_longest_and_the_races() -> None:
    async def main() -> float:
        cases = lock_store_contract(lambda: InMemoryLockStore(LoopClock()), capabilities=HAS)
        start = asyncio.get_running_loop().time()
        await run_all(cases)
        return asyncio.get_running_loop().time() - start

    assert run_virtual(main) < 5


class Context:
    """An async context manager that gives a store, and tells when it was left."""

    left = 0

    @asynccontextmanager
    async def make(self) -> AsyncIterator[InMemoryLockStore]:
        try:
            yield InMemoryLockStore(LoopClock())
        finally:
            self.left += 1

    async def generate(self) -> AsyncIterator[InMemoryLockStore]:
        try:
            yield InMemoryLockStore(LoopClock())
        finally:
            self.left += 1

    async def enter_later(self) -> Any:
        return self.make()


@pytest.mark.parametrize("way", ["make", "generate", "enter_later"])
def test_a_store_is_cleaned_up_after_each_case(way: str) -> None:
    context = Context()
    cases = lock_store_contract(getattr(context, way), capabilities=HAS)[:4]
    for case in cases:
        run_virtual(case.run)
    assert context.left == 4


def test_a_store_may_come_from_an_async_function() -> None:
    async def make() -> InMemoryLockStore:
        await asyncio.sleep(0)
        return InMemoryLockStore(LoopClock())

    run_virtual(lambda: run_all(lock_store_contract(make)))


def test_a_store_that_opens_itself_is_closed_again() -> None:
    class Opened(Context):
        def __init__(self) -> None:
            self.store = InMemoryLockStore(LoopClock())

        async def __aenter__(self) -> InMemoryLockStore:
            return self.store

        async def __aexit__(self, *_: object) -> None:
            Context.left += 1

    Context.left = 0
    (case, *_) = lock_store_contract(Opened)
    run_virtual(case.run)
    assert Context.left == 1


def test_cases_of_a_capability_that_the_store_has_not_are_skipped() -> None:
    def make() -> FaultyStore:
        return FaultyStore(
            InMemoryLockStore(LoopClock()), without=[RenewsMany, ListsLocks, WakesWaiters, QueuesWaiters]
        )

    cases = lock_store_contract(make, concurrent=4, rounds=2)
    for case in cases:
        if case.capability is None:
            run_virtual(case.run)
        else:
            with pytest.raises(SkipTest, match=case.capability.__name__):
                run_virtual(case.run)
    run_virtual(lambda: run_all(cases))


def test_declared_capabilities_are_the_only_ones_with_cases_and_are_held_to() -> None:
    def contract(*capabilities: type) -> list[Case]:
        return lock_store_contract(lambda: InMemoryLockStore(LoopClock()), capabilities=capabilities)

    assert {case.capability for case in contract(RenewsMany)} == {None, RenewsMany}
    run_virtual(lambda: run_all(contract(*HAS)))
    for declared in ((RenewsMany, ListsLocks), (RenewsMany, ListsLocks, WakesWaiters), (*HAS, ChecksServer)):
        declaration = contract(*declared)[-1]
        with pytest.raises(AssertionError, match=r"isinstance\(store, "):
            run_virtual(declaration.run)


def test_the_names_of_cases_are_unique_and_every_rule_has_some() -> None:
    async def restart() -> None: ...

    cases = lock_store_contract(InMemoryLockStore, concurrent=True, restart=restart, capabilities=HAS)
    names = [case.name for case in cases]
    assert len(set(names)) == len(names)
    assert {case.rule for case in cases} == set(range(1, 11))
    assert all(case.race.endswith(".") for case in cases)


def test_races_and_restarts_are_added_on_request() -> None:
    async def restart() -> None: ...

    plain = len(lock_store_contract(InMemoryLockStore))
    assert plain < len(lock_store_contract(InMemoryLockStore, concurrent=True))
    assert len(lock_store_contract(InMemoryLockStore, restart=restart)) == plain + 1


@pytest.mark.parametrize("wrong", [{"callers": 1}, {"rounds": 0}, {"ttl_ms": 0}, {"capabilities": [int]}])
def test_an_option_out_of_range_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        lock_store_contract(InMemoryLockStore, **wrong)


def test_a_failure_says_the_rule_what_was_seen_what_must_be_and_the_race() -> None:
    mutant = next(one for one in lock_store_mutants() if one.name == "ReleasesByKeyAlone")
    case = next(one for one in mutant.contract() if one.name == "Another owner's release leaves the lock alone")
    with pytest.raises(AssertionError) as failure:
        run_virtual(case.run)
    assert str(failure.value) == (
        'Rule 3 of the store contract, "Another owner\'s release leaves the lock alone": release() by another owner '
        "gave True; it must be False. The race: A shutdown hook gives back by key, and frees the lock of the "
        "instance that has just started."
    )


class Broken:
    """A store whose driver is down."""

    async def acquire(self, key: str, owner: str, ttl_ms: int) -> Acquired | Held:
        raise ConnectionError("refused")

    async def renew(self, key: str, owner: str, ttl_ms: int) -> bool:
        raise ConnectionError("refused")

    async def release(self, key: str, owner: str) -> bool:
        raise ConnectionError("refused")


def test_an_error_of_the_driver_fails_the_case_and_is_its_cause() -> None:
    (case, *_) = lock_store_contract(Broken)
    with pytest.raises(AssertionError, match="a call raised ConnectionError") as failure:
        run_virtual(case.run)
    assert isinstance(failure.value.__cause__, ConnectionError)


class Silent(Broken):
    """A store that never answers, and takes its time to be cancelled."""

    async def acquire(self, key: str, owner: str, ttl_ms: int) -> Acquired | Held:
        try:
            await asyncio.sleep(1e6)
        except asyncio.CancelledError:
            await asyncio.sleep(1000)
        return Held()


def test_a_store_that_does_not_answer_fails_the_case_within_its_limit() -> None:
    (case, *_) = lock_store_contract(Silent, limit_s=60)
    with pytest.raises(AssertionError, match="a call had not returned after 60 s"):
        run_virtual(case.run)


def test_run_all_raises_every_failure_at_once() -> None:
    cases = lock_store_contract(Broken)
    with pytest.raises(ExceptionGroup, match=rf"\d+ of {len(cases)} cases failed") as failures:
        run_virtual(lambda: run_all(cases))
    assert len(failures.value.exceptions) > len(cases) / 2
    assert all(isinstance(one, AssertionError) for one in failures.value.exceptions)


async def test_a_cancelled_case_ends_its_store_call() -> None:
    hanging = FaultyStore(InMemoryLockStore())
    hanging.on("acquire").hang()
    (case, *_) = lock_store_contract(lambda: hanging)
    running = asyncio.create_task(case.run())
    await hanging.called("acquire")
    running.cancel()
    await asyncio.wait([running])
    assert running.cancelled()


async def test_nothing_is_left_on_a_server_that_others_use() -> None:
    store = InMemoryLockStore(manual)
    await run_all(lock_store_contract(lambda: store, concurrent=4, rounds=2, advance_time=manual.advance))
    assert await store.list_locks() == []


class LateStore:
    """A store on a machine that stalls: its first answers come long after the locks that they speak of have ended."""

    def __init__(self, inner: InMemoryLockStore, stalls: list[float]) -> None:
        self._inner = inner
        self._stalls = stalls
        self.renew, self.release = inner.renew, inner.release

    async def acquire(self, key: str, owner: str, ttl_ms: int) -> Acquired | Held:
        if self._stalls:
            await asyncio.sleep(self._stalls.pop())
        return await self._inner.acquire(key, owner, ttl_ms)


async def test_a_case_that_fails_for_want_of_a_timely_machine_is_tried_again() -> None:
    stalls = [0.15, 0.0]
    store = LateStore(InMemoryLockStore(), stalls)
    [case] = [one for one in lock_store_contract(lambda: store, ttl_ms=200) if "until its ttl has passed" in one.name]
    await case.run()
    assert stalls == []


async def test_a_store_that_breaks_the_rule_fails_however_often_it_is_tried() -> None:
    class ForgetsAtOnce(LateStore):
        async def acquire(self, key: str, owner: str, ttl_ms: int) -> Acquired | Held:
            await asyncio.sleep(0.03)
            return await self._inner.acquire(key, owner, 1)

    store = ForgetsAtOnce(InMemoryLockStore(), [])
    [case] = [one for one in lock_store_contract(lambda: store, ttl_ms=100) if "until its ttl has passed" in one.name]
    with pytest.raises(AssertionError, match="half-way"):
        await case.run()
