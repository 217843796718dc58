"""Stores that an acquire cannot be sent to again, or cannot be taken back from."""

import asyncio
import math

from tenure.store import Acquired, Held
from tenure.testing.contract import queueing, races, repeating, tokens
from tenure.testing.mutants.model import Row, Server, SoundStore
from tenure.testing.mutants.museum import Wing

__all__ = ["WING"]

WING = Wing()


@WING.mutant(
    repeating.repeat_gets_the_same_token,
    races.repeats_agree,
    repeating.repeat_starts_a_fresh_ttl,
    repeating.repeat_is_not_counted,
    repeating.repeat_says_the_same,
    tokens.refusal_keeps_the_token,
    tokens.renewal_keeps_the_token,
    tokens.tokens_grow_across_a_restart,
    queueing.free_key_is_taken,
    queueing.waiter_hears,
    queueing.token_grows,
)
class RefusesItsOwner(SoundStore):
    """acquire() by the owner of the live lock is refused, as SET NX is."""

    def take(self, key: str, owner: str, ttl_ms: int) -> Acquired | Held:
        row = self.find(key)
        return self.refuse(row, owner) if row and self.is_mine(row, owner) else super().take(key, owner, ttl_ms)


@WING.mutant(
    repeating.repeat_gets_the_same_token,
    races.repeats_agree,
    tokens.refusal_keeps_the_token,
    tokens.renewal_keeps_the_token,
    queueing.free_key_is_taken,
    queueing.waiter_hears,
    queueing.token_grows,
)
class DrawsAgain(SoundStore):
    """acquire() by the owner of the live lock draws a new token, as Redisson's fenced lock does on re-entry."""

    def repeat(self, row: Row, ttl_ms: int) -> Acquired:
        row.token += 1
        return super().repeat(row, ttl_ms)


@WING.mutant(repeating.repeat_starts_a_fresh_ttl)
class KeepsTheFirstTtl(SoundStore):
    """acquire() by the owner of the live lock answers, and leaves the expiry."""

    def repeat(self, row: Row, ttl_ms: int) -> Acquired:
        del ttl_ms
        return Acquired(row.token, row.after)


@WING.mutant(repeating.repeat_starts_a_fresh_ttl)
class ShortensNever(SoundStore):
    """acquire() by the owner of the live lock takes the greater of the two expiries."""

    def repeat(self, row: Row, ttl_ms: int) -> Acquired:
        row.expires_at = max(row.expires_at, self.expiry(ttl_ms))
        return Acquired(row.token, row.after)


@WING.mutant(repeating.repeat_starts_a_fresh_ttl)
class LengthensNever(SoundStore):
    """acquire() by the owner of the live lock takes the smaller of the two expiries."""

    def repeat(self, row: Row, ttl_ms: int) -> Acquired:
        row.expires_at = min(row.expires_at, self.expiry(ttl_ms))
        return Acquired(row.token, row.after)


@WING.mutant(repeating.repeat_is_not_counted, queueing.token_grows)
class CountsEntries(SoundStore):
    """acquire() by the owner counts an entry more, and a release takes one off, as a re-entrant lock does."""

    def repeat(self, row: Row, ttl_ms: int) -> Acquired:
        self.server.rows[f"entries {row.key}"] = Row("", None, 1, 0.0, None)
        return super().repeat(row, ttl_ms)

    def free(self, key: str, owner: str) -> bool:
        mine = self.is_mine(self.find(key), owner)
        if mine and self.server.rows.pop(f"entries {key}", None) is not None:
            return True
        return super().free(key, owner)


@WING.mutant(repeating.own_expired_lock_is_new)
class RevivesItsOwn(SoundStore):
    """acquire() by the recorded owner of an expired lock brings it back, token and all."""

    def grant(self, key: str, row: Row | None, owner: str, ttl_ms: int) -> Acquired:
        if row is not None and row.owner == owner:
            return self.repeat(row, ttl_ms)
        return super().grant(key, row, owner, ttl_ms)


@WING.mutant(repeating.own_released_lock_is_new)
class ReopensItsOwn(SoundStore):
    """A release keeps the owner as the last one, and its next acquire gets the last token."""

    def free(self, key: str, owner: str) -> bool:
        freed = super().free(key, owner)
        if freed:
            self.server.rows[f"last {key}"] = Row("", owner, 0, 0.0, None)
        return freed

    def draw(self, row: Row | None, owner: str) -> int:
        last = None if row is None else self.server.rows.get(f"last {row.key}")
        if row is not None and row.owner is None and last is not None and last.owner == owner:
            return int(row.token)
        return int(super().draw(row, owner))

    def is_listed(self, row: Row, prefix: str) -> bool:
        return bool(row.key) and super().is_listed(row, prefix)


@WING.mutant(repeating.repeat_says_the_same, queueing.waiter_hears)
class ForgetsTheEnding(SoundStore):
    """How the lock before ended is told in the first reply alone."""

    def repeat(self, row: Row, ttl_ms: int) -> Acquired:
        return Acquired(super().repeat(row, ttl_ms).token)


@WING.mutant(repeating.cancelled_acquire_is_undone)
class RenewsItsOrphans(SoundStore):
    """A task of the store's own renews each lock that it was granted, also one whose caller was cancelled."""

    async def acquire(self, key: str, owner: str, ttl_ms: int) -> Acquired | Held:
        try:
            reply = await super().acquire(key, owner, ttl_ms)
            await self.travel()  # the way of the reply
        except asyncio.CancelledError:
            row = self.find(key)
            if row is not None and self.is_mine(row, owner):
                row.owner, row.expires_at = "the store's own", math.inf
            raise
        return reply

    def left_ms(self, row: Row) -> int | None:
        return None if math.isinf(row.expires_at) else int(super().left_ms(row))


@WING.mutant(races.repeats_agree, queueing.expired_lock_grants_nobody)
class ReadsThenRepeats(SoundStore):
    """acquire() reads who holds the key, waits, and by then takes its own lock for none."""

    async def acquire(self, key: str, owner: str, ttl_ms: int) -> Acquired | Held:
        self.check_arguments(key, owner, ttl_ms)
        await self.travel()
        mine = self.is_mine(self.find(key), owner)
        await self.travel()
        row = self.find(key)
        if row is not None and self.is_mine(row, owner) and not mine:
            return self.grant(key, row, owner, ttl_ms)
        return self.take(key, owner, ttl_ms)


@WING.mutant(repeating.cancelled_calls_cost_nothing)
class LeaksConnections(SoundStore):
    """A cancelled call does not give its connection back to the pool."""

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self._pool = asyncio.Semaphore(5)

    async def travel(self) -> None:
        await self._pool.acquire()
        await super().travel()
        self._pool.release()


@WING.mutant(repeating.cancelled_calls_cost_nothing)
class DiesOfCancellation(SoundStore):
    """A client that was cancelled in the middle of a call is closed for good."""

    broken = False

    async def renew(self, key: str, owner: str, ttl_ms: int) -> bool:
        if self.broken:
            raise ConnectionError("closed")
        try:
            return await super().renew(key, owner, ttl_ms)
        except asyncio.CancelledError:
            self.broken = True
            raise
