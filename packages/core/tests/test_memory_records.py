"""The idempotency store in memory, beyond the contract: its bound, its clock, its loop, how it is opened and left."""

import asyncio

import pytest

from tenure.errors import ConfigurationError, LeaseStateError, StoreFullError
from tenure.idempotency_store import (
    Abandoned,
    Acquired,
    AcquireReply,
    Completed,
    Completion,
    InFlight,
    Mismatch,
    RecordsEffects,
    RecordState,
)
from tenure.memory import InMemoryIdempotencyStore, open_memory_idempotency_store
from tenure.testing import ManualClock

PAYLOAD = "v1:aa"
MINUTE_MS = 60_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> InMemoryIdempotencyStore:
    return InMemoryIdempotencyStore(clock, max_records=3)


async def ask(
    store: InMemoryIdempotencyStore,
    key: str,
    owner: str = "a:1",
    *,
    lock_ms: int = MINUTE_MS,
    grace_ms: int = MINUTE_MS,
    takeover: bool = True,
) -> AcquireReply:
    return await store.acquire(key, owner, PAYLOAD, lock_ms, grace_ms, takeover=takeover)


async def complete(store: InMemoryIdempotencyStore, key: str, retention_ms: int = MINUTE_MS) -> None:
    assert await ask(store, key) == Acquired(1)
    assert await store.complete(key, "a:1", key.encode(), retention_ms) is Completion.STORED


async def answers(store: InMemoryIdempotencyStore, *keys: str) -> list[str]:
    """Look at *keys* as somebody new, and name what each answers."""
    return [type(await ask(store, key, "looks:1", takeover=False)).__name__ for key in keys]


def kept(store: InMemoryIdempotencyStore) -> int:
    """Count the records in memory, those that have ended and are not purged included."""
    return len(store._records)


# -------------------------------------------------------------------------------------- the bound


async def test_at_its_bound_the_store_forgets_what_has_ended_and_nothing_else(
    store: InMemoryIdempotencyStore, clock: ManualClock
) -> None:
    await complete(store, "done")
    await ask(store, "ended", lock_ms=1, grace_ms=1)
    await complete(store, "done and ended", retention_ms=1)
    await clock.advance(1)
    assert kept(store) == 3
    assert await ask(store, "new") == Acquired(1)
    assert kept(store) == 2
    assert await answers(store, "done", "new") == ["Completed", "InFlight"]


async def test_at_its_bound_the_store_forgets_the_completion_that_is_the_oldest(
    store: InMemoryIdempotencyStore,
) -> None:
    # Begun first and completed last: it is the newest completion.
    await ask(store, "slow")
    await complete(store, "first")
    await complete(store, "second")
    await store.complete("slow", "a:1", b"slow", MINUTE_MS)
    assert await ask(store, "new") == Acquired(1)
    assert await answers(store, "second", "slow", "new") == ["Completed", "Completed", "InFlight"]
    assert kept(store) == 3
    assert await ask(store, "newer") == Acquired(1)
    assert await answers(store, "slow", "new", "newer") == ["Completed", "InFlight", "InFlight"]


async def test_one_record_at_most_is_forgotten_for_a_new_one(store: InMemoryIdempotencyStore) -> None:
    for key in ("first", "second", "third"):
        await complete(store, key)
    await ask(store, "new")
    assert kept(store) == 3


async def test_what_is_in_flight_or_abandoned_is_never_forgotten(
    store: InMemoryIdempotencyStore, clock: ManualClock
) -> None:
    await ask(store, "abandoned", lock_ms=1)
    await ask(store, "flying")
    await ask(store, "taken over", lock_ms=1)
    await clock.advance(0.001)
    assert await ask(store, "taken over", "b:1") == Acquired(2)
    assert await store.release("taken over", "b:1")
    with pytest.raises(StoreFullError, match="holds its 3 records"):
        await ask(store, "new")
    assert kept(store) == 3
    assert await ask(store, "abandoned", takeover=False, owner="looks:1") == Abandoned(1)
    assert await ask(store, "taken over", takeover=False, owner="looks:1") == Abandoned(2)
    assert await answers(store, "flying") == ["InFlight"]


async def test_a_full_store_still_answers_extends_completes_releases_and_takes_over(
    store: InMemoryIdempotencyStore, clock: ManualClock
) -> None:
    for key in ("one", "two", "three"):
        await ask(store, key, lock_ms=1000)
    assert await ask(store, "one") == Acquired(1)
    assert isinstance(await ask(store, "one", "b:1"), InFlight)
    assert await store.acquire("one", "b:1", "v1:bb", 1, 1) == Mismatch(RecordState.IN_FLIGHT)
    assert await store.extend("two", "a:1", MINUTE_MS)
    await clock.advance(1)
    assert await ask(store, "three", "b:1") == Acquired(2)
    assert await store.complete("one", "a:1", b"1", MINUTE_MS) is Completion.STORED
    assert await store.release("two", "a:1")
    assert await ask(store, "four") == Acquired(1)


async def test_a_store_that_was_full_has_room_once_an_execution_ends(store: InMemoryIdempotencyStore) -> None:
    for key in ("one", "two", "three"):
        await ask(store, key)
    with pytest.raises(StoreFullError):
        await ask(store, "four")
    await store.complete("two", "a:1", b"", MINUTE_MS)
    assert await ask(store, "four") == Acquired(1)
    # Gone with its response: a retry would run. That is what the bound is raised for.
    assert await answers(store, "one", "three", "four") == ["InFlight"] * 3


async def test_a_record_that_has_ended_makes_room_for_its_own_key(
    store: InMemoryIdempotencyStore, clock: ManualClock
) -> None:
    await ask(store, "again", lock_ms=1, grace_ms=1)
    await complete(store, "first")
    await complete(store, "second")
    await clock.advance(1)
    assert await ask(store, "again", "b:1") == Acquired(1)
    assert await answers(store, "first", "second") == ["Completed", "Completed"]


async def test_the_error_of_a_full_store_names_no_key_and_no_owner(store: InMemoryIdempotencyStore) -> None:
    for key in ("one", "two", "three"):
        await ask(store, key, "secret:1")
    with pytest.raises(StoreFullError) as full:
        await ask(store, "card-4242", "secret:2")
    assert "max_records" in str(full.value)
    assert "4242" not in str(full.value)
    assert "secret" not in str(full.value)


@pytest.mark.parametrize("bound", [0, -1, True, 1.5, "3", None])
def test_a_bound_that_is_no_count_is_refused(bound: object) -> None:
    with pytest.raises(ConfigurationError, match="max_records"):
        InMemoryIdempotencyStore(max_records=bound)  # type: ignore[arg-type]


async def test_a_store_of_one_record_keeps_one(clock: ManualClock) -> None:
    store = InMemoryIdempotencyStore(clock, max_records=1)
    for key in ("one", "two", "three"):
        await complete(store, key)
    assert kept(store) == 1
    assert isinstance(await ask(store, "three"), Completed)


# -------------------------------------------------------------------------------------- the clock


async def test_at_the_very_moment_of_its_end_a_lock_has_ended(
    store: InMemoryIdempotencyStore, clock: ManualClock
) -> None:
    await ask(store, "key", lock_ms=1000)
    await clock.advance(1)
    assert await ask(store, "key", "b:1", takeover=False) == Abandoned(1)


async def test_at_the_very_moment_of_its_end_a_record_exists_for_no_method(
    store: InMemoryIdempotencyStore, clock: ManualClock
) -> None:
    await ask(store, "abandoned", lock_ms=500, grace_ms=500)
    await complete(store, "completed", retention_ms=1000)
    await clock.advance(1)
    for key in ("abandoned", "completed"):
        assert not await store.extend(key, "a:1", MINUTE_MS)
        assert not await store.release(key, "a:1")
        assert await store.complete(key, "a:1", b"late", MINUTE_MS) is Completion.GONE
        assert await store.acquire(key, "b:1", "v1:bb", MINUTE_MS, MINUTE_MS) == Acquired(1)


async def test_a_purge_deletes_at_the_very_moment_of_the_end_and_not_before(
    store: InMemoryIdempotencyStore, clock: ManualClock
) -> None:
    await ask(store, "key", lock_ms=500, grace_ms=500)
    await clock.advance(0.999)
    assert await store.purge() == 0
    await clock.advance(0.001)
    assert await store.purge() == 1
    assert kept(store) == 0


async def test_a_purge_deletes_no_more_than_its_limit(clock: ManualClock) -> None:
    store = InMemoryIdempotencyStore(clock)
    for number in range(10):
        await ask(store, str(number), lock_ms=1, grace_ms=1)
    await clock.advance(1)
    assert [await store.purge(limit=4) for _ in range(4)] == [4, 4, 2, 0]


@pytest.mark.parametrize(("passed_s", "left_ms"), [(0, 300), (0.1, 200), (0.2995, 1), (0.2001, 100), (0.299999, 1)])
async def test_what_is_left_of_a_lock_is_rounded_up(
    store: InMemoryIdempotencyStore, clock: ManualClock, passed_s: float, left_ms: int
) -> None:
    await ask(store, "key", lock_ms=300)
    if passed_s:
        await clock.advance(passed_s)
    assert await ask(store, "key", "b:1") == InFlight(left_ms)


class SteppingClock(ManualClock):
    """A clock that moves from one reading to the next, as a real one does; the last reading stays."""

    def __init__(self, *readings: float) -> None:
        super().__init__()
        self.readings = [*readings]

    def now(self) -> float:
        return self.readings.pop(0) if len(self.readings) > 1 else self.readings[0]


async def test_a_lock_of_which_next_to_nothing_is_left_has_a_millisecond_left() -> None:
    clock = SteppingClock(1.0)
    store = InMemoryIdempotencyStore(clock)
    await ask(store, "key", lock_ms=1000)
    # The last float before the lock's end: what is left, rounded to the microsecond, is nothing.
    clock.readings = [2.0 - 2**-52]
    assert await ask(store, "key", "b:1") == InFlight(1)


async def test_a_record_that_ends_while_it_is_asked_for_is_begun_as_the_first_attempt() -> None:
    clock = SteppingClock(1.0)
    store = InMemoryIdempotencyStore(clock)
    await ask(store, "key", lock_ms=500, grace_ms=500)
    clock.readings = [2.0 - 2**-20, 2.0]
    reply = await store.acquire("key", "b:1", "v1:bb", MINUTE_MS, MINUTE_MS)
    # Either side of the end is right; an attempt of a record that has none of its payload is not.
    assert reply in (Acquired(1), Mismatch(RecordState.ABANDONED))


async def test_a_store_without_a_clock_of_its_own_counts_real_time() -> None:
    store = InMemoryIdempotencyStore()
    await ask(store, "key", lock_ms=20, grace_ms=20)
    assert isinstance(await ask(store, "key", "b:1"), InFlight)
    for _ in range(200):
        await asyncio.sleep(0.01)
        if await store.purge():
            break
    assert kept(store) == 0


# ---------------------------------------------------------------------------- loops, and the ends


def test_a_store_belongs_to_one_loop_as_long_as_that_lives() -> None:
    store = InMemoryIdempotencyStore()
    with asyncio.Runner() as first, asyncio.Runner() as second:
        first.run(ask(store, "key"))
        for call in (
            ask(store, "key"),
            store.extend("key", "a:1", 1),
            store.complete("key", "a:1", b"", 1),
            store.release("key", "a:1"),
            store.purge(),
        ):
            with pytest.raises(LeaseStateError, match="belongs to another event loop"):
                second.run(call)
    with asyncio.Runner() as third:
        assert third.run(ask(store, "key")) == Acquired(1)


async def test_a_refused_call_binds_the_store_to_no_loop_and_writes_nothing(store: InMemoryIdempotencyStore) -> None:
    with pytest.raises(ConfigurationError):
        await ask(store, "")
    with pytest.raises(ConfigurationError):
        await ask(store, "key", lock_ms=0)
    assert kept(store) == 0


async def test_a_url_opens_a_store_of_its_own() -> None:
    async with open_memory_idempotency_store("memory://") as one, open_memory_idempotency_store("memory://") as other:
        assert await ask(one, "key") == Acquired(1)
        assert await ask(other, "key") == Acquired(1)
        await one.aclose()


def test_its_reach_is_the_process_and_it_records_no_effects() -> None:
    store = InMemoryIdempotencyStore()
    assert store.reach == "process"
    assert not isinstance(store, RecordsEffects)
