"""
One statement on one connection of the pool: the only place that runs any.

A call takes a connection of the engine's pool and speaks to the driver under it, not through SQLAlchemy's
statement machinery: it costs about half, and no key or owner can get into an error's text or an `echo` log. What
that machinery would have done is done here:

- READ COMMITTED. A statement outside a transaction runs at the session's default isolation, and under REPEATABLE
  READ or SERIALIZABLE callers that race for a row fail. The default is asked for once a connection; where it is
  another one, the statement gets a transaction of its own.
- A connection whose state is not known (a cancelled or timed-out call, a broken one) never goes back to the pool.
- A server that went away, became read-only or does not answer makes every connection suspect that was opened before:
  each is closed when its turn comes, so the pool follows a failover without a restart of the application.
- The warning that a commit was not replicated becomes an error.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, Protocol, cast

import asyncpg  # type: ignore[import-untyped]  # it ships no types
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from tenure.errors import ConfigurationError, LeaseStateError
from tenure_postgres.errors import UnreplicatedWriteError
from tenure_postgres.statements import read_statement

__all__ = ["Connections", "Driver", "Rows", "Session", "say_goodbye", "sqlstate_of"]

_SLOT: Final = "tenure_postgres"
"""Where a pooled connection keeps its `Session`, in the dictionary that SQLAlchemy clears on a reconnect."""

_GOODBYE_S: Final = 0.5
"""
How long a connection may take to close after its statement was given up, in seconds. Long enough for asyncpg's cancel
request to reach a server that answers, so that the statement ends there; short enough for a caller that was cancelled.
"""

_SYNC_WAIT: Final = "SyncRepWaitForLSN"
"""The server's function that warns of a cancelled wait for the standby. Its text is translated; this is not."""

_READ_ONLY = "25006"
_SERIALIZATION_FAILURE = "40001"
_SERVER_GONE = frozenset({"57P01", "57P02", "57P03", "57P05"})
"""The server shut down, crashed, is not up yet, or ended an idle session."""

_NOTES: Final = {
    "26000": "Behind a pooler in transaction mode asyncpg may not keep prepared statements: make the engine with "
    "create_lock_engine(url, pooler=True), or with connect_args={'statement_cache_size': 0}.",
    "42P01": "The table is missing: run the migration that creates it (tenure_postgres.create_schema_sql() for locks, "
    "create_idempotency_schema_sql() for idempotency records).",
    "42501": "The role needs SELECT, INSERT and UPDATE on the locks table, DELETE too on that of idempotency records, "
    "and USAGE on their schema.",
    "25006": "The server is a standby or read-only. The connection was closed, so that the next call finds the "
    "primary, once there is one at the engine's address.",
    "55P03": "Another session has locked the row: an application's own transaction under lease_guard() or "
    "assert_owner(), or a person's SELECT ... FOR UPDATE. Nothing was changed.",
}
_NOTES["42P05"] = _NOTES["26000"]

_MOST_DEAD: Final = 100
"""More closed connections in a row than a pool holds after a restart: beyond it they are closed as they open."""

_numbers = itertools.count(1)
"""Counts sessions and failures in one sequence, so that "opened before the failure" is a comparison."""


Rows = Sequence[Mapping[str, Any]]


class Driver(Protocol):
    """What the store uses of an asyncpg connection."""

    async def fetch(self, query: str, *args: Any) -> Rows:
        """Run a statement and return its rows."""
        ...

    async def execute(self, query: str) -> str:
        """Run a command."""
        ...

    async def close(self, *, timeout: float) -> None:  # noqa: ASYNC109 -- asyncpg's own argument
        """Close the connection, or abort it after *timeout* seconds."""
        ...

    def terminate(self) -> None:
        """Close the connection at once, without a word to the server."""
        ...

    def add_log_listener(self, callback: Callable[..., None]) -> None:
        """Call *callback* for each notice and warning of the server."""
        ...

    def is_closed(self) -> bool:
        """Whether the connection is closed, as far as the client knows."""
        ...

    def is_in_transaction(self) -> bool:
        """Whether a transaction block is open."""
        ...

    def get_server_pid(self) -> int:
        """The process id of the server, as it was told when the connection was opened."""
        ...


