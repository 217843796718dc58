"""The caller's own transaction, in which `lease_guard` and `assert_owner` prove something that holds until its end."""

from typing import Any

from sqlalchemy import TextClause, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session

from tenure.errors import ConfigurationError
from tenure_postgres.statements import TableName, read_statement

__all__ = ["CallersConnection", "statement_in_it", "transaction_of"]

CallersConnection = AsyncConnection | AsyncSession | async_scoped_session[Any]
"""What a caller may hand over."""


async def transaction_of(given: object) -> AsyncConnection:
    """
    The connection behind what a caller handed over, in a transaction (which SQLAlchemy begins by itself).

    Raises:
        ConfigurationError: It is none, or in AUTOCOMMIT, where nothing would last until a commit.
    """
    connection = await _connection_of(given)
    raw = await connection.get_raw_connection()
    if getattr(raw.dbapi_connection, "autocommit", False):
        raise ConfigurationError(
            "The connection is in AUTOCOMMIT: the proof would end with its own statement. Use `engine.begin()` of an "
            "engine without isolation_level='AUTOCOMMIT'."
        )
    return connection


async def _connection_of(given: object) -> AsyncConnection:
    if isinstance(given, AsyncSession | async_scoped_session):
        return await given.connection()
    if isinstance(given, AsyncConnection):
        return given
    raise ConfigurationError(
        f"The connection is a {type(given).__name__}: give an AsyncConnection or an AsyncSession, in a transaction."
    )


def statement_in_it(name: str, default: str, table: TableName) -> TextClause:
    """
    A statement for the caller's connection, of whatever driver, with the table's name in it.

    Args:
        name: As for `read_statement`.
        default: The table's name in the file.
        table: Which table.
    """
    # A colon begins a parameter in text(): that in the table's name is none.
    return text(read_statement(name).replace(default, str(table).replace(":", "\\:")))
