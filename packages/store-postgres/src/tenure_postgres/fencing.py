"""
Fencing: the write of a holder that lost its lease is refused by the database itself.

A lease alone cannot stop a holder that does not run (paused, suspended, its event loop blocked) and wakes up in the
middle of a write. Two ways to stop the write:

- `fence(column, lease)` writes the token beside the data and refuses a lower one. It works on any table, in any
  database, through any number of hops that carry the token.
- `lease_guard(connection, lease)` asks the locks table, in the caller's own transaction, whether the lease is still the
  current one, and keeps it so until the commit. It needs no column, and the locks table in the same database.
"""

from dataclasses import dataclass
from typing import Any, Protocol, final

from sqlalchemy import BigInteger, ColumnElement, Integer, Table, Update, literal, or_
from sqlalchemy.orm import InstrumentedAttribute

from tenure.errors import ConfigurationError, LeaseLostError, LossReason
from tenure.store import MAX_TOKEN
from tenure_postgres.caller_transaction import CallersConnection, statement_in_it, transaction_of
from tenure_postgres.lock_table import LOCKS
from tenure_postgres.statements import DEFAULT_TABLE
from tenure_postgres.table import table_name_of

__all__ = ["Fence", "FencedLease", "fence", "lease_guard"]


class FencedLease(Protocol):
    """What is needed of a lease: `tenure.Lease` has it."""

    @property
    def key(self) -> str:
        """The key."""
        ...

    @property
    def token(self) -> int:
        """The fencing token."""
        ...

    def raise_unless_held(self) -> None:
        """Raise `LeaseLostError` if the lease is lost, as of now, and `LeaseStateError` if it was given back."""
        ...


@final
@dataclass(frozen=True, slots=True)
class Fence:
    """
    The two halves of a fenced write; see `fence`.

    Attributes:
        column: The column that keeps the greatest token seen.
        token: The token of this write.
    """

    column: ColumnElement[Any] | InstrumentedAttribute[Any]
    token: int
    _lease: FencedLease | None = None

    @property
    def allows(self) -> ColumnElement[bool]:
        """
        The condition that the row was not written under a greater token, for `where()`.

        `<=` and not `<`: one holder writes the same row more than once.

        Raises:
            LeaseLostError: The lease is lost, as of now.
            LeaseStateError: It was given back, or its guard was left.
        """
        self._refuse_unheld()
        return or_(self.column.is_(None), self.column <= literal(self.token, BigInteger))

    @property
    def values(self) -> dict[str, int]:
        """
        The column and its new value, for `values(**fence.values)`.

        Raises:
            LeaseLostError: The lease is lost, as of now.
            LeaseStateError: It was given back, or its guard was left.
        """
        self._refuse_unheld()
        key = self.column.key
        assert key is not None
        return {key: self.token}

    def guard(self, statement: Update) -> Update:
        """
        Put both halves into an UPDATE.

        Raises:
            LeaseLostError: The lease is lost, as of now.
            LeaseStateError: It was given back, or its guard was left.
        """
        return statement.where(self.allows).values(self.values)

    def _refuse_unheld(self) -> None:
        if self._lease is not None:
            self._lease.raise_unless_held()


def fence(column: ColumnElement[Any] | InstrumentedAttribute[Any], lease_or_token: FencedLease | int) -> Fence:
    """
    Fence a write with a lease's token.

        stock = fence(products.c.stock_token, lease)
        result = await connection.execute(stock.guard(update(products).where(products.c.id == 7).values(in_stock=9)))
        # result.rowcount == 0: there is no such row, or a later holder has written it

    or, half by half, where more than an UPDATE is built (`on_conflict_do_update(set_=..., where=stock.allows)`):

        update(products).where(products.c.id == 7, stock.allows).values(in_stock=9, **stock.values)

    Args:
        column: A `BIGINT` column of the row that is written, of a `Table` or a mapped class; null before the first.
        lease_or_token: The lease, which is looked at whenever a half is used; or its token alone, where only that
            came along (another process, a message).

    Race prevented: A pauses, its lease expires, B writes under a greater token, A wakes up and writes.

    Raises:
        ConfigurationError: The column is too small for a token, or the token is none.
    """
    if not hasattr(column, "type"):
        raise ConfigurationError(
            f"The column is a {type(column).__name__}: give that of a Table or of a mapped class, such as "
            "products.c.stock_token."
        )
    if isinstance(column.type, Integer) and not isinstance(column.type, BigInteger):
        raise ConfigurationError(
            f"The column {column.key!r} is {column.type!r}: a fencing token needs 53 bits. Make it a BigInteger."
        )
    if isinstance(lease_or_token, int):
        return Fence(column, _checked(lease_or_token))
    return Fence(column, _checked(lease_or_token.token), lease_or_token)


def _checked(token: object) -> int:
    if type(token) is not int:
        raise ConfigurationError(f"The token is a {type(token).__name__}: give the lease, or its token as an int.")
    if not 1 <= token <= MAX_TOKEN:
        raise ConfigurationError(f"The token is {token}: it has to be from 1 to 2**53 - 1, as a store gives them.")
    return token


async def lease_guard(
    connection: CallersConnection,
    lease: FencedLease,
    *,
    table: str | Table | type[Any] = DEFAULT_TABLE,
    schema: str | None = None,
) -> None:
    """
    Prove, inside the caller's own transaction, that *lease* is the current one, and keep it so until the commit.

        async with engine.begin() as connection:
            await lease_guard(connection, lease)
            await connection.execute(...)  # commits only while the lease is the current one

    Whoever wants to take the key over waits for the end of the transaction (for as long as the other's store allows
    with `lock_timeout`, two seconds by default; then its call fails). Renewals and the release of the lease do not
    wait, and waiters are answered that the key is held. Keep the transaction short all the same: from the lease's
    expiry on it holds up the next owner. Under REPEATABLE READ and SERIALIZABLE a takeover since the transaction's
    snapshot raises the driver's serialization failure (40001) in place of `LeaseLostError`.

    Args:
        connection: The caller's connection or session, on the database of the locks table, in a transaction (which
            SQLAlchemy begins by itself). Any asynchronous driver.
        lease: The lease.
        table: The locks table, as the store was given it.
        schema: Its schema.

    Race prevented: a holder's transaction commits after somebody else took the key.

    Raises:
        LeaseLostError: The lease is lost: as of now for its holder, or as the locks table says (`REFUSED`).
        LeaseStateError: It was given back, or its guard was left.
        ConfigurationError: The connection is in AUTOCOMMIT, where nothing would last until a commit, or is none.
        Exception: What the driver raises, as SQLAlchemy wraps it.
    """
    lease.raise_unless_held()
    statement = statement_in_it("locks/lease_guard", DEFAULT_TABLE, table_name_of(table, schema, LOCKS))
    transaction = await transaction_of(connection)
    found = await transaction.execute(statement, {"key": lease.key, "token": lease.token})
    if found.first() is None:
        raise LeaseLostError(lease.key, lease.token, LossReason.REFUSED)
