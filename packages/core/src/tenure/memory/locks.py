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


@dataclass(slots=True)
class _Place:
    """A place in a key's queue: for how long a grant is, and until when the place is kept."""

    ttl_ms: int
    kept_until: float


@final
class InMemoryLockStore:
    """
    Locks in a dictionary, and a queue beside each that is waited for: the reference for stores that grant.

    Atomic because no method awaits between its check and its write.

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
        # By key, the places in the order in which they were taken, by owner; none of a key that nobody waits for.
        self._queues: dict[str, dict[str, _Place]] = {}
        self._hearers: dict[tuple[str, str], dict[asyncio.Future[Acquired], None]] = {}

    async def acquire(self, key: str, owner: str, ttl_ms: int) -> Acquired | Held:
        """Take *key* for *owner*, as the contract says."""
        check_key(key)
        check_owner(owner)
        check_ttl_ms(ttl_ms)
        return self._take(key, owner, ttl_ms)

    async def acquire_queued(self, key: str, owner: str, ttl_ms: int, place_ms: int) -> Acquired | Held:
        """Take *key* for *owner*, or a place in its queue, as the contract says."""
        check_key(key)
        check_owner(owner)
        check_ttl_ms(ttl_ms)
        check_ttl_ms(place_ms)
        reply = self._take(key, owner, ttl_ms)
        if isinstance(reply, Held):
            queue, now = self._queues.setdefault(key, {}), self._clock.now()
            place = queue.get(owner)
            if place is not None and place.kept_until <= now:
                del queue[owner]
            # An owner that is in it keeps its place: a dictionary's keys stay where they were set first.
            queue[owner] = _Place(ttl_ms, now + place_ms / 1000)
        return reply

    async def granted(self, key: str, owner: str) -> Acquired:
        """Return when a release has granted *key* to *owner*; at once where it has."""
        row = self._live(key, owner)
        if row is not None:
            return Acquired(row.token, row.after)
        hearer: asyncio.Future[Acquired] = asyncio.get_running_loop().create_future()
        hearers = self._hearers.setdefault((key, owner), {})
        hearers[hearer] = None
        try:
            return await hearer
        finally:
            hearers.pop(hearer, None)
            if not hearers and self._hearers.get((key, owner)) is hearers:
                del self._hearers[key, owner]

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
            self._leave(key, owner)
            return False
        row.owner = None
        for waiter in self._waiters.pop(key, ()):
            if not waiter.done():
                waiter.set_result(None)
        self._grant_to_head(key)
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

    def _take(self, key: str, owner: str, ttl_ms: int) -> Acquired | Held:
        now = self._clock.now()
        row = self._rows.get(key)
        if row is None or row.owner is None or row.expires_at <= now:
            # Whoever waited for the lock that ended finds out when it asks again; it may be first then.
            self._queues.pop(key, None)
            return self._grant(key, owner, ttl_ms)
        if row.owner != owner:
            # Rounded up: a waiter that comes back a fraction early would find the lock still held. To the
            # microsecond first, for the difference of two floats is a hair off.
            return Held(expires_in_ms=max(1, math.ceil(round((row.expires_at - now) * 1000, 3))))
        row.expires_at = now + ttl_ms / 1000
        return Acquired(row.token, row.after)

    def _grant(self, key: str, owner: str, ttl_ms: int) -> Acquired:
        now, row = self._clock.now(), self._rows.get(key)
        after: Ending | None = None
        if row is not None:
            after = "released" if row.owner is None else "expired"
        # The hybrid token of the other stores: it keeps growing when an application moves between them.
        token = min(MAX_TOKEN, max(int(now * 1_000_000), row.token + 1 if row is not None else 1))
        self._rows[key] = _Row(owner, token, now + ttl_ms / 1000, after)
        return Acquired(token, after)

    def _grant_to_head(self, key: str) -> None:
        """Grant a lock that was released to the first in its queue whose place is kept still."""
        queue, now = self._queues.get(key, {}), self._clock.now()
        while queue:
            owner = next(iter(queue))
            place = queue.pop(owner)
            if place.kept_until > now:
                granted = self._grant(key, owner, place.ttl_ms)
                for hearer in self._hearers.pop((key, owner), ()):
                    if not hearer.done():
                        hearer.set_result(granted)
                break
        if not queue:
            self._queues.pop(key, None)

    def _leave(self, key: str, owner: str) -> None:
        """Take *owner* out of the queue of *key*, if it stands in it."""
        queue = self._queues.get(key)
        if queue is not None and queue.pop(owner, None) is not None and not queue:
            del self._queues[key]

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