class Session:
    """
    What is known of one connection, for as long as it lives.

    Attributes:
        driver: The asyncpg connection.
        number: When the store met it, on `_numbers`.
    """

    __slots__ = ("_loop", "_read_committed", "_unreplicated", "driver", "number")

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.number = next(_numbers)
        self._loop = asyncio.get_running_loop()
        self._read_committed: bool | None = None
        self._unreplicated = False
        # asyncpg calls it through the loop before it wakes who waits for the statement: both are queued in the
        # order in which the server sent the warning and the end of the statement.
        driver.add_log_listener(self._heard)

    def in_its_loop(self) -> bool:
        """Whether the running event loop is the one that the connection belongs to."""
        try:
            return self._loop is asyncio.get_running_loop()
        except RuntimeError:  # there is none
            return False

    def is_lost_by(self, error: BaseException) -> bool:
        """Whether *error* says that no further statement can be sent here."""
        sqlstate = sqlstate_of(error)
        return self.driver.is_closed() or sqlstate == _READ_ONLY or sqlstate in _SERVER_GONE

    def _heard(self, _: object, message: asyncpg.PostgresLogMessage) -> None:
        if getattr(message, "server_source_function", None) == _SYNC_WAIT:
            self._unreplicated = True

    def refuse_misuse(self) -> None:
        """
        Refuse a connection on which a statement could not be one step of its own.

        Raises:
            LeaseStateError: It belongs to another event loop.
            ConfigurationError: It is inside a transaction of somebody else's.
        """
        if not self.in_its_loop():
            raise LeaseStateError(
                "The engine's connections belong to another event loop. Make the engine in the loop that uses it, "
                "or call `await engine.dispose()` before that loop ends."
            )
        if self.driver.is_in_transaction():
            raise ConfigurationError(
                "The engine's pool handed out a connection in the middle of a transaction, in which a lock could be "
                "rolled back. Leave reset_on_return at its default and do not use StaticPool; create_lock_engine() "
                "makes an engine that fits."
            )

    async def fetch(self, statement: str, *arguments: Any) -> Rows:
        """
        Run one statement at READ COMMITTED, committed when this returns.

        Raises:
            UnreplicatedWriteError: It was committed on the primary alone.
            Exception: What the driver raises, with a note where it does not say what to do.
        """
        self._unreplicated = False
        try:
            if self._read_committed is None:
                [row] = await self.driver.fetch(_SESSION)
                self._read_committed = row["isolation"] == "read committed"
            if self._read_committed:
                records = await self.driver.fetch(statement, *arguments)
            else:
                records = await self._fetch_in_transaction(statement, arguments)
        except asyncpg.PostgresError as error:
            if sqlstate_of(error) == _SERIALIZATION_FAILURE:
                # A pooler may give a session another server, with another default. Ask again.
                self._read_committed = None
            _explain(error)
            raise
        if self._unreplicated:
            raise UnreplicatedWriteError
        return records

    async def _fetch_in_transaction(self, statement: str, arguments: tuple[Any, ...]) -> Rows:
        await self.driver.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
        try:
            records = await self.driver.fetch(statement, *arguments)
        except asyncpg.PostgresError:
            await self.driver.execute("ROLLBACK")
            raise
        await self.driver.execute("COMMIT")
        return records


def sqlstate_of(error: BaseException) -> str | None:
    """The SQLSTATE of a server's error; None of any other."""
    return getattr(error, "sqlstate", None)


def _explain(error: Any) -> None:
    """Leave a row's contents out of a server's error, and add what to do."""
    if error.detail:
        error.detail = "left out by tenure: it may be a whole row, with its key and its owner"
    note = _NOTES.get(error.sqlstate)
    if note is not None:
        error.add_note(note)


