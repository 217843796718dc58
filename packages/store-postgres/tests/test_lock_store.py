import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import asyncpg
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from tenure.errors import ConfigurationError, LeaseStateError
from tenure.store import MAX_TOKEN, Acquired, ChecksServer, Claim, Held, ListsLocks, RenewsMany
from tenure_postgres import PostgresLockStore, TokensExhaustedError, create_schema_sql
from tenure_postgres.statements import TableName, read_statement

Owner = Callable[[], str]
Until = Callable[..., Awaitable[None]]


async def take(store: PostgresLockStore, key: str, owner: str, ttl_ms: int = 60_000) -> Acquired:
    reply = await store.acquire(key, owner, ttl_ms)
    assert isinstance(reply, Acquired)
    return reply


async def test_a_lock_says_how_the_one_before_it_ended(store: PostgresLockStore, owner: Owner, person: Any) -> None:
    first, second, third = owner(), owner(), owner()
    assert (await take(store, "job", first)).after is None
    await store.release("job", first)
    assert (await take(store, "job", second)).after == "released"
    await person.execute("UPDATE tenure_locks SET expires_at = clock_timestamp()")
    assert (await take(store, "job", third)).after == "expired"
    assert (await take(store, "job", third)).after == "expired"  # asked again: the same acquisition


async def test_a_release_keeps_the_row_and_its_token(store: PostgresLockStore, owner: Owner, person: Any) -> None:
    holder = owner()
    token = (await take(store, "job", holder)).token
    await store.release("job", holder)
    row = await person.fetchrow("SELECT owner, token, expires_at <= clock_timestamp() AS ended FROM tenure_locks")
    assert dict(row) == {"owner": None, "token": token, "ended": True}


async def test_who_is_told_that_a_key_is_held_neither_writes_nor_locks_its_row(
    store: PostgresLockStore, owner: Owner, person: Any
) -> None:
    """Thousands of waiters poll; each row lock they took would be one that the holder's renewal waits for."""
    await take(store, "job", owner())
    before = await person.fetchrow("SELECT ctid::text, xmax::text FROM tenure_locks")
    reply = await store.acquire("job", owner(), 1000)
    assert isinstance(reply, Held)
    assert 59_000 < (reply.expires_in_ms or 0) <= 60_000
    assert await person.fetchrow("SELECT ctid::text, xmax::text FROM tenure_locks") == before


async def test_a_token_is_the_servers_clock_in_microseconds(
    store: PostgresLockStore, person: Any, owner: Owner
) -> None:
    clock = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
    before = await person.fetchval(clock)
    token = (await take(store, "job", owner())).token
    assert before <= token <= await person.fetchval(clock)


async def test_a_clock_that_lags_behind_the_last_token_still_gives_a_greater_one(
    store: PostgresLockStore, person: Any, owner: Owner
) -> None:
    holder = owner()
    token = (await take(store, "job", holder)).token
    ahead = token + 3_600_000_000  # the server's clock stepped back by an hour
    await store.release("job", holder)
    await person.execute("UPDATE tenure_locks SET token = $1", ahead)
    assert (await take(store, "job", owner())).token == ahead + 1


async def test_a_key_whose_tokens_are_used_up_is_refused_and_nothing_is_written(
    store: PostgresLockStore, person: Any, owner: Owner
) -> None:
    holder = owner()
    await take(store, "job", holder)
    await store.release("job", holder)
    await person.execute("UPDATE tenure_locks SET token = $1", MAX_TOKEN)
    before = await person.fetchrow("SELECT * FROM tenure_locks")
    with pytest.raises(TokensExhaustedError, match="greatest there is"):
        await store.acquire("job", owner(), 1000)
    assert await person.fetchrow("SELECT * FROM tenure_locks") == before


async def test_the_last_token_but_one_is_still_given(store: PostgresLockStore, person: Any, owner: Owner) -> None:
    await person.execute("INSERT INTO tenure_locks VALUES ('job', NULL, $1, now(), NULL)", MAX_TOKEN - 1)
    assert (await take(store, "job", owner())).token == MAX_TOKEN


async def test_a_held_key_whose_tokens_are_used_up_is_held(store: PostgresLockStore, person: Any, owner: Owner) -> None:
    await person.execute("INSERT INTO tenure_locks VALUES ('job', 'x', $1, now() + interval '1 m', NULL)", MAX_TOKEN)
    assert isinstance(await store.acquire("job", owner(), 1000), Held)


# ------------------------------------------------------------------------------------ rows that others have locked


