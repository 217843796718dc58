import asyncio
from collections.abc import AsyncIterator

import pytest
from sqlalchemy import inspect, text
from sqlalchemy.ext.asyncio import AsyncEngine

from cat_store.database.engine import create_engine
from cat_store.database.migrate import SchemaError, check_is_current, migrate, models_agree


@pytest.fixture
async def engine(postgres_url: str) -> AsyncIterator[AsyncEngine]:
    engine = create_engine(postgres_url)
    yield engine
    await engine.dispose()


async def tables_of(engine: AsyncEngine) -> set[str]:
    async with engine.connect() as connection:
        return set(await connection.run_sync(lambda sync: inspect(sync).get_table_names()))


async def test_the_migrations_leave_autogenerate_nothing_to_do(engine: AsyncEngine) -> None:
    await migrate(engine)
    assert await models_agree(engine)
    assert await tables_of(engine) >= {
        "alembic_version",
        "orders",
        "order_lines",
        "products",
        "tenure_idempotency",
        "tenure_locks",
    }


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE products DROP COLUMN stock_token",
        "ALTER TABLE orders ALTER COLUMN invoice_batch TYPE varchar(10)",
        "DROP TABLE tenure_locks",
        "DROP INDEX ix_orders_due",
        "DROP TABLE tenure_idempotency",
        "DROP INDEX ix_tenure_idempotency_expires_at",
    ],
)
async def test_a_schema_that_drifted_is_seen_by_autogenerate(engine: AsyncEngine, change: str) -> None:
    await migrate(engine)
    async with engine.begin() as connection:
        await connection.execute(text(change))
    assert not await models_agree(engine)


async def test_the_migrations_go_down_and_up_again(engine: AsyncEngine) -> None:
    await migrate(engine)
    await migrate(engine, "0001")
    assert "tenure_locks" not in await tables_of(engine)
    await migrate(engine, "base")
    assert await tables_of(engine) == {"alembic_version"}
    await migrate(engine)
    assert await models_agree(engine)


async def test_two_deploys_that_migrate_at_once_take_their_turns(engine: AsyncEngine) -> None:
    await asyncio.gather(migrate(engine), migrate(engine), migrate(engine))
    await check_is_current(engine)


async def test_a_replica_refuses_a_database_that_was_not_migrated(engine: AsyncEngine) -> None:
    with pytest.raises(SchemaError, match=r"at revision none, and this version needs \d{4}: run `cat-store migrate`"):
        await check_is_current(engine)
    await migrate(engine, "0001")
    with pytest.raises(SchemaError, match="at revision 0001"):
        await check_is_current(engine)


async def test_a_replica_accepts_a_database_that_a_newer_version_migrated(
    engine: AsyncEngine, caplog: pytest.LogCaptureFixture
) -> None:
    await migrate(engine)
    async with engine.begin() as connection:
        await connection.execute(text("UPDATE alembic_version SET version_num = '0042'"))
    await check_is_current(engine)
    assert "revision 0042, which a newer version than this one knows" in caplog.text


async def test_the_locks_and_the_records_work_on_the_migrated_tables_without_a_finding(engine: AsyncEngine) -> None:
    from tenure_postgres import PostgresIdempotencyStore, PostgresLockStore

    await migrate(engine)
    for store in (PostgresLockStore(engine), PostgresIdempotencyStore(engine)):
        assert [finding for finding in await store.check() if finding.fatal] == []
