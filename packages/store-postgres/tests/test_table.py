"""The table in the application's own metadata and migrations: three ways, one table."""

import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from sqlalchemy import Column, Integer, MetaData, String, Table, Text
from sqlalchemy.dialects.postgresql.base import PGDialect
from sqlalchemy.exc import SADeprecationWarning
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, MappedAsDataclass, mapped_column, registry

from tenure.errors import ConfigurationError
from tenure.store import Acquired
from tenure_postgres import (
    LOCK_TABLE_OPTIONS,
    LockMixin,
    PostgresLockStore,
    create_lock_table,
    create_schema_sql,
    lock_table,
)
from tenure_postgres.lock_table import LOCKS
from tenure_postgres.table import storage_options

with warnings.catch_warnings():
    # advanced-alchemy 1.12 uses a decorator that SQLAlchemy 2.1 calls deprecated.
    warnings.simplefilter("ignore", SADeprecationWarning)
    from advanced_alchemy.base import DefaultBase, UUIDAuditBase, UUIDBase, create_registry

MakeEngine = Callable[..., AsyncEngine]

# ---------------------------------------------------------------------------------------------------------- models


def plain() -> tuple[MetaData, Any]:
    class Base(DeclarativeBase):
        pass

    class LockRow(LockMixin, Base):
        pass

    return Base.metadata, LockRow


def dataclasses() -> tuple[MetaData, Any]:
    class Base(MappedAsDataclass, DeclarativeBase):
        pass

    class LockRow(LockMixin, Base):
        pass

    return Base.metadata, LockRow


def advanced_alchemy() -> tuple[MetaData, Any]:
    metadata = MetaData(naming_convention=create_registry().metadata.naming_convention)

    class LockRow(LockMixin, DefaultBase):
        __abstract__ = False
        metadata = DefaultBase.metadata
        __tablename__ = f"locks_of_advanced_alchemy_{next(_numbers)}"

    LockRow.__table__.to_metadata(metadata)
    return metadata, LockRow


def a_registry() -> tuple[MetaData, Any]:
    mappers = registry(metadata=MetaData(naming_convention={"pk": "pk_%(table_name)s"}))

    @mappers.mapped
    class LockRow(LockMixin):
        __tablename__ = 'we"ird locks'

    return mappers.metadata, LockRow


def only_metadata() -> tuple[MetaData, Any]:
    metadata = MetaData()
    return metadata, lock_table(metadata, name="app_locks")


def _count() -> Any:
    number = 0
    while True:
        number += 1
        yield number


_numbers = _count()

MODELS = [plain, dataclasses, advanced_alchemy, a_registry, only_metadata]

NOBODY = "postgresql+asyncpg://nobody@127.0.0.1:1/none"


def body_of(script: Any, function: str) -> str:
    text = Path(script.path).read_text()
    found = re.search(rf"def {function}\(\) -> None:\n(.*?)(?=\ndef |\Z)", text, re.DOTALL)
    assert found
    return found[1]


STORAGE = "SELECT array_to_string(reloptions, ', ') FROM pg_class WHERE relname = $1"
PRIMARY_KEY = "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = $1::regclass AND contype = 'p'"
COLUMNS = """
    SELECT attname::text, format_type(atttypid, atttypmod), attnotnull, collname::text, pg_get_expr(adbin, adrelid)
    FROM pg_attribute LEFT JOIN pg_collation c ON c.oid = attcollation LEFT JOIN pg_attrdef d ON adrelid = attrelid
    WHERE attrelid = $1::regclass AND attnum > 0 ORDER BY attname
"""


@pytest.mark.parametrize("model", MODELS)
async def test_the_second_autogenerate_is_empty(
    model: Callable[[], tuple[MetaData, Any]], alembic: Any, make_engine: MakeEngine, empty_url: str, connect: Any
) -> None:
    metadata, table = model()
    first = await alembic(command.revision, "locks", autogenerate=True, metadata=metadata)
    assert "create_table" in body_of(first, "upgrade")
    await alembic(command.upgrade, "head", metadata=metadata)
    second = await alembic(command.revision, "nothing", autogenerate=True, metadata=metadata)
    for function in ("upgrade", "downgrade"):
        assert not re.search(r"\bop\.", body_of(second, function)), body_of(second, function)

    store = PostgresLockStore(make_engine(empty_url), table=table)
    assert isinstance(await store.acquire("job", "o", 60_000), Acquired)
    findings = {finding.code: finding for finding in await store.check()}
    if "postgresql_with" not in LOCK_TABLE_OPTIONS:  # SQLAlchemy 2.0: as documented, and mended as the check says
        async with connect(empty_url) as person:
            await person.execute(findings.pop("fillfactor").remedy)
    assert set(findings) <= {"fsync"}
    async with connect(empty_url) as person:
        assert (await person.fetchval(STORAGE, store.table.name)).startswith("fillfactor=45")


