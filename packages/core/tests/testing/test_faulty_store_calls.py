"""Which calls a fault meets, and how a test waits for calls."""

import asyncio
from typing import Any

import pytest

from tenure.errors import ConfigurationError
from tenure.memory import InMemoryLockStore
from tenure.store import Claim, RenewsMany
from tenure.testing import DeadlockError, FaultError, FaultyStore, run_virtual
from tenure.testing.faults import Call


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(InMemoryLockStore())


async def outcomes(store: FaultyStore, calls: int, key: str = "k") -> list[bool]:
    """Call renew() a few times, and tell which calls met a fault."""
    met: list[bool] = []
    for _ in range(calls):
        try:
            await store.renew(key, "o", 1000)
        except FaultError:
            met.append(True)
        else:
            met.append(False)
    return met


async def test_a_fault_meets_as_many_calls_as_it_was_set_for(store: FaultyStore) -> None:
    rule = store.on("renew").lose_request(times=2)
    assert await outcomes(store, 4) == [True, True, False, False]
    assert rule.fired == 2


async def test_a_fault_lets_the_first_calls_pass(store: FaultyStore) -> None:
    store.on("renew", after=2).lose_request(times=1)
    assert await outcomes(store, 4) == [False, False, True, False]


async def test_a_fault_meets_one_key_or_what_a_predicate_says(store: FaultyStore) -> None:
    store.on("renew", key="a").lose_request()
    store.on("renew", when=lambda call: call.number == 4).lose_request()
    assert await outcomes(store, 1, "a") == [True]
    assert await outcomes(store, 3, "b") == [False, False, True]


async def test_a_fault_by_chance_is_replayed_by_its_seed() -> None:
    async def run(seed: int) -> list[bool]:
        store = FaultyStore(InMemoryLockStore(), seed=seed)
        store.on("renew", chance=0.3).lose_request()
        return await outcomes(store, 100)

    first, again, other = await run(1), await run(1), await run(2)
    assert first == again
    assert first != other
    assert 10 < sum(first) < 60


async def test_a_lifted_fault_meets_no_further_call(store: FaultyStore) -> None:
    rule = store.on("*").lose_request()
    assert await outcomes(store, 1) == [True]
    rule.lift()
    assert await outcomes(store, 1) == [False]


async def test_a_fault_on_a_method_that_the_store_has_not_is_refused(store: FaultyStore) -> None:
    with pytest.raises(ConfigurationError, match=r"has no method 'extend'.*acquire, renew, release, renew_many"):
        store.on("extend")
    with pytest.raises(ConfigurationError, match="has no method 'check'"):
        store.on("check")


async def test_a_call_as_a_predicate_sees_it_keeps_its_owner_out_of_its_repr(store: FaultyStore) -> None:
    assert isinstance(store, RenewsMany)
    seen: list[Any] = []

    def look(call: Call) -> bool:
        seen.append(call)
        return False

    store.on("*", when=look).lose_request()
    await store.renew("k", "secret", 1000)
    await store.renew_many([Claim("k", "secret", 1000)])
    assert [call.key for call in seen] == ["k", None]
    assert seen[0].args == ("k", "secret", 1000)
    assert "secret" not in repr(seen)


# ----------------------------------------------------------------------------------------- the signals


async def test_a_test_can_wait_for_the_third_renewal(store: FaultyStore) -> None:
    waiting = asyncio.create_task(store.called("renew", times=3))
    for number in range(3):
        await asyncio.sleep(0)
        assert not waiting.done(), number
        await store.renew("k", "o", 1000)
    await waiting
    await store.called("renew", times=3)
    await store.executed("renew", times=2)


def test_waiting_for_a_call_that_never_comes_does_not_hang() -> None:
    async def main() -> None:
        await FaultyStore(InMemoryLockStore()).called("renew")

    with pytest.raises(DeadlockError, match=r"Tally\.reaches"):
        run_virtual(main)


async def test_in_real_time_the_wait_for_a_call_ends_with_what_was_counted(
    store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.testing._tally.patience_s", lambda: 0.01)
    await store.renew("k", "o", 1000)
    with pytest.raises(DeadlockError, match=r"renew\(\) was called 1 times within 0\.01 s; the test waits for 2"):
        await store.called("renew", times=2)


async def test_a_wait_that_was_cancelled_leaves_nothing_behind(store: FaultyStore) -> None:
    waiting = asyncio.create_task(store.called("renew", times=2))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert store.calls._waiting == {}
