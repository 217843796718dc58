"""What the tests share: a database with the table, engines that are disposed, a person with psql."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from alembic.config import Config
from sqlalchemy import MetaData
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from tenure_postgres import (
    PostgresIdempotencyStore,
    PostgresLockStore,
    create_idempotency_schema_sql,
    create_schema_sql,
)
from tenure_postgres.connection import Session
from tenure_testbed.postgres_access import PostgresAccess, database_of

MakeEngine = Callable[..., AsyncEngine]


@pytest.fixture
async def make_engine(database_url: str) -> AsyncIterator[MakeEngine]:
    """Make engines that are disposed after the test, on the test's database unless told otherwise."""
    engines: list[AsyncEngine] = []

    def make(url: str = database_url, **options: Any) -> AsyncEngine:
        engines.append(create_async_engine(url, **options))
        return engines[-1]

    yield make
    for engine in engines:
        await engine.dispose()


@pytest.fixture(scope="session")
def shared_database(postgres_server: PostgresAccess) -> Iterator[str]:
    url = postgres_server.create_database()
    yield url
    postgres_server.drop_database(database_of(url))


_EMPTY = """
DO $$
DECLARE name text;
BEGIN
    PERFORM pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid();
    FOR name IN SELECT nspname FROM pg_namespace WHERE nspname !~ '^pg_' AND nspname <> 'information_schema' LOOP
        EXECUTE format('DROP SCHEMA %I CASCADE', name);
    END LOOP;
    CREATE SCHEMA public;
    GRANT USAGE ON SCHEMA public TO public;
    EXECUTE format('ALTER DATABASE %I RESET ALL', current_database());
END $$
"""


@pytest.fixture
async def database_url(shared_database: str) -> str:
    """
    A database with the two tables in it, and nothing of the test before.

    Emptied, not made anew: that takes a few milliseconds, and CREATE DATABASE a hundred.
    """
    async with connected(shared_database) as person:
        await person.execute(_EMPTY)
        await person.execute(create_schema_sql())
        await person.execute(create_idempotency_schema_sql())
    return shared_database


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Any]:
    """A connection of asyncpg alone, past the store and SQLAlchemy."""
    connection = await asyncpg.connect(url.replace("+asyncpg", ""), timeout=10)
    try:
        yield connection
    finally:
        # terminate() and not close(): the server behind it may be gone, or hang.
        connection.terminate()


@pytest.fixture
def connect() -> Callable[[str], Any]:
    """`async with connect(url) as connection`, for tests with servers of their own."""
    return connected


@pytest.fixture
async def person(database_url: str) -> AsyncIterator[Any]:
    """A person with psql: looks at the table and locks rows in it."""
    async with connected(database_url) as connection:
        yield connection


@pytest.fixture
def locked_row(database_url: str) -> Callable[..., Any]:
    """`async with locked_row(key)`: somebody else's session has the row locked, and may change it before it commits."""

    @asynccontextmanager
    async def lock(key: str, table: str = "tenure_locks") -> AsyncIterator[Any]:
        async with connected(database_url) as other, other.transaction():
            await other.execute(f"SELECT FROM {table} WHERE key = $1 FOR UPDATE", key)
            yield other

    return lock


@pytest.fixture
def waits_for_a_row(person: Any, until: Callable[..., Awaitable[None]]) -> Callable[[], Awaitable[None]]:
    """Return once a session of the test's database waits for a lock."""
    question = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    return lambda: until(lambda: person.fetchval(question), "a call to wait for the row")


@pytest.fixture
def waits_in_the_pool(until: Callable[..., Awaitable[None]], waits_for_a_row: Any) -> Callable[..., Any]:
    """Return once a call waits for a row on a connection of the engine's pool, where it may wait long."""

    async def wait(engine: AsyncEngine, within_s: float = 5.0) -> None:
        async def checked_out() -> bool:
            return bool(engine.pool.checkedout())  # type: ignore[attr-defined]  # AsyncAdaptedQueuePool's

        await until(checked_out, "a call to go to the pool", within_s)
        await waits_for_a_row()

    return wait


@pytest.fixture
def engine(make_engine: MakeEngine) -> AsyncEngine:
    """An engine as an application has one: five connections and more, parameters not hidden."""
    return make_engine()


@pytest.fixture
def store(engine: AsyncEngine) -> PostgresLockStore:
    return PostgresLockStore(engine)


@pytest.fixture
def records(engine: AsyncEngine) -> PostgresIdempotencyStore:
    return PostgresIdempotencyStore(engine)


@pytest.fixture
def planted() -> Callable[..., PostgresIdempotencyStore]:
    """Plant a bug: `planted(store, "acquire", (old, new))` changes that statement of the store."""

    def plant(store: PostgresIdempotencyStore, statement: str, *changes: tuple[str, str]) -> PostgresIdempotencyStore:
        text = getattr(store._sql, statement)
        for old, new in changes:
            if text.count(old) != 1:  # no AssertionError: that is what a planted bug has to bring about
                raise ValueError(f"{old!r} is not in {statement}, or more than once")
            text = text.replace(old, new)
        store._sql = replace(store._sql, **{statement: text})
        return store

    return plant


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the statements of locks that went to the server, in their order."""
    names: list[str] = []
    fetch = Session.fetch

    async def listening(self: Session, statement: str, *arguments: Any) -> Any:
        names.append(statement.partition("tenure:locks/")[2].partition(" ")[0])
        return await fetch(self, statement, *arguments)

    monkeypatch.setattr(Session, "fetch", listening)
    return names


@pytest.fixture
def locked_table(database_url: str) -> Callable[[], Any]:
    """`async with locked_table()`: whatever is sent meanwhile does not end, and there is no bound on it."""

    @asynccontextmanager
    async def lock() -> AsyncIterator[None]:
        async with connected(database_url) as other, other.transaction():
            await other.execute("LOCK TABLE tenure_locks IN ACCESS EXCLUSIVE MODE")
            yield

    return lock


@pytest.fixture
def planted_locks() -> Callable[..., PostgresLockStore]:
    """Plant a bug: `planted_locks(store, "acquire", (old, new))` changes that statement of a lock store."""

    def plant(store: PostgresLockStore, statement: str, *changes: tuple[str, str]) -> PostgresLockStore:
        text = getattr(store._sql, statement)
        for old, new in changes:
            if text.count(old) != 1:  # no AssertionError: that is what a planted bug has to bring about
                raise ValueError(f"{old!r} is not in {statement}, or more than once")
            text = text.replace(old, new)
        store._sql = replace(store._sql, **{statement: text})
        lanes = store._lanes
        for kind in (lanes._acquisitions, lanes._renewals, lanes._many_renewals, lanes._releases):
            kind._sql = store._sql
        return store

    return plant


@pytest.fixture
def owner() -> Callable[[], str]:
    """Draw an owner, as the engine does."""
    return lambda: f"cat-store-1:{secrets.token_hex(16)}"


@pytest.fixture
def until() -> Callable[..., Awaitable[None]]:
    """Poll until something holds; five seconds are plenty for a server on loopback."""

    async def wait(holds: Callable[[], Awaitable[Any]], what: str, within_s: float = 5.0) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within_s
        while not await holds():
            assert loop.time() < deadline, f"waited {within_s} s for {what}"
            await asyncio.sleep(0.01)

    return wait


# --------------------------------------------------------------------------------------------- migrations

ENV = """
from alembic import context

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=context.config.attributes["metadata"],
    compare_type=True,
    compare_server_default=True,
)
with context.begin_transaction():
    context.run_migrations()
"""

TEMPLATE = '''"""${message}"""
from alembic import op
import sqlalchemy as sa
${imports if imports else ""}
revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}

def upgrade() -> None:
    ${upgrades if upgrades else "pass"}

def downgrade() -> None:
    ${downgrades if downgrades else "pass"}
'''


@pytest.fixture
async def empty_url(database_url: str, person: Any) -> str:
    """A database without the tables."""
    await person.execute("DROP TABLE tenure_locks, tenure_idempotency")
    return database_url


@pytest.fixture
def alembic(tmp_path: Path, make_engine: MakeEngine, empty_url: str) -> Any:
    """Run Alembic's own commands on an empty database, with a directory of migrations of the test's own."""
    (tmp_path / "versions").mkdir()
    (tmp_path / "env.py").write_text(ENV)
    (tmp_path / "script.py.mako").write_text(TEMPLATE)
    config = Config()
    config.set_main_option("script_location", str(tmp_path))
    config.set_main_option("path_separator", "os")
    engine = make_engine(empty_url)

    async def run(do: Callable[..., Any], *arguments: Any, metadata: MetaData | None = None, **options: Any) -> Any:
        config.attributes["metadata"] = metadata

        def in_sync(connection: Any) -> Any:
            config.attributes["connection"] = connection
            return do(config, *arguments, **options)

        async with engine.begin() as connection:
            return await connection.run_sync(in_sync)

    return run