async def test_planted_a_table_that_differs_is_not_empty(alembic: Any, connect: Any, empty_url: str) -> None:
    metadata, _ = plain()
    await alembic(command.revision, "locks", autogenerate=True, metadata=metadata)
    await alembic(command.upgrade, "head", metadata=metadata)
    async with connect(empty_url) as person:
        await person.execute("ALTER TABLE tenure_locks ALTER COLUMN token TYPE int, ALTER owner SET NOT NULL")
    second = await alembic(command.revision, "something", autogenerate=True, metadata=metadata)
    assert "'token'" in body_of(second, "upgrade")
    assert "'owner'" in body_of(second, "upgrade")


async def test_the_text_the_table_and_the_mixin_are_one_table(
    make_engine: MakeEngine, empty_url: str, connect: Any
) -> None:
    metadata = MetaData()
    lock_table(metadata, name="from_table")
    async with connect(empty_url) as person:
        await person.execute(create_schema_sql(table="from_text"))
        await person.execute(create_schema_sql(table="from_text"))  # where it stands, nothing happens
        async with make_engine(empty_url).begin() as connection:
            await connection.run_sync(metadata.create_all)
            await connection.run_sync(plain()[0].create_all)
            await connection.run_sync(lambda sync: create_lock_table(sync, table="from_helper"))
        names = ["from_text", "from_table", "tenure_locks", "from_helper"]
        shapes = [
            (
                [tuple(row) for row in await person.fetch(COLUMNS, name)],
                await person.fetchval(STORAGE, name),
                await person.fetchval(
                    PRIMARY_KEY,
                    name,
                ),
            )
            for name in names
        ]
    assert shapes[1:] == [shapes[0]] * 3
    assert shapes[0][1] == "fillfactor=45, vacuum_truncate=off"
    assert shapes[0][2] == "PRIMARY KEY (key)"


