"""
The idempotency store on PostgreSQL: one row a key, one statement a call.

What each statement prevents stands in its file under `sql/records/`; how one is run, in `connection.py`. An effect is
proved in the caller's own transaction: `effects.py`.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, Self, final

from sqlalchemy import Table
from sqlalchemy.ext.asyncio import AsyncEngine

from tenure._durations import Duration
from tenure.idempotency_store import (
    Abandoned,
    Acquired,
    AcquireReply,
    Completed,
    Completion,
    InFlight,
    Mismatch,
    RecordState,
    check_fingerprint,
    check_key,
    check_limit,
    check_owner,
    check_response,
    check_ttl_ms,
)
from tenure.store import Finding, Reach
from tenure_postgres.caller_transaction import CallersConnection
from tenure_postgres.effects import assert_owner
from tenure_postgres.record_table import RECORDS
from tenure_postgres.startup_check import check_server
from tenure_postgres.statements import DEFAULT_RECORDS_TABLE, RecordStatements
from tenure_postgres.store_engine import StoreEngine
from tenure_postgres.table import table_name_of

__all__ = ["PostgresIdempotencyStore"]

_PAUSES_S: Final = (0.0, 0.005, 0.01, 0.02, 0.04)
"""
Before an acquisition is decided anew, in seconds, because the record changed between its read and its lock, or somebody
has it locked. Nearly always that is another call, perhaps the same owner's, whose commit waits for the disk; so the
pauses are as long as that takes. Somebody who finds it so each time is told to wait.
"""

_LOCKED_MS: Final = 100
"""
What a caller is told to wait for a row that somebody has locked: the transaction of a handler that is about to commit,
or another call. Some milliseconds either way, and nobody knows how many.
"""


@final
class PostgresIdempotencyStore:
    """
    Idempotency records in a table of the application's own PostgreSQL database.

    Each method is one statement in a transaction of its own, at READ COMMITTED, on a connection of the engine's pool.
    The server's clock decides what has ended. The table is created by the application's migrations
    (`IdempotencyMixin`, `idempotency_table`, `create_idempotency_schema_sql`), never by the store.

    With `assert_owner` in the transaction that has it, an effect in the same database happens exactly once a key.

    Args:
        engine: An engine on asyncpg. Its settings for isolation and transactions do not matter; its pool does: each
            request takes a connection for two round trips. Never the session in which the handler works: a duplicate
            would wait for its commit, and its rollback would erase the record.
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
        table: str | Table | type[Any] = DEFAULT_RECORDS_TABLE,
        schema: str | None = None,
        lock_timeout: Duration = 2,
        owns_engine: bool = False,
    ) -> None:
        self.table = table_name_of(table, schema, RECORDS)
        self._sql = RecordStatements.of(self.table)
        self._engine = StoreEngine(
            engine, lock_timeout=lock_timeout, owns_engine=owns_engine, opened_with="open_idempotency_store"
        )

    async def acquire(  # noqa: PLR0913 -- the contract's
        self, key: str, owner: str, fingerprint: str, lock_ttl_ms: int, grace_ms: int, *, takeover: bool = True
    ) -> AcquireReply:
        """
        Begin an execution, or say what the record allows instead, as the contract says.

        Whoever does not acquire neither writes nor locks. Where the record's row is locked, by a transaction under
        `assert_owner` above all, the answer is `InFlight`: nobody waits for that transaction, or gets past it.

        Raises:
            ConfigurationError: An argument is outside the rules; nothing was sent.
            UnreplicatedWriteError: The record is on the primary alone: unknown.
            asyncpg.LockNotAvailableError: The row was locked for longer than `lock_timeout`; nothing was written. Only
                where the record is the caller's own, or past its end.
            Exception: What the driver or the pool raises. The outcome is unknown.
        """
        check_key(key)
        check_owner(owner)
        check_fingerprint(fingerprint)
        check_ttl_ms(lock_ttl_ms, "lock_ttl_ms")
        check_ttl_ms(grace_ms, "grace_ms")
        arguments = (key, owner, fingerprint, lock_ttl_ms, grace_ms, bool(takeover), self._engine.lock_timeout)
        for pause_s in _PAUSES_S:
            if pause_s:
                await asyncio.sleep(pause_s)
            rows = await self._engine.run(self._sql.acquire, *arguments)
            if rows:
                return _reply(rows[0])
        return InFlight(_LOCKED_MS)

    async def extend(self, key: str, owner: str, lock_ttl_ms: int) -> bool:
        """
        Have the lock end *lock_ttl_ms* from now or later, if *owner* is the recorded one and has not completed.

        It waits for a transaction of the execution's own that has asserted its effect, no longer than `lock_timeout`.
        That the extension fails then costs nothing: meanwhile nobody can take the record over. Raises as `acquire`.
        """
        check_key(key)
        check_owner(owner)
        check_ttl_ms(lock_ttl_ms, "lock_ttl_ms")
        return bool(await self._engine.run(self._sql.extend, key, owner, lock_ttl_ms, self._engine.lock_timeout))

    async def complete(self, key: str, owner: str, response: bytes, retention_ms: int) -> Completion:
        """
        Store *response* as the outcome, for *retention_ms* from now, if *owner* is the recorded one.

        A response may be as large as a value of PostgreSQL's (1 GB); one that large is better kept elsewhere. Raises
        as `acquire`; repeat it where the outcome is unknown.
        """
        check_key(key)
        check_owner(owner)
        check_response(response)
        check_ttl_ms(retention_ms, "retention_ms")
        rows = await self._engine.run(self._sql.complete, key, owner, response, retention_ms, self._engine.lock_timeout)
        return Completion(rows[0]["outcome"]) if rows else Completion.GONE

    async def release(self, key: str, owner: str) -> bool:
        """Forget the execution of *owner*, which is known to have had no effect. Raises as `acquire`."""
        check_key(key)
        check_owner(owner)
        return bool(await self._engine.run(self._sql.release, key, owner, self._engine.lock_timeout))

    async def purge(self, limit: int = 1000) -> int:
        """
        Delete records whose time has ended, at most *limit* of them, those first that ended first.

        It waits for nobody: rows that are locked are left for the next time. Several may run at once. A record that
        has ended does not exist for any other call either, so nothing but room is gained: call it every minute or so.
        """
        check_limit(limit)
        [row] = await self._engine.run(self._sql.purge, limit)
        purged: int = row["purged"]
        return purged

    async def assert_owner(self, connection: CallersConnection, key: str, owner: str) -> None:
        """
        Prove, inside the caller's own transaction, that the execution of *owner* is the current one and has its effect.

            async with engine.begin() as connection:
                await store.assert_owner(connection, key, owner)
                await connection.execute(...)  # commits only while the execution is the current one, and only once

        From here to the end of the transaction the record's row is locked: who would take it over is told that it is
        in flight. After the commit nobody begins it again, and only its response can be lost. Call it early, so that
        an execution that was replaced does no work, and keep the transaction short. Under REPEATABLE READ and
        SERIALIZABLE a takeover since the transaction's snapshot raises the driver's serialization failure (40001) in
        place of `ExecutionLostError`.

        Args:
            connection: The caller's connection or session, on the database of the records, in a transaction (which
                SQLAlchemy begins by itself). Any asynchronous driver.
            key: The key, as `acquire` was given it.
            owner: The owner, as `acquire` was given it.

        Race prevented: an execution that was replaced commits beside the one that replaced it; a repeat after a crash
            between the commit and the completion has the effect a second time.

        Raises:
            ExecutionLostError: The record is another's, completed, or gone: roll back.
            ConfigurationError: The connection is in AUTOCOMMIT, where nothing would last until a commit, or is none.
            Exception: What the driver raises, as SQLAlchemy wraps it, without the parameters.
        """
        check_key(key)
        check_owner(owner)
        await assert_owner(connection, self.table, key, owner)

    async def effect_committed(self, key: str, owner: str) -> bool:
        """
        Whether the effect that *owner* asserted is committed.

        Waits for a transaction that is still under way, no longer than `lock_timeout`. Raises as `acquire`.
        """
        check_key(key)
        check_owner(owner)
        rows = await self._engine.run(self._sql.effect_committed, key, owner, self._engine.lock_timeout)
        return bool(rows and rows[0]["effect"])

    async def check(self) -> Sequence[Finding]:
        """Look at the server, the table and the role's rights, without writing; see `tenure_postgres.startup_check`."""
        self._engine.refuse_closed()
        async with self._engine.connections.borrowed() as session:
            return await check_server(session, self.table, RECORDS)

    async def aclose(self) -> None:
        """Close what the store opened itself: its engine, where it owns it. May be called again."""
        await self._engine.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> Literal[False]:
        await self.aclose()
        return False

    def __repr__(self) -> str:
        return f"PostgresIdempotencyStore(table={str(self.table)!r})"


def _reply(row: Mapping[str, Any]) -> AcquireReply:
    match row["answer"]:
        case "acquired":
            return Acquired(row["attempt"])
        case "mismatch":
            return Mismatch(RecordState(row["state"]))
        case "completed":
            return Completed(row["response"], row["owner"])
        case "in flight":
            return InFlight(row["expires_in_ms"])
        case _:
            return Abandoned(row["attempt"], effect_committed=row["effect"])
