"""What happens to connections: cancelled, killed, read-only, hung, and used by others."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import asyncpg
import pytest
from sqlalchemy import create_engine, event, pool
from sqlalchemy.exc import TimeoutError as SQLAlchemyTimeoutError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from tenure.errors import ConfigurationError, LeaseStateError
from tenure.store import Acquired
from tenure_postgres import PostgresLockStore, create_lock_engine, create_schema_sql
from tenure_postgres.connection import Connections
from tenure_testbed.faultproxy import FaultProxy
from tenure_testbed.postgres import PostgresServer
from tenure_testbed.postgres_access import PostgresAccess

Owner = Callable[[], str]
MakeEngine = Callable[..., AsyncEngine]
Until = Callable[..., Awaitable[None]]
Waits = Callable[[], Awaitable[None]]

OTHERS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"


async def warm(store: PostgresLockStore, connections: int) -> None:
    """Open so many connections of the store's pool, and its own two."""
    await asyncio.gather(*(store.list_locks("warm") for _ in range(4 * connections)))
    await store.acquire("warm", "warm", 60_000)
    await store.release("warm", "warm")


# ------------------------------------------------------------------------------------------------------ cancellation


async def abandon(call: Coroutine[Any, Any, Any], after_s: float) -> bool:
    """Start *call* and cancel it after a time or a few turns of the loop; tell whether that was in the middle of it."""
    task = asyncio.get_running_loop().create_task(call)
    if after_s < 0.0003:  # the first steps of a call are too short for a timer
        for _ in range(round(after_s * 30_000)):
            await asyncio.sleep(0)
    else:
        await asyncio.sleep(after_s)
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.exception()
    return task.cancelled()


async def test_two_thousand_cancelled_calls_leave_the_pool_and_the_keys_usable(
    make_engine: MakeEngine, owner: Owner, person: Any, until: Until
) -> None:
    engine = make_engine(pool_size=4, max_overflow=0, pool_timeout=5)
    store = PostgresLockStore(engine)
    chance = random.Random(4)
    holder = owner()
    await store.acquire("held", holder, 600_000)

    def a_call() -> Coroutine[Any, Any, Any]:
        which = chance.randrange(4)
        if which == 0:
            return store.acquire(f"key-{chance.randrange(50)}", owner(), 300)
        if which == 1:
            return store.release(f"key-{chance.randrange(50)}", owner())
        if which == 2:
            return store.list_locks("key-")
        return store.renew("held", holder, 600_000)

    cancelled = 0
    for _ in range(250):
        cancelled += sum(await asyncio.gather(*(abandon(a_call(), chance.random() * 0.003) for _ in range(8))))
    assert cancelled > 500, "most calls were over before they were cancelled"
    assert engine.pool.checkedout() == 0  # type: ignore[attr-defined]  # AsyncAdaptedQueuePool's

    # More than there are connections at once, so that none that was lost can hide.
    assert all(await asyncio.gather(*(store.renew("held", holder, 600_000) for _ in range(16))))
    for number in range(50):

        async def free(key: str = f"key-{number}") -> bool:
            return isinstance(await store.acquire(key, owner(), 60_000), Acquired)

        await until(free, f"the ttl of key-{number}", 2)

    async def few() -> bool:
        return bool(await person.fetchval(OTHERS) <= 4)

    await until(few, "abandoned connections to be gone on the server")


async def test_a_cancelled_call_that_waits_for_a_row_returns_and_ends_on_the_server(
    engine: AsyncEngine, person: Any, until: Until, locked_row: Any, waits_for_a_row: Waits
) -> None:
    store, holder = PostgresLockStore(engine, lock_timeout="30s"), "holder"
    await store.acquire("job", holder, 60_000)
    async with locked_row("job"):
        call = asyncio.create_task(store.renew("job", holder, 60_000))
        await waits_for_a_row()
        loop = asyncio.get_running_loop()
        cancelled_at = loop.time()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert loop.time() - cancelled_at < 1
        none = (
            "SELECT count(*) = 0 FROM pg_stat_activity WHERE datname = current_database()"
            " AND query LIKE '/* tenure:locks/renew%' AND state = 'active'"
        )
        await until(lambda: person.fetchval(none), "the abandoned statement to end")


