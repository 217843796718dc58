"""
The connection on which a process hears of releases.

It is one that no pool knows, for it keeps two things in its session that no pooled connection may keep: `LISTEN`, and
one shared advisory lock for each key that somebody here waits for, by which a release knows that it has to notify.
Neither survives a pooler in transaction mode, which is found before either is asked for.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol, Self, cast, final

from sqlalchemy import Pool
from sqlalchemy.ext.asyncio import AsyncEngine

from tenure_postgres.connection import Connections, Driver, Session
from tenure_postgres.lane_connection import LaneConnection
from tenure_postgres.statements import TableName, read_statement

__all__ = ["Listening", "PoolerBetweenError"]

CHANNEL: Final = "tenure"
"""One for all tables: the payload says whose key was released, as `<table>:<hash of the key>`, and no more."""

_ANSWER_WITHIN_S: Final = 5.0
"""How long the server may take to answer, in seconds. None of the statements waits for anything."""

_LOOK: Final = read_statement("wakeups/look")
_MAKE_KNOWN: Final = read_statement("wakeups/make_known")
_LET_GO: Final = read_statement("wakeups/let_go")


Heard = Callable[[str], None]
Ended = Callable[[], None]


class PoolerBetweenError(Exception):
    """A pooler stands between: what one session listens to, another one would hear."""


class _Driver(Driver, Protocol):
    """What is used of an asyncpg connection."""

    async def fetch(self, query: str, *args: Any, timeout: float = ...) -> Sequence[Mapping[str, Any]]:  # noqa: ASYNC109 -- asyncpg's own argument
        """Run a statement and return its rows, or give it up after *timeout* seconds."""
        ...

    async def add_listener(self, channel: str, callback: Callable[..., None]) -> None:
        """Call *callback* for each notification on *channel*."""
        ...

    def add_termination_listener(self, callback: Callable[..., None]) -> None:
        """Call *callback* when the connection has ended, whoever ended it."""
        ...


@final
class Listening:
    """
    One open connection that listens.

    Attributes:
        most: How many keys may be made known on it at once.

    Raises:
        PoolerBetweenError: From `opened`: no connection of this engine can listen.
        Exception: From each method: what the driver or the pool raises. The connection is of no use any more.
    """

    def __init__(
        self, connections: Connections, opened: LaneConnection, session: Session, table: TableName, heard: Heard
    ) -> None:
        self.most = 0
        self._connections = connections
        self._opened = opened
        self._session = session
        self._driver = cast("_Driver", session.driver)
        self._table = str(table)
        self._of_table: str | None = None
        self._heard = heard

    @classmethod
    async def opened(
        cls, engine: AsyncEngine, connections: Connections, table: TableName, *, heard: Heard, ended: Ended
    ) -> Self:
        """
        Open a connection of *engine* and listen on it. It ends with the engine.

        Args:
            engine: The store's engine.
            connections: What is known of its other connections.
            table: The locks table.
            heard: Called with the hash of each key of the table that was released.
            ended: Called when the connection has ended.
        """
        pool = engine.pool
        opened = LaneConnection(engine, connections)
        try:
            session = await opened.ready()
            _refuse_disposed(engine, pool)
            listening = cls(connections, opened, session, table, heard)
            listening._driver.add_termination_listener(lambda _: ended())
            await listening.look()
            await listening._driver.add_listener(CHANNEL, listening._notified)
        except BaseException:
            opened.drop()
            raise
        return listening

    def _notified(self, _: object, __: int, ___: str, payload: object) -> None:
        # Anybody may notify on the channel: what is no hash of a key of this table is nobody's.
        of_table, _, of_key = str(payload).partition(":")
        if of_table == self._of_table:
            self._heard(of_key)

    async def look(self) -> None:
        """
        See that the connection still hears what is to be heard.

        Raises:
            ConnectionError: It has ended, the others that are as old do not work, the server takes no writes, or the
                table is another one by now.
        """
        self.refuse_ended()
        [row] = await self._fetch(_LOOK, self._table)
        if row["backend_pid"] != self._driver.get_server_pid():
            raise PoolerBetweenError
        if row["read_only"] or row["of_table"] is None or row["of_table"] != (self._of_table or row["of_table"]):
            raise ConnectionError("Nothing will be released here: the server is read-only, or the table is not there.")
        self.most, self._of_table = row["most"], row["of_table"]

    async def make_known(self, keys: Sequence[str]) -> Sequence[str | None]:
        """
        Make known that somebody waits for each of *keys*.

        Returns:
            The hash of each, or None where a release of it is being committed at this moment: ask again.
        """
        rows = await self._fetch(_MAKE_KNOWN, self._of_table, keys)
        return [row["of_key"] if row["known"] else None for row in rows]

    async def let_go(self, hashes: Sequence[str]) -> None:
        """Take back what `make_known` did, once for each of *hashes*."""
        await self._fetch(_LET_GO, self._of_table, hashes)

    async def _fetch(self, statement: str, *arguments: Any) -> Sequence[Mapping[str, Any]]:
        return await self._driver.fetch(statement, *arguments, timeout=_ANSWER_WITHIN_S)

    def refuse_ended(self) -> None:
        """
        Refuse a connection that has ended, or is as old as one that broke.

        Raises:
            ConnectionError: It has, or is.
        """
        if not self._connections.trusts(self._session):
            raise ConnectionError("The connection that listened for releases has ended.")

    async def aclose(self) -> None:
        """Close the connection, with a word to a server that answers."""
        await self._opened.aclose()


def _refuse_disposed(engine: AsyncEngine, pool: Pool) -> None:
    if engine.pool is not pool:
        raise ConnectionError("The engine was disposed while the connection was opened.")
