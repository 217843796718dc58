"""The store in memory, beyond the contract: its rows, its waiters, and how it is opened and left."""

import asyncio
import math
from collections.abc import Awaitable, Callable

import pytest

from tenure import Acquired, ConfigurationError, Held, InMemoryLockStore
from tenure.clock import SystemClock
from tenure.memory import open_memory_store
from tenure.store import MAX_TOKEN, Claim
from tenure.testing import ManualClock

TTL_MS = 30_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> InMemoryLockStore:
    return InMemoryLockStore(clock)


async def token_of(store: InMemoryLockStore, key: str, owner: str = "a:1", ttl_ms: int = TTL_MS) -> int:
    reply = await store.acquire(key, owner, ttl_ms)
    assert isinstance(reply, Acquired)
    return reply.token


# ------------------------------------------------------------------------------------------- rows


async def test_a_released_row_is_kept_for_its_token(store: InMemoryLockStore) -> None:
    first = await token_of(store, "invoices", "a:1")
    await store.release("invoices", "a:1")
    assert await store.list_locks() == []
    assert await token_of(store, "invoices", "b:1") > first


async def test_an_expired_row_is_kept_for_its_token(store: InMemoryLockStore, clock: ManualClock) -> None:
    first = await token_of(store, "invoices", "a:1", ttl_ms=1)
    await clock.advance(0.001)
    assert await token_of(store, "invoices", "b:1") > first


async def test_at_the_very_moment_of_its_expiry_a_lock_exists_for_no_method(
    store: InMemoryLockStore, clock: ManualClock
) -> None:
    await token_of(store, "invoices", "a:1", ttl_ms=1000)
    await clock.advance(1)
    assert await store.list_locks() == []
    assert not await store.renew("invoices", "a:1", TTL_MS)
    assert not await store.release("invoices", "a:1")
    assert isinstance(await store.acquire("invoices", "b:1", TTL_MS), Acquired)


async def test_tokens_grow_by_one_while_the_clock_stands_still(store: InMemoryLockStore) -> None:
    tokens = []
    for turn in range(5):
        tokens.append(await token_of(store, "invoices", f"a:{turn}"))
        await store.release("invoices", f"a:{turn}")
    assert tokens == [*range(tokens[0], tokens[0] + 5)]


async def test_a_token_is_no_less_than_the_clock_in_microseconds(store: InMemoryLockStore, clock: ManualClock) -> None:
    assert await token_of(store, "invoices") == int(clock.now() * 1_000_000)
    await clock.advance(10)
    assert await token_of(store, "stock") == int(clock.now() * 1_000_000)


async def test_the_first_token_is_positive_although_the_clock_begins_at_zero() -> None:
    assert await token_of(InMemoryLockStore(ManualClock(start=0.0)), "invoices") == 1


async def test_no_token_is_greater_than_a_float_can_count() -> None:
    assert await token_of(InMemoryLockStore(ManualClock(start=2.0**60)), "invoices") == MAX_TOKEN


async def test_a_lock_says_how_the_one_before_it_ended(store: InMemoryLockStore, clock: ManualClock) -> None:
    assert await store.acquire("invoices", "a:1", 1000) == Acquired(await token_of(store, "invoices", "a:1"), None)
    await store.release("invoices", "a:1")
    released = await store.acquire("invoices", "b:1", 1000)
    await clock.advance(1)
    expired = await store.acquire("invoices", "c:1", 1000)
    assert isinstance(released, Acquired)
    assert isinstance(expired, Acquired)
    assert (released.after, expired.after) == ("released", "expired")


async def test_a_repeated_acquire_says_again_how_the_one_before_it_ended(store: InMemoryLockStore) -> None:
    await token_of(store, "invoices", "a:1")
    await store.release("invoices", "a:1")
    assert await store.acquire("invoices", "b:1", TTL_MS) == await store.acquire("invoices", "b:1", TTL_MS)


@pytest.mark.parametrize(("passed_s", "left_ms"), [(0.0, 1000), (0.2505, 750), (0.9999, 1)])
async def test_what_is_left_of_a_lock_is_rounded_up(
    store: InMemoryLockStore, clock: ManualClock, passed_s: float, left_ms: int
) -> None:
    await token_of(store, "invoices", "a:1", ttl_ms=1000)
    await clock.advance(passed_s)
    reply = await store.acquire("invoices", "b:1", 1000)
    assert isinstance(reply, Held)
    assert reply.expires_in_ms is not None
    # A float may lie a hair above the exact value: a millisecond late is right, one early would find it held.
    assert reply.expires_in_ms - left_ms in (0, 1)


