"""
The connection of a lane: one of the engine's making that no pool knows.

It is opened as the engine's pool opens its own (its URL, its arguments, its event hooks), by a pool of the same kind
that is thrown away, so that an application that keeps every connection of its pool busy stands neither before a
renewal nor before a new connection for it. It is closed with the store, with the engine, or with the last reference
to the store; a child process leaves that of its parent alone.
"""

import asyncio
import os
import weakref
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Final, cast, final

from sqlalchemy import Engine, event
from sqlalchemy.exc import MissingGreenlet
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.util import await_only, greenlet_spawn

from tenure_postgres.connection import Connections, Driver, Session, say_goodbye

__all__ = ["LaneConnection"]

_BY_ENGINE: Final[weakref.WeakKeyDictionary[Engine, "weakref.WeakSet[LaneConnection]"]] = weakref.WeakKeyDictionary()
"""The lanes' connections of each engine, for its end. Nothing is kept alive by it."""


@final
class LaneConnection:
    """
    One connection, opened at first need and again when it broke.

    Args:
        engine: The engine that makes it.
        connections: What is known of the engine's other connections.
    """

    def __init__(self, engine: AsyncEngine, connections: Connections) -> None:
        self._engine = engine
        self._connections = connections
        self._session: Session | None = None
        self._pid = 0
        self._when_forgotten: weakref.finalize[..., LaneConnection] | None = None

    @property
    def is_open(self) -> bool:
        """Whether there is one, as far as the client knows."""
        return self._session is not None and not self._session.driver.is_closed()

    def at_hand(self) -> Session | None:
        """Return the session if there is one that may be used."""
        session = self._session
        return session if session is not None and self._connections.trusts(session) else None

    async def ready(self) -> Session:
        """
        Return a session that may be used, which is opened where there is none.

        Raises:
            Exception: What the driver or the engine's hooks raise.
        """
        session = self.at_hand()
        if session is not None:
            return session
        self.drop()
        driver = await greenlet_spawn(_open, self._engine.sync_engine)
        if driver.is_closed():
            raise ConnectionError(
                "A connection was closed before a statement could be sent. Look at the log of the server, or of what "
                "stands between."
            )
        session = self._session = Session(driver)
        self._pid = os.getpid()
        # Closed by whoever lets the last reference go, so that a store that is forgotten costs no connection.
        self._when_forgotten = weakref.finalize(self, _terminate, driver, asyncio.get_running_loop(), self._pid)
        self._when_forgotten.atexit = False
        _close_with(self._engine.sync_engine, self)
        return session

    def drop(self) -> None:
        """Close it at once, without a word to the server. Nothing is awaited: it cannot be interrupted."""
        session = self._let_go()
        if session is not None:
            session.driver.terminate()  # nothing happens to one that is closed

    async def aclose(self) -> None:
        """Close it, with a word to a server that answers. May be called again."""
        session = self._let_go()
        if session is not None:
            await say_goodbye(session.driver)

    def _let_go(self) -> Session | None:
        session, self._session = self._session, None
        if self._when_forgotten is not None:
            self._when_forgotten.detach()
            self._when_forgotten = None
        if self._pid != os.getpid():
            _parents.append(session)
            return None
        return session

    def end_with_engine(self) -> None:
        """Close it because the engine was disposed: in its greenlet with a word to the server, elsewhere without."""
        session = self._session
        if session is None or not session.in_its_loop():
            with suppress(RuntimeError):  # of a loop that is closed already
                self.drop()
            return
        with suppress(MissingGreenlet):
            _wait_for(self.aclose())
            return
        self.drop()


_parents: Final[list[Session | None]] = []
"""Connections of a parent process: kept, for their end would say goodbye in its name on a socket that is shared."""


def _open(engine: Engine) -> Driver:
    pooled = engine.pool.recreate().connect()
    driver = cast("Driver", pooled.driver_connection)
    pooled.detach()
    return driver


def _wait_for(work: Coroutine[Any, Any, None]) -> None:
    await_only(work)


def _close_with(engine: Engine, connection: LaneConnection) -> None:
    """Have *connection* closed when *engine* is disposed."""
    if engine not in _BY_ENGINE:
        _BY_ENGINE[engine] = weakref.WeakSet()
        event.listen(engine, "engine_disposed", _disposed)
    _BY_ENGINE[engine].add(connection)


def _disposed(engine: Engine) -> None:
    for connection in list(_BY_ENGINE.get(engine, ())):
        connection.end_with_engine()


def _terminate(driver: Driver, loop: asyncio.AbstractEventLoop, pid: int) -> None:
    # The garbage collector may call it in any thread.
    if pid == os.getpid() and not driver.is_closed():
        with suppress(RuntimeError):  # the loop is closed, and the connection with it
            loop.call_soon_threadsafe(driver.terminate)
