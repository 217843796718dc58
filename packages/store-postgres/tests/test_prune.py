"""Rows that nobody needs any more are deleted, and no token goes back."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from tenure.errors import ConfigurationError
from tenure.store import Acquired
from tenure_postgres import PostgresLockStore

Owner = Callable[[], str]

AGE = "UPDATE tenure_locks SET expires_at = expires_at - $2::interval, token = token - $3::bigint WHERE key = $1"
DAY_US = 24 * 3_600_000_000


async def take(store: PostgresLockStore, key: str, owner: str, ttl_ms: int = 60_000) -> int:
    reply = await store.acquire(key, owner, ttl_ms)
    assert isinstance(reply, Acquired)
    return reply.token


async def age(person: Any, key: str, days: int) -> None:
    """Make a row as old as if its last acquisition had been so many days ago."""
    from datetime import timedelta

    await person.execute(AGE, key, timedelta(days=days), days * DAY_US)


async def keys(person: Any) -> list[str]:
    return [row["key"] for row in await person.fetch("SELECT key FROM tenure_locks ORDER BY key")]


async def test_released_and_expired_rows_go_when_they_are_old_enough(
    store: PostgresLockStore, owner: Owner, person: Any
) -> None:
    for key in ("expired-old", "expired-young", "live", "released-old", "released-young"):
        holder = owner()
        await take(store, key, holder)
        if key.startswith("released"):
            await store.release(key, holder)
        if key.startswith("expired"):
            await person.execute("UPDATE tenure_locks SET expires_at = clock_timestamp() WHERE key = $1", key)
        if key.endswith("old"):
            await age(person, key, 8)
    assert await store.prune() == 2
    assert await keys(person) == ["expired-young", "live", "released-young"]
    assert await store.prune("60s") == 0
    assert await keys(person) == ["expired-young", "live", "released-young"]


async def test_a_lock_of_weeks_that_is_live_stays_whatever_its_age(
    store: PostgresLockStore, owner: Owner, person: Any
) -> None:
    await take(store, "job", owner(), 60 * 24 * 3_600_000)
    await age(person, "job", 50)
    assert await store.prune("1m") == 0
    assert await keys(person) == ["job"]


async def test_a_pruned_keys_next_token_is_greater_than_every_one_before(
    store: PostgresLockStore, owner: Owner, person: Any
) -> None:
    holder = owner()
    token = await take(store, "job", holder)
    await store.release("job", holder)
    await age(person, "job", 8)
    assert await store.prune() == 1
    assert await take(store, "job", owner()) > token


async def test_a_row_whose_token_is_ahead_of_the_clock_stays(
    store: PostgresLockStore, owner: Owner, person: Any
) -> None:
    """The server's clock stepped back, or the application came from a store whose clock is ahead."""
    for key, ahead_us in (("ahead", 10 * DAY_US), ("within-the-age", 8 * DAY_US - 7 * DAY_US + 60_000_000)):
        holder = owner()
        await take(store, key, holder)
        await store.release(key, holder)
        await age(person, key, 8)
        await person.execute("UPDATE tenure_locks SET token = token + $2::bigint WHERE key = $1", key, ahead_us)
    assert await store.prune() == 0
    tokens = {row["key"]: row["token"] for row in await person.fetch("SELECT key, token FROM tenure_locks")}
    assert await take(store, "ahead", owner()) == tokens["ahead"] + 1


async def test_planted_a_prune_by_age_alone_lets_a_token_go_back(
    store: PostgresLockStore, owner: Owner, person: Any
) -> None:
    """The condition on the token is what the test above is about."""
    forgetful = store._sql.prune.replace("AND lock.token < (extract(epoch FROM bound.before) * 1000000)::bigint", "")
    assert forgetful != store._sql.prune
    store._sql = replace(store._sql, prune=forgetful)
    with pytest.raises(AssertionError):
        await test_a_row_whose_token_is_ahead_of_the_clock_stays(store, owner, person)


async def test_a_row_that_somebody_has_locked_is_left_for_the_next_time(
    store: PostgresLockStore, owner: Owner, person: Any, locked_row: Any
) -> None:
    for key in ("free", "locked"):
        holder = owner()
        await take(store, key, holder)
        await store.release(key, holder)
        await age(person, key, 8)
    async with locked_row("locked"):
        assert await store.prune() == 1
        assert await keys(person) == ["locked"]
    assert await store.prune() == 1


async def test_many_rows_go_in_batches_on_one_way_through_the_table(store: PostgresLockStore, person: Any) -> None:
    await person.execute(
        "INSERT INTO tenure_locks SELECT 'order:' || n, CASE WHEN n % 2 = 0 THEN 'x' END, 1000000 + n, "
        "now() - interval '8 days', NULL FROM generate_series(1, 2500) AS n"
    )
    await person.execute("INSERT INTO tenure_locks VALUES ('order:live', 'x', 1, now() + interval '1 d', NULL)")
    assert await store.prune() == 2500
    assert await keys(person) == ["order:live"]


async def test_tokens_grow_while_several_prune_and_others_acquire(
    make_engine: Callable[..., AsyncEngine], owner: Owner, person: Any
) -> None:
    """Rows are made old the moment they are released, so that each acquisition races with their deletion."""
    store, over = PostgresLockStore(make_engine(pool_size=8)), False
    tokens: dict[str, list[int]] = {f"key-{number}": [] for number in range(4)}
    pruned = 0

    async def acquire(key: str) -> None:
        for _ in range(60):
            holder = owner()
            tokens[key].append(await take(store, key, holder))
            await store.release(key, holder)
            # Older than the least age, in its expiry and in its token: what is true of a row that nobody took.
            await person_lock.acquire()
            try:
                await age(person, key, 1)
            finally:
                person_lock.release()

    async def prune() -> None:
        nonlocal pruned
        while not over:
            pruned += await store.prune("1m")

    person_lock = asyncio.Lock()
    pruning = [asyncio.create_task(prune()) for _ in range(2)]
    try:
        await asyncio.gather(*(acquire(key) for key in tokens))
    finally:
        over = True
        await asyncio.gather(*pruning)
    assert pruned > 20, "the two hardly met"
    for given in tokens.values():
        assert given == sorted(set(given))


@pytest.mark.parametrize("older_than", ["59s", 0, -1, True, "soon", "59999ms"])
async def test_an_age_of_less_than_a_minute_is_refused(store: PostgresLockStore, older_than: Any) -> None:
    with pytest.raises(ConfigurationError, match="older_than"):
        await store.prune(older_than)
