"""What the stores share: the engine that they were given, how long a call waits for a row, and who closes it."""

from typing import Any, final

from sqlalchemy.ext.asyncio import AsyncEngine

from tenure._durations import Duration, to_ms
from tenure.errors import ConfigurationError, LeaseStateError
from tenure_postgres.connection import Connections, Rows

__all__ = ["StoreEngine"]

_LONGEST_LOCK_TIMEOUT_MS = 30_000
"""
Half of the youngest age that a lock's row may be pruned at: an acquisition that drew its token before the row was
deleted has long been answered or refused by then. A caller of either store has given up long before.
"""


@final
class StoreEngine:
    """
    One store's use of an engine.

    Args:
        engine: An engine on asyncpg.
        lock_timeout: How long a call may wait for another session's lock on the row, at most half a minute.
        owns_engine: Whether `aclose()` disposes the engine.
        opened_with: What opens a store anew, for the error of a closed one.

    Attributes:
        connections: The engine's connections.
        lock_timeout: As a setting of PostgreSQL.
        lock_timeout_ms: In milliseconds.

    Raises:
        ConfigurationError: The engine is not asyncpg's, or the time-out is out of range.
    """

    def __init__(self, engine: AsyncEngine, *, lock_timeout: Duration, owns_engine: bool, opened_with: str) -> None:
        self.connections = Connections(engine)
        self.lock_timeout_ms = _lock_timeout_ms(lock_timeout)
        self.lock_timeout = f"{self.lock_timeout_ms}ms"
        self._engine = engine
        self._owns_engine = owns_engine
        self._opened_with = opened_with
        self._closed = False
        self._disposed = False

    async def run(self, statement: str, *arguments: Any) -> Rows:
        """Run one statement, as `Connections.run`, unless the store is closed."""
        self.refuse_closed()
        return await self.connections.run(statement, *arguments)

    async def aclose(self) -> None:
        """Dispose the engine, where it is the store's own. May be called again."""
        if self._owns_engine and not self._disposed:
            self._closed = self._disposed = True
            await self._engine.dispose()

    def close(self) -> None:
        """Refuse calls from now on, where `aclose` will dispose the engine."""
        self._closed = self._owns_engine

    def refuse_closed(self) -> None:
        """
        Refuse a call on a closed store.

        Raises:
            LeaseStateError: It is closed.
        """
        # A disposed engine opens a new pool when it is asked again: nobody would close that one.
        if self._closed:
            raise LeaseStateError(f"The store is closed: open a new one with {self._opened_with}().")


def _lock_timeout_ms(lock_timeout: Duration) -> int:
    milliseconds = to_ms(lock_timeout, name="lock_timeout")
    if milliseconds > _LONGEST_LOCK_TIMEOUT_MS:
        raise ConfigurationError(
            f"lock_timeout is {lock_timeout!r}: it may be half a minute at most. A call that waits longer is a "
            "renewal that comes too late."
        )
    return milliseconds
