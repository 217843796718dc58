"""
The file: its two connections, how it is opened, and when it is not to be trusted.

Every call of the store is one statement outside of a transaction, so that SQLite begins, decides, writes and commits
within it. A call that is cancelled leaves no transaction open: its statement runs to the end on the connection's
thread, or never begins.
"""

import asyncio
import contextlib
import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal, final

import aiosqlite

from tenure.errors import ConfigurationError, LeaseStateError
from tenure_sqlite.clock import FileClock, HostClock
from tenure_sqlite.errors import ForeignClockError, LockFileReplacedError, explain
from tenure_sqlite.statements import read_statement

__all__ = ["OLDEST_SQLITE", "StoreFile", "Synchronous"]

Synchronous = Literal["full", "normal"]

OLDEST_SQLITE: Final = (3, 38, 0)
"""RETURNING came with 3.35, STRICT with 3.37, and with 3.38 every build reads JSON. Of February 2022."""

_TABLES: Final = ("create_locks", "create_records", "create_clock")

_CHECKPOINT_EVERY: Final = 500
"""Writes of one process between two checkpoints: one writes two or three pages of 4 KiB to the log."""


@final
class StoreFile:
    """
    A SQLite file that processes share, opened at its first use.

    One connection writes, and one reads, so that a look at a key never stands behind a call that waits for the file's
    write lock. Each has a thread of its own, which waits in place of the event loop.
    """

    def __init__(self, path: Path, clock: HostClock, *, busy_timeout_ms: int, synchronous: Synchronous) -> None:
        self.path = path
        self._clock = FileClock(clock)
        self._host = clock
        self._busy_timeout_s = busy_timeout_ms / 1000
        self._synchronous = synchronous
        self._pid = os.getpid()
        self._opening = asyncio.Lock()
        # One call at a time is on its way: whoever gives up before its turn leaves nothing behind in the line.
        self._writing = asyncio.Lock()
        self._connections: tuple[aiosqlite.Connection, aiosqlite.Connection] | None = None
        self._opened: tuple[int, int] | None = None
        self._closed = False
        self._writes = 0

    async def read(self, statement: str, parameters: dict[str, Any]) -> Sequence[sqlite3.Row]:
        """Run a statement that only looks."""
        _, reader = await self._ready()
        return await self._run(reader, statement, parameters)

    async def write(self, statement: str, parameters: dict[str, Any]) -> Sequence[sqlite3.Row]:
        """Run a statement that decides and writes, as a transaction of its own."""
        writer, _ = await self._ready()
        async with self._writing:
            await self._checkpoint_now_and_then(writer)
            return await self._run(writer, statement, parameters)

    async def aclose(self) -> None:
        """Close both connections; the last one of all processes writes the log back."""
        self._closed = True
        if self._pid != os.getpid():
            return  # the connections' threads stayed in the parent
        async with self._opening:
            connections, self._connections = self._connections, None
            for connection in connections or ():
                await connection.close()

    async def _run(
        self, connection: aiosqlite.Connection, statement: str, parameters: dict[str, Any]
    ) -> Sequence[sqlite3.Row]:
        try:
            rows = list(await connection.execute_fetchall(statement, parameters))
        except sqlite3.Error as error:
            if self._clock.refused:
                raise ForeignClockError from error
            explain(error)
            raise
        if self._clock.refused:
            raise ForeignClockError
        return rows

    async def _ready(self) -> tuple[aiosqlite.Connection, aiosqlite.Connection]:
        if self._pid != os.getpid():
            raise LeaseStateError(
                "This is a child of the process that opened the file: a SQLite connection does not survive a "
                "fork(). Open a store of its own in the child."
            )
        if self._closed:
            raise LeaseStateError("The store is closed. Make a new one.")
        if self._connections is None:
            async with self._opening:
                if self._connections is None:
                    self._connections = await self._open()
        self._refuse_replaced()
        return self._connections

    def _refuse_replaced(self) -> None:
        """
        Look whether the path still leads to the file that is open.

        Prevents: somebody tidies the file up, processes that start afterwards make a new one, and each half of them
        holds the same lock.
        """
        if _identity_of(self.path) != self._opened:
            raise LockFileReplacedError

    # ------------------------------------------------------------------------------------ opening

    async def _open(self) -> tuple[aiosqlite.Connection, aiosqlite.Connection]:
        if sqlite3.sqlite_version_info < OLDEST_SQLITE:
            raise ConfigurationError(
                f"This Python has SQLite {sqlite3.sqlite_version}, and the store needs "
                f"{'.'.join(map(str, OLDEST_SQLITE))} or newer: use a newer Python or system library."
            )
        opened: list[aiosqlite.Connection] = []
        try:
            for prepare in (self._prepare_writer, self._prepare_reader):
                connection = aiosqlite.connect(self.path, timeout=self._busy_timeout_s, isolation_level=None)
                # A program that ends without closing the store must end: the thread is joined at exit otherwise.
                thread: Any = getattr(connection, "_thread", connection)
                thread.daemon = True
                opened.append(await connection)
                await prepare(connection)
        except BaseException as error:
            if isinstance(error, sqlite3.Error):
                explain(error)
            for connection in opened:
                await connection.close()
            raise
        self._opened = _identity_of(self.path)
        return opened[0], opened[1]

    async def _prepare_writer(self, connection: aiosqlite.Connection) -> None:
        await self._switch_to_wal(connection)
        await connection.execute_fetchall(f"PRAGMA synchronous = {self._synchronous}")
        # Checkpoints are made by checkpoint.sql alone, which says why.
        await connection.execute_fetchall("PRAGMA wal_autocheckpoint = 0")
        await self._add_clocks(connection)
        await connection.create_function("tenure_checkpoint", 0, self._checkpoint)
        if not await self._is_prepared(connection):
            await self._prepare_tables(connection)

    async def _is_prepared(self, connection: aiosqlite.Connection) -> bool:
        [tables] = await connection.execute_fetchall(read_statement("find_tables"))
        if tables[0] < len(_TABLES):
            return False
        identity = {"identity": self._host.identity}
        [clocks] = await connection.execute_fetchall(read_statement("find_clock"), identity)
        return bool(clocks[0])

    async def _prepare_tables(self, connection: aiosqlite.Connection) -> None:
        """Make the tables, and end what is on another clock; given up in the middle, the connection is closed."""
        await connection.execute_fetchall("BEGIN IMMEDIATE")
        for name in _TABLES:
            await connection.execute_fetchall(read_statement(name))
        identity = {"identity": self._host.identity}
        if await connection.execute_fetchall(read_statement("adopt_clock"), identity):
            await connection.execute_fetchall(read_statement("expire_all"))
            await connection.execute_fetchall(read_statement("abandon_all"), identity)
        await connection.execute_fetchall("COMMIT")

    async def _prepare_reader(self, connection: aiosqlite.Connection) -> None:
        await connection.execute_fetchall("PRAGMA query_only = 1")
        await self._add_clocks(connection)

    async def _add_clocks(self, connection: aiosqlite.Connection) -> None:
        await connection.create_function("tenure_now", 1, self._clock.now)
        await connection.create_function("tenure_wall", 0, self._host.wall_us)

    async def _switch_to_wal(self, connection: aiosqlite.Connection) -> None:
        [row] = await connection.execute_fetchall("PRAGMA journal_mode = wal")
        if row[0] != "wal":
            raise ConfigurationError(
                f"The file stays in journal mode {row[0]!r} and cannot be switched to wal: its filesystem has no "
                "shared memory, as network filesystems have none. Put it on a local disk."
            )

    # --------------------------------------------------------------------------------- checkpoints

    async def _checkpoint_now_and_then(self, writer: aiosqlite.Connection) -> None:
        """Write the log back before it grows; before a call, so that no answer is lost to it."""
        self._writes += 1
        if self._writes % _CHECKPOINT_EVERY:
            return
        # Where the write lock was not to be had, the call behind this one says so, and the log waits for the next.
        with contextlib.suppress(sqlite3.OperationalError):
            await writer.execute_fetchall(read_statement("checkpoint"))

    def _checkpoint(self) -> int:
        """Write the log back, on a connection that is in no statement; `tenure_checkpoint()` in SQL."""
        with contextlib.closing(sqlite3.connect(self.path, timeout=0, isolation_level=None)) as connection:
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
        return 0


def _identity_of(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino
