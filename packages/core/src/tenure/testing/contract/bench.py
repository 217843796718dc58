"""The bench that a case works on: what every contract's cases have, and locks to take and to find."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import final

from tenure.store import Acquired, Held, LockStore
from tenure.testing._stage import LONG_MS, Setting, Stage

__all__ = ["LONG_MS", "Bench", "MakeStore", "Setting"]

MakeStore = Callable[
    [], LockStore | Awaitable[LockStore] | AbstractAsyncContextManager[LockStore] | AsyncIterator[LockStore]
]
"""How a case comes by a store: a function, sync or async, that returns one, or that makes and cleans one up."""


@final
class Bench(Stage):
    """A lock store of the case's own, and what a case needs to judge it."""

    async def acquire(self, key: str, owner: str, ttl_ms: int = LONG_MS) -> Acquired | Held:
        """Ask for *key*, and remember to give it back after the case."""
        # Before the call: one that is cancelled may be granted all the same.
        self._granted.add((key, owner))
        reply: Acquired | Held = await self.store.acquire(key, owner, ttl_ms)
        if isinstance(reply, Held):
            self._granted.discard((key, owner))
        return reply

    async def take(self, key: str, owner: str | None = None, ttl_ms: int = LONG_MS, *, what: str = "") -> Acquired:
        """Acquire *key*, which must be free."""
        reply = await self.acquire(key, owner or self.owner(), ttl_ms)
        if not isinstance(reply, Acquired):
            self.fail(f"{what or 'acquire() of a free key'} gave {reply!r}", "Acquired")
        return reply

    async def stand(self, key: str, owner: str | None = None, *, ttl_ms: int = LONG_MS, place_ms: int = LONG_MS) -> str:
        """Stand in the queue of *key*, which another owner holds; return the waiter."""
        owner = owner or self.owner()
        reply = await self.ask_queued(key, owner, ttl_ms, place_ms)
        if not isinstance(reply, Held):
            self.fail(f"acquire_queued() of a key that another owner holds gave {reply!r}", "Held")
        return owner

    async def ask_queued(self, key: str, owner: str, ttl_ms: int = LONG_MS, place_ms: int = LONG_MS) -> Acquired | Held:
        """Ask for *key* or a place in its queue, and remember to give back either: a place is given back as a lock."""
        self._granted.add((key, owner))
        reply: Acquired | Held = await self.store.acquire_queued(key, owner, ttl_ms, place_ms)
        return reply

    async def holds(self, key: str, owner: str) -> bool:
        """Look whether *owner* holds *key*: whoever does can renew."""
        held: bool = await self.store.renew(key, owner, LONG_MS)
        return held

    async def find_held(self, key: str, owner: str | None = None, *, what: str = "") -> Held:
        """Ask for *key* as somebody new, who must be refused."""
        reply = await self.acquire(key, owner or self.owner(), self.short_ms)
        if not isinstance(reply, Held):
            self.fail(f"{what or 'acquire() of a key that another owner holds'} gave {reply!r}", "Held")
        return reply

    async def find_free(self, key: str, *, what: str) -> Acquired:
        """Ask for *key* as somebody new, who must get it."""
        return await self.take(key, ttl_ms=self.short_ms, what=what)