async def test_a_lock_that_lives_a_hair_longer_has_a_millisecond_left_not_none(
    store: InMemoryLockStore, clock: ManualClock
) -> None:
    """Told that nothing is left, a waiter would ask again in the same moment; under virtual time for ever."""
    await token_of(store, "invoices", "a:1", ttl_ms=1000)
    store._rows["invoices"].expires_at = math.nextafter(clock.now(), math.inf)
    assert await store.acquire("invoices", "b:1", 1000) == Held(expires_in_ms=1)


async def test_a_place_that_ran_out_is_passed_over_and_taken_again_at_the_end(
    store: InMemoryLockStore, clock: ManualClock
) -> None:
    await token_of(store, "invoices", "a:1")
    for owner, place_ms in (("b:1", 100), ("c:1", 5_000), ("d:1", 100)):
        assert isinstance(await store.acquire_queued("invoices", owner, TTL_MS, place_ms), Held)
    await clock.advance(1)
    assert isinstance(await store.acquire_queued("invoices", "b:1", TTL_MS, 5_000), Held)
    order = []
    for owner in ("a:1", "c:1"):
        assert await store.release("invoices", owner)
        order += [record.owner for record in await store.list_locks()]
    assert order == ["c:1", "b:1"]


async def test_a_grant_passes_by_who_stopped_listening_in_this_very_moment(store: InMemoryLockStore) -> None:
    await token_of(store, "invoices", "a:1")
    await store.acquire_queued("invoices", "b:1", TTL_MS, TTL_MS)
    gone, listening = (asyncio.create_task(store.granted("invoices", "b:1")) for _ in range(2))
    await asyncio.sleep(0)
    gone.cancel()
    await store.release("invoices", "a:1")
    assert isinstance(await listening, Acquired)


async def test_whoever_comes_back_when_it_was_told_finds_the_key_free(
    store: InMemoryLockStore, clock: ManualClock
) -> None:
    await token_of(store, "invoices", "a:1", ttl_ms=333)
    await clock.advance(0.1)
    reply = await store.acquire("invoices", "b:1", 1000)
    assert isinstance(reply, Held)
    assert reply.expires_in_ms is not None
    await clock.advance(reply.expires_in_ms / 1000)
    assert isinstance(await store.acquire("invoices", "b:1", 1000), Acquired)


async def test_locks_are_listed_by_prefix_in_the_order_of_their_keys(
    store: InMemoryLockStore, clock: ManualClock
) -> None:
    for key in ("stock:b", "stock:a", "invoices", "stock:released", "stock:expired"):
        await token_of(store, key, f"shop-1:{key}", ttl_ms=1 if key == "stock:expired" else TTL_MS)
    await store.release("stock:released", "shop-1:stock:released")
    await clock.advance(0.5)
    listed = await store.list_locks("stock:")
    assert [(record.key, record.expires_in_ms) for record in listed] == [("stock:a", 29_500), ("stock:b", 29_500)]
    assert [record.key for record in await store.list_locks()] == ["invoices", "stock:a", "stock:b"]
    assert listed[0].owner == "shop-1:stock:a"
    assert listed[0].token == await token_of(store, "stock:a", "shop-1:stock:a")


async def test_many_renewals_are_answered_one_by_one_in_their_order(store: InMemoryLockStore) -> None:
    await token_of(store, "a", "a:1")
    await token_of(store, "c", "c:1")
    claims = [
        Claim("a", "a:1", TTL_MS),
        Claim("b", "b:1", TTL_MS),
        Claim("c", "a:1", TTL_MS),
        Claim("c", "c:1", TTL_MS),
    ]
    assert await store.renew_many(claims) == [True, False, False, True]
    assert await store.renew_many([]) == []


@pytest.mark.parametrize(
    "call",
    [
        lambda store, key, owner, ttl_ms: store.acquire(key, owner, ttl_ms),
        lambda store, key, owner, ttl_ms: store.renew(key, owner, ttl_ms),
        lambda store, key, owner, ttl_ms: store.renew_many([Claim(key, owner, ttl_ms)]),
    ],
    ids=["acquire", "renew", "renew_many"],
)
@pytest.mark.parametrize(
    ("key", "owner", "ttl_ms"), [("", "a:1", 1), ("k", "", 1), ("k", "a:1", 0), ("k", "a:1", True)]
)
async def test_what_no_store_could_keep_is_refused_before_anything_is_written(
    store: InMemoryLockStore, call: Callable[..., Awaitable[object]], key: str, owner: str, ttl_ms: int
) -> None:
    with pytest.raises(ConfigurationError):
        await call(store, key, owner, ttl_ms)
    assert store._rows == {}


@pytest.mark.parametrize(("key", "owner"), [("", "a:1"), ("k", "")])
async def test_a_release_of_what_no_store_could_keep_is_refused(store: InMemoryLockStore, key: str, owner: str) -> None:
    with pytest.raises(ConfigurationError):
        await store.release(key, owner)


