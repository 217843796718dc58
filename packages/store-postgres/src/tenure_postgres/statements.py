"""
The statements, read once from the files in `sql/`, with the name of the table put in.

`sql/locks/` holds those of the locks table, `sql/records/` those of the idempotency records, `sql/` itself what looks
at a connection and a server. Each file runs in psql as it stands, on the default table. Names of the table and of its
index are the only things that are ever put into a statement's text; they are checked and quoted here. Keys, owners
and durations travel as parameters.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Self

from tenure.errors import ConfigurationError

__all__ = [
    "DEFAULT_RECORDS_TABLE",
    "DEFAULT_TABLE",
    "LockStatements",
    "RecordStatements",
    "TableName",
    "read_statement",
]

DEFAULT_TABLE = "tenure_locks"
"""The locks table's name, in the files and where none is given."""

DEFAULT_RECORDS_TABLE = "tenure_idempotency"
"""The name of the table of idempotency records, in the files and where none is given."""

_MAX_IDENTIFIER_BYTES = 63
"""NAMEDATALEN - 1: PostgreSQL cuts longer names short, and two of them may become one."""


@dataclass(frozen=True, slots=True)
class TableName:
    """
    The name of a table, checked.

    Attributes:
        name: As it is in the catalog, unquoted.
        schema: Its schema, or None for the first one on the connection's search path that has the table.
    """

    name: str
    schema: str | None = None

    def __post_init__(self) -> None:
        _check_identifier(self.name, "table")
        if self.schema is not None:
            _check_identifier(self.schema, "schema")

    def __str__(self) -> str:
        """The name as SQL, always quoted: a quoted name can neither be a keyword nor end early."""
        parts = [self.name] if self.schema is None else [self.schema, self.name]
        return ".".join('"' + part.replace('"', '""') + '"' for part in parts)


@dataclass(frozen=True, slots=True)
class LockStatements:
    """The statements of one locks table; see the files in `sql/locks/` for what each prevents."""

    acquire: str
    acquire_many: str
    renew: str
    renew_many: str
    release: str
    release_many: str
    list_locks: str
    prune: str

    @classmethod
    def of(cls, table: TableName) -> Self:
        """The statements on *table*."""
        return cls(**{name: read_statement(f"locks/{name}", table) for name in cls.__slots__})


@dataclass(frozen=True, slots=True)
class RecordStatements:
    """The statements of one table of idempotency records; see the files in `sql/records/` for what each prevents."""

    acquire: str
    extend: str
    complete: str
    release: str
    purge: str
    assert_owner: str
    effect_committed: str

    @classmethod
    def of(cls, table: TableName) -> Self:
        """The statements on *table*."""
        return cls(**{name: read_statement(f"records/{name}", table) for name in cls.__slots__})


def read_statement(name: str, table: TableName | None = None, names: Mapping[str, str] | None = None) -> str:
    """
    One statement, without its comments and with the table's name in it.

    Args:
        name: The file's path in `sql/` without `.sql`.
        table: Which table; None for a statement that names none.
        names: More names in the file, and what takes their place, quoted.
    """
    text = _read(name)
    if table is None:
        return text
    put_in = {DEFAULT_TABLE: str(table), DEFAULT_RECORDS_TABLE: str(table), **(names or {})}
    # One way through the text: a name that is put in may look like another one.
    return re.sub(rf"\b({'|'.join(map(re.escape, put_in))})\b", lambda found: put_in[found[1]], text)


@cache
def _read(name: str) -> str:
    text = (resources.files("tenure_postgres") / "sql" / f"{name}.sql").read_text(encoding="utf-8")
    lines = (line.partition("--")[0].rstrip() for line in text.splitlines())
    body = "\n".join(line for line in lines if line).removesuffix(";")
    # The tag is what a person sees in pg_stat_activity and pg_stat_statements.
    return f"/* tenure:{name} */ {body}"


def _check_identifier(value: object, what: str) -> None:
    if not isinstance(value, str) or not value:
        raise ConfigurationError(f"The {what} is {value!r}: give its name, such as {DEFAULT_TABLE!r}.")
    if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
        raise ConfigurationError(f"The {what} {value!r} holds a character that no PostgreSQL name can have.")
    if len(value.encode()) > _MAX_IDENTIFIER_BYTES:
        raise ConfigurationError(
            f"The {what} {value!r} is longer than {_MAX_IDENTIFIER_BYTES} bytes, where PostgreSQL cuts names short."
        )