async def test_a_call_that_is_cancelled_twice_gives_its_place_in_the_pool_back(
    make_engine: MakeEngine, owner: Owner, locked_row: Any, waits_for_a_row: Waits
) -> None:
    engine = make_engine(pool_size=1, max_overflow=0, pool_timeout=2)
    store, holder = PostgresLockStore(engine, lock_timeout="30s"), owner()
    await store.acquire("job", holder, 60_000)
    for turns in range(6):
        async with locked_row("job"):
            call = asyncio.create_task(store.renew("job", holder, 60_000))
            await waits_for_a_row()
            call.cancel()
            for _ in range(turns):
                await asyncio.sleep(0)
            call.cancel()
            await asyncio.wait({call})
            assert call.cancelled()
    assert await store.renew("job", holder, 60_000)


async def test_a_cancelled_call_to_a_hung_server_returns_soon(
    postgres_server: PostgresAccess, database_url: str, owner: Owner
) -> None:
    """SQLAlchemy itself takes two seconds more."""
    async with FaultProxy((postgres_server.host, postgres_server.port)) as proxy:
        engine = create_async_engine(_through(database_url, proxy.port), pool_size=1)
        store, loop = PostgresLockStore(engine), asyncio.get_running_loop()
        await store.acquire("job", owner(), 60_000)
        proxy.blackhole()
        call = asyncio.create_task(store.acquire("job", owner(), 60_000))
        await asyncio.sleep(0.05)
        cancelled_at = loop.time()
        call.cancel()
        await asyncio.wait({call})
        assert loop.time() - cancelled_at < 1.5
        proxy.heal()
        assert not isinstance(await store.acquire("job", owner(), 60_000), Acquired)
        await engine.dispose()


async def test_after_a_call_that_a_hung_server_did_not_end_no_older_connection_is_used(
    postgres_server: PostgresAccess, database_url: str, owner: Owner
) -> None:
    """A primary whose machine died takes its half-open connections along: each would hang a call of its own."""
    async with FaultProxy((postgres_server.host, postgres_server.port)) as proxy:
        engine = create_async_engine(_through(database_url, proxy.port), pool_size=4)
        store, holder = PostgresLockStore(engine), owner()
        await store.acquire("job", holder, 60_000)
        await warm(store, 4)
        proxy.blackhole()
        assert await abandon(store.renew("job", holder, 60_000), 0.05)
        proxy.heal()  # what was open works again, which a dead machine's does not: that it is not used is the point
        before = proxy.counters.accepted
        assert await store.renew("job", holder, 60_000)
        assert proxy.counters.accepted == before + 1
        await engine.dispose()


async def test_a_cancelled_call_to_a_server_that_answers_costs_its_own_connection_alone(
    postgres_server: PostgresAccess, database_url: str, owner: Owner, locked_row: Any, waits_for_a_row: Waits
) -> None:
    async with FaultProxy((postgres_server.host, postgres_server.port)) as proxy:
        engine = create_async_engine(_through(database_url, proxy.port), pool_size=4)
        store, holder = PostgresLockStore(engine, lock_timeout="30s"), owner()
        await store.acquire("job", holder, 60_000)
        await warm(store, 4)
        async with locked_row("job"):
            call = asyncio.create_task(store.renew("job", holder, 60_000))
            await waits_for_a_row()
            call.cancel()
            await asyncio.wait({call})
        before = proxy.counters.accepted
        for _ in range(3):
            await asyncio.gather(*(store.renew("job", holder, 60_000) for _ in range(4)))
        assert proxy.counters.accepted <= before + 1, "the one in its place"
        await engine.dispose()


