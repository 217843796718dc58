"""Engines and stores from URLs."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from sqlalchemy import make_url, pool
from sqlalchemy.ext.asyncio import AsyncEngine

from tenure.errors import ConfigurationError
from tenure.store import Acquired
from tenure_postgres import PostgresLockStore, create_lock_engine, create_schema_sql, open_postgres_store
from tenure_postgres.engine import _read_url


async def settings_of(engine: AsyncEngine, *names: str) -> list[Any]:
    async with engine.connect() as connection:
        driver = (await connection.get_raw_connection()).driver_connection
        assert driver is not None
        return [await driver.fetchval("SELECT current_setting($1)", name) for name in names]


@pytest.fixture
async def disposing() -> AsyncIterator[list[AsyncEngine]]:
    engines: list[AsyncEngine] = []
    yield engines
    for engine in engines:
        await engine.dispose()


async def test_a_lock_engine_is_small_bounded_and_quiet(database_url: str, disposing: list[AsyncEngine]) -> None:
    engine = create_lock_engine(database_url, pool_size=3, statement_timeout="1234ms")
    disposing.append(engine)
    assert isinstance(engine.pool, pool.AsyncAdaptedQueuePool)
    assert (engine.pool.size(), engine.pool._max_overflow, engine.pool._timeout) == (3, 0, 3)
    assert engine.sync_engine.hide_parameters
    names = ["application_name", "statement_timeout", "default_transaction_isolation"]
    assert await settings_of(engine, *names) == ["tenure", "1234ms", "read committed"]


async def test_the_databases_own_default_isolation_does_not_reach_a_lock_engine(
    database_url: str, person: Any, disposing: list[AsyncEngine]
) -> None:
    name = await person.fetchval("SELECT quote_ident(current_database())")
    await person.execute(f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'")
    engine = create_lock_engine(database_url)
    disposing.append(engine)
    assert await settings_of(engine, "default_transaction_isolation") == ["read committed"]


async def test_what_is_given_wins(database_url: str, disposing: list[AsyncEngine]) -> None:
    engine = create_lock_engine(
        database_url,
        poolclass=pool.NullPool,
        connect_args={"server_settings": {"application_name": "shop"}},
        hide_parameters=False,
    )
    disposing.append(engine)
    assert isinstance(engine.pool, pool.NullPool)
    assert not engine.sync_engine.hide_parameters
    assert await settings_of(engine, "application_name", "statement_timeout") == ["shop", "0"]


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+asyncpg"])
async def test_a_url_of_any_usual_scheme_opens_a_store(database_url: str, scheme: str) -> None:
    url = scheme + database_url.removeprefix("postgresql+asyncpg")
    async with open_postgres_store(url) as store:
        assert isinstance(await store.acquire("job", "o", 60_000), Acquired)


async def test_options_of_the_store_and_of_libpq_stand_in_the_url(
    database_url: str, person: Any, postgres_server: Any
) -> None:
    await person.execute("CREATE SCHEMA ops")
    await person.execute(create_schema_sql(table="our locks", schema="ops"))
    url = (
        f"{database_url}?table=our%20locks&schema=ops&lock_timeout=250ms&pool_size=2&pool_timeout=1s"
        "&statement_timeout=2s&sslmode=disable&application_name=shop&statement_cache_size=0"
    )
    async with open_postgres_store(url) as store:
        assert str(store.table) == '"ops"."our locks"'
        assert store._engine.lock_timeout == "250ms"
        assert isinstance(await store.acquire("job", "o", 60_000), Acquired)
        assert store._engine.connections._engine.pool.size() == 2  # type: ignore[attr-defined]  # AsyncAdaptedQueuePool's
        assert await settings_of(store._engine.connections._engine, "application_name", "statement_timeout") == [
            "shop",
            "2s",
        ]
    assert await person.fetchval('SELECT count(*) FROM ops."our locks"') == 1


async def test_a_store_that_is_opened_connects_to_nobody() -> None:
    async with open_postgres_store("postgresql://nobody@127.0.0.1:1/none") as store:
        assert isinstance(store, PostgresLockStore)


async def test_several_hosts_mean_the_one_that_takes_writes(database_url: str) -> None:
    host = database_url.partition("@")[2].partition("/")[0]
    url = database_url.replace(host, f"127.0.0.1:1,{host}")
    async with open_postgres_store(url) as store:
        assert isinstance(await store.acquire("job", "o", 60_000), Acquired)


def test_several_hosts_become_sqlalchemys_form_of_them() -> None:
    parsed, _, _ = _read_url("postgres://u:p%40w@one,two:5433/app?target_session_attrs=any")
    assert parsed.query["host"] == ("one:5432", "two:5433")
    assert parsed.query["target_session_attrs"] == "any"
    assert (parsed.username, parsed.password, parsed.database) == ("u", "p@w", "app")
    assert _read_url("postgresql://one,two/app")[0].query["target_session_attrs"] == "read-write"


def test_a_sqlalchemy_url_is_taken_as_it_is() -> None:
    url = make_url("postgresql+asyncpg://u@/app?host=a:1&host=b:2&prepared_statement_cache_size=0")
    assert _read_url(url) == (url, {}, {})


def test_libpqs_words_become_asyncpgs() -> None:
    parsed, arguments, _ = _read_url(
        "postgresql://h/db?connect_timeout=2&sslmode=verify-full&sslrootcert=ca.pem&user=u"
    )
    assert arguments == {"timeout": 2, "dsn": "postgresql://?sslmode=verify-full&sslrootcert=ca.pem"}
    assert dict(parsed.query) == {"user": "u"}


SECRET = "hunter2-secret"


@pytest.mark.parametrize(
    ("url", "says"),
    [
        (f"mysql://u:{SECRET}@h/db", "mysql"),
        (f"postgresql+psycopg://u:{SECRET}@h/db", "postgresql+psycopg"),
        (f"postgresql://u:{SECRET}@h:port/db", "is none"),
        (f"u:{SECRET}@h/db", "is none"),
        ("", "is none"),
        (7, "int"),
        (f"postgresql://u:{SECRET}@h/db?pool_size=many", "pool_size"),
        (f"postgresql://u:{SECRET}@h/db?pooler=perhaps", "pooler"),
        (f"postgresql://u:{SECRET}@h/db?table=a&table=b", "table more than once"),
        (f"postgresql://u:{SECRET}@h/db?sslmode=require&sslmode=disable", "sslmode more than once"),
        (f"postgresql://u:{SECRET}@h/db?sslmode=require&sslmode=require", "sslmode more than once"),
        (f"postgresql://u:{SECRET}@h/db?ssl=true&ssl=false", "ssl more than once"),
        (f"postgresql://u:{SECRET}@h/db?password={SECRET}&password=x", "password more than once"),
        (f"postgresql://u:{SECRET}@h/db?connect_timeout=1&connect_timeout=2", "connect_timeout more than once"),
        (f"postgresql://u:{SECRET}@h/db?search_path=a&search_path=b", "search_path more than once"),
        (f"postgresql://u:{SECRET}@one,two/db?sslmode=require&sslmode=disable", "sslmode more than once"),
        (f"postgresql://u:{SECRET}@h/db?sslmode=verify-full&ssl=disable", "ssl and sslmode"),
        (f"postgresql://u:{SECRET}@h/db?table={'x' * 64}", "63 bytes"),
        (f"postgresql://u:{SECRET}@h/db?lock_timeout=soon", "lock_timeout"),
        (f"postgresql://u:{SECRET}@h/db?statement_cache_size=x", "statement_cache_size"),
    ],
)
def test_a_url_that_cannot_be_is_refused_without_its_password(url: Any, says: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        open_postgres_store(url)
    assert says in str(caught.value)
    assert SECRET not in f"{caught.value}{caught.value.__cause__}{caught.value.__context__ and ''}"


def test_the_plugin_is_found_by_its_schemes() -> None:
    from importlib.metadata import entry_points

    found = {one.name: one.load() for one in entry_points(group="tenure.stores") if one.name.startswith("postgres")}
    assert found == dict.fromkeys(("postgresql", "postgresql+asyncpg", "postgres"), open_postgres_store)
