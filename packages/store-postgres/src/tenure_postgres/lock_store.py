"""
The lock store on PostgreSQL: one row a key, one statement a call.

What each statement prevents stands in its file under `sql/locks/`; how one is run, in `connection.py`.
"""

from collections.abc import Sequence
from typing import Any, Literal, Self, final

from sqlalchemy import Table
from sqlalchemy.ext.asyncio import AsyncEngine

from tenure._durations import Duration, to_ms
from tenure.store import (
    Acquired,
    Claim,
    Finding,
    Held,
    LockRecord,
    Reach,
    check_key,
    check_owner,
    check_ttl_ms,
)
from tenure_postgres.lane_connection import LaneConnection
from tenure_postgres.lanes import Lanes
from tenure_postgres.lock_table import LOCKS
from tenure_postgres.startup_check import check_server
from tenure_postgres.statements import DEFAULT_TABLE, LockStatements
from tenure_postgres.store_engine import StoreEngine
from tenure_postgres.table import table_name_of
from tenure_postgres.wakeups import Wakeups

__all__ = ["PostgresLockStore"]

_PRUNE_AT_LEAST_MS = 60_000
"""
The youngest dead row that may be pruned: an acquisition that drew its token before the row was deleted has long
been answered or refused by then, for it waits for a row no longer than `lock_timeout`, which is shorter.
"""

_PRUNE_BATCH = 1000
"""Rows deleted in one transaction: a few milliseconds, during which their keys can be acquired by nobody."""