@pytest.mark.parametrize("call", ["acquire", "renew", "release"])
async def test_a_call_waits_for_a_locked_row_no_longer_than_lock_timeout(
    engine: AsyncEngine, owner: Owner, locked_row: Any, call: str
) -> None:
    store, holder = PostgresLockStore(engine, lock_timeout="100ms"), owner()
    await take(store, "job", holder)
    loop = asyncio.get_running_loop()
    arguments = (60_000,) if call != "release" else ()
    async with locked_row("job"):
        started = loop.time()
        with pytest.raises(asyncpg.LockNotAvailableError) as caught:
            await getattr(store, call)("job", holder, *arguments)
        # A hundred milliseconds, on a machine that may be busy; without a bound it would wait for ever.
        assert 0.09 < loop.time() - started < 2
    assert "Another session has locked the row" in caught.value.__notes__[0]
    assert await store.renew("job", holder, 60_000), "the failed call changed nothing"


async def test_the_bound_of_one_statement_is_not_left_on_the_connection(
    make_engine: Callable[..., AsyncEngine], owner: Owner
) -> None:
    engine = make_engine(pool_size=1, max_overflow=0)
    await take(PostgresLockStore(engine, lock_timeout="123ms"), "job", owner())
    async with engine.connect() as connection:
        assert (await connection.exec_driver_sql("SHOW lock_timeout")).scalar() == "0"


@pytest.fixture
def behind_a_lock(person: Any, until: Until, locked_row: Any, waits_for_a_row: Any) -> Any:
    """Lock the row of a lock that lives for some 300 ms, start a renewal, and let go after the expiry."""

    async def run(renew: Coroutine[Any, Any, Any]) -> Any:
        async with locked_row("job"):
            task = asyncio.create_task(renew)
            await waits_for_a_row()
            expired = "SELECT bool_and(expires_at < clock_timestamp()) FROM tenure_locks"
            await until(lambda: person.fetchval(expired), "the lock to expire")
        return await task

    return run


async def test_a_renewal_that_waited_past_the_expiry_is_refused(
    store: PostgresLockStore, owner: Owner, behind_a_lock: Any
) -> None:
    holder = owner()
    await take(store, "job", holder, 300)
    assert await behind_a_lock(store.renew("job", holder, 60_000)) is False


async def test_planted_an_update_alone_revives_a_lock_that_expired_while_it_waited(
    store: PostgresLockStore, owner: Owner, behind_a_lock: Any, database_url: str, connect: Any
) -> None:
    """The statement that the one above protects from: without it, that test would prove nothing."""
    holder = owner()
    await take(store, "job", holder, 300)
    async with connect(database_url) as other:
        renew = other.fetch(
            "UPDATE tenure_locks SET expires_at = clock_timestamp() + interval '1 minute' "
            "WHERE key = 'job' AND owner = $1 AND expires_at > clock_timestamp() RETURNING true",
            holder,
        )
        assert await behind_a_lock(renew)


async def test_of_fifty_leases_one_locked_row_stops_no_other(
    store: PostgresLockStore, owner: Owner, locked_row: Any
) -> None:
    claims = [Claim(f"job-{number}", owner(), 2000) for number in range(50)]
    for claim in claims:
        await take(store, claim.key, claim.owner, 2000)
    loop = asyncio.get_running_loop()
    async with locked_row("job-7"):
        started = loop.time()
        answers = await store.renew_many([Claim(claim.key, claim.owner, 600_000) for claim in claims])
        assert loop.time() - started < 1, "it waited for the locked row"
    assert answers == [None if claim.key == "job-7" else True for claim in claims]
    left = {record.key: record.expires_in_ms for record in await store.list_locks("job-")}
    assert all((left[claim.key] > 500_000) == (claim.key != "job-7") for claim in claims)
    assert await store.renew("job-7", claims[7].owner, 2000), "alone, it is told that it is held"


async def test_many_renewals_are_answered_in_the_order_of_their_claims(
    store: PostgresLockStore, owner: Owner, person: Any
) -> None:
    held, expired, stranger = owner(), owner(), owner()
    await take(store, "b-held", held)
    await take(store, "a-expired", expired, 1)
    await take(store, "c-strange", stranger)
    await person.execute("SELECT pg_sleep(0.005)")
    claims = [("c-strange", owner()), ("d-none", owner()), ("b-held", held), ("a-expired", expired)]
    answers = await store.renew_many([Claim(key, name, 1000) for key, name in claims])
    assert answers == [False, False, True, False]


async def test_many_renewals_of_nothing_ask_nobody() -> None:
    engine = create_async_engine("postgresql+asyncpg://nobody@127.0.0.1:1/none")
    assert await PostgresLockStore(engine).renew_many([]) == []


