"""The contract of a lock store, on PostgreSQL, where calls really overlap: a pool of twenty and 32 racing callers."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from tenure.store import ChecksServer, ListsLocks, RenewsMany, WakesWaiters
from tenure.testing import Case, lock_store_contract, run_all
from tenure_postgres import PostgresLockStore, create_lock_engine, create_schema_sql
from tenure_testbed.pgbouncer import PgBouncer
from tenure_testbed.postgres import PostgresServer
from tenure_testbed.postgres_access import database_of
from tenure_testbed.pytest_plugin import or_skip

MakeEngine = Callable[..., AsyncEngine]

CAPABILITIES = (RenewsMany, ListsLocks, ChecksServer, WakesWaiters)


FEWER_ROUNDS = 6
"""Rounds of each race where the suite runs again on the same server by another way."""


def contract(make_store: Any, **options: Any) -> list[Case]:
    # A second: a round trip on loopback takes a few milliseconds, and on a busy machine ten times that.
    return lock_store_contract(make_store, concurrent=32, capabilities=CAPABILITIES, ttl_ms=1000, **options)


NAMES = [case.name for case in contract(lambda: None)]


@pytest.mark.parametrize("name", NAMES)
async def test_plain(name: str, locks_database: str, make_engine: MakeEngine) -> None:
    """Each fact as a test of its own, so that a failure has its name."""
    store = PostgresLockStore(make_engine(locks_database))
    [case] = [one for one in contract(lambda: store) if one.name == name]
    await case.run()


async def test_behind_pgbouncer_in_transaction_mode(locks_database: str, pgbouncer: PgBouncer) -> None:
    engine = create_lock_engine(pgbouncer.url(database_of(locks_database)), pool_size=20, pool_timeout=30, pooler=True)
    try:
        await run_all(contract(lambda: PostgresLockStore(engine), rounds=FEWER_ROUNDS))
    finally:
        await engine.dispose()


@pytest.mark.matrix
@pytest.mark.parametrize("isolation", ["serializable", "repeatable read"])
async def test_under_a_stricter_default(locks_database: str, make_engine: MakeEngine, isolation: str) -> None:
    settings = {"default_transaction_isolation": isolation}
    engine = make_engine(locks_database, server_settings=settings)
    await run_all(contract(lambda: PostgresLockStore(engine), rounds=FEWER_ROUNDS))


@pytest.mark.matrix
async def test_behind_pgbouncer_under_a_stricter_default(serializable_database: str, pgbouncer: PgBouncer) -> None:
    """The pooler refuses the setting from a client: the database itself has it."""
    engine = create_lock_engine(
        pgbouncer.url(database_of(serializable_database)), pool_size=20, pool_timeout=30, pooler=True
    )
    try:
        await run_all(contract(lambda: PostgresLockStore(engine), rounds=FEWER_ROUNDS))
    finally:
        await engine.dispose()


@pytest.mark.matrix
async def test_where_commits_wait_for_the_disk(make_engine: MakeEngine) -> None:
    with or_skip(), PostgresServer(fsync=True) as server:
        server.execute(create_schema_sql())
        engine = make_engine(server.url())
        await run_all(contract(lambda: PostgresLockStore(engine), rounds=FEWER_ROUNDS))
        await engine.dispose()


@pytest.mark.matrix
async def test_as_a_role_with_select_insert_and_update(as_little_as_possible: str, make_engine: MakeEngine) -> None:
    engine = make_engine(as_little_as_possible)
    await run_all(contract(lambda: PostgresLockStore(engine), rounds=FEWER_ROUNDS))


async def test_across_restarts_of_the_server(own_postgres: PostgresServer) -> None:
    url = own_postgres.url()
    own_postgres.execute(create_schema_sql())

    async def make_store() -> AsyncIterator[PostgresLockStore]:
        async with PostgresLockStore(create_lock_engine(url), owns_engine=True) as store:
            yield store

    async def restart() -> None:
        await asyncio.to_thread(own_postgres.restart, "immediate")

    cases = [case for case in contract(make_store, restart=restart) if "restart" in case.name]
    assert cases
    await run_all(cases)
