"""
A sound store in pieces, for mutants to replace one of.

It keeps every rule, as `InMemoryLockStore` does; but each step is a method of its own, so that a mutant is one
method, and what differs is the planted bug and nothing else.
"""

import asyncio
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tenure.clock import Clock
from tenure.store import (
    Acquired,
    Claim,
    Ending,
    Finding,
    Held,
    LockRecord,
    check_key,
    check_owner,
    check_ttl_ms,
)

__all__ = ["Place", "Row", "Server", "SoundStore"]


@dataclass(slots=True)
class Row:
    """What is kept of a key."""

    key: str
    owner: str | None
    token: Any
    expires_at: float
    after: Ending | None


@dataclass(slots=True)
class Place:
    """A place in a queue."""

    owner: str
    ttl_ms: int
    kept_until: float


@dataclass(slots=True)
class Server:
    """What stores share, and what outlives them."""

    clock: Clock
    rows: dict[str, Row] = field(default_factory=dict)
    waiters: "defaultdict[str, list[asyncio.Future[None]]]" = field(default_factory=lambda: defaultdict(list))
    queues: "defaultdict[str, list[Place]]" = field(default_factory=lambda: defaultdict(list))
    hearers: "defaultdict[tuple[str, str], list[asyncio.Future[Acquired]]]" = field(
        default_factory=lambda: defaultdict(list)
    )

    async def restart(self) -> None:
        """Stop and start again. The rows are on its disk."""