async def test_two_instances_that_renew_the_same_keys_in_other_orders_never_deadlock(
    store: PostgresLockStore, owner: Owner
) -> None:
    claims = [Claim(f"job-{number}", owner(), 60_000) for number in range(40)]
    for claim in claims:
        await take(store, claim.key, claim.owner)

    async def renew(order: list[Claim]) -> None:
        for _ in range(25):
            assert False not in await store.renew_many(order)

    await asyncio.gather(renew(claims), renew(claims[::-1]), renew(claims[20:] + claims[:20]))


# ------------------------------------------------------------------------------------------------- what is listed


async def test_locks_are_listed_by_prefix_as_it_stands_and_in_the_order_of_their_bytes(
    store: PostgresLockStore, owner: Owner
) -> None:
    for key in ("a_b", "aXb", "a%b", "A_b", "ä_b", "a_b2"):
        await take(store, key, owner())
    gone = owner()
    await take(store, "a_b3", gone)
    await store.release("a_b3", gone)
    assert [record.key for record in await store.list_locks("a_b")] == ["a_b", "a_b2"]
    assert [record.key for record in await store.list_locks("a%")] == ["a%b"]
    assert [record.key for record in await store.list_locks()] == ["A_b", "a%b", "aXb", "a_b", "a_b2", "ä_b"]


async def test_a_listed_lock_names_its_instance_and_hides_its_owner(store: PostgresLockStore, owner: Owner) -> None:
    holder = owner()
    token = (await take(store, "job", holder)).token
    [record] = await store.list_locks()
    assert (record.owner, record.instance, record.token) == (holder, "cat-store-1", token)
    assert 59_000 < record.expires_in_ms <= 60_000
    assert holder not in repr(record)


# -------------------------------------------------------------------------------------------------------- the table


async def updates_of(engine: AsyncEngine, person: Any, until: Until, expected: int) -> tuple[int, int]:
    """How many updates the table has seen, and how many of them were HOT, once the server counted all."""
    await engine.dispose()  # a session that ends hands in its counts at once; an idle one within ten seconds
    counts = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'tenure_locks'"

    async def counted() -> bool:
        return bool((await person.fetchrow(counts))[0] >= expected)

    await until(counted, "the server's statistics")
    updates, hot = await person.fetchrow(counts)
    return updates, hot


async def test_renewals_are_hot(
    store: PostgresLockStore, engine: AsyncEngine, owner: Owner, person: Any, until: Until
) -> None:
    """A renewal that is not HOT writes to the index, and leaves behind what only VACUUM takes away."""
    claims = [Claim(f"nightly-export-{number}:owner", owner(), 60_000) for number in range(300)]
    for claim in claims:
        await take(store, claim.key, claim.owner)
    for _ in range(20):
        await store.renew_many(claims)
    updates, hot = await updates_of(engine, person, until, 6000)
    assert hot / updates > 0.99, f"{hot} of {updates}"


async def test_an_acquisition_is_hot_although_it_names_the_key(
    store: PostgresLockStore, engine: AsyncEngine, owner: Owner, person: Any, until: Until
) -> None:
    for _ in range(200):
        holder = owner()
        await take(store, "job", holder)
        await store.release("job", holder)
    assert await updates_of(engine, person, until, 399) == (399, 399)


@pytest.mark.parametrize(
    ("table", "schema"),
    [
        ('we"ird', None),
        ("select", None),
        ("Locks of:ops %s {locks}", 'sche"ma'),
        ("x\\1", None),
        ("'; DROP TABLE", None),
    ],
)
async def test_a_table_of_any_name_works(
    engine: AsyncEngine, person: Any, owner: Owner, table: str, schema: str | None
) -> None:
    if schema is not None:
        await person.execute("CREATE SCHEMA " + str(TableName(schema)))
    await person.execute(create_schema_sql(table=table, schema=schema))
    store, holder = PostgresLockStore(engine, table=table, schema=schema), owner()
    await take(store, "job", holder)
    assert await store.renew("job", holder, 1000)
    assert await store.renew_many([Claim("job", holder, 1000)]) == [True]
    assert [record.key for record in await store.list_locks()] == ["job"]
    assert await store.release("job", holder)
    assert await store.prune() == 0
    assert [finding for finding in await store.check() if finding.fatal] == []
    assert await person.fetchval("SELECT count(*) FROM tenure_locks") == 0, "the default table was not touched"


# ---------------------------------------------------------------------------------------------------- what it is not