async def test_a_sqlalchemy_whose_tables_know_no_storage_sets_it_behind_the_creation(
    make_engine: MakeEngine, empty_url: str, connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As 2.0 is."""
    monkeypatch.setattr(PGDialect, "construct_arguments", [])
    options = storage_options(LOCKS.storage)
    monkeypatch.undo()
    assert "postgresql_with" not in options
    metadata = MetaData()
    Table('we"ird', metadata, Column("key", Text, primary_key=True), **options)
    async with make_engine(empty_url).begin() as connection:
        await connection.run_sync(metadata.create_all)
    async with connect(empty_url) as person:
        assert await person.fetchval(STORAGE, 'we"ird') == "fillfactor=45, vacuum_truncate=off"


BY_HAND = """
from alembic import op
from tenure_postgres import create_lock_table, drop_lock_table

revision = "1"
down_revision = None

def upgrade() -> None:
    create_lock_table(op, table='we"ird :name')

def downgrade() -> None:
    drop_lock_table(op, table='we"ird :name')
"""


async def test_a_migration_by_hand_goes_up_and_down_and_offline(
    alembic: Any, tmp_path: Path, make_engine: MakeEngine, empty_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "versions" / "1_locks.py").write_text(BY_HAND)
    store = PostgresLockStore(make_engine(empty_url), table='we"ird :name')
    await alembic(command.upgrade, "head")
    assert [finding for finding in await store.check() if finding.fatal] == []
    await alembic(command.downgrade, "base")
    assert "table-missing" in [finding.code for finding in await store.check()]
    (tmp_path / "env.py").write_text(
        "from alembic import context\ncontext.configure(dialect_name='postgresql', literal_binds=True)\n"
        "with context.begin_transaction():\n    context.run_migrations()\n"
    )
    await alembic(command.upgrade, "head", sql=True)
    assert 'CREATE TABLE IF NOT EXISTS "we""ird :name" (' in capsys.readouterr().out


async def test_a_table_in_a_schema_of_its_own(make_engine: MakeEngine, empty_url: str, connect: Any) -> None:
    class Base(DeclarativeBase):
        metadata = MetaData(schema="ops")

    class LockRow(LockMixin, Base):
        __table_args__: Any = {"comment": "who holds what", **LOCK_TABLE_OPTIONS}  # noqa: RUF012 -- SQLAlchemy's way

    async with connect(empty_url) as person:
        await person.execute("CREATE SCHEMA ops")
        async with make_engine(empty_url).begin() as connection:
            await connection.run_sync(Base.metadata.create_all)
        store = PostgresLockStore(make_engine(empty_url), table=LockRow)
        assert str(store.table) == '"ops"."tenure_locks"'
        assert isinstance(await store.acquire("job", "o", 60_000), Acquired)
        assert await person.fetchval(STORAGE, "tenure_locks") == "fillfactor=45, vacuum_truncate=off"


async def test_a_row_can_be_read_as_an_object(make_engine: MakeEngine, empty_url: str) -> None:
    from sqlalchemy.ext.asyncio import AsyncSession

    metadata, row = plain()
    engine = make_engine(empty_url)
    async with engine.begin() as connection:
        await connection.run_sync(metadata.create_all)
    reply = await PostgresLockStore(engine, table=row).acquire("job", "o", 60_000)
    async with AsyncSession(engine) as session:
        found = await session.get(row, "job")
    assert found is not None
    assert isinstance(reply, Acquired)
    assert (found.owner, found.token, found.after) == ("o", reply.token, None)
    assert found.expires_at.tzinfo is not None


# ------------------------------------------------------------------------------------------------ what does not fit


def a_column_more(**options: Any) -> Any:
    class Base(DeclarativeBase):
        pass

    class LockRow(LockMixin, Base):
        note: Mapped[str | None] = mapped_column(**options)

    return LockRow


@pytest.mark.parametrize("base", [UUIDBase, UUIDAuditBase])
def test_a_base_with_a_primary_key_of_its_own_is_refused_with_the_base_to_take(
    base: Any,
) -> None:
    row = type(f"Locks{next(_numbers)}", (LockMixin, base), {"__tablename__": f"locks_{next(_numbers)}"})
    with pytest.raises(ConfigurationError, match="DefaultBase"):
        PostgresLockStore(create_async_engine(NOBODY), table=row)


def test_a_column_that_the_store_would_leave_empty_is_refused() -> None:
    engine = create_async_engine(NOBODY)
    with pytest.raises(ConfigurationError, match="note"):
        PostgresLockStore(engine, table=a_column_more(nullable=False, default="python's own"))
    PostgresLockStore(engine, table=a_column_more(nullable=False, server_default="none"))
    PostgresLockStore(engine, table=a_column_more(nullable=True))


@pytest.mark.parametrize(
    "table", [None, 7, int, object(), Table("t", MetaData(), Column("key", Text, primary_key=True))]
)
def test_what_is_no_locks_table_is_refused(table: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"LockMixin"):
        PostgresLockStore(create_async_engine(NOBODY), table=table)


def test_a_schema_beside_a_table_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="twice"):
        PostgresLockStore(create_async_engine(NOBODY), table=lock_table(MetaData()), schema="ops")


@pytest.mark.parametrize("name", ["", "a\0b", "\ud800", "x" * 64, "ä" * 32])
def test_what_is_no_name_is_refused(name: str) -> None:
    engine = create_async_engine(NOBODY)
    for bad in ({"table": name}, {"schema": name}):
        with pytest.raises(ConfigurationError):
            PostgresLockStore(engine, **bad)
        with pytest.raises(ConfigurationError):
            create_schema_sql(**bad)
    with pytest.raises(ConfigurationError):
        lock_table(MetaData(), name=name)


def test_a_mixin_leaves_the_bases_of_others_alone() -> None:
    class Base(DeclarativeBase):
        pass

    class Product(Base):
        __tablename__ = "products"
        id: Mapped[int] = mapped_column(Integer, primary_key=True)
        name: Mapped[str] = mapped_column(String)

    class LockRow(LockMixin, Base):
        pass

    assert {*Base.metadata.tables} == {"products", "tenure_locks"}
    assert LockRow.__table__.name == "tenure_locks"