class SoundStore:
    """A lock store that keeps every rule."""

    server_kind: type[Server] = Server

    def __init__(self, server: Server) -> None:
        self.server = server

    # --------------------------------------------------------------------------------- the calls

    async def acquire(self, key: str, owner: str, ttl_ms: int) -> Acquired | Held:
        """Take *key*, as the contract says."""
        self.check_arguments(key, owner, ttl_ms)
        await self.travel()
        self.end_queue(key)
        return self.take(key, owner, ttl_ms)

    async def renew(self, key: str, owner: str, ttl_ms: int) -> bool:
        """Renew, as the contract says."""
        self.check_arguments(key, owner, ttl_ms)
        await self.travel()
        return self.extend(key, owner, ttl_ms)

    async def release(self, key: str, owner: str) -> bool:
        """Release, as the contract says."""
        self.check_arguments(key, owner, 1)
        await self.travel()
        return self.free(key, owner)

    async def renew_many(self, claims: Sequence[Claim]) -> Sequence[bool | None]:
        """Renew many, as the contract says."""
        for claim in claims:
            self.check_arguments(claim.key, claim.owner, claim.ttl_ms)
        await self.travel()
        return [self.extend(claim.key, claim.owner, claim.ttl_ms) for claim in claims]

    async def list_locks(self, prefix: str = "") -> Sequence[LockRecord]:
        """List locks, as the contract says."""
        await self.travel()
        rows = sorted((row for row in self.server.rows.values() if self.is_listed(row, prefix)), key=self.order)
        return [self.record(row) for row in rows]

    async def check(self) -> Sequence[Finding]:
        """Find nothing."""
        return []

    async def released(self, key: str) -> None:
        """Return at the next release of *key*."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.server.waiters[key].append(waiter)
        try:
            await waiter
        finally:
            if waiter in self.server.waiters[key]:
                self.server.waiters[key].remove(waiter)

    async def acquire_queued(self, key: str, owner: str, ttl_ms: int, place_ms: int) -> Acquired | Held:
        """Take *key* or a place in its queue, as the contract says."""
        self.check_arguments(key, owner, ttl_ms)
        self.check_place(place_ms)
        await self.travel()
        return self.take_or_stand(key, owner, ttl_ms, place_ms)

    async def granted(self, key: str, owner: str) -> Acquired:
        """Return when a release has granted *key* to *owner*."""
        row = self.find(key)
        if row is not None and self.is_mine(row, owner):
            return Acquired(row.token, row.after)
        hearer: asyncio.Future[Acquired] = asyncio.get_running_loop().create_future()
        self.server.hearers[self.queue_name(key), self.owner_name(owner)].append(hearer)
        return await hearer

    # -------------------------------------------------------------------------------- the pieces

    def check_arguments(self, key: str, owner: str, ttl_ms: int) -> None:
        """Refuse what the rules refuse."""
        check_key(key)
        check_owner(owner)
        check_ttl_ms(ttl_ms)

    def check_place(self, place_ms: int) -> None:
        """Refuse what the rules refuse."""
        check_ttl_ms(place_ms)

    async def travel(self) -> None:
        """Let the request reach the server: other calls run meanwhile."""
        await asyncio.sleep(0)

    def now(self) -> float:
        """Read the server's clock."""
        return self.server.clock.now()

    def name(self, key: str) -> str:
        """Say what *key* is kept under."""
        return key

    def owner_name(self, owner: str) -> str:
        """Say what *owner* is kept as."""
        return owner

    def find(self, key: str) -> Row | None:
        """Return what is kept of *key*."""
        return self.server.rows.get(self.name(key))

    def expiry(self, ttl_ms: int) -> float:
        """Say when a lock ends that gets *ttl_ms* now."""
        return self.now() + ttl_ms / 1000

    def is_live(self, row: Row) -> bool:
        """Decide whether *row* is a lock."""
        return row.owner is not None and row.expires_at > self.now()

    def is_mine(self, row: Row | None, owner: str) -> bool:
        """Decide whether *row* is a lock of *owner*."""
        return row is not None and row.owner == self.owner_name(owner) and self.is_live(row)

    def take(self, key: str, owner: str, ttl_ms: int) -> Acquired | Held:
        """Decide and write, in one step."""
        row = self.find(key)
        if row is None or not self.is_live(row):
            return self.grant(key, row, owner, ttl_ms)
        if row.owner == self.owner_name(owner):
            return self.repeat(row, ttl_ms)
        return self.refuse(row, owner)

    def grant(self, key: str, row: Row | None, owner: str, ttl_ms: int) -> Acquired:
        """Write a new lock over what was there."""
        token, after = self.draw(row, owner), self.ending(row)
        new = Row(key, self.owner_name(owner), token, self.expiry(ttl_ms), after)
        self.server.rows[self.name(key)] = new
        return Acquired(token, after)

    def repeat(self, row: Row, ttl_ms: int) -> Acquired:
        """Answer an acquire that is sent again."""
        row.expires_at = self.expiry(ttl_ms)
        return Acquired(row.token, row.after)

    def refuse(self, row: Row, owner: str) -> Held:
        """Answer somebody else."""
        del owner
        return Held(self.left_ms(row))

    def draw(self, row: Row | None, owner: str) -> Any:
        """Draw a token, greater than the key's last."""
        del owner
        return max(int(self.now() * 1_000_000), 1 if row is None else row.token + 1)

    def ending(self, row: Row | None) -> Ending | None:
        """Say how the lock before ended."""
        if row is None:
            return None
        return "released" if row.owner is None else "expired"

    def left_ms(self, row: Row) -> Any:
        """Say what is left of a lock: rounded up, so that no waiter comes early."""
        # Seven decimals: what lies below them is the float's, not the clock's.
        return max(1, math.ceil(round((row.expires_at - self.now()) * 1000, 7)))

    def queue_name(self, key: str) -> str:
        """Say what the queue of *key* is kept under."""
        return self.name(key)

    def queue(self, key: str) -> list[Place]:
        """Return the queue of *key*."""
        return self.server.queues[self.queue_name(key)]

    def end_queue(self, key: str) -> None:
        """Drop the queue of a lock that has expired."""
        row = self.find(key)
        if row is not None and not self.is_live(row):
            self.queue(key).clear()

    def take_or_stand(self, key: str, owner: str, ttl_ms: int, place_ms: int) -> Acquired | Held:
        """Decide and write, in one step."""
        self.end_queue(key)
        reply = self.take(key, owner, ttl_ms)
        if isinstance(reply, Held):
            self.stand(key, Place(self.owner_name(owner), ttl_ms, self.expiry(place_ms)))
        return reply

    def stand(self, key: str, place: Place) -> None:
        """Write a place into the queue of *key*, or over the one that its owner has."""
        queue = self.queue(key)
        for number, other in enumerate(queue):
            if other.owner == place.owner:
                queue[number] = place
                return
        queue.append(place)

    def is_kept(self, place: Place) -> bool:
        """Decide whether *place* may be granted something."""
        return place.kept_until > self.now()

    def hand_on(self, key: str, row: Row) -> None:
        """Grant a lock that was released to the head of its queue."""
        queue = self.queue(key)
        while queue:
            place = self.head(queue)
            if self.is_kept(place):
                self.tell(key, place.owner, self.grant(key, row, place.owner, place.ttl_ms))
                return

    def head(self, queue: list[Place]) -> Place:
        """Take the head out of a queue."""
        return queue.pop(0)

    def tell(self, key: str, owner: str, granted: Acquired) -> None:
        """Tell *owner* of its grant."""
        for hearer in self.server.hearers.pop((self.queue_name(key), owner), ()):
            if not hearer.done():
                hearer.set_result(granted)

    def leave(self, key: str, owner: str) -> None:
        """Take *owner* out of the queue of *key*."""
        queue = self.queue(key)
        queue[:] = [place for place in queue if place.owner != self.owner_name(owner)]

    def extend(self, key: str, owner: str, ttl_ms: int) -> bool:
        """Decide on a renewal and write it, in one step."""
        row = self.find(key)
        if row is None or not self.is_mine(row, owner):
            return False
        row.expires_at = self.expiry(ttl_ms)
        return True

    def free(self, key: str, owner: str) -> bool:
        """Decide on a release and write it, in one step."""
        row = self.find(key)
        if row is None or not self.is_mine(row, owner):
            self.leave(key, owner)
            return False
        self.let_go(key, row)
        return True

    def let_go(self, key: str, row: Row) -> None:
        """Write a release, and all that follows from it."""
        row.owner = None
        self.wake(key)
        self.hand_on(key, row)

    def wake(self, key: str) -> None:
        """Tell who waits for *key*."""
        for waiter in self.server.waiters.pop(key, ()):
            if not waiter.done():
                waiter.set_result(None)

    def is_listed(self, row: Row, prefix: str) -> bool:
        """Decide whether *row* belongs into a listing."""
        return self.is_live(row) and row.key.startswith(prefix)

    def order(self, row: Row) -> Any:
        """Sort a listing."""
        return row.key

    def record(self, row: Row) -> LockRecord:
        """Show *row* in a listing."""
        return LockRecord(row.key, row.owner or "", row.token, self.left_ms(row))