async def test_planted_a_call_that_forgets_its_connection_empties_the_pool(
    make_engine: MakeEngine, locked_row: Any, waits_in_the_pool: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the tests of cancellation above are about: without this, they would prove nothing."""

    async def forget(self: Connections, connection: Any, *_: object) -> None:
        kept.append(connection)

    kept: list[Any] = []
    monkeypatch.setattr(Connections, "_settle", forget)
    engine = make_engine(pool_size=1, max_overflow=0, pool_timeout=0.1)
    store = PostgresLockStore(engine)
    await store.acquire("job", "holder", 60_000)
    async with locked_row("job"):
        call = asyncio.create_task(store.renew("job", "holder", 60_000))
        await waits_in_the_pool(engine)
        call.cancel()
        await asyncio.wait({call})
    with pytest.raises(SQLAlchemyTimeoutError):
        await store.list_locks()
    for connection in kept:
        await connection.invalidate()
        await connection.close()


def _through(url: str, port: int) -> str:
    head, _, tail = url.rpartition(":")
    return f"{head}:{port}/{tail.partition('/')[2]}"


# ------------------------------------------------------------------------------------------------- servers that go away


async def test_a_connection_that_was_killed_while_idle_costs_no_call(
    make_engine: MakeEngine, owner: Owner, person: Any, until: Until
) -> None:
    store, holder = PostgresLockStore(make_engine(pool_size=5)), owner()
    await store.acquire("job", holder, 60_000)
    await warm(store, 5)
    await person.execute(OTHERS.replace("count(*)", "pg_terminate_backend(pid)"))

    async def gone() -> bool:
        return not await person.fetchval(OTHERS)

    await until(gone, "the connections to be gone")
    await asyncio.sleep(0.05)  # their ends are on the way to this process
    for _ in range(10):
        assert await store.renew("job", holder, 60_000)


async def test_a_connection_that_is_killed_in_a_call_fails_that_call_alone(
    make_engine: MakeEngine, owner: Owner, person: Any, locked_row: Any, waits_in_the_pool: Any
) -> None:
    engine = make_engine(pool_size=5)
    store, holder = PostgresLockStore(engine), owner()
    await store.acquire("job", holder, 60_000)
    await warm(store, 5)
    async with locked_row("job"):
        call = asyncio.create_task(store.renew("job", holder, 60_000))
        await waits_in_the_pool(engine)
        await person.execute(OTHERS.replace("count(*)", "pg_terminate_backend(pid)") + " AND wait_event_type = 'Lock'")
        with pytest.raises((asyncpg.AdminShutdownError, asyncpg.ConnectionDoesNotExistError)):
            await call
    assert await store.renew("job", holder, 60_000)


async def test_a_restart_of_the_server_costs_the_calls_of_its_time_alone(
    own_postgres: PostgresServer, make_engine: MakeEngine, connect: Any, owner: Owner, until: Until
) -> None:
    url = own_postgres.url()
    async with connect(url) as person:
        await person.execute(create_schema_sql())
    store, holder = PostgresLockStore(make_engine(url, pool_size=5)), owner()
    first = await store.acquire("job", holder, 60_000)
    await warm(store, 5)
    await asyncio.to_thread(own_postgres.stop, "immediate")
    with pytest.raises((OSError, asyncpg.PostgresError, asyncpg.InterfaceError)):
        await store.renew("job", holder, 60_000)
    await asyncio.to_thread(own_postgres.start)
    for _ in range(10):
        assert await store.renew("job", holder, 60_000)
    assert await store.acquire("job", holder, 60_000) == first, "the lock outlived the server"


async def test_a_server_that_became_read_only_is_left_and_found_again(
    own_postgres: PostgresServer, make_engine: MakeEngine, connect: Any, owner: Owner
) -> None:
    url = own_postgres.url()
    async with connect(url) as person:
        await person.execute(create_schema_sql())
    store, holder = PostgresLockStore(make_engine(url, pool_size=5, max_overflow=0)), owner()
    await store.acquire("job", holder, 60_000)
    await warm(store, 5)
    await asyncio.to_thread(own_postgres.configure, default_transaction_read_only=True)
    async with connect(url) as person:
        before = {row["pid"] for row in await person.fetch("SELECT pid FROM pg_stat_activity")}
    with pytest.raises(asyncpg.ReadOnlySQLTransactionError) as caught:
        await store.renew("job", holder, 60_000)
    assert "standby or read-only" in caught.value.__notes__[0]
    await asyncio.to_thread(own_postgres.configure, default_transaction_read_only=False)
    for _ in range(10):
        assert await store.renew("job", holder, 60_000)
    async with connect(url) as person:
        used = (
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
            " AND query LIKE '/* tenure:locks/renew%'"
        )
        after = {row["pid"] for row in await person.fetch(used)}
    assert after
    assert not after & before, "a connection from before was used again: a demoted primary would be pinned"


async def test_a_hung_server_costs_no_place_in_the_pool_of_a_lock_engine(
    postgres_server: PostgresAccess, database_url: str, owner: Owner
) -> None:
    async with FaultProxy((postgres_server.host, postgres_server.port)) as proxy:
        url = _through(database_url, proxy.port)
        engine = create_lock_engine(url, pool_size=2, statement_timeout="200ms", connect_timeout=1, pool_timeout=2)
        store, holder = PostgresLockStore(engine), owner()
        await store.acquire("job", holder, 60_000)
        await warm(store, 2)
        proxy.blackhole()
        results = await asyncio.gather(*(store.renew("job", holder, 60_000) for _ in range(4)), return_exceptions=True)
        assert all(isinstance(result, Exception) for result in results)
        proxy.reset_all()
        proxy.heal()
        assert await store.renew("job", holder, 60_000)
        await engine.dispose()


async def test_a_lost_reply_leaves_a_lock_that_its_owner_gets_again(
    postgres_server: PostgresAccess, database_url: str, owner: Owner, person: Any
) -> None:
    async with FaultProxy((postgres_server.host, postgres_server.port)) as proxy:
        engine = create_async_engine(_through(database_url, proxy.port), pool_size=1)
        store, holder = PostgresLockStore(engine), owner()
        await store.acquire("warm", owner(), 60_000)
        proxy.drop_reply(times=1)
        with pytest.raises((OSError, asyncpg.PostgresError, asyncpg.InterfaceError)):
            await store.acquire("job", holder, 60_000)
        token = await person.fetchval("SELECT token FROM tenure_locks WHERE key = 'job'")
        assert token is not None, "the server ran it"
        assert await store.acquire("job", holder, 60_000) == Acquired(token)
        await engine.dispose()


# --------------------------------------------------------------------------------------------------- what is let out


CANARY_KEY, CANARY_OWNER = "canary-key-5150", "canary-owner-5150"


async def errors_of(store: PostgresLockStore) -> list[BaseException]:
    calls = [
        store.acquire(CANARY_KEY, CANARY_OWNER, 60_000),
        store.renew(CANARY_KEY, CANARY_OWNER, 60_000),
        store.release(CANARY_KEY, CANARY_OWNER),
        store.list_locks(CANARY_KEY),
    ]
    results = await asyncio.gather(*calls, return_exceptions=True)
    return [result for result in results if isinstance(result, BaseException)]


async def test_no_error_and_no_log_holds_a_key_or_an_owner(
    make_engine: MakeEngine, person: Any, locked_row: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """`hide_parameters` is off here and all is logged, as in an application under development."""
    errors: list[BaseException] = []
    with caplog.at_level("DEBUG"), caplog.at_level("DEBUG", "sqlalchemy"):
        engine = make_engine()
        store = PostgresLockStore(engine, lock_timeout="20ms")
        await store.acquire(CANARY_KEY, CANARY_OWNER, 60_000)
        async with locked_row(CANARY_KEY):
            errors += await errors_of(store)
        # A constraint that a person added: the server's own text names the row that broke it.
        await person.execute("ALTER TABLE tenure_locks ADD CONSTRAINT few CHECK (length(key) < 5) NOT VALID")
        errors += await errors_of(store)
        await person.execute("DROP TABLE tenure_locks")
        errors += await errors_of(store)
    assert {type(error).__name__ for error in errors} == {
        "LockNotAvailableError",
        "CheckViolationError",
        "UndefinedTableError",
    }
    assert "Invalidate connection" in caplog.text or "checked out" in caplog.text, "the log was looked at"
    for text in [*(f"{error}{error!r}{error.args}" for error in errors), caplog.text]:
        assert CANARY_KEY not in text
        assert CANARY_OWNER not in text


async def test_a_missing_table_and_missing_rights_are_explained(
    make_engine: MakeEngine, person: Any, database_url: str
) -> None:
    await person.execute("DROP TABLE tenure_locks")
    with pytest.raises(asyncpg.UndefinedTableError) as caught:
        await PostgresLockStore(make_engine()).acquire("job", "o", 1000)
    assert "create_schema_sql()" in caught.value.__notes__[0]


# ---------------------------------------------------------------------------------------------- engines that do not fit


@pytest.mark.parametrize(
    "engine",
    [
        create_engine("sqlite://"),
        create_engine("postgresql+asyncpg://nobody@127.0.0.1/none"),
        "postgresql://nobody@127.0.0.1/none",
        None,
    ],
)
def test_what_is_no_asynchronous_engine_is_refused(engine: Any) -> None:
    with pytest.raises(ConfigurationError, match="create_lock_engine"):
        PostgresLockStore(engine)


def test_an_asynchronous_engine_of_another_driver_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = create_async_engine("postgresql+asyncpg://nobody@127.0.0.1/none")
    monkeypatch.setattr(engine.dialect, "driver", "psycopg_async")  # which the tests do not install
    with pytest.raises(ConfigurationError, match=r"postgresql\+psycopg_async"):
        PostgresLockStore(engine)


async def test_connections_that_are_closed_as_they_open_end_in_an_error_and_not_in_a_loop(
    make_engine: MakeEngine, owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure_postgres.connection._MOST_DEAD", 3)
    engine = make_engine(pool_size=1)
    closed: list[Any] = []

    @event.listens_for(engine.sync_engine, "checkout")
    def close(connection: Any, *_: Any) -> None:
        connection.driver_connection.terminate()
        closed.append(connection)

    with pytest.raises(ConnectionError, match="3 connections in a row"):
        await PostgresLockStore(engine).list_locks()
    assert len(closed) == 3
    with pytest.raises(ConnectionError, match="closed before a statement could be sent"):
        await PostgresLockStore(engine).acquire("job", owner(), 1000)
    assert len(closed) == 4
    assert engine.pool.checkedout() == 0  # type: ignore[attr-defined]  # AsyncAdaptedQueuePool's


async def test_a_connection_inside_somebody_elses_transaction_is_refused(
    make_engine: MakeEngine, owner: Owner, person: Any
) -> None:
    engine = make_engine(poolclass=pool.StaticPool)
    async with engine.begin() as connection:
        await connection.exec_driver_sql("SELECT 1")
        store = PostgresLockStore(engine)
        with pytest.raises(ConfigurationError, match="in the middle of a transaction"):
            await store.list_locks()
        assert isinstance(await store.acquire("job", owner(), 1000), Acquired)
        assert await person.fetchval("SELECT count(*) FROM tenure_locks") == 1, "a connection of the store's own"


def test_connections_of_another_event_loop_are_refused_with_the_way_out(database_url_of_a_loop: str) -> None:
    engine = create_async_engine(database_url_of_a_loop, pool_size=1)
    store = PostgresLockStore(engine)

    async def first() -> None:
        await store.acquire("job", "o", 60_000)

    async def second() -> None:
        with pytest.raises(LeaseStateError, match=r"engine\.dispose"):
            await store.renew("job", "o", 60_000)

    with asyncio.Runner() as one, asyncio.Runner() as two:
        one.run(first())
        two.run(second())
        one.run(engine.dispose())
        two.run(store.renew("job", "o", 60_000))
        two.run(engine.dispose())


@pytest.fixture
def database_url_of_a_loop(postgres_server: PostgresAccess, postgres_url: str) -> str:
    postgres_server.execute(create_schema_sql(), postgres_url.rpartition("/")[2])
    return postgres_url


async def test_an_engine_without_a_pool_works(make_engine: MakeEngine, owner: Owner) -> None:
    store, holder = PostgresLockStore(make_engine(poolclass=pool.NullPool)), owner()
    assert isinstance(await store.acquire("job", holder, 60_000), Acquired)
    assert await store.release("job", holder)
