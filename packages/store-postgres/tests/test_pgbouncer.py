"""Behind PgBouncer in transaction mode, where a session's state is somebody else's a moment later."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import asyncpg
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from tenure.store import Acquired
from tenure_postgres import PostgresLockStore, create_lock_engine
from tenure_testbed.pgbouncer import PgBouncer
from tenure_testbed.postgres_access import database_of

Owner = Callable[[], str]


@pytest.fixture
def url(pgbouncer: PgBouncer, database_url: str) -> str:
    return pgbouncer.url(database_of(database_url))


@pytest.fixture
async def pooled(url: str) -> AsyncIterator[AsyncEngine]:
    engine = create_lock_engine(url, pooler=True, pool_size=10)
    yield engine
    await engine.dispose()


async def test_many_calls_at_once_work_behind_a_pooler(pooled: AsyncEngine, owner: Owner) -> None:
    store = PostgresLockStore(pooled)

    async def cycle(key: str) -> None:
        for _ in range(20):
            holder = owner()
            assert isinstance(await store.acquire(key, holder, 60_000), Acquired)
            assert await store.renew(key, holder, 60_000)
            assert await store.release(key, holder)

    await asyncio.gather(*(cycle(f"job-{number}") for number in range(10)))


async def test_the_wait_for_a_row_is_bounded_behind_a_pooler_and_for_nobody_else(
    pooled: AsyncEngine, owner: Owner, locked_row: Any, url: str, connect: Any
) -> None:
    store, holder = PostgresLockStore(pooled, lock_timeout="50ms"), owner()
    await store.acquire("job", holder, 60_000)
    async with locked_row("job"):
        with pytest.raises(asyncpg.LockNotAvailableError):
            await store.renew("job", holder, 60_000)
    async with connect(url) as other:
        for _ in range(5):
            assert await other.fetchval("SELECT current_setting('lock_timeout')") == "0"


async def test_an_engine_that_keeps_prepared_statements_fails_with_the_way_out(
    make_engine: Callable[..., AsyncEngine], url: str, owner: Owner, connect: Any
) -> None:
    store = PostgresLockStore(make_engine(url, pool_size=1, max_overflow=0))
    await store.acquire("job", owner(), 60_000)
    async with connect(url) as other, other.transaction():
        await other.execute("SELECT 1")  # it holds the server that has the statement
        with pytest.raises(asyncpg.InvalidSQLStatementNameError) as caught:
            await store.acquire("job", owner(), 60_000)
    assert "create_lock_engine(url, pooler=True)" in caught.value.__notes__[0]


async def test_a_restart_of_the_pooler_costs_the_calls_of_its_time_alone(
    pooled: AsyncEngine, pgbouncer: PgBouncer, owner: Owner
) -> None:
    store, holder = PostgresLockStore(pooled), owner()
    await store.acquire("job", holder, 60_000)
    await asyncio.gather(*(store.renew("job", holder, 60_000) for _ in range(20)))
    await asyncio.to_thread(pgbouncer.restart)
    for _ in range(10):
        assert await store.renew("job", holder, 60_000)
