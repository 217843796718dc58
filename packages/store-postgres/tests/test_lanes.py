"""The two connections of a lock store: rows that others have locked, pools that are starved, ends of all kinds."""

import asyncio
import gc
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from tenure import Locks
from tenure.errors import LeaseStateError
from tenure.store import Acquired, Claim, Held
from tenure_postgres import PostgresLockStore
from tenure_postgres import lane as lane_module

MakeEngine = Callable[..., AsyncEngine]
Until = Callable[..., Awaitable[None]]
Waits = Callable[[], Awaitable[None]]

KEYS = [f"order:{number}" for number in range(50)]
OTHERS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"


async def all_of(calls: Any) -> list[Any]:
    return await asyncio.gather(*calls, return_exceptions=True)


WARM = ["warm", "warmer"]
"""Keys of two calls that travel together: after a group, whatever comes at once travels together as well."""


async def take_all(store: PostgresLockStore, owner: str, keys: list[str], ttl_ms: int = 600_000) -> list[Any]:
    return await all_of(store.acquire(key, owner, ttl_ms) for key in keys)


async def release_all(store: PostgresLockStore, owner: str, keys: list[str]) -> list[Any]:
    return await all_of(store.release(key, owner) for key in keys)


# ----------------------------------------------------------------------------------------- rows that others have locked


async def held_row_delays_nobody(
    store: PostgresLockStore,
    call: str,
    locked_row: Any,
    sent: list[str],
    waits_in_the_pool: Any,
    *,
    within_s: float = 5,
) -> None:
    """Forty-nine of fifty calls end while the fiftieth's row is locked, and it ends when the row is free."""
    await take_all(store, "me", KEYS)
    if call == "acquire":
        await all_of(store.release(key, "me") for key in KEYS)
    arguments = () if call == "release" else (60_000,)
    sent.clear()
    async with locked_row(KEYS[7]):
        calls = [asyncio.create_task(getattr(store, call)(key, "me", *arguments)) for key in KEYS]
        await waits_in_the_pool(store._engine._engine, within_s)
        others = [task for task in calls if task is not calls[7]]
        await asyncio.wait(others, timeout=5)
        assert all(task.done() for task in others)
        assert not calls[7].done()
    answer = await calls[7]
    assert answer is True or isinstance(answer, Acquired)
    assert sent == [f"{call}_many", call], "one statement for all, and one for the row that was locked"


@pytest.mark.parametrize("call", ["acquire", "renew", "release"])
async def test_a_row_that_an_application_has_locked_delays_no_other_call(
    store: PostgresLockStore, locked_row: Any, sent: list[str], waits_in_the_pool: Any, *, call: str
) -> None:
    await held_row_delays_nobody(store, call, locked_row, sent, waits_in_the_pool)


@pytest.mark.parametrize("call", ["acquire", "renew", "release"])
async def test_planted_a_group_that_waits_for_a_locked_row(
    store: PostgresLockStore, locked_row: Any, sent: list[str], waits_in_the_pool: Any, *, planted_locks: Any, call: str
) -> None:
    planted_locks(store, f"{call}_many", ("UPDATE OF lock SKIP LOCKED", "UPDATE OF lock"))
    with pytest.raises(AssertionError):
        await held_row_delays_nobody(store, call, locked_row, sent, waits_in_the_pool, within_s=0.3)


async def guarded_by_a_transaction(store: PostgresLockStore, person: Any, until: Until) -> list[Any]:
    """Ask for fifty keys whose locks have expired, one of which a transaction holds as `lease_guard` does."""
    await take_all(store, "me", KEYS, 200)
    async with person.transaction():
        await person.execute("SELECT FROM tenure_locks WHERE key = $1 FOR KEY SHARE", KEYS[7])
        expired = "SELECT bool_and(expires_at < clock_timestamp()) FROM tenure_locks"
        await until(lambda: person.fetchval(expired), "the locks to expire")
        replies = await take_all(store, "other", KEYS)
    assert isinstance(replies[7], asyncpg.LockNotAvailableError)
    assert all(isinstance(reply, Acquired) for reply in replies if reply is not replies[7])
    return replies


async def test_a_group_passes_no_lease_guard(engine: AsyncEngine, person: Any, until: Until) -> None:
    await guarded_by_a_transaction(PostgresLockStore(engine, lock_timeout="50ms"), person, until)


async def test_planted_a_group_with_a_weaker_lock_passes_the_guard(
    engine: AsyncEngine, person: Any, until: Until, planted_locks: Any
) -> None:
    store = PostgresLockStore(engine, lock_timeout="50ms")
    planted_locks(store, "acquire_many", ("FOR UPDATE OF lock", "FOR NO KEY UPDATE OF lock"))
    with pytest.raises(AssertionError):
        await guarded_by_a_transaction(store, person, until)