# ----------------------------------------------------------------------------------------- waiters


async def waiting(store: InMemoryLockStore, *keys: str) -> list["asyncio.Task[None]"]:
    """Start a waiter for each of *keys*, and see that it waits."""
    tasks = [asyncio.create_task(store.released(key)) for key in keys]
    await asyncio.sleep(0)
    assert not any(task.done() for task in tasks)
    return tasks


async def ended(*tasks: "asyncio.Task[None]") -> None:
    # Two turns of the loop: one that wakes a task, and one in which it ends.
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert all(task.done() for task in tasks)


async def test_a_release_wakes_all_who_wait_for_its_key_and_nobody_else(store: InMemoryLockStore) -> None:
    await token_of(store, "invoices", "a:1")
    one, two, other = await waiting(store, "invoices", "invoices", "stock")
    await store.release("invoices", "a:1")
    await ended(one, two)
    assert not other.done()
    assert store._waiters.keys() == {"stock"}
    other.cancel()
    await ended(other)
    assert store._waiters == {}


async def test_waiters_are_woken_in_the_order_in_which_they_came(store: InMemoryLockStore) -> None:
    """And not in that of their addresses, which no seed repeats."""
    await token_of(store, "invoices", "a:1")
    woken: list[int] = []

    async def wait(number: int) -> None:
        await store.released("invoices")
        woken.append(number)

    tasks = [asyncio.create_task(wait(number)) for number in range(50)]
    await asyncio.sleep(0)
    await store.release("invoices", "a:1")
    await asyncio.gather(*tasks)
    assert woken == list(range(50))


async def test_a_release_that_is_refused_wakes_nobody(store: InMemoryLockStore) -> None:
    await token_of(store, "invoices", "a:1")
    (waiter,) = await waiting(store, "invoices")
    assert not await store.release("invoices", "b:1")
    await asyncio.sleep(0)
    assert not waiter.done()
    waiter.cancel()
    await ended(waiter)


async def test_a_waiter_that_gives_up_leaves_nothing_behind_and_the_others_waiting(store: InMemoryLockStore) -> None:
    await token_of(store, "invoices", "a:1")
    leaver, stayer = await waiting(store, "invoices", "invoices")
    leaver.cancel()
    await ended(leaver)
    assert leaver.cancelled()
    assert len(store._waiters["invoices"]) == 1
    await store.release("invoices", "a:1")
    await ended(stayer)
    assert not stayer.cancelled()
    assert store._waiters == {}


async def test_a_waiter_that_gives_up_as_the_release_comes_is_cancelled(store: InMemoryLockStore) -> None:
    await token_of(store, "invoices", "a:1")
    (waiter,) = await waiting(store, "invoices")
    waiter.cancel()
    assert await store.release("invoices", "a:1")
    await ended(waiter)
    assert waiter.cancelled()
    assert store._waiters == {}


async def test_who_begins_to_wait_while_others_are_being_woken_is_not_forgotten(store: InMemoryLockStore) -> None:
    await token_of(store, "invoices", "a:1")
    (early,) = await waiting(store, "invoices")
    # Its first step comes after the release, and before the woken one has cleaned up after itself.
    late = asyncio.create_task(store.released("invoices"))
    await store.release("invoices", "a:1")
    await ended(early)
    await token_of(store, "invoices", "b:1")
    await store.release("invoices", "b:1")
    await ended(late)
    assert store._waiters == {}


async def test_a_thousand_waits_that_time_out_leave_nothing_behind(store: InMemoryLockStore) -> None:
    tasks = await waiting(store, *(f"key {number % 100}" for number in range(1000)))
    for task in tasks:
        task.cancel()
    await ended(*tasks)
    assert store._waiters == {}


# ----------------------------------------------------------------------------------------- opening


async def test_a_store_opened_by_url_is_left_like_any_other() -> None:
    async with open_memory_store("memory://") as store:
        assert isinstance(store, InMemoryLockStore)
        await token_of(store, "invoices")
    await store.aclose()


async def test_leaving_the_store_hides_no_error() -> None:
    with pytest.raises(LookupError):
        async with InMemoryLockStore():
            raise LookupError


async def test_each_url_opened_is_a_store_of_its_own() -> None:
    one, two = open_memory_store("memory://"), open_memory_store("memory://")
    await token_of(one, "invoices", "a:1")
    assert isinstance(await two.acquire("invoices", "b:1", TTL_MS), Acquired)


def test_a_store_in_memory_says_that_it_excludes_callers_in_one_process_only() -> None:
    assert InMemoryLockStore.reach == "process"


def test_a_store_reads_the_machines_clock_unless_it_is_given_one() -> None:
    assert isinstance(InMemoryLockStore()._clock, SystemClock)
