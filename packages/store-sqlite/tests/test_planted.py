"""Bugs planted in the statements: each is found by the fact that it breaks, or that fact would prove nothing."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any

import pytest

from tenure.idempotency_store import Abandoned, Completed, Completion
from tenure.idempotency_store import Acquired as Begun
from tenure.store import Acquired, Claim, Held
from tenure_sqlite import SqliteIdempotencyStore, SqliteLockStore, statements
from tenure_sqlite import idempotency_store as of_records
from tenure_sqlite import lock_store as of_locks
from tenure_sqlite import store_file as of_file

MINUTE_MS = 60_000
Open = Callable[..., Any]


async def take(store: SqliteLockStore, owner: str, key: str = "job", ttl_ms: int = MINUTE_MS) -> int:
    reply = await store.acquire(key, owner, ttl_ms)
    assert isinstance(reply, Acquired), reply
    return reply.token


async def begin(store: SqliteIdempotencyStore, owner: str, **options: Any) -> Any:
    return await store.acquire("order", owner, "digest", MINUTE_MS, MINUTE_MS, **options)


# ------------------------------------------------------------------------------------------------ facts of locks


async def a_stranger_does_not_renew(opened: Open, clocks: Any) -> None:
    store = opened()
    await take(store, "holder")
    assert not await store.renew("job", "stranger", MINUTE_MS)


async def a_stranger_does_not_release(opened: Open, clocks: Any) -> None:
    store = opened()
    await take(store, "holder")
    assert not await store.release("job", "stranger")
    assert isinstance(await store.acquire("job", "stranger", MINUTE_MS), Held)


async def an_expired_lock_is_not_renewed(opened: Open, clocks: Any) -> None:
    store = opened()
    await take(store, "holder")
    clocks.pass_ms(MINUTE_MS)
    assert not await store.renew("job", "holder", MINUTE_MS)


async def of_many_renewals_only_the_own_count(opened: Open, clocks: Any) -> None:
    store = opened()
    await take(store, "holder", "one")
    await take(store, "another", "two")
    claims = [Claim(key, "holder", 2 * MINUTE_MS) for key in ("one", "two")]
    assert list(await store.renew_many(claims)) == [True, False]
    assert [lock.expires_in_ms for lock in await store.list_locks()] == [2 * MINUTE_MS, MINUTE_MS]


async def an_expired_lock_is_not_released(opened: Open, clocks: Any) -> None:
    store = opened()
    await take(store, "holder")
    clocks.pass_ms(MINUTE_MS)
    assert not await store.release("job", "holder")


async def a_lock_ends_with_its_ttl(opened: Open, clocks: Any) -> None:
    store = opened()
    await take(store, "holder")
    clocks.pass_ms(MINUTE_MS - 1)
    assert await store.acquire("job", "next", MINUTE_MS) == Held(expires_in_ms=1)
    clocks.pass_ms(1)
    assert isinstance(await store.acquire("job", "next", MINUTE_MS), Acquired)


async def what_is_left_is_rounded_up(opened: Open, clocks: Any) -> None:
    store = opened()
    await take(store, "holder", ttl_ms=1)
    clocks.now += 1
    assert await store.acquire("job", "next", MINUTE_MS) == Held(expires_in_ms=1)


async def of_many_that_come_at_once_one_has_the_key(opened: Open, clocks: Any) -> None:
    stores = [opened(synchronous="normal") for _ in range(8)]
    for store in stores:
        await store.list_locks()  # which opens it: so they ask at the same time
    for job in range(20):
        asked = [store.acquire(f"job-{job}", f"owner-{n}", 1000) for n, store in enumerate(stores)]
        assert sum(isinstance(reply, Acquired) for reply in await asyncio.gather(*asked)) == 1


async def a_repeat_gets_the_same_token(opened: Open, clocks: Any) -> None:
    store = opened()
    first = await take(store, "holder")
    clocks.pass_ms(1)
    assert await take(store, "holder") == first


async def tokens_grow_when_the_wall_clock_steps_back(opened: Open, clocks: Any) -> None:
    store = opened()
    first = await take(store, "holder")
    await store.release("job", "holder")
    clocks.wall -= 3_600_000_000
    assert await take(store, "next") == first + 1


async def tokens_are_the_wall_clock_where_that_is_ahead(opened: Open, clocks: Any) -> None:
    assert await take(opened(), "holder") == clocks.wall


async def a_released_lock_is_told_to_be_released(opened: Open, clocks: Any) -> None:
    store = opened()
    await take(store, "holder")
    await store.release("job", "holder")
    reply = await store.acquire("job", "next", MINUTE_MS)
    assert isinstance(reply, Acquired)
    assert reply.after == "released"


async def an_expired_lock_is_told_to_be_expired(opened: Open, clocks: Any) -> None:
    store = opened()
    await take(store, "holder")
    clocks.pass_ms(MINUTE_MS)
    reply = await store.acquire("job", "next", MINUTE_MS)
    assert isinstance(reply, Acquired)
    assert reply.after == "expired"


async def an_expired_lock_is_not_listed(opened: Open, clocks: Any) -> None:
    store = opened()
    await take(store, "holder")
    clocks.pass_ms(MINUTE_MS)
    assert await store.list_locks() == []


async def a_prefix_is_compared_to_the_letter(opened: Open, clocks: Any) -> None:
    store = opened()
    for key in ("job_1", "jobs1", "Job_1"):
        await take(store, "holder", key)
    assert [lock.key for lock in await store.list_locks("job_")] == ["job_1"]


async def what_is_held_is_not_pruned(opened: Open, clocks: Any) -> None:
    store = opened()
    await take(store, "holder", ttl_ms=3 * MINUTE_MS)
    clocks.pass_ms(2 * MINUTE_MS)
    assert await store.prune(older_than="1m") == 0


async def what_was_acquired_lately_is_not_pruned(opened: Open, clocks: Any) -> None:
    store = opened()
    await take(store, "holder")
    await store.release("job", "holder")
    clocks.pass_ms(MINUTE_MS - 1)
    assert await store.prune(older_than="1m") == 0


async def a_reboot_ends_every_lock(opened: Open, clocks: Any) -> None:
    first = await take(opened(), "holder", ttl_ms=3_600_000)
    clocks.reboot()
    store = opened()
    assert await store.list_locks() == []
    assert await take(store, "next") > first


# ---------------------------------------------------------------------------------------------- facts of records


async def another_payload_is_a_mismatch(opened: Open, clocks: Any) -> None:
    store = opened(SqliteIdempotencyStore)
    await begin(store, "one")
    reply = await store.acquire("order", "two", "another", MINUTE_MS, MINUTE_MS)
    assert type(reply).__name__ == "Mismatch"


async def an_execution_that_lives_is_not_taken_over(opened: Open, clocks: Any) -> None:
    store = opened(SqliteIdempotencyStore)
    await begin(store, "one")
    clocks.pass_ms(MINUTE_MS - 1)
    reply = await begin(store, "two")
    assert type(reply).__name__ == "InFlight"


async def a_takeover_is_one_attempt_more(opened: Open, clocks: Any) -> None:
    store = opened(SqliteIdempotencyStore)
    await begin(store, "one")
    clocks.pass_ms(MINUTE_MS)
    assert await begin(store, "two") == Begun(attempt=2)


async def a_late_completion_is_stale(opened: Open, clocks: Any) -> None:
    store = opened(SqliteIdempotencyStore)
    await begin(store, "one")
    clocks.pass_ms(MINUTE_MS)
    await begin(store, "two")
    assert await store.complete("order", "one", b"late", MINUTE_MS) is Completion.STALE


async def an_outcome_is_replayed_across_a_reboot(opened: Open, clocks: Any) -> None:
    store = opened(SqliteIdempotencyStore)
    await begin(store, "one")
    await store.complete("order", "one", b"done", MINUTE_MS)
    clocks.reboot()
    assert await begin(opened(SqliteIdempotencyStore), "two") == Completed(b"done", "one")


async def a_reboot_abandons_what_was_in_flight(opened: Open, clocks: Any) -> None:
    await begin(opened(SqliteIdempotencyStore), "one")
    clocks.reboot()
    assert await begin(opened(SqliteIdempotencyStore), "two", takeover=False) == Abandoned(attempt=1)


async def a_second_attempt_that_is_released_stays_abandoned(opened: Open, clocks: Any) -> None:
    store = opened(SqliteIdempotencyStore)
    await begin(store, "one")
    clocks.pass_ms(MINUTE_MS)
    await begin(store, "two")
    assert await store.release("order", "two")
    assert await begin(store, "three") == Begun(attempt=3)


async def what_has_not_ended_is_not_purged(opened: Open, clocks: Any) -> None:
    store = opened(SqliteIdempotencyStore)
    await begin(store, "one")
    clocks.pass_ms(2 * MINUTE_MS - 1)
    assert await store.purge() == 0


_ALIVE = "AND expires_at > now.at"
_EXPIRED = "OR lock.expires_at <= excluded.expires_at - :ttl_us"
_OWN_TOKEN = "lock.owner = excluded.owner AND lock.expires_at > excluded.expires_at - :ttl_us"

PLANTED = [
    ("renew", "AND owner = :owner", "", a_stranger_does_not_renew),
    ("renew", _ALIVE, "", an_expired_lock_is_not_renewed),
    ("renew_many", "AND lock.owner = claims.owner", "", of_many_renewals_only_the_own_count),
    ("release", "AND owner = :owner", "", a_stranger_does_not_release),
    ("release", _ALIVE, "", an_expired_lock_is_not_released),
    ("look", "AND lock.expires_at > now.at", "", a_lock_ends_with_its_ttl),
    ("take", "now.at + :ttl_us, NULL", "now.at + :ttl_us + 1000, NULL", a_lock_ends_with_its_ttl),
    ("take", _EXPIRED, "OR true", of_many_that_come_at_once_one_has_the_key),
    ("look", "+ 999", "", what_is_left_is_rounded_up),
    ("take", f"CASE WHEN {_OWN_TOKEN} THEN lock.token", "CASE WHEN false THEN 0", a_repeat_gets_the_same_token),
    ("take", "max(excluded.token, lock.token + 1)", "excluded.token", tokens_grow_when_the_wall_clock_steps_back),
    ("take", "max(now.wall, 1)", "1", tokens_are_the_wall_clock_where_that_is_ahead),
    ("take", "THEN 'released'", "THEN 'expired'", a_released_lock_is_told_to_be_released),
    ("take", "ELSE 'expired'", "ELSE 'released'", an_expired_lock_is_told_to_be_expired),
    ("list_locks", "AND expires_at > now.at", "", an_expired_lock_is_not_listed),
    (
        "list_locks",
        "substr(key, 1, length(:prefix)) = :prefix",
        "key LIKE :prefix || '%'",
        a_prefix_is_compared_to_the_letter,
    ),
    ("prune", "(lock.owner IS NULL OR lock.expires_at <= now.at) AND", "", what_is_held_is_not_pruned),
    ("prune", "AND lock.token <= now.wall - :older_than_us", "", what_was_acquired_lately_is_not_pruned),
    ("expire_all", "UPDATE", "EXPLAIN UPDATE", a_reboot_ends_every_lock),
    ("look_record", "WHEN record.fingerprint <> :fingerprint THEN 'mismatch'", "", another_payload_is_a_mismatch),
    ("look_record", "THEN 'in flight'\n            WHEN NOT", "THEN 'to take over'\n            WHEN NOT", None),
    ("take_record", "ELSE record.attempt + 1", "ELSE record.attempt", a_takeover_is_one_attempt_more),
    ("complete", "AND record.owner = :owner", "", a_late_completion_is_stale),
    ("abandon_all", "WHERE response IS NULL", "WHERE true", an_outcome_is_replayed_across_a_reboot),
    ("abandon_all", "UPDATE", "EXPLAIN UPDATE", a_reboot_abandons_what_was_in_flight),
    ("release_record", "AND attempt = 1", "", a_second_attempt_that_is_released_stays_abandoned),
    ("purge", "record.expires_at <=", "true OR record.expires_at <=", what_has_not_ended_is_not_purged),
]
PLANTED = [(*bug[:3], bug[3] or an_execution_that_lives_is_not_taken_over) for bug in PLANTED]
FACTS = sorted({fact for *_, fact in PLANTED}, key=lambda fact: fact.__name__)


@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: fact.__name__)
async def test_it_is_a_fact_that(fact: Callable[..., Awaitable[None]], opened: Open, clocks: Any) -> None:
    await fact(opened, clocks)


@pytest.mark.parametrize("bug", PLANTED, ids=[f"{name}: {fact.__name__}" for name, *_, fact in PLANTED])
async def test_a_planted_bug_is_found(
    bug: tuple[str, str, str, Any], opened: Open, clocks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, sound, broken, fact = bug
    text = statements.read_statement(name)
    assert text.count(sound) == 1, f"{name}.sql has changed: plant the bug anew"

    @cache
    def read(statement: str) -> str:
        return text.replace(sound, broken) if statement == name else statements.read_statement(statement)

    for module in (of_locks, of_records, of_file):
        monkeypatch.setattr(module, "read_statement", read)
    # A look and a statement that contradict each other ask one another for ever: that is a failure too.
    with pytest.raises((AssertionError, TimeoutError)):
        async with asyncio.timeout(2):
            await fact(opened, clocks)