async def test_a_guard_that_comes_in_the_middle_of_a_groups_takeover_waits_for_its_end(
    store: PostgresLockStore, person: Any, database_url: str, connect: Any, waits_for_a_row: Waits
) -> None:
    """The rows stay locked FOR UPDATE after they were written, which a mere UPDATE of other columns would not do."""
    await store.acquire("job", "me", 1)
    await person.execute("SELECT pg_sleep(0.005)")
    async with connect(database_url) as taker, connect(database_url) as guard:
        async with taker.transaction():
            [row] = await taker.fetch(store._sql.acquire_many, ["job"], ["other"], [60_000], "10ms")
            assert row["token"] is not None
            look = "SELECT token FROM tenure_locks WHERE key = 'job' AND owner = 'me' FOR KEY SHARE"
            guarding = asyncio.create_task(guard.fetch(look))
            await waits_for_a_row()
        assert await guarding == []


# ---------------------------------------------------------------------------------------------------- no deadlocks


async def opposite_orders(stores: list[PostgresLockStore], person: Any, connect: Any, url: str, rounds: int) -> int:
    """
    Have two stores ask for the same new keys in opposite orders, and release them; returns how many deadlocks were.

    A deadlock is found within a millisecond here, long before the statement's own bound would hide it.
    """
    await person.execute(
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET deadlock_timeout = ''1ms''', current_database()); END $$"
    )
    count = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    before = await person.fetchval(count)
    for number in range(rounds):
        keys = [f"round-{number}:{place:03}" for place in range(500)]
        there, back = await asyncio.gather(take_all(stores[0], "a", keys), take_all(stores[1], "b", keys[::-1]))
        for first, second in zip(there, reversed(back), strict=True):
            assert {type(first), type(second)} == {Acquired, Held}
        first, second = await asyncio.gather(release_all(stores[0], "a", keys), release_all(stores[1], "b", keys))
        assert all(one is not other for one, other in zip(first, second, strict=True))
    for store in stores:
        await store.aclose()  # they open their connections again
    async with connect(url) as other:  # a session that ends hands in its counts
        return int(await other.fetchval(count) - before)


async def test_two_stores_that_ask_for_the_same_keys_in_opposite_orders_never_deadlock(
    engine: AsyncEngine, person: Any, connect: Any, database_url: str
) -> None:
    stores = [PostgresLockStore(engine), PostgresLockStore(engine)]
    assert await opposite_orders(stores, person, connect, database_url, rounds=5) == 0


async def test_planted_groups_that_insert_in_the_order_of_arrival_deadlock(
    engine: AsyncEngine, person: Any, connect: Any, database_url: str, planted_locks: Any
) -> None:
    stores = [PostgresLockStore(engine), PostgresLockStore(engine)]
    for store in stores:
        planted_locks(store, "acquire_many", ('ORDER BY rest.key COLLATE "C"', ""))
    for _ in range(10):  # until the first one
        if await opposite_orders(stores, person, connect, database_url, rounds=4):
            return
        await person.execute("TRUNCATE tenure_locks")
    pytest.fail("no deadlock")


# -------------------------------------------------------------------------------------------------- the connections


@pytest.fixture
async def starved(make_engine: MakeEngine) -> AsyncIterator[AsyncEngine]:
    """An engine whose every connection the application has in a transaction."""
    engine = make_engine(pool_size=2, max_overflow=0, pool_timeout=30)
    async with engine.begin() as one, engine.begin() as two:
        for connection in (one, two):
            await connection.exec_driver_sql("SELECT 1")
        yield engine


async def test_locks_go_on_while_the_application_has_every_connection_of_the_pool(starved: AsyncEngine) -> None:
    store = PostgresLockStore(starved)
    await store.check()
    for _ in range(3):
        assert all(isinstance(reply, Acquired) for reply in await take_all(store, "me", KEYS))
        assert await all_of(store.renew(key, "me", 60_000) for key in KEYS) == [True] * 50
        assert await store.renew_many([Claim(key, "me", 60_000) for key in KEYS]) == [True] * 50
        assert await all_of(store.release(key, "me") for key in KEYS) == [True] * 50
    await store.aclose()


async def test_a_lane_that_broke_is_opened_again_past_a_starved_pool(
    starved: AsyncEngine, person: Any, until: Until
) -> None:
    store = PostgresLockStore(starved)
    assert isinstance(await store.acquire("job", "me", 60_000), Acquired)
    assert await store.renew("job", "me", 60_000)
    locks = "FROM pg_stat_activity WHERE datname = current_database() AND query LIKE '/* tenure:locks/%'"
    await person.execute(f"SELECT pg_terminate_backend(pid) {locks} AND pid <> pg_backend_pid()")
    await until(lambda: person.fetchval(f"SELECT count(*) = 0 {locks}"), "the connections to be gone")
    await asyncio.sleep(0.05)  # their ends are on the way to this process
    assert await store.renew("job", "me", 60_000)
    assert isinstance(await store.acquire("job-2", "me", 60_000), Acquired)
    await store.aclose()


async def test_a_start_and_leases_that_are_held_take_two_connections(
    make_engine: MakeEngine, person: Any, until: Until
) -> None:
    async with Locks(PostgresLockStore(make_engine()), ttl=30) as locks:
        leases = [await locks.acquire(key) for key in KEYS]
        assert await locks.acquirer._store.renew_many([lease._kept.claim for lease in leases]) == [True] * len(KEYS)
        await until(lambda: person.fetchval(f"SELECT ({OTHERS}) = 2"), "the one of the check to be gone")
        assert all(lease.held for lease in leases)


async def test_a_store_has_two_connections_beyond_the_pool_at_most(make_engine: MakeEngine, person: Any) -> None:
    engine = make_engine(pool_size=2, max_overflow=0)
    store, most = PostgresLockStore(engine), 0

    async def use(number: int) -> None:
        nonlocal most
        for turn in range(10):
            key = f"key-{(number + turn) % 40}"
            if isinstance(await store.acquire(key, f"owner-{number}", 60_000), Acquired):
                await store.renew(key, f"owner-{number}", 60_000)
                await store.list_locks(key)
                await store.release(key, f"owner-{number}")
            if number == 0:
                most = max(most, await person.fetchval(OTHERS))

    await asyncio.gather(*(use(number) for number in range(60)))
    assert 3 <= most <= 4


async def none_left(person: Any, until: Until) -> None:
    await until(lambda: person.fetchval(OTHERS.replace("count(*)", "count(*) = 0")), "the connections to be gone")


async def test_an_engine_that_is_disposed_closes_the_lanes_and_they_open_again(
    engine: AsyncEngine, store: PostgresLockStore, person: Any, until: Until
) -> None:
    for _ in range(2):
        await take_all(store, "me", KEYS)
        assert await store.renew(KEYS[0], "me", 60_000)
        assert await person.fetchval(OTHERS) == 2
        await engine.dispose()
        await none_left(person, until)


async def test_an_engine_that_is_disposed_outside_of_its_greenlet_closes_them_too(
    engine: AsyncEngine, store: PostgresLockStore, person: Any, until: Until
) -> None:
    await store.acquire("job", "me", 60_000)
    engine.sync_engine.dispose()
    await none_left(person, until)
    assert await store.renew("job", "me", 60_000)


async def test_a_store_that_is_closed_leaves_the_engine_and_none_of_its_own_connections(
    engine: AsyncEngine, person: Any, until: Until
) -> None:
    async with PostgresLockStore(engine) as store:
        await store.acquire("job", "me", 60_000)
        await store.renew("job", "me", 60_000)
    await none_left(person, until)


async def test_a_store_that_is_forgotten_leaves_no_connection(engine: AsyncEngine, person: Any, until: Until) -> None:
    store = PostgresLockStore(engine)
    await store.acquire("job", "me", 60_000)
    await store.renew("job", "me", 60_000)
    del store

    async def none() -> bool:
        gc.collect()
        return bool(await person.fetchval(OTHERS) == 0)

    await until(none, "the connections to be gone")


async def test_a_store_that_is_closed_fails_who_still_waits(
    make_engine: MakeEngine, locked_table: Any, waits_for_a_row: Waits
) -> None:
    store = PostgresLockStore(make_engine(), owns_engine=True)
    await store.acquire("job", "me", 60_000)
    async with locked_table():
        under_way = asyncio.create_task(store.acquire("job-1", "me", 60_000))
        await waits_for_a_row()
        waiting = asyncio.create_task(store.acquire("job-2", "me", 60_000))
        await asyncio.sleep(0)
        await store.aclose()
        await asyncio.wait({under_way, waiting}, timeout=5)
    assert isinstance(under_way.exception(), asyncpg.InterfaceError | asyncpg.PostgresError | OSError)
    assert isinstance(waiting.exception(), LeaseStateError)


def stopped(pid: int, *, run: bool) -> None:
    os.kill(pid, signal.SIGCONT if run else signal.SIGSTOP)


async def test_a_connection_that_does_not_answer_holds_up_no_other_call(
    store: PostgresLockStore, person: Any, own_backend: Callable[[int], bool]
) -> None:
    """The other end of one connection is gone: what comes after the call that hangs on it goes through the pool."""
    await take_all(store, "me", KEYS)
    await store.renew(KEYS[0], "me", 60_000)
    # Here: a connection of the test before may be about to end.
    here = "FROM pg_stat_activity WHERE datname = current_database()"
    [[pid]] = await person.fetch(f"SELECT pid {here} AND query LIKE '/* tenure:locks/renew %'")
    if not own_backend(pid):
        pytest.skip("the server's processes are not this machine's")
    stopped(pid, run=False)
    try:
        hung = asyncio.create_task(store.renew(KEYS[0], "me", 60_000))
        await asyncio.sleep(0.01)
        calls = [asyncio.create_task(store.renew(key, "me", 60_000)) for key in KEYS[1:]]
        many = asyncio.create_task(store.renew_many([Claim(key, "me", 60_000) for key in KEYS]))
        await asyncio.wait([*calls, many], timeout=20)
        assert [call.done() and call.result() for call in calls] == [True] * 49
        assert many.result() == [True] * 50
        assert not hung.done()
    finally:
        stopped(pid, run=True)
    assert await hung is True


async def test_a_cancelled_caller_waits_for_a_server_that_does_not_answer_no_longer_than_it_must(
    store: PostgresLockStore, locked_table: Any, waits_for_a_row: Waits, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the statement is given up for all, and each of the others is told that its outcome is unknown."""
    monkeypatch.setattr(lane_module, "_PATIENCE_S", 0.0)
    await take_all(store, "me", WARM)
    async with locked_table():
        calls = [asyncio.create_task(store.acquire(key, "me", 60_000)) for key in KEYS[:5]]
        await waits_for_a_row()
        calls[2].cancel()
        await asyncio.wait(calls, timeout=10)
        assert calls[2].cancelled()
        assert all(isinstance(call.exception(), TimeoutError) for call in calls if call is not calls[2])
    assert isinstance(await store.acquire(KEYS[0], "me", 60_000), Acquired)


@pytest.fixture
def own_backend() -> Callable[[int], bool]:
    """Whether a server's process is one that this process may stop."""

    def is_ours(pid: int) -> bool:
        try:
            os.kill(pid, 0)
        except OSError:
            return False
        return b"postgres" in Path(f"/proc/{pid}/cmdline").read_bytes()

    return is_ours


# -------------------------------------------------------------------------------------------------------- the plans


GROUPED = {
    "acquire_many": ("text[], text[], bigint[], text", "ARRAY['k1', 'k2'], ARRAY['o', 'o'], ARRAY[1, 1], '10ms'"),
    "renew_many": ("text[], text[], bigint[]", "ARRAY['k1', 'k2'], ARRAY['o', 'o'], ARRAY[1, 1]"),
    "release_many": ("text[], text[]", "ARRAY['k1', 'k2'], ARRAY['o', 'o']"),
}


@pytest.mark.parametrize("rows", [0, 20, 1000])
async def test_a_plan_that_was_made_for_a_small_table_does_not_read_a_big_one(
    store: PostgresLockStore, person: Any, rows: int
) -> None:
    await person.execute("SET plan_cache_mode = force_generic_plan")
    made = (
        "INSERT INTO tenure_locks SELECT 'key-' || n, 'o', n, now() + interval '1 h', NULL FROM generate_series({}) n"
    )
    if rows:
        await person.execute(made.format(f"1, {rows}"))
        await person.execute("ANALYZE tenure_locks")
    for name, (types, arguments) in GROUPED.items():
        await person.execute(f"PREPARE {name} ({types}) AS {getattr(store._sql, name)}")
        await person.execute(f"EXPLAIN EXECUTE {name}({arguments})")
    await person.execute(made.format("1001, 101000"))
    for name, (_, arguments) in GROUPED.items():
        plan = "\n".join(row[0] for row in await person.fetch(f"EXPLAIN EXECUTE {name}({arguments})"))
        assert "Seq Scan" not in plan
        assert plan.count("Index") >= 2


async def test_what_a_group_writes_is_hot(
    store: PostgresLockStore, engine: AsyncEngine, person: Any, until: Until
) -> None:
    for _ in range(20):
        await take_all(store, "me", KEYS)
        await all_of(store.release(key, "me") for key in KEYS)
    await engine.dispose()  # a session that ends hands in its counts
    counts = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'tenure_locks'"

    async def counted() -> bool:
        return bool((await person.fetchrow(counts))[0] >= 1950)

    await until(counted, "the server's statistics")
    updates, hot = await person.fetchrow(counts)
    assert (updates, hot) == (1950, 1950)
