"""
A sound store in pieces, for mutants to replace one of.

It keeps every rule, as `InMemoryIdempotencyStore` does, and records effects besides; but each step is a method of its
own, so that a mutant is one method, and what differs is the planted bug and nothing else.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from tenure._idempotency_machine import RecordState
from tenure.clock import Clock
from tenure.errors import ExecutionLostError
from tenure.idempotency_store import (
    Abandoned,
    Acquired,
    AcquireReply,
    Completed,
    Completion,
    InFlight,
    Mismatch,
    check_fingerprint,
    check_key,
    check_limit,
    check_owner,
    check_response,
    check_ttl_ms,
)

__all__ = ["Row", "Server", "SoundRecords", "Transaction"]


@dataclass(slots=True)
class Row:
    """What is kept of a key. Times are on the server's clock, in milliseconds."""

    owner: str
    fingerprint: str
    attempt: int
    lock_ends: int
    grace_ms: int
    expires: int
    completed: bool = False
    response: Any = None
    effect: bool = False


@dataclass(slots=True)
class Transaction:
    """A transaction of the application's: the rows in which it has had effects."""

    rows: list[Row] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Server:
    """What stores share, and what outlives them."""

    clock: Clock
    rows: dict[str, Row] = field(default_factory=dict)
    marks: dict[str, Any] = field(default_factory=dict)
    """What a mutant notes beside its rows."""
    locked: dict[str, "asyncio.Event"] = field(default_factory=dict)
    """The keys whose row is locked by a transaction, and what is set at its end."""

    async def restart(self) -> None:
        """Stop and start again. The rows are on its disk."""

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """Open a transaction: effects are committed when it is left, and rolled back on an exception."""
        transaction = Transaction()
        try:
            yield transaction
            for row in transaction.rows:
                row.effect = True
        finally:
            for key in transaction.keys:
                self.locked.pop(key).set()


