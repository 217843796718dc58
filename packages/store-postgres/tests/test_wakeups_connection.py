"""The connection that listens: when it is opened, what ends it, and that waiters poll where there can be none."""

import asyncio
import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import asyncpg
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from tenure import Locks
from tenure.errors import LeaseStateError
from tenure.store import Acquired
from tenure_postgres import PostgresLockStore, create_lock_engine, create_schema_sql, open_postgres_store, wakeups
from tenure_testbed.pgbouncer import PgBouncer
from tenure_testbed.postgres import PostgresServer
from tenure_testbed.postgres_access import database_of
from tenure_testbed.postgres_pair import PostgresPair
from tenure_testbed.pytest_plugin import or_skip

MakeEngine = Callable[..., AsyncEngine]
Owner = Callable[[], str]
Until = Callable[..., Awaitable[None]]

LONG_MS = 600_000
PATIENCE_S = 10.0


@pytest.fixture
def nothing_but_a_wakeup_ends_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wakeups, "_UNKNOWN_S", 3600.0)


only_woken = pytest.mark.usefixtures("nothing_but_a_wakeup_ends_a_wait")


@pytest.fixture
async def make_store(make_engine: MakeEngine) -> AsyncIterator[Callable[..., PostgresLockStore]]:
    stores: list[PostgresLockStore] = []

    def make(engine: AsyncEngine | None = None, **options: Any) -> PostgresLockStore:
        stores.append(PostgresLockStore(engine or make_engine(), **options))
        return stores[-1]

    yield make
    for store in stores:
        await store.aclose()


async def waiting(store: PostgresLockStore, key: str) -> "asyncio.Task[None]":
    """Wait for *key*, known to the server."""
    mark = store._wakeups._marks.get(key)
    if mark is None or mark.of_key is None:
        await store.released(key)
    task = asyncio.create_task(store.released(key))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not task.done()
    return task


async def is_woken(task: "asyncio.Task[None]") -> bool:
    await asyncio.wait([task], timeout=PATIENCE_S)
    return task.done()


async def hand_over(here: PostgresLockStore, there: PostgresLockStore, key: str = "job") -> None:
    """One wait that a release of another connection ends."""
    holder = secrets.token_hex(16)
    assert isinstance(await there.acquire(key, holder, LONG_MS), Acquired)
    task = await waiting(here, key)
    assert await there.release(key, holder)
    assert await is_woken(task)


async def listeners(person: Any) -> list[int]:
    """The server's processes that listen for the stores of this test."""
    rows = await person.fetch(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
        "AND (query LIKE '/* tenure:wakeups%' OR query LIKE 'LISTEN%')"
    )
    return [row["pid"] for row in rows]


@pytest.fixture
def until_listeners(person: Any, until: Until) -> Callable[[int], Awaitable[None]]:
    async def wait(count: int) -> None:
        async def so_many() -> bool:
            return len(await listeners(person)) == count

        await until(so_many, f"{count} connections that listen", within_s=PATIENCE_S)

    return wait


# ----------------------------------------------------------------------------------------- its beginning and end


@only_woken
async def test_nothing_is_opened_before_somebody_waits(
    make_store: Callable[..., PostgresLockStore], person: Any, owner: Owner
) -> None:
    store, holder = make_store(), owner()
    await store.acquire("job", holder, LONG_MS)
    await store.release("job", holder)
    assert await listeners(person) == []
    await hand_over(store, store)
    assert len(await listeners(person)) == 1


