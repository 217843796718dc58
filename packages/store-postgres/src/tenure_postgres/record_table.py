"""
The table of idempotency records in the application's own metadata, and in its migrations.

Three ways to the same table, and a test holds them equal:

- `IdempotencyMixin` for a declarative base; `alembic revision --autogenerate` then writes the migration by itself.
- `idempotency_table(metadata)` for a `MetaData` without classes.
- `create_idempotency_schema_sql()`, the text of `sql/records/schema.sql` and `expiry_index.sql`, for `psql` and other
  tools; `create_idempotency_table(op)` in an Alembic migration that is written by hand.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Boolean, DateTime, Integer, LargeBinary, MetaData, Table, Text
from sqlalchemy.dialects.postgresql.base import PGDialect
from sqlalchemy.orm import Mapped, declared_attr
from sqlalchemy.schema import DropTable

from tenure_postgres.statements import DEFAULT_RECORDS_TABLE, TableName, read_statement
from tenure_postgres.table import ColumnShape, RunsDdl, TableShape, as_text, storage_options

__all__ = [
    "IDEMPOTENCY_TABLE_OPTIONS",
    "RECORDS",
    "IdempotencyMixin",
    "create_idempotency_schema_sql",
    "create_idempotency_table",
    "drop_idempotency_table",
    "idempotency_table",
]

RECORDS: Final = TableShape(
    columns={
        "key": ColumnShape(Text(collation="C")),
        "owner": ColumnShape(Text(), nullable=True),
        "fingerprint": ColumnShape(Text()),
        "attempt": ColumnShape(Integer()),
        "lock_until": ColumnShape(DateTime(timezone=True)),
        "expires_at": ColumnShape(DateTime(timezone=True), indexed=True),
        "effect": ColumnShape(Boolean()),
        "response": ColumnShape(LargeBinary(), nullable=True),
    },
    storage={"vacuum_truncate": "off"},  # the reason stands in sql/records/schema.sql
    rights=("SELECT", "INSERT", "UPDATE", "DELETE"),
    mixin="IdempotencyMixin",
    function="idempotency_table",
    schema_text="create_idempotency_schema_sql",
    kept="records",
    at_stake="a request may be executed twice",
    unseen="requests that it would run again",
)

IDEMPOTENCY_TABLE_OPTIONS: Final[Mapping[str, Any]] = storage_options(RECORDS.storage)
"""
What `IdempotencyMixin` puts into `__table_args__`. For a model with arguments of its own:
`__table_args__ = {"schema": "ops", **IDEMPOTENCY_TABLE_OPTIONS}`.
"""

_INDEX: Final = "ix_tenure_idempotency_expires_at"
"""The index's name in sql/records/expiry_index.sql: what SQLAlchemy calls it where a metadata has no convention."""


class IdempotencyMixin:
    """
    The columns of the table of idempotency records, for any declarative base.

    The base must bring no primary key of its own: with advanced-alchemy use `DefaultBase`, not `UUIDBase`.

        class IdempotencyRow(IdempotencyMixin, Base):
            __tablename__ = "tenure_idempotency"  # the default; any name will do

        store = PostgresIdempotencyStore(engine, table=IdempotencyRow)

    Attributes:
        key: The key, compared byte by byte; the primary key.
        owner: Whose execution it is; None where it was released after an earlier attempt.
        fingerprint: The digest of the payload.
        attempt: How many executions began.
        lock_until: Until when the execution is believed alive, on the server's clock.
        expires_at: When the record ends, on the server's clock.
        effect: Whether the execution has had its effect.
        response: The outcome; None until it is known.
    """

    __tablename__ = DEFAULT_RECORDS_TABLE

    if TYPE_CHECKING:
        key: Mapped[str]
        owner: Mapped[str | None]
        fingerprint: Mapped[str]
        attempt: Mapped[int]
        lock_until: Mapped[datetime]
        expires_at: Mapped[datetime]
        effect: Mapped[bool]
        response: Mapped[bytes | None]
    else:
        # Without annotations that SQLAlchemy sees, as in LockMixin.
        key = declared_attr(lambda _: RECORDS.mapped("key"))
        owner = declared_attr(lambda _: RECORDS.mapped("owner"))
        fingerprint = declared_attr(lambda _: RECORDS.mapped("fingerprint"))
        attempt = declared_attr(lambda _: RECORDS.mapped("attempt"))
        lock_until = declared_attr(lambda _: RECORDS.mapped("lock_until"))
        expires_at = declared_attr(lambda _: RECORDS.mapped("expires_at"))
        effect = declared_attr(lambda _: RECORDS.mapped("effect"))
        response = declared_attr(lambda _: RECORDS.mapped("response"))
        __table_args__ = declared_attr.directive(lambda _: dict(IDEMPOTENCY_TABLE_OPTIONS))


def idempotency_table(metadata: MetaData, *, name: str = DEFAULT_RECORDS_TABLE, schema: str | None = None) -> Table:
    """
    Define the table of idempotency records in *metadata*, for an application without declarative classes.

    Args:
        metadata: The application's, so that its migrations see the table.
        name: The table's name.
        schema: Its schema, or None for that of *metadata*.
    """
    return RECORDS.define(metadata, name, schema)


def create_idempotency_schema_sql(*, table: str = DEFAULT_RECORDS_TABLE, schema: str | None = None) -> str:
    """
    The two statements that create the table and its index where they are missing, as text with a semicolon between.

    Args:
        table: The table's name.
        schema: Its schema, which has to exist.
    """
    return ";\n".join(_statements(table, schema))


def create_idempotency_table(op: RunsDdl, *, table: str = DEFAULT_RECORDS_TABLE, schema: str | None = None) -> None:
    """
    Create the table and its index in a migration, where they are missing. Works offline (`--sql`) too.

    Args:
        op: Alembic's `op`, or a synchronous SQLAlchemy connection.
        table: The table's name.
        schema: Its schema, which has to exist.
    """
    for statement in _statements(table, schema):
        op.execute(as_text(statement))


def drop_idempotency_table(op: RunsDdl, *, table: str = DEFAULT_RECORDS_TABLE, schema: str | None = None) -> None:
    """
    Drop the table in a downgrade. Every request that is repeated afterwards is executed again.

    Args:
        op: Alembic's `op`, or a synchronous SQLAlchemy connection.
        table: The table's name.
        schema: Its schema.
    """
    op.execute(DropTable(idempotency_table(MetaData(), name=table, schema=schema)))


def _statements(table: str, schema: str | None) -> list[str]:
    name = TableName(table, schema)
    [index] = idempotency_table(MetaData(), name=table, schema=schema).indexes
    # SQLAlchemy's own name for it, so that an autogenerated migration finds nothing to rename.
    dialect = PGDialect()  # type: ignore[no-untyped-call]  # SQLAlchemy's own
    quoted = dialect.identifier_preparer.format_index(index)
    return [
        read_statement("records/schema", name),
        read_statement("records/expiry_index", name, {_INDEX: quoted}),
    ]
