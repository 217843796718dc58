"""The lock store in memory."""

import asyncio
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, final

from tenure.clock import Clock, SystemClock
from tenure.store import (
    MAX_TOKEN,
    Acquired,
    Claim,
    Ending,
    Held,
    LockRecord,
    Reach,
    check_key,
    check_owner,
    check_ttl_ms,
)

__all__ = ["InMemoryLockStore", "open_memory_store"]


@dataclass(slots=True)
class _Row:
    """What is kept of a key: as a row of the PostgreSQL table, kept after the release for its token."""

    owner: str | None
    token: int
    expires_at: float
    after: Ending | None


@final
class InMemoryLockStore:
    """
    Locks in a dictionary. Atomic because no method awaits between its check and its write.

    A key's last token is kept for as long as the store lives: some 200 bytes for each key ever locked.

    Args:
        clock: The store's clock, which decides expiry. Give it the test's `ManualClock` and expiry moves with
            it.
    """

    reach: Reach = "process"

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._rows: dict[str, _Row] = {}
        # In the order in which they came: a set would wake them in that of their addresses, and no seed repeats that.
        self._waiters: defaultdict[str, dict[asyncio.Future[None], None]] = defaultdict(dict)

    async def acquire(self, key: str, owner: str, ttl_ms: int) -> Acquired | Held:
        """Take *key* for *owner*, as the contract says."""
        check_key(key)
        check_owner(owner)
        check_ttl_ms(ttl_ms)
        now = self._clock.now()
        row = self._rows.get(key)
        if row is not None and row.owner is not None and row.expires_at > now:
            if row.owner != owner:
                # Rounded up: a waiter that comes back a fraction early would find the lock still held. To the
                # microsecond first, for the difference of two floats is a hair off.
                return Held(expires_in_ms=max(1, math.ceil(round((row.expires_at - now) * 1000, 3))))
            row.expires_at = now + ttl_ms / 1000
            return Acquired(row.token, row.after)
        after: Ending | None = None
        if row is not None:
            after = "released" if row.owner is None else "expired"
        # The hybrid token of the other stores: it keeps growing when an application moves between them.
        token = min(MAX_TOKEN, max(int(now * 1_000_000), row.token + 1 if row is not None else 1))
        self._rows[key] = _Row(owner, token, now + ttl_ms / 1000, after)
        return Acquired(token, after)

    async def renew(self, key: str, owner: str, ttl_ms: int) -> bool:
        """Move the expiry of *key* to *ttl_ms* from now, if *owner* still holds it."""
        check_key(key)
        check_owner(owner)
        check_ttl_ms(ttl_ms)
        row = self._live(key, owner)
        if row is None:
            return False
        row.expires_at = self._clock.now() + ttl_ms / 1000
        return True

    async def release(self, key: str, owner: str) -> bool:
        """Give *key* back, if *owner* still holds it."""
        check_key(key)
        check_owner(owner)
        row = self._live(key, owner)
        if row is None:
            return False
        row.owner = None
        for waiter in self._waiters.pop(key, ()):
            if not waiter.done():
                waiter.set_result(None)
        return True

    async def renew_many(self, claims: Sequence[Claim]) -> Sequence[bool]:
        """Renew each of *claims*; every answer is known at once here."""
        return [await self.renew(claim.key, claim.owner, claim.ttl_ms) for claim in claims]

    async def list_locks(self, prefix: str = "") -> Sequence[LockRecord]:
        """List the live locks whose key begins with *prefix*, sorted by key."""
        now = self._clock.now()
        return [
            LockRecord(key, row.owner, row.token, int((row.expires_at - now) * 1000))
            for key, row in sorted(self._rows.items())
            if key.startswith(prefix) and row.owner is not None and row.expires_at > now
        ]

    async def released(self, key: str) -> None:
        """Return at the next release of *key*."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters[key][waiter] = None
        try:
            await waiter
        finally:
            self._waiters[key].pop(waiter, None)
            if not self._waiters[key]:
                del self._waiters[key]

    def _live(self, key: str, owner: str) -> _Row | None:
        row = self._rows.get(key)
        if row is None or row.owner != owner or row.expires_at <= self._clock.now():
            return None
        return row

    async def aclose(self) -> None:
        """Nothing to close; here so that a store opened by URL can be left like any other."""

    async def __aenter__(self) -> "InMemoryLockStore":
        return self

    async def __aexit__(self, *_: object) -> Literal[False]:
        return False


def open_memory_store(url: str) -> InMemoryLockStore:
    """Open `memory://`. Each call is a store of its own."""
    del url
    return InMemoryLockStore()