@only_woken
async def test_it_is_closed_when_nobody_has_waited_for_a_while_and_opened_anew(
    make_store: Callable[..., PostgresLockStore],
    until_listeners: Callable[[int], Awaitable[None]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wakeups, "_IDLE_S", 0.05)
    monkeypatch.setattr(wakeups, "_LINGER_S", 0.05)
    store = make_store()
    for _ in range(2):
        await hand_over(store, store)
        await until_listeners(0)
    assert store._wakeups._worker is None


@only_woken
@pytest.mark.parametrize("owns_engine", [True, False])
async def test_a_store_that_is_closed_lets_its_waiters_go(
    make_store: Callable[..., PostgresLockStore],
    until_listeners: Callable[[int], Awaitable[None]],
    owns_engine: bool,
) -> None:
    store = make_store(owns_engine=owns_engine)
    tasks = [await waiting(store, "job"), asyncio.create_task(store.released("another"))]
    await asyncio.sleep(0)
    await store.aclose()
    for task in tasks:
        assert await is_woken(task)
    await until_listeners(0)
    await store.aclose()
    if owns_engine:
        with pytest.raises(LeaseStateError):
            await store.released("job")


async def test_a_store_that_was_closed_opens_no_connection_again(
    make_store: Callable[..., PostgresLockStore], person: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its engine is the application's and is open: the store works on, and its waiters poll."""
    monkeypatch.setattr(wakeups, "_UNKNOWN_S", 0.05)
    store = make_store()
    await store.aclose()
    await store.released("job")
    assert await listeners(person) == []


@only_woken
async def test_it_ends_with_the_engine_and_is_opened_anew_with_it(
    make_engine: MakeEngine,
    make_store: Callable[..., PostgresLockStore],
    until_listeners: Callable[[int], Awaitable[None]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wakeups, "_FIRST_BACKOFF_S", 0.01)
    engine = make_engine()
    stores = [make_store(engine), make_store(engine)]
    tasks = [await waiting(store, "job") for store in stores]
    await until_listeners(2)
    await engine.dispose()
    await until_listeners(0)
    for task in tasks:
        assert not task.done(), "who waits is not troubled: it polls"
        task.cancel()
    await asyncio.sleep(0.02)
    await hand_over(stores[0], stores[1])


@only_woken
async def test_an_engine_that_is_disposed_while_it_is_opened_leaves_none(
    make_engine: MakeEngine,
    make_store: Callable[..., PostgresLockStore],
    until_listeners: Callable[[int], Awaitable[None]],
) -> None:
    engine = make_engine()
    for steps in range(12):
        store = make_store(engine)
        task = asyncio.create_task(store.released("job"))
        for _ in range(steps):
            await asyncio.sleep(0.001)
        await engine.dispose()
        task.cancel()
    await until_listeners(0)


def test_a_store_outlives_the_event_loop_that_it_was_used_in(database_url_outside_a_loop: str) -> None:
    engine = create_lock_engine(database_url_outside_a_loop)
    store = PostgresLockStore(engine)

    async def use() -> None:
        await hand_over(store, store)
        left_to_the_end_of_the_loop.append(await waiting(store, "job"))
        await engine.dispose()

    left_to_the_end_of_the_loop: list[asyncio.Task[None]] = []
    asyncio.run(use())
    asyncio.run(use())


@pytest.fixture
def database_url_outside_a_loop(shared_database: str) -> str:
    async def prepare() -> None:
        engine = create_lock_engine(shared_database)
        try:
            async with engine.connect() as connection:
                raw = await connection.get_raw_connection()
                assert raw.driver_connection is not None
                await raw.driver_connection.execute(create_schema_sql())
        finally:
            await engine.dispose()

    asyncio.run(prepare())
    return shared_database


# ------------------------------------------------------------------------------------------------ when it breaks


@only_woken
async def test_a_connection_that_was_ended_costs_polls_until_the_next_one(
    make_store: Callable[..., PostgresLockStore],
    person: Any,
    until_listeners: Callable[[int], Awaitable[None]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wakeups, "_FIRST_BACKOFF_S", 0.05)
    here, there = make_store(), make_store()
    await hand_over(here, there)
    task = await waiting(here, "job")
    monkeypatch.setattr(wakeups, "_UNKNOWN_S", 0.2)
    [pid] = await listeners(person)
    await person.fetchval("SELECT pg_terminate_backend($1)", pid)
    assert await is_woken(task), "a waiter whose key is not known any more is let go, to poll"
    await until_listeners(0)
    await here.released("job")  # a poll later
    await hand_over(here, there)
    assert len(await listeners(person)) == 1


async def test_a_server_that_is_away_is_asked_with_growing_pauses_and_no_waiter_fails(
    own_postgres: PostgresServer, connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wakeups, "_UNKNOWN_S", 0.02)
    monkeypatch.setattr(wakeups, "_FIRST_BACKOFF_S", 0.02)
    async with connect(own_postgres.url()) as person:
        await person.execute(create_schema_sql())
    async with open_postgres_store(own_postgres.url()) as store:
        await hand_over(store, store)
        await asyncio.to_thread(own_postgres.stop, "immediate")
        for _ in range(50):
            await store.released("job")
        assert 2 <= store._wakeups._backoff._tries <= 10
        await asyncio.to_thread(own_postgres.start)
        store._wakeups._not_before = 0.0
        monkeypatch.setattr(wakeups, "_UNKNOWN_S", 3600.0)
        await store.released("job")
        # Of another key: a crash may undo a release whose waiter has not taken the key yet.
        await hand_over(store, store, "another")
        assert store._wakeups._backoff._tries == 0


@pytest.mark.matrix
@only_woken
async def test_waiters_are_woken_again_after_a_failover(connect: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with or_skip():
        pair = await asyncio.to_thread(PostgresPair().__enter__)
    try:
        async with connect(pair.primary.url()) as person:
            await person.execute(create_schema_sql())
        async with open_postgres_store(pair.url(driver="postgresql")) as store:
            await hand_over(store, store)
            await asyncio.to_thread(pair.catch_up)
            await asyncio.to_thread(pair.kill_primary)
            await asyncio.to_thread(pair.promote)
            monkeypatch.setattr(wakeups, "_UNKNOWN_S", 0.05)
            while store._wakeups._marks.get("job") is None or store._wakeups._marks["job"].of_key is None:
                await store.released("job")
            monkeypatch.setattr(wakeups, "_UNKNOWN_S", 3600.0)
            await hand_over(store, store, "another")
    finally:
        await asyncio.to_thread(pair.close)


@only_woken
async def test_a_table_that_was_made_anew_is_noticed(
    make_store: Callable[..., PostgresLockStore], person: Any, monkeypatch: pytest.MonkeyPatch, until: Until
) -> None:
    monkeypatch.setattr(wakeups, "_FIRST_BACKOFF_S", 0.01)
    monkeypatch.setattr(wakeups, "_LOOK_S", 0.05)
    store = make_store()
    task = await waiting(store, "job")
    monkeypatch.setattr(wakeups, "_UNKNOWN_S", 0.05)
    await person.execute("DROP TABLE tenure_locks")
    await person.execute(create_schema_sql())
    assert await is_woken(task)

    async def known() -> bool:
        await store.released("job")
        mark = store._wakeups._marks.get("job")
        return mark is not None and mark.of_key is not None

    await until(known, "the key to be known of the new table")
    monkeypatch.setattr(wakeups, "_UNKNOWN_S", 3600.0)
    await hand_over(store, store)


# ------------------------------------------------------------------------------------------- where there is none


async def test_behind_a_pooler_waiters_poll_and_nothing_is_left_on_its_servers(
    database_url: str, pgbouncer: PgBouncer, person: Any, owner: Owner
) -> None:
    engine = create_lock_engine(pgbouncer.url(database_of(database_url)), pooler=True)
    try:
        store, holder = PostgresLockStore(engine), owner()
        await store.acquire("job", holder, LONG_MS)
        await store.released("job")
        assert store._wakeups._impossible, "it is asked for once"
        assert (
            await person.fetchval(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'"
            )
            == 0
        )
        assert await person.fetchval("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") == 0
        async with Locks(store, ttl=30) as locks:
            acquiring = asyncio.create_task(locks.acquire("job", wait=30))
            await asyncio.sleep(0)
            await store.release("job", holder)
            await (await acquiring).release()
    finally:
        await engine.dispose()


@only_woken
async def test_a_session_takes_no_more_of_the_lock_table_than_its_share(
    own_postgres: PostgresServer, connect: Any, until: Until, owner: Owner
) -> None:
    """The others poll, and are made known when there is room."""
    await asyncio.to_thread(own_postgres.configure, max_locks_per_transaction=10)
    await asyncio.to_thread(own_postgres.restart)
    async with connect(own_postgres.url()) as person, open_postgres_store(own_postgres.url()) as store:
        await person.execute(create_schema_sql())
        tasks = [asyncio.create_task(store.released(f"job-{number}")) for number in range(40)]

        async def known() -> int:
            count = await person.fetchval("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")
            assert count <= 10
            return int(count)

        # Each is woken as it becomes known, leaves, and makes room for the next.
        async def all_woken() -> bool:
            await known()
            return all(task.done() for task in tasks)

        await until(all_woken, "each to become known", within_s=PATIENCE_S)
        tasks = [await waiting(store, f"job-{number}") for number in range(10)]
        too_many = asyncio.create_task(store.released("one too many"))
        assert isinstance(await store.acquire("one too many", owner(), LONG_MS), Acquired)
        assert await known() == 10
        assert not too_many.done()
        tasks.pop().cancel()
        assert await is_woken(too_many)
        for task in tasks:
            task.cancel()


async def test_a_role_that_may_not_listen_this_way_is_told_what_it_lacks(
    own_postgres: PostgresServer, connect: Any, owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EXECUTE is everybody's, unless somebody took it from PUBLIC. Waiters poll; a release cannot do without."""
    monkeypatch.setattr(wakeups, "_UNKNOWN_S", 0.05)
    monkeypatch.setattr(wakeups, "_FIRST_BACKOFF_S", 0.01)
    waits = ["pg_try_advisory_lock_shared(int, int)", "pg_advisory_unlock_shared(int, int)"]
    releases = ["pg_try_advisory_xact_lock(int, int)", "pg_notify(text, text)"]
    own_postgres.execute(create_schema_sql())
    own_postgres.execute("CREATE ROLE plain LOGIN; GRANT SELECT, INSERT, UPDATE ON tenure_locks TO plain")
    own_postgres.execute(f"REVOKE EXECUTE ON FUNCTION {', '.join(waits + releases)} FROM PUBLIC")
    async with open_postgres_store(own_postgres.access.as_role("plain").url()) as store:
        holder = owner()
        await store.acquire("job", holder, LONG_MS)
        await store.released("job")
        for function in releases:
            with pytest.raises(asyncpg.InsufficientPrivilegeError, match=re.escape(function.partition("(")[0])):
                await store.release("job", holder)
            own_postgres.execute(f"GRANT EXECUTE ON FUNCTION {function} TO plain")
        assert await store.release("job", holder)
        own_postgres.execute(f"GRANT EXECUTE ON FUNCTION {', '.join(waits)} TO plain")
        store._wakeups._not_before = 0.0
        monkeypatch.setattr(wakeups, "_UNKNOWN_S", 3600.0)
        await hand_over(store, store)


# ---------------------------------------------------------------------------------------------- tables and oids


@only_woken
async def test_it_works_on_a_partitioned_table(make_store: Callable[..., PostgresLockStore], person: Any) -> None:
    await person.execute(
        'CREATE TABLE parted (key text COLLATE "C" NOT NULL, owner text, token bigint NOT NULL, '
        "expires_at timestamptz NOT NULL, after text, PRIMARY KEY (key)) PARTITION BY HASH (key)"
    )
    for part in range(2):
        await person.execute(
            f"CREATE TABLE part_{part} PARTITION OF parted FOR VALUES WITH (MODULUS 2, REMAINDER {part})"
        )
    here, there = make_store(table="parted"), make_store(table="parted", schema="public")
    for number in range(6):
        await hand_over(here, there, f"job-{number}")


@only_woken
async def test_two_tables_in_one_database_wake_their_own_waiters_alone(
    make_store: Callable[..., PostgresLockStore], person: Any, owner: Owner
) -> None:
    await person.execute(create_schema_sql(table='odd "name"; --'))
    odd, plain, holder = make_store(table='odd "name"; --'), make_store(), owner()
    await plain.acquire("job", holder, LONG_MS)
    task = await waiting(odd, "job")
    await plain.release("job", holder)
    await hand_over(odd, odd, "another")  # heard after the one of the other table
    assert not task.done()
    task.cancel()


@pytest.mark.matrix
@only_woken
async def test_it_works_on_a_table_whose_oid_is_past_what_an_integer_holds(
    own_postgres: PostgresServer, connect: Any
) -> None:
    await asyncio.to_thread(own_postgres.stop, "fast")
    data = own_postgres.data
    await asyncio.to_thread(
        data.install.run, data.account, "pg_resetwal", "--next-oid=4000000000", f"--pgdata={data.path}"
    )
    await asyncio.to_thread(own_postgres.start)
    async with connect(own_postgres.url()) as person, open_postgres_store(own_postgres.url()) as store:
        await person.execute(create_schema_sql())
        assert await person.fetchval("SELECT 'tenure_locks'::regclass::oid") >= 4_000_000_000
        await hand_over(store, store)


# ----------------------------------------------------------------------------------------- nobody else is slowed


@only_woken
async def test_a_release_that_nobody_waits_for_does_not_wait_for_the_commit_of_another(
    own_postgres: PostgresServer, connect: Any, until: Until, owner: Owner
) -> None:
    """A commit that notifies makes every other one wait that notifies, and no other."""
    url = own_postgres.url()
    local = create_lock_engine(url, connect_args={"server_settings": {"synchronous_commit": "local"}})
    async with connect(url) as person, PostgresLockStore(local, owns_engine=True) as store:
        await person.execute(create_schema_sql())
        holder, key_of_nobody, last = owner(), owner(), owner()
        await store.acquire("job", holder, LONG_MS)
        await store.acquire("nobody's", key_of_nobody, LONG_MS)
        task = await waiting(store, "job")
        await asyncio.to_thread(own_postgres.configure, synchronous_standby_names="nobody")
        async with connect(url) as another:
            slow = asyncio.create_task(another.execute("CREATE TABLE other (); SELECT pg_notify('other', '')"))
            waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = "
            await until(lambda: person.fetchval(waits + "'SyncRep'"), "the commit to wait for its standby")

            assert await store.release("nobody's", key_of_nobody)
            assert isinstance(await store.acquire("nobody's", last, LONG_MS), Acquired)
            # The control: one that notifies does wait.
            notifies = asyncio.create_task(store.release("job", holder))
            await until(lambda: person.fetchval(waits + "'object'"), "the other notification to wait")
            assert not notifies.done()

            await asyncio.to_thread(own_postgres.configure, synchronous_standby_names="")
            await slow
            assert await notifies
            assert await is_woken(task)