class SoundRecords:
    """An idempotency store that keeps every rule."""

    server_kind: type[Server] = Server

    def __init__(self, server: Server) -> None:
        self.server = server

    # --------------------------------------------------------------------------------- the calls

    async def acquire(  # noqa: PLR0913 -- the contract's
        self, key: str, owner: str, fingerprint: str, lock_ttl_ms: int, grace_ms: int, *, takeover: bool = True
    ) -> AcquireReply:
        """Begin, or say what the record allows instead, as the contract says."""
        self.check_names(key, owner)
        self.check_payload(fingerprint)
        self.check_span(lock_ttl_ms)
        self.check_span(grace_ms)
        await self.travel()
        await self.unlocked(key)
        new = self.new_row(owner, fingerprint, lock_ttl_ms, grace_ms)
        return self.take(key, owner, new, takeover=takeover)

    async def extend(self, key: str, owner: str, lock_ttl_ms: int) -> bool:
        """Extend, as the contract says."""
        self.check_names(key, owner)
        self.check_span(lock_ttl_ms)
        await self.travel()
        await self.unlocked(key)
        return self.prolong(key, owner, lock_ttl_ms)

    async def complete(self, key: str, owner: str, response: bytes, retention_ms: int) -> Completion:
        """Complete, as the contract says."""
        self.check_names(key, owner)
        self.check_body(response)
        self.check_span(retention_ms)
        await self.travel()
        await self.unlocked(key)
        return self.settle(key, owner, response, retention_ms)

    async def release(self, key: str, owner: str) -> bool:
        """Release, as the contract says."""
        self.check_names(key, owner)
        await self.travel()
        await self.unlocked(key)
        return self.free(key, owner)

    async def purge(self, limit: int = 1000) -> int:
        """Purge, as the contract says."""
        self.check_count(limit)
        await self.travel()
        ended = [name for name, row in self.server.rows.items() if self.may_go(row)][:limit]
        for name in ended:
            del self.server.rows[name]
        return len(ended)

    async def assert_owner(self, connection: Transaction, key: str, owner: str) -> None:
        """Record an effect in a transaction, as the contract says."""
        await self.travel()
        await self.unlocked(key)
        row = self.find(key)
        if row is None or not self.may_have_effect(row, owner):
            raise ExecutionLostError
        self.server.locked[key] = asyncio.Event()
        connection.keys.append(key)
        connection.rows.append(row)

    async def effect_committed(self, key: str, owner: str) -> bool:
        """Tell whether an effect is committed, as the contract says."""
        await self.travel()
        await self.unlocked(key)
        row = self.find(key)
        return row is not None and self.is_mine(row, owner) and row.effect

    # ------------------------------------------------------------------------------ the arguments

    def check_names(self, key: str, owner: str) -> None:
        """Refuse what the rules refuse."""
        check_key(key)
        check_owner(owner)

    def check_payload(self, fingerprint: str) -> None:
        """Refuse what the rules refuse."""
        check_fingerprint(fingerprint)

    def check_span(self, span_ms: int) -> None:
        """Refuse what the rules refuse."""
        check_ttl_ms(span_ms)

    def check_body(self, response: bytes) -> None:
        """Refuse what the rules refuse."""
        check_response(response)

    def check_count(self, limit: int) -> None:
        """Refuse what the rules refuse."""
        check_limit(limit)

    # -------------------------------------------------------------------------------- the pieces

    async def travel(self) -> None:
        """Let the request reach the server: other calls run meanwhile."""
        await asyncio.sleep(0)

    async def unlocked(self, key: str) -> None:
        """Wait until no transaction has the row locked."""
        while key in self.server.locked:
            await self.server.locked[key].wait()

    def now(self) -> int:
        """Read the server's clock."""
        return round(self.server.clock.now() * 1000)

    def span(self, span_ms: int) -> int:
        """Read a duration."""
        return span_ms

    def name(self, key: str) -> str:
        """Say what *key* is kept under."""
        return key

    def owner_name(self, owner: str) -> str:
        """Say what *owner* is kept as."""
        return owner

    def payload_name(self, fingerprint: str) -> str:
        """Say what *fingerprint* is kept as."""
        return fingerprint

    def find(self, key: str) -> Row | None:
        """Return what is kept of *key*, unless its time has ended."""
        row = self.server.rows.get(self.name(key))
        return None if row is None or self.has_ended(row) else row

    def has_ended(self, row: Row) -> bool:
        """Decide whether the time of *row* has ended."""
        return row.expires <= self.now()

    def may_go(self, row: Row) -> bool:
        """Decide whether a purge deletes *row*."""
        return self.has_ended(row)

    def is_live(self, row: Row) -> bool:
        """Decide whether the lock of *row* has not ended."""
        return row.lock_ends > self.now()

    def is_mine(self, row: Row, owner: str) -> bool:
        """Decide whether *row* is of *owner*."""
        return row.owner == self.owner_name(owner)

    def is_same(self, row: Row, new: Row) -> bool:
        """Decide whether *new* brings the payload of *row*."""
        return row.fingerprint == new.fingerprint

    def state(self, row: Row) -> RecordState:
        """Say what is known of a request."""
        if row.completed:
            return RecordState.COMPLETED
        return RecordState.IN_FLIGHT if self.is_live(row) else RecordState.ABANDONED

    def new_row(self, owner: str, fingerprint: str, lock_ttl_ms: int, grace_ms: int) -> Row:
        """Make what is written of a first attempt."""
        lock_ends, grace_ms = self.now() + self.span(lock_ttl_ms), self.span(grace_ms)
        named, payload = self.owner_name(owner), self.payload_name(fingerprint)
        return Row(named, payload, 1, lock_ends, grace_ms, lock_ends + grace_ms)

    def take(self, key: str, owner: str, new: Row, *, takeover: bool) -> AcquireReply:
        """Decide and write, in one step."""
        row = self.find(key)
        if row is None:
            return self.insert(key, new)
        if not self.is_same(row, new):
            return self.mismatch(row, owner)
        return self.take_same(key, row, owner, new, takeover=takeover)

    def take_same(self, key: str, row: Row, owner: str, new: Row, *, takeover: bool) -> AcquireReply:
        """Decide about a payload that is the recorded one."""
        if row.completed:
            return self.replay(row, owner)
        if self.is_mine(row, owner):
            return self.repeat(row, new, takeover=takeover)
        if self.is_live(row):
            return self.wait_for(row, owner)
        if row.effect or not takeover:
            return self.show(row)
        return self.take_over(key, row, new)

    def insert(self, key: str, new: Row) -> AcquireReply:
        """Write the first attempt."""
        self.server.rows[self.name(key)] = new
        return Acquired(new.attempt)

    def take_over(self, key: str, row: Row, new: Row) -> AcquireReply:
        """Write one attempt more."""
        new.attempt = row.attempt + 1
        self.server.rows[self.name(key)] = new
        return Acquired(new.attempt)

    def mismatch(self, row: Row, owner: str) -> AcquireReply:
        """Answer another payload."""
        del owner
        return Mismatch(self.state(row))

    def replay(self, row: Row, owner: str) -> AcquireReply:
        """Answer with the outcome."""
        del owner
        return Completed(row.response, row.owner)

    def repeat(self, row: Row, new: Row, *, takeover: bool) -> AcquireReply:
        """Answer an acquire that is sent again."""
        del takeover
        self.move(row, new.lock_ends)
        return Acquired(row.attempt)

    def wait_for(self, row: Row, owner: str) -> AcquireReply:
        """Answer somebody else while an execution is in flight."""
        del owner
        return InFlight(row.lock_ends - self.now())

    def show(self, row: Row) -> AcquireReply:
        """Answer who may not take over."""
        return Abandoned(row.attempt, row.effect)

    def move(self, row: Row, lock_ends: int) -> None:
        """Extend a lock, and the record with it."""
        row.lock_ends = max(row.lock_ends, lock_ends)
        row.expires = row.lock_ends + row.grace_ms

    def prolong(self, key: str, owner: str, lock_ttl_ms: int) -> bool:
        """Decide on an extension and write it, in one step."""
        row = self.find(key)
        if row is None or row.completed or not self.is_mine(row, owner):
            return False
        self.move(row, self.now() + self.span(lock_ttl_ms))
        return True

    def settle(self, key: str, owner: str, response: bytes, retention_ms: int) -> Completion:
        """Decide on a completion and write it, in one step."""
        row = self.find(key)
        if row is None:
            return Completion.GONE
        if not self.is_mine(row, owner):
            return Completion.STALE
        if not row.completed:
            self.store(row, response, retention_ms)
        return Completion.STORED

    def store(self, row: Row, response: Any, retention_ms: int) -> None:
        """Write an outcome."""
        row.completed, row.response, row.expires = True, response, self.now() + self.span(retention_ms)

    def free(self, key: str, owner: str) -> bool:
        """Decide on a release and write it, in one step."""
        row = self.find(key)
        if row is None or row.completed or row.effect or not self.is_mine(row, owner):
            return False
        self.forget(key, row)
        return True

    def forget(self, key: str, row: Row) -> None:
        """Write a release."""
        if row.attempt == 1:
            del self.server.rows[self.name(key)]
        else:
            self.disown(row)

    def disown(self, row: Row) -> None:
        """Leave what is not known of earlier attempts."""
        row.owner, row.lock_ends = "", self.now()
        row.expires = row.lock_ends + row.grace_ms

    def may_have_effect(self, row: Row, owner: str) -> bool:
        """Decide whether *owner* may have its effect."""
        return not row.completed and self.is_mine(row, owner)
