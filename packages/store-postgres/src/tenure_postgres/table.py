"""
What a table of ours is made of, said once: for the application's metadata, its migrations and the start-up check.

The two tables are described in `lock_table.py` and `record_table.py`; what is done with a description stands here.
The stores never create their tables: DDL at run time would need rights that a service should not have.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from sqlalchemy import DDL, Column, MetaData, Table, TextClause, text
from sqlalchemy.dialects.postgresql.base import PGDialect
from sqlalchemy.orm import MappedColumn, mapped_column
from sqlalchemy.types import TypeEngine

from tenure.errors import ConfigurationError
from tenure_postgres.statements import TableName

__all__ = ["ColumnShape", "RunsDdl", "TableShape", "as_text", "storage_options", "table_name_of"]

KEY: Final = "key"
"""The primary key of each table."""


@dataclass(frozen=True, slots=True)
class ColumnShape:
    """
    One column.

    Attributes:
        kind: Its type.
        nullable: Whether it may be null.
        indexed: Whether it has an index of its own.
    """

    kind: TypeEngine[Any]
    nullable: bool = False
    indexed: bool = False

    @property
    def sql_type(self) -> str:
        """The type as PostgreSQL's catalog names it, without its collation."""
        dialect = PGDialect()  # type: ignore[no-untyped-call]  # SQLAlchemy's own
        return self.kind.compile(dialect).partition(" COLLATE ")[0].lower()


@dataclass(frozen=True, slots=True)
class TableShape:
    """
    One of the two tables.

    Attributes:
        columns: What the store writes, by name.
        storage: The table's storage parameters.
        rights: What a role needs of it.
        mixin: The class that a model is derived from.
        function: The function that defines the table in a `MetaData`.
        schema_text: The function that gives its DDL.
        kept: What its rows are, in a sentence.
        at_stake: What happens where rows are lost or come twice.
        unseen: What a role does with rows that it cannot see.
    """

    columns: Mapping[str, ColumnShape]
    storage: Mapping[str, str]
    rights: tuple[str, ...]
    mixin: str
    function: str
    schema_text: str
    kept: str
    at_stake: str
    unseen: str

    def mapped(self, name: str) -> MappedColumn[Any]:
        """One column, for a mixin of a declarative base."""
        shape = self.columns[name]
        return mapped_column(shape.kind, primary_key=name == KEY, nullable=shape.nullable, index=shape.indexed or None)

    def define(self, metadata: MetaData, name: str, schema: str | None) -> Table:
        """Define the table in *metadata*."""
        TableName(name, schema)
        columns = [
            Column(column, shape.kind, primary_key=column == KEY, nullable=shape.nullable, index=shape.indexed or None)
            for column, shape in self.columns.items()
        ]
        return Table(name, metadata, *columns, schema=schema, **storage_options(self.storage))


def storage_options(storage: Mapping[str, str]) -> dict[str, Any]:
    """What a `Table` takes for its storage: a keyword since SQLAlchemy 2.1, a statement behind its creation before."""
    if "with" in dict(PGDialect.construct_arguments or ()).get(Table, {}):
        return {"postgresql_with": storage}
    settings = ", ".join(f"{name} = {value}" for name, value in storage.items())
    alter = DDL(f"ALTER TABLE %(fullname)s SET ({settings})")  # type: ignore[no-untyped-call]  # SQLAlchemy's own
    return {"listeners": [("after_create", alter)]}


class RunsDdl(Protocol):
    """What is needed of Alembic's `op`, and what a synchronous SQLAlchemy connection has too."""

    def execute(self, statement: Any, /) -> Any:
        """Run a statement."""
        ...


def as_text(statement: str) -> TextClause:
    """A statement without parameters for SQLAlchemy, to which a colon in a table's name would be one."""
    return text(re.sub(r":(?=\w)", r"\\:", statement))


def table_name_of(table: object, schema: str | None, shape: TableShape) -> TableName:
    """
    The checked name of a table that was given as a name, a `Table` or a mapped class.

    Raises:
        ConfigurationError: It is none of these, its name is no name, or its columns are not what the store writes.
    """
    if isinstance(table, str):
        return TableName(table, schema)
    found = getattr(table, "__table__", table)
    if not isinstance(found, Table):
        raise ConfigurationError(
            f"The table is a {type(table).__name__}: give its name, a Table, or a class mapped with {shape.mixin}."
        )
    if schema is not None:
        raise ConfigurationError("The schema is given twice: a Table has its own. Leave schema= out.")
    _check_columns(found, shape)
    return TableName(found.name, found.schema)


def _check_columns(table: Table, shape: TableShape) -> None:
    missing = [name for name in shape.columns if name not in table.columns]
    if missing:
        raise ConfigurationError(
            f"The table {table.name!r} has no column {', '.join(missing)}: derive its class from {shape.mixin}, or "
            f"make it with {shape.function}()."
        )
    primary_key = [column.name for column in table.primary_key.columns]
    if primary_key != [KEY]:
        raise ConfigurationError(
            f"The primary key of {table.name!r} is ({', '.join(primary_key)}) and has to be (key): the base brings a "
            "primary key of its own. Use one that does not, such as advanced-alchemy's DefaultBase."
        )
    # The store writes with its own statements: what Python would have filled in stays empty.
    unfilled = [
        column.name
        for column in table.columns
        if column.name not in shape.columns and not column.nullable and column.server_default is None
    ]
    if unfilled:
        raise ConfigurationError(
            f"The store does not write the column {', '.join(unfilled)} of {table.name!r}: make it nullable, or give "
            "it a server_default."
        )
