"""PostgreSQL as the contract meets it: plain, behind a pooler, under a stricter default, as a role with few rights."""

import re
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from tenure_postgres import create_schema_sql
from tenure_testbed.postgres_access import PostgresAccess, database_of

ROLE = "tenure_contract_role"


@pytest.fixture(scope="session")
def locks_database(postgres_server: PostgresAccess) -> Iterator[str]:
    """A database with the locks table in it, for all: a case draws keys of its own."""
    url = postgres_server.create_database()
    postgres_server.execute(create_schema_sql(), database_of(url))
    yield url
    postgres_server.drop_database(database_of(url))


@pytest.fixture
def serializable_database(postgres_server: PostgresAccess, postgres_url: str) -> str:
    """One whose transactions are SERIALIZABLE unless they say otherwise."""
    database = database_of(postgres_url)
    postgres_server.execute(create_schema_sql(), database)
    postgres_server.execute(f"ALTER DATABASE {database} SET default_transaction_isolation = 'serializable'")
    return postgres_url


@pytest.fixture
def as_little_as_possible(locks_database: str, postgres_server: PostgresAccess) -> Iterator[str]:
    """The same database as a role that may SELECT, INSERT and UPDATE the table, and nothing else anywhere."""
    database = database_of(locks_database)
    postgres_server.execute(f"DROP ROLE IF EXISTS {ROLE}")
    postgres_server.execute(
        f"CREATE ROLE {ROLE} LOGIN; REVOKE ALL ON SCHEMA public FROM PUBLIC; "
        f"GRANT USAGE ON SCHEMA public TO {ROLE}; GRANT SELECT, INSERT, UPDATE ON tenure_locks TO {ROLE}",
        database,
    )
    yield re.sub(r"://[^@]*@", f"://{ROLE}@", locks_database)
    postgres_server.execute(f"DROP OWNED BY {ROLE}; DROP ROLE {ROLE}", database)


@pytest.fixture
async def make_engine() -> AsyncIterator[Callable[..., AsyncEngine]]:
    """Make engines with a pool of twenty, disposed after the test."""
    engines: list[AsyncEngine] = []

    def make(url: str, **connect_args: object) -> AsyncEngine:
        engines.append(create_async_engine(url, pool_size=20, max_overflow=0, connect_args=connect_args))
        return engines[-1]

    yield make
    for engine in engines:
        await engine.dispose()
