"""The table of idempotency records in the application's own metadata and migrations: three ways, one table."""

import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from sqlalchemy import Column, MetaData, Table, Text
from sqlalchemy.exc import SADeprecationWarning
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, MappedAsDataclass

from tenure.errors import ConfigurationError
from tenure.idempotency_store import Acquired, Completion
from tenure_postgres import (
    IDEMPOTENCY_TABLE_OPTIONS,
    IdempotencyMixin,
    PostgresIdempotencyStore,
    create_idempotency_schema_sql,
    create_idempotency_table,
    idempotency_table,
    lock_table,
)

with warnings.catch_warnings():
    # advanced-alchemy 1.12 uses a decorator that SQLAlchemy 2.1 calls deprecated.
    warnings.simplefilter("ignore", SADeprecationWarning)
    from advanced_alchemy.base import DefaultBase, UUIDBase, create_registry

MakeEngine = Callable[..., AsyncEngine]
Store = PostgresIdempotencyStore

NOBODY = "postgresql+asyncpg://nobody@127.0.0.1:1/none"


def plain() -> tuple[MetaData, Any]:
    class Base(DeclarativeBase):
        pass

    class IdempotencyRow(IdempotencyMixin, Base):
        pass

    return Base.metadata, IdempotencyRow


def dataclasses() -> tuple[MetaData, Any]:
    class Base(MappedAsDataclass, DeclarativeBase):
        pass

    class IdempotencyRow(IdempotencyMixin, Base):
        pass

    return Base.metadata, IdempotencyRow


def advanced_alchemy() -> tuple[MetaData, Any]:
    metadata = MetaData(naming_convention=create_registry().metadata.naming_convention)

    class IdempotencyRow(IdempotencyMixin, DefaultBase):
        __abstract__ = False
        metadata = DefaultBase.metadata
        __tablename__ = f"records_of_advanced_alchemy_{next(_numbers)}"

    IdempotencyRow.__table__.to_metadata(metadata)
    return metadata, IdempotencyRow


def only_metadata() -> tuple[MetaData, Any]:
    metadata = MetaData()
    return metadata, idempotency_table(metadata, name="app_records")


def a_class_with_arguments_of_its_own() -> tuple[MetaData, Any]:
    class Base(DeclarativeBase):
        pass

    class IdempotencyRow(IdempotencyMixin, Base):
        __tablename__ = 'we"ird records'
        __table_args__: Any = {"comment": "what was done", **IDEMPOTENCY_TABLE_OPTIONS}  # noqa: RUF012 -- SQLAlchemy's way

    return Base.metadata, IdempotencyRow


def _count() -> Any:
    number = 0
    while True:
        number += 1
        yield number


_numbers = _count()

MODELS = [plain, dataclasses, advanced_alchemy, only_metadata, a_class_with_arguments_of_its_own]


def body_of(script: Any, function: str) -> str:
    text = Path(script.path).read_text()
    found = re.search(rf"def {function}\(\) -> None:\n(.*?)(?=\ndef |\Z)", text, re.DOTALL)
    assert found
    return found[1]


SHAPE = """
    SELECT (SELECT array_agg(ROW (attname, format_type(atttypid, atttypmod), attnotnull, collname,
                                  pg_get_expr(adbin, adrelid))::text ORDER BY attname)
            FROM pg_attribute LEFT JOIN pg_collation c ON c.oid = attcollation
                              LEFT JOIN pg_attrdef d ON adrelid = attrelid
            WHERE attrelid = relation.oid AND attnum > 0) AS columns,
           array_to_string(reloptions, ', ') AS storage,
           relpersistence::text AS persistence,
           (SELECT array_agg(replace(pg_get_indexdef(indexrelid), relation.relname, 'x') ORDER BY indisprimary)
            FROM pg_index WHERE indrelid = relation.oid) AS indexes
    FROM pg_class AS relation WHERE relname = $1
"""


@pytest.mark.parametrize("model", MODELS)
async def test_the_second_autogenerate_is_empty(
    model: Callable[[], tuple[MetaData, Any]], alembic: Any, make_engine: MakeEngine, empty_url: str
) -> None:
    metadata, table = model()
    first = await alembic(command.revision, "records", autogenerate=True, metadata=metadata)
    assert "create_table" in body_of(first, "upgrade")
    assert "create_index" in body_of(first, "upgrade")
    await alembic(command.upgrade, "head", metadata=metadata)
    second = await alembic(command.revision, "nothing", autogenerate=True, metadata=metadata)
    for function in ("upgrade", "downgrade"):
        assert not re.search(r"\bop\.", body_of(second, function)), body_of(second, function)

    store = Store(make_engine(empty_url), table=table)
    assert await store.acquire("order", "o", "f", 60_000, 60_000) == Acquired(1)
    assert {finding.code for finding in await store.check()} <= {"fsync"}


@pytest.mark.parametrize("convention", ["SQLAlchemy's", "advanced-alchemy's"])
async def test_autogenerate_finds_nothing_to_do_where_the_text_made_the_table(
    alembic: Any, empty_url: str, connect: Any, convention: str
) -> None:
    async with connect(empty_url) as person:
        await person.execute(create_idempotency_schema_sql())
    theirs = {"naming_convention": create_registry().metadata.naming_convention}
    metadata = MetaData(**(theirs if convention == "advanced-alchemy's" else {}))
    idempotency_table(metadata)
    script = await alembic(command.revision, "nothing", autogenerate=True, metadata=metadata)
    assert not re.search(r"\bop\.", body_of(script, "upgrade")), body_of(script, "upgrade")


