"""
The proof of an effect, in the transaction that has it.

A crash between an effect and its completion cannot be told from one before the effect, unless the two commit together.
With the records in the application's own database they do.
"""

from hashlib import sha256

from sqlalchemy.exc import DBAPIError

from tenure.errors import ExecutionLostError
from tenure_postgres.caller_transaction import CallersConnection, statement_in_it, transaction_of
from tenure_postgres.statements import DEFAULT_RECORDS_TABLE, TableName

__all__ = ["assert_owner"]


async def assert_owner(connection: CallersConnection, table: TableName, key: str, owner: str) -> None:
    """
    Mark the effect of *owner* in the caller's transaction; see `PostgresIdempotencyStore.assert_owner`.

    Raises:
        ExecutionLostError: The record is another's, completed, or gone.
        ConfigurationError: The connection is in AUTOCOMMIT, or is none.
    """
    statement = statement_in_it("records/assert_owner", DEFAULT_RECORDS_TABLE, table)
    transaction = await transaction_of(connection)
    digest = sha256(owner.encode()).hexdigest()
    try:
        found = await transaction.execute(statement, {"key": key, "owner_digest": digest})
    except DBAPIError as error:
        # The application's engine may show parameters in its errors.
        error.hide_parameters = True
        error.params = None
        raise
    if found.first() is None:
        raise ExecutionLostError
