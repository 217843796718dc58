"""The contract of an idempotency store, on PostgreSQL, where calls really overlap: a pool of twenty, 32 callers."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from tenure.testing import Case, idempotency_histories, idempotency_store_contract, run_all
from tenure_postgres import PostgresIdempotencyStore, create_idempotency_schema_sql, create_lock_engine
from tenure_testbed.pgbouncer import PgBouncer
from tenure_testbed.postgres import PostgresServer
from tenure_testbed.postgres_access import database_of
from tenure_testbed.pytest_plugin import or_skip

MakeEngine = Callable[..., AsyncEngine]


FEWER_ROUNDS = 6
"""Rounds of each race where the suite runs again on the same server by another way."""


def contract(engine: AsyncEngine | None, **options: Any) -> list[Case]:
    # A second: a round trip on loopback takes a few milliseconds, and on a busy machine ten times that.
    def make_store() -> PostgresIdempotencyStore:
        assert engine is not None
        return PostgresIdempotencyStore(engine)

    given = {"concurrent": 32, "ttl_ms": 1000, "purges": True, "effects": engine.begin if engine else make_store}
    return idempotency_store_contract(**{"make_store": make_store} | given | options)


NAMES = [case.name for case in contract(None)]


@pytest.mark.parametrize("name", NAMES)
async def test_plain(name: str, records_database: str, make_engine: MakeEngine) -> None:
    """Each fact as a test of its own, so that a failure has its name."""
    [case] = [one for one in contract(make_engine(records_database)) if one.name == name]
    await case.run()


async def test_behind_pgbouncer_in_transaction_mode(records_database: str, pgbouncer: PgBouncer) -> None:
    url = pgbouncer.url(database_of(records_database))
    engine = create_lock_engine(url, pool_size=20, pool_timeout=30, pooler=True, isolation_level="READ COMMITTED")
    try:
        await run_all(contract(engine, rounds=FEWER_ROUNDS))
    finally:
        await engine.dispose()


@pytest.mark.matrix
@pytest.mark.parametrize("isolation", ["serializable", "repeatable read"])
async def test_under_a_stricter_default(records_database: str, make_engine: MakeEngine, isolation: str) -> None:
    settings = {"default_transaction_isolation": isolation}
    engine = make_engine(records_database, server_settings=settings)
    await run_all(contract(engine, rounds=FEWER_ROUNDS, effects=make_engine(records_database).begin))


@pytest.mark.matrix
async def test_behind_pgbouncer_under_a_stricter_default(serializable_records: str, pgbouncer: PgBouncer) -> None:
    """The pooler refuses the setting from a client: the database itself has it."""
    url = pgbouncer.url(database_of(serializable_records))
    engine = create_lock_engine(url, pool_size=20, pool_timeout=30, pooler=True, isolation_level="READ COMMITTED")
    try:
        await run_all(contract(engine, rounds=FEWER_ROUNDS))
    finally:
        await engine.dispose()


@pytest.fixture(scope="module")
def on_disk() -> Iterator[PostgresServer]:
    """A server whose commits wait for the disk: rows stay locked for as long."""
    with or_skip(), PostgresServer(fsync=True) as server:
        server.execute(create_idempotency_schema_sql())
        yield server


async def test_an_owner_that_asks_many_times_while_its_commit_waits_for_the_disk(
    on_disk: PostgresServer, make_engine: MakeEngine
) -> None:
    """Told "in flight" of its own execution, a driver's retry would make the request wait for itself."""
    for _ in range(5):
        cases = contract(make_engine(on_disk.url()), rounds=FEWER_ROUNDS)
        await run_all([case for case in cases if "asks many times at once" in case.name])


@pytest.mark.matrix
async def test_where_commits_wait_for_the_disk(on_disk: PostgresServer, make_engine: MakeEngine) -> None:
    await run_all(contract(make_engine(on_disk.url()), rounds=FEWER_ROUNDS))


@pytest.mark.matrix
async def test_as_a_role_with_select_insert_update_and_delete(
    as_little_as_needed: str, make_engine: MakeEngine
) -> None:
    await run_all(contract(make_engine(as_little_as_needed), rounds=FEWER_ROUNDS))


@pytest.mark.matrix
async def test_random_histories_are_answered_as_the_machine_says(
    records_database: str, make_engine: MakeEngine
) -> None:
    store = PostgresIdempotencyStore(make_engine(records_database))
    report = await idempotency_histories({"postgres": store}, calls=600)
    assert report.calls >= 600
    assert {"Acquired again", "Completed", "Mismatch", "Abandoned"} <= set(report.answers)


async def test_across_restarts_of_the_server(own_postgres: PostgresServer) -> None:
    url = own_postgres.url()
    own_postgres.execute(create_idempotency_schema_sql())

    async def make_store() -> AsyncIterator[PostgresIdempotencyStore]:
        async with PostgresIdempotencyStore(create_lock_engine(url), owns_engine=True) as store:
            yield store

    async def restart() -> None:
        await asyncio.to_thread(own_postgres.restart, "immediate")

    cases = [case for case in contract(None, make_store=make_store, restart=restart) if "restart" in case.name]
    assert cases
    await run_all(cases)