NOBODY = "postgresql+asyncpg://nobody@127.0.0.1:1/none"
"""Nothing listens there: whatever is sent fails with another error than the one expected."""


@pytest.mark.parametrize("key", ["", "x" * 501, "a\0b", "\ud800", 7])
async def test_a_bad_key_is_refused_before_anything_is_sent(key: Any) -> None:
    store = PostgresLockStore(create_async_engine(NOBODY))
    for call in (
        store.acquire(key, "o", 1000),
        store.renew(key, "o", 1000),
        store.release(key, "o"),
        store.renew_many([Claim(key, "o", 1000)]),
    ):
        with pytest.raises(ConfigurationError):
            await call


@pytest.mark.parametrize("ttl_ms", [0, -1, 1.5, True, float("nan"), "1", 2**63])
async def test_a_bad_ttl_is_refused_before_anything_is_sent(ttl_ms: Any) -> None:
    store = PostgresLockStore(create_async_engine(NOBODY))
    for call in (
        store.acquire("k", "o", ttl_ms),
        store.renew("k", "o", ttl_ms),
        store.renew_many([Claim("k", "o", ttl_ms)]),
    ):
        with pytest.raises(ConfigurationError):
            await call


async def test_a_bad_owner_is_refused_before_anything_is_sent_and_not_named() -> None:
    store = PostgresLockStore(create_async_engine(NOBODY))
    for call in (
        store.acquire("k", "secret\0", 1000),
        store.renew("k", "secret\0", 1000),
        store.release("k", "secret\0"),
        store.renew_many([Claim("k", "secret\0", 1000)]),
    ):
        with pytest.raises(ConfigurationError) as caught:
            await call
        assert "secret" not in str(caught.value)


async def test_a_bad_prefix_is_refused_before_anything_is_sent() -> None:
    with pytest.raises(ConfigurationError):
        await PostgresLockStore(create_async_engine(NOBODY)).list_locks("a\0")


@pytest.mark.parametrize("lock_timeout", [0, -1, "31s", True, "soon", 0.0001])
def test_a_lock_timeout_outside_the_rules_is_refused(lock_timeout: Any) -> None:
    with pytest.raises(ConfigurationError, match="lock_timeout"):
        PostgresLockStore(create_async_engine(NOBODY), lock_timeout=lock_timeout)


def test_it_has_the_capabilities_that_it_says(store: PostgresLockStore) -> None:
    assert isinstance(store, RenewsMany)
    assert isinstance(store, ListsLocks)
    assert isinstance(store, ChecksServer)
    assert store.reach == "cluster"
    assert repr(store) == "PostgresLockStore(table='\"tenure_locks\"')"


async def test_an_engine_that_was_handed_over_stays_open(make_engine: Callable[..., AsyncEngine], owner: Owner) -> None:
    engine = make_engine(pool_size=1)
    async with PostgresLockStore(engine) as store:
        await take(store, "job", owner())
        pool = engine.pool
    await take(store, "job-2", owner())
    async with engine.connect() as connection:
        await connection.exec_driver_sql("SELECT 1")
    assert engine.pool is pool
    assert pool.status().startswith("Pool size: 1  Connections in pool: 1")


async def test_a_store_that_owns_its_engine_is_closed_for_good(
    make_engine: Callable[..., AsyncEngine], owner: Owner, person: Any, until: Until
) -> None:
    async with PostgresLockStore(make_engine(), owns_engine=True) as store:
        await take(store, "job", owner())
    await store.aclose()
    others = "SELECT count(*) = 0 FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    await until(lambda: person.fetchval(others), "the store's connections to be gone")
    with pytest.raises(LeaseStateError, match="closed"):
        await store.acquire("job", owner(), 1000)
    with pytest.raises(LeaseStateError, match="closed"):
        await store.check()


async def test_a_lock_is_seen_by_all_at_once_whatever_the_application_does_in_its_own_transaction(
    engine: AsyncEngine, store: PostgresLockStore, owner: Owner, person: Any
) -> None:
    """A lock taken in the caller's transaction would be unseen until its commit, and gone by its rollback."""
    async with engine.connect() as connection:
        await connection.exec_driver_sql("SELECT 1")
        await take(store, "job", owner())
        assert await person.fetchval("SELECT count(*) FROM tenure_locks") == 1
        await connection.rollback()
    assert isinstance(await store.acquire("job", owner(), 1000), Held)


def test_the_statements_that_are_raced_for_are_those_in_the_files() -> None:
    assert "excluded.key" in read_statement("locks/acquire")
    assert "SKIP LOCKED" in read_statement("locks/renew_many")