class Connections:
    """
    The connections of an engine, one call at a time on each.

    Args:
        engine: An engine on asyncpg.

    Raises:
        ConfigurationError: It is another kind of engine.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        _check_engine(engine)
        self._engine = engine
        self._last_failure = 0

    async def run(self, statement: str, *arguments: Any) -> Rows:
        """
        Run one statement on a connection of its own.

        Returns:
            Its rows. It is committed.

        Cancellation: the outcome is unknown; the statement is cancelled on the server as well, if it answers.
        Raises: as `Session.fetch`; what the pool raises.
        """
        async with self.borrowed() as session:
            return await session.fetch(statement, *arguments)

    @asynccontextmanager
    async def borrowed(self) -> AsyncIterator[Session]:
        """Borrow a connection; it is given back, or thrown away if what happened leaves its state in doubt."""
        connection, session = await self._check_out()
        try:
            session.refuse_misuse()
            yield session
        except (LeaseStateError, ConfigurationError, UnreplicatedWriteError):
            await connection.close()
            raise
        except BaseException as error:
            await self._settle(connection, session, error)
            raise
        else:
            await connection.close()

    async def _check_out(self) -> tuple[AsyncConnection, Session]:
        for _ in range(_MOST_DEAD):
            connection = await self._engine.connect()
            raw = await connection.get_raw_connection()
            driver = cast("Driver", raw.driver_connection)
            if not driver.is_closed():
                session = _session_of(raw.info, driver)
                if self.trusts(session):
                    return connection, session
            _drop(connection, driver)
        raise ConnectionError(
            f"{_MOST_DEAD} connections in a row were closed before a statement could be sent. Look at the log of the "
            "server, or of what stands between."
        )

    async def _settle(self, connection: AsyncConnection, session: Session, error: BaseException) -> None:
        """Give a connection back after *error*, or throw it away."""
        usable = False
        try:
            usable = await self.settle(session, error)
        finally:
            if not usable:
                _drop(connection, session.driver)
        if usable:
            await connection.close()

    def trusts(self, session: Session) -> bool:
        """Whether *session* may be used: it is open, and was opened after what made the others suspect."""
        return not session.driver.is_closed() and session.number > self._last_failure

    async def settle(self, session: Session, error: BaseException) -> bool:
        """
        Decide after *error* whether *session* can be used again, and whether those that are as old can.

        Returns:
            Whether it can; otherwise it was closed.
        """
        if isinstance(error, UnreplicatedWriteError):
            return True
        if session.is_lost_by(error):
            session.driver.terminate()
            self._distrust(session)
            return False
        if isinstance(error, asyncpg.PostgresError) and not session.driver.is_in_transaction():
            return True  # the server answered with an error and is ready for the next statement
        if not await say_goodbye(session.driver):
            # Cancelled or timed out, and the server does not even answer that: its machine is gone, or the way to
            # it. The pool's other connections would each hang as long.
            self._distrust(session)
        return False

    def _distrust(self, session: Session) -> None:
        """Use no connection again that was opened before now."""
        # One that is older than the last failure tells nothing new: what was opened since may be fine.
        if session.number > self._last_failure:
            self._last_failure = next(_numbers)


def _session_of(info: dict[Any, Any], driver: Driver) -> Session:
    session = info.get(_SLOT)
    if not isinstance(session, Session) or session.driver is not driver:
        session = info[_SLOT] = Session(driver)
    return session


async def say_goodbye(driver: Driver) -> bool:
    """
    Close a connection: a statement of it may have been given up, and an answer or a cancel request be on its way.

    Returns:
        Whether the server took part in it within `_GOODBYE_S`; it is closed in any case.
    """
    # asyncpg sends the cancel request of the statement first. A task, because in its older versions the time-out does
    # not cover that: it would wait for a server that does not answer.
    goodbye = asyncio.get_running_loop().create_task(driver.close(timeout=_GOODBYE_S))
    goodbye.add_done_callback(_look_at)
    try:
        await asyncio.wait({goodbye}, timeout=_GOODBYE_S)
        return goodbye.done() and not goodbye.cancelled() and goodbye.exception() is None
    finally:
        driver.terminate()  # nothing happens to one that is closed
        goodbye.cancel()


def _drop(connection: AsyncConnection, driver: Driver) -> None:
    """Close a connection without a word, and tell the pool. Nothing is awaited: it cannot be interrupted."""
    driver.terminate()  # nothing happens to one that is closed
    pooled = connection.sync_connection
    assert pooled is not None
    pooled.invalidate()
    pooled.close()


def _look_at(task: "asyncio.Task[None]") -> None:
    """Take note of how a task ended, so that asyncio does not complain that nobody did."""
    if not task.cancelled():
        task.exception()


def _check_engine(engine: object) -> None:
    made_by = 'make one with create_lock_engine("postgresql://...") or create_async_engine("postgresql+asyncpg://...")'
    if not isinstance(engine, AsyncEngine):
        raise ConfigurationError(f"The engine is a {type(engine).__name__}, not SQLAlchemy's AsyncEngine: {made_by}.")
    dialect = engine.dialect
    if dialect.name != "postgresql" or dialect.driver != "asyncpg":
        raise ConfigurationError(
            f"The engine speaks {dialect.name}+{dialect.driver}; the store needs PostgreSQL on asyncpg: {made_by}. "
            "The application's own engine may stay as it is."
        )


_SESSION: Final = read_statement("session")