async def test_planted_a_table_without_its_index_is_not_empty(alembic: Any, connect: Any, empty_url: str) -> None:
    metadata, _ = plain()
    async with connect(empty_url) as person:
        await person.execute(create_idempotency_schema_sql())
        await person.execute("DROP INDEX ix_tenure_idempotency_expires_at")
        await person.execute("ALTER TABLE tenure_idempotency ALTER COLUMN response TYPE text")
    script = await alembic(command.revision, "something", autogenerate=True, metadata=metadata)
    assert "create_index" in body_of(script, "upgrade")
    assert "'response'" in body_of(script, "upgrade")


async def test_the_text_the_table_and_the_mixin_are_one_table(
    make_engine: MakeEngine, empty_url: str, connect: Any
) -> None:
    metadata = MetaData()
    idempotency_table(metadata, name="from_table")
    async with connect(empty_url) as person:
        await person.execute(create_idempotency_schema_sql(table="from_text"))
        await person.execute(create_idempotency_schema_sql(table="from_text"))  # where it stands, nothing happens
        async with make_engine(empty_url).begin() as connection:
            await connection.run_sync(metadata.create_all)
            await connection.run_sync(plain()[0].create_all)
            await connection.run_sync(lambda sync: create_idempotency_table(sync, table="from_helper"))
        names = ["from_text", "from_table", "tenure_idempotency", "from_helper"]
        shapes = [dict(await person.fetchrow(SHAPE, name)) for name in names]
    assert shapes[1:] == [shapes[0]] * 3
    assert shapes[0]["storage"] == "vacuum_truncate=off"
    assert shapes[0]["persistence"] == "p"
    assert len(shapes[0]["indexes"]) == 2


BY_HAND = """
from alembic import op
from tenure_postgres import create_idempotency_table, drop_idempotency_table

revision = "1"
down_revision = None

def upgrade() -> None:
    create_idempotency_table(op, table='we"ird :name')

def downgrade() -> None:
    drop_idempotency_table(op, table='we"ird :name')
"""


async def test_a_migration_by_hand_goes_up_and_down_and_offline(
    alembic: Any, tmp_path: Path, make_engine: MakeEngine, empty_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "versions" / "1_records.py").write_text(BY_HAND)
    store = Store(make_engine(empty_url), table='we"ird :name')
    await alembic(command.upgrade, "head")
    assert {finding.code for finding in await store.check()} <= {"fsync"}
    await alembic(command.downgrade, "base")
    assert "table-missing" in [finding.code for finding in await store.check()]
    (tmp_path / "env.py").write_text(
        "from alembic import context\ncontext.configure(dialect_name='postgresql', literal_binds=True)\n"
        "with context.begin_transaction():\n    context.run_migrations()\n"
    )
    await alembic(command.upgrade, "head", sql=True)
    written = capsys.readouterr().out
    assert 'CREATE TABLE IF NOT EXISTS "we""ird :name" (' in written
    assert 'CREATE INDEX IF NOT EXISTS "ix_we""ird :name_expires_at" ON "we""ird :name" (expires_at)' in written


async def test_a_table_in_a_schema_of_its_own(make_engine: MakeEngine, empty_url: str, connect: Any) -> None:
    class Base(DeclarativeBase):
        metadata = MetaData(schema="ops")

    class IdempotencyRow(IdempotencyMixin, Base):
        pass

    async with connect(empty_url) as person:
        await person.execute("CREATE SCHEMA ops")
        engine = make_engine(empty_url)
        async with engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)
        store = Store(engine, table=IdempotencyRow)
        assert str(store.table) == '"ops"."tenure_idempotency"'
        assert await store.acquire("order", "o", "f", 60_000, 60_000) == Acquired(1)
        async with engine.begin() as connection:
            await store.assert_owner(connection, "order", "o")
        assert await store.effect_committed("order", "o")
        made = await person.fetchval("SELECT indexname FROM pg_indexes WHERE indexname LIKE 'ix_%'")
        assert made in create_idempotency_schema_sql(schema="ops")


async def test_a_row_can_be_read_as_an_object(make_engine: MakeEngine, empty_url: str) -> None:
    metadata, row = plain()
    engine = make_engine(empty_url)
    async with engine.begin() as connection:
        await connection.run_sync(metadata.create_all)
    store = Store(engine, table=row)
    assert await store.acquire("order", "o", "f", 60_000, 60_000) == Acquired(1)
    assert await store.complete("order", "o", b"201", 60_000) is Completion.STORED
    async with AsyncSession(engine) as session:
        found = await session.get(row, "order")
    assert found is not None
    assert (found.owner, found.fingerprint, found.attempt, found.effect) == ("o", "f", 1, False)
    assert found.response == b"201"
    assert found.expires_at.tzinfo is not None
    assert found.lock_until.tzinfo is not None


@pytest.mark.parametrize(
    "table", [None, 7, object(), Table("t", MetaData(), Column("key", Text, primary_key=True)), lock_table(MetaData())]
)
def test_what_is_no_table_of_records_is_refused(table: Any) -> None:
    with pytest.raises(ConfigurationError, match="IdempotencyMixin"):
        Store(create_async_engine(NOBODY), table=table)


def test_a_base_with_a_primary_key_of_its_own_is_refused_with_the_base_to_take() -> None:
    row = type(f"Records{next(_numbers)}", (IdempotencyMixin, UUIDBase), {"__tablename__": f"r{next(_numbers)}"})
    with pytest.raises(ConfigurationError, match="DefaultBase"):
        Store(create_async_engine(NOBODY), table=row)


@pytest.mark.parametrize("name", ["", "a\0b", "x" * 64])
def test_what_is_no_name_is_refused(name: str) -> None:
    for make in (
        lambda: Store(create_async_engine(NOBODY), table=name),
        lambda: create_idempotency_schema_sql(schema=name),
        lambda: idempotency_table(MetaData(), name=name),
    ):
        with pytest.raises(ConfigurationError):
            make()