@final
class PostgresLockStore:
    """
    Locks in a table of the application's own PostgreSQL database.

    Each method is one statement in a transaction of its own, at READ COMMITTED. Calls that come together travel
    together, on two connections that the engine makes for the store alone (`lane.py`); what has to wait for a row, or
    only looks, takes one of the engine's pool. The server's clock decides what is expired. The table is created by
    the application's migrations (`LockMixin`, `lock_table`, `create_schema_sql`), never by the store.

    Args:
        engine: An engine on asyncpg. Its settings for isolation and transactions do not matter, and a pool that the
            application keeps busy delays no renewal. The store's connections end with it, or with `aclose()`.
        table: The table's name, or the `Table` or mapped class of it.
        schema: Its schema, or None for the one that the connections' search path finds it in.
        lock_timeout: How long a call may wait for another session's lock on the row, at most half a minute. Longer
            waits fail with SQLSTATE 55P03, and nothing is changed.
        owns_engine: Whether `aclose()` disposes the engine. An engine that was handed over stays open.

    Raises:
        ConfigurationError: The engine is not asyncpg's, the table's name is no name, or the table has other columns
            than the store writes.
    """

    reach: Reach = "cluster"

    def __init__(
        self,
        engine: AsyncEngine,
        *,
        table: str | Table | type[Any] = DEFAULT_TABLE,
        schema: str | None = None,
        lock_timeout: Duration = 2,
        owns_engine: bool = False,
    ) -> None:
        self.table = table_name_of(table, schema, LOCKS)
        self._sql = LockStatements.of(self.table)
        self._engine = StoreEngine(engine, lock_timeout=lock_timeout, owns_engine=owns_engine, opened_with="open_store")
        self._of = engine
        self._lanes = Lanes(engine, self._engine, self._sql)
        self._wakeups = Wakeups(engine, self._engine.connections, self.table)

    async def acquire(self, key: str, owner: str, ttl_ms: int) -> Acquired | Held:
        """
        Take *key* for *owner*, if no live lock of another owner is on it.

        Returns:
            `Acquired` with the token, or `Held`. The recorded owner of a live lock gets its token again and a fresh
            ttl. `Held.expires_in_ms` is None where the key was taken by another while this call decided.

        Raises:
            ConfigurationError: The key, owner or ttl is outside the rules; nothing was sent.
            UnreplicatedWriteError: The grant is on the primary alone: unknown.
            TokensExhaustedError: The row's token is the greatest there is; nothing was written.
            asyncpg.LockNotAvailableError: The row was locked for longer than `lock_timeout`; nothing was written.
            Exception: What the driver or the pool raises. The outcome is unknown.
        """
        check_key(key)
        check_owner(owner)
        check_ttl_ms(ttl_ms)
        return await self._lanes.acquire(key, owner, ttl_ms)

    async def renew(self, key: str, owner: str, ttl_ms: int) -> bool:
        """Move the expiry of *key* to *ttl_ms* from now, if *owner* still holds it. Raises as `acquire`."""
        check_key(key)
        check_owner(owner)
        check_ttl_ms(ttl_ms)
        return await self._lanes.renew(key, owner, ttl_ms)

    async def renew_many(self, claims: Sequence[Claim]) -> Sequence[bool | None]:
        """
        Renew each of *claims*, in one statement that waits for nobody.

        Returns:
            One answer a claim: True (renewed), False (refused), or None where another session has its row locked.
        """
        for claim in claims:
            check_key(claim.key)
            check_owner(claim.owner)
            check_ttl_ms(claim.ttl_ms)
        if not claims:
            return []
        return await self._lanes.renew_many(claims)

    async def release(self, key: str, owner: str) -> bool:
        """Give *key* back, if *owner* still holds it. Its row stays, with its token. Raises as `acquire`."""
        check_key(key)
        check_owner(owner)
        return await self._lanes.release(key, owner)

    async def released(self, key: str) -> None:
        """
        Return at the next release of *key*, or any time before it; cancelled, it leaves no trace.

        The first call opens a connection of the engine, outside its pool, that listens until nobody has waited for a
        minute. Where there can be none (a pooler in transaction mode, a server that is away), it returns after about
        a second, and the waiter polls.

        Raises:
            ConfigurationError: The key is outside the rules.
            LeaseStateError: The store is closed.
        """
        check_key(key)
        self._engine.refuse_closed()
        await self._wakeups.released(key)

    async def list_locks(self, prefix: str = "") -> Sequence[LockRecord]:
        """List the live locks whose key begins with *prefix*, sorted by the bytes of their keys."""
        if prefix:
            check_key(prefix)
        return [LockRecord(**row) for row in await self._engine.run(self._sql.list_locks, prefix)]

    async def prune(self, older_than: Duration = "7d") -> int:
        """
        Delete the rows of keys that nobody has locked for *older_than*.

        A row costs about 150 bytes; prune where keys are made up as work comes (`order:4711`), not where they are
        the names of jobs. The next token of a key without a row is the server's clock, which is past every token
        that was pruned by *older_than* or more: a step back of the server's clock by less than that is harmless. A
        row whose token is ahead of the clock stays. Needs the right to DELETE. Several may run at once.

        Args:
            older_than: At least a minute.

        Returns:
            How many rows were deleted.

        Raises:
            ConfigurationError: It is shorter than a minute.
        """
        older_than_ms = to_ms(older_than, name="older_than", at_least_ms=_PRUNE_AT_LEAST_MS)
        pruned, last_key, batch = 0, "", _PRUNE_BATCH
        while batch == _PRUNE_BATCH:
            [row] = await self._engine.run(self._sql.prune, older_than_ms, _PRUNE_BATCH, last_key)
            batch, last_key = row["pruned"], row["last_key"]
            pruned += batch
        return pruned

    async def check(self) -> Sequence[Finding]:
        """
        Look at the server, the table and the role's rights, without writing; see `tenure_postgres.startup_check`.

        It has a connection of its own that it closes, so that one of the pool is neither waited for nor left behind.
        """
        self._engine.refuse_closed()
        connection = LaneConnection(self._of, self._engine.connections)
        try:
            return await check_server(await connection.ready(), self.table, LOCKS)
        finally:
            await connection.aclose()

    async def aclose(self) -> None:
        """Close what the store opened itself: its connections, and its engine where it owns it. May be called again."""
        self._engine.close()
        await self._wakeups.aclose()
        await self._lanes.aclose()
        await self._engine.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> Literal[False]:
        await self.aclose()
        return False

    def __repr__(self) -> str:
        return f"PostgresLockStore(table={str(self.table)!r})"
