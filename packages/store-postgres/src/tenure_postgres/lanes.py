"""
The two lanes of a lock store: one for what begins, one for what is held.

A renewal that comes late loses a lease, and a release that comes late keeps others waiting; neither stands behind a
burst of acquisitions. An acquisition that is cancelled has ended before its release is sent, so that the two meet the
server in this order although they travel on different connections.
"""

import asyncio
from collections.abc import Awaitable, Sequence
from typing import final

from sqlalchemy.ext.asyncio import AsyncEngine

from tenure.errors import LeaseStateError
from tenure.store import Acquired, Claim, Held
from tenure_postgres.lane import Lane
from tenure_postgres.lock_calls import Acquisitions, Call, ManyRenewals, Releases, Renewals
from tenure_postgres.statements import LockStatements
from tenure_postgres.store_engine import StoreEngine

__all__ = ["Lanes"]


@final
class Lanes:
    """
    The grouped calls of one lock store. The arguments are those of the store's methods, already checked.

    Args:
        engine: The engine that makes the two connections.
        store_engine: The store's use of it.
        sql: The statements on the store's table.
    """

    def __init__(self, engine: AsyncEngine, store_engine: StoreEngine, sql: LockStatements) -> None:
        self._acquisitions = Acquisitions(sql)
        self._renewals = Renewals(sql)
        self._many_renewals = ManyRenewals(sql)
        self._releases = Releases(sql)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._beginning = Lane(engine, store_engine, (self._acquisitions,), self._enter)
        held = (self._renewals, self._many_renewals, self._releases)
        self._held = Lane(engine, store_engine, held, self._enter)

    # These return what is awaited, and are no coroutines themselves: there would be one more for each call.

    def acquire(self, key: str, owner: str, ttl_ms: int) -> Awaitable[Acquired | Held]:
        """As the store's `acquire`."""
        return self._beginning.ask(self._acquisitions, Call(key, owner, ttl_ms))

    def renew(self, key: str, owner: str, ttl_ms: int) -> Awaitable[bool]:
        """As the store's `renew`."""
        return self._held.ask(self._renewals, Call(key, owner, ttl_ms))

    def renew_many(self, claims: Sequence[Claim]) -> Awaitable[Sequence[bool | None]]:
        """As the store's `renew_many`."""
        return self._held.ask(self._many_renewals, Call("", "", 0, claims))

    def release(self, key: str, owner: str) -> Awaitable[bool]:
        """As the store's `release`."""
        return self._held.ask(self._releases, Call(key, owner, 0))

    async def aclose(self) -> None:
        """Close the connections. May be called again; a later call opens them anew."""
        await asyncio.gather(self._beginning.aclose(), self._held.aclose())

    def _enter(self, loop: asyncio.AbstractEventLoop) -> None:
        """Go on in *loop*, unless another one has connections of the store."""
        if loop is not self._loop and (self._beginning.in_use or self._held.in_use):
            raise LeaseStateError(
                "The store's connections belong to another event loop. Make the engine in the loop that uses it, "
                "or call `await engine.dispose()` before that loop ends."
            )
        self._loop = loop
