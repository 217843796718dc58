"""PostgreSQL as the contract meets it: plain, behind a pooler, under a stricter default, as a role with few rights."""

import re
import sys
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import glide  # noqa: F401 -- loaded before the modules that it leaves behind are looked at
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from tenure_postgres import create_idempotency_schema_sql, create_schema_sql
from tenure_testbed.postgres_access import PostgresAccess, database_of

with warnings.catch_warnings():
    # glide leaves modules behind that warn whoever first looks at them, as Hypothesis looks at every module there is.
    warnings.simplefilter("ignore", DeprecationWarning)
    for _name, _module in list(sys.modules.items()):
        if _name.startswith("glide."):
            getattr(_module, "__file__", None)

ROLE = "tenure_contract_role"

VALKEY_README = Path(__file__).resolve().parents[2] / "packages" / "store-valkey" / "README.md"


@pytest.fixture
def granted() -> Callable[[str], list[str]]:
    """Read the rules of the README's user under a title, such as "glide: cluster" or "records, glide: cluster"."""

    def read(title: str) -> list[str]:
        line = re.search(
            rf"^# {re.escape(title)}\nACL SETUSER shop on >secret (.+)$", VALKEY_README.read_text(), re.MULTILINE
        )
        assert line is not None, f"the README has no rights under {title!r}"
        return line[1].split()

    return read


def _database_with(server: PostgresAccess, schema_sql: str) -> Iterator[str]:
    """A database with a table in it, for all: a case draws keys of its own."""
    url = server.create_database()
    server.execute(schema_sql, database_of(url))
    yield url
    server.drop_database(database_of(url))


def _made_serializable(server: PostgresAccess, url: str, schema_sql: str) -> str:
    """A database with a table, whose transactions are SERIALIZABLE unless they say otherwise."""
    database = database_of(url)
    server.execute(schema_sql, database)
    server.execute(f"ALTER DATABASE {database} SET default_transaction_isolation = 'serializable'")
    return url


def _as_role(server: PostgresAccess, url: str, granted: str) -> Iterator[str]:
    """The same database as a role that may do what is granted, and nothing else anywhere."""
    database = database_of(url)
    server.execute(f"DROP ROLE IF EXISTS {ROLE}")
    server.execute(
        f"CREATE ROLE {ROLE} LOGIN; REVOKE ALL ON SCHEMA public FROM PUBLIC; "
        f"GRANT USAGE ON SCHEMA public TO {ROLE}; GRANT {granted} TO {ROLE}",
        database,
    )
    yield re.sub(r"://[^@]*@", f"://{ROLE}@", url)
    server.execute(f"DROP OWNED BY {ROLE}; DROP ROLE {ROLE}", database)


@pytest.fixture(scope="session")
def locks_database(postgres_server: PostgresAccess) -> Iterator[str]:
    yield from _database_with(postgres_server, create_schema_sql())


@pytest.fixture(scope="session")
def records_database(postgres_server: PostgresAccess) -> Iterator[str]:
    yield from _database_with(postgres_server, create_idempotency_schema_sql())


@pytest.fixture
def serializable_database(postgres_server: PostgresAccess, postgres_url: str) -> str:
    return _made_serializable(postgres_server, postgres_url, create_schema_sql())


@pytest.fixture
def serializable_records(postgres_server: PostgresAccess, postgres_url: str) -> str:
    return _made_serializable(postgres_server, postgres_url, create_idempotency_schema_sql())


@pytest.fixture
def as_little_as_possible(locks_database: str, postgres_server: PostgresAccess) -> Iterator[str]:
    yield from _as_role(postgres_server, locks_database, "SELECT, INSERT, UPDATE ON tenure_locks")


@pytest.fixture
def as_little_as_needed(records_database: str, postgres_server: PostgresAccess) -> Iterator[str]:
    yield from _as_role(postgres_server, records_database, "SELECT, INSERT, UPDATE, DELETE ON tenure_idempotency")


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
