"""Stores whose locks end too early, too late, or for some methods only."""

import ctypes
import math

from tenure.store import Acquired
from tenure.testing.contract import (
    expiry,
    listing,
    ownership,
    queueing,
    races,
    remaining,
    renewing_many,
    repeating,
    tokens,
)
from tenure.testing.mutants.model import Row, Server, SoundStore
from tenure.testing.mutants.museum import Wing

__all__ = ["WING"]

WING = Wing()

_LAPSES = (
    expiry.expired_is_free,
    expiry.expired_is_not_released,
    expiry.expired_is_not_renewed,
    expiry.extreme_ttls,
    expiry.held_for_its_ttl,
    expiry.ttl_is_not_rounded_up,
    listing.leaves_out_the_expired,
    ownership.gone_and_free_again,
    ownership.late_release_of_taken_lock,
    ownership.late_renewal_of_taken_lock,
    ownership.renewal_replaces,
    ownership.stranger_does_not_renew,
    races.expired_lock_has_one_winner,
    races.no_renewal_against_a_takeover,
    remaining.after_is_true,
    renewing_many.answers_are_in_place,
    renewing_many.each_has_its_ttl,
    renewing_many.refusal_stays_alone,
    repeating.own_expired_lock_is_new,
    repeating.repeat_starts_a_fresh_ttl,
    tokens.tokens_grow_across_an_expiry,
    tokens.tokens_grow_for_ever,
)
"""The cases in which a lock has to lapse: each finds a store whose locks do not."""


@WING.mutant(
    expiry.ttl_is_not_rounded_up,
    remaining.left_is_plausible,
    remaining.left_shrinks,
    *_LAPSES,
    queueing.expired_lock_grants_nobody,
    queueing.ttl_from_the_grant,
    queueing.old_place_is_skipped,
    queueing.repeat_prolongs_the_place,
)
class CountsWholeSeconds(SoundStore):
    """A ttl is rounded up to whole seconds, as EXPIRE takes them."""

    def expiry(self, ttl_ms: int) -> float:
        return self.now() + math.ceil(ttl_ms / 1000)


@WING.mutant(expiry.ttl_is_not_cut, queueing.expired_lock_grants_nobody)
class CutsToWholeSeconds(SoundStore):
    """A ttl is cut to whole seconds: int(ttl_ms / 1000)."""

    def expiry(self, ttl_ms: int) -> float:
        return self.now() + ttl_ms // 1000


@WING.mutant(
    expiry.held_for_its_ttl,
    expiry.ttl_is_not_cut,
    ownership.renewal_extends,
    remaining.left_shrinks,
    queueing.expired_lock_grants_nobody,
    queueing.ttl_from_the_grant,
)
class EndsEarly(SoundStore):
    """The store takes a safety margin off the ttl, and lets the next holder in under the last one."""

    def is_live(self, row: Row) -> bool:
        return super().is_live(row) and row.expires_at - self.now() > 1.5


@WING.mutant(
    expiry.expired_is_free,
    remaining.left_is_enough,
    *_LAPSES,
    queueing.expired_lock_grants_nobody,
    queueing.ttl_from_the_grant,
)
class NeverEnds(SoundStore):
    """Expired rows wait for a clean-up that deletes them, and hold their keys until then."""

    def is_live(self, row: Row) -> bool:
        return row.owner is not None


@WING.mutant(
    expiry.expired_is_free,
    remaining.left_is_enough,
    *_LAPSES,
    queueing.expired_lock_grants_nobody,
    queueing.ttl_from_the_grant,
)
class ReadsTheTransactionsTime(SoundStore):
    """The expiry is compared with now(), the start of a transaction that the store never ends."""

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self._begun_at = self.now()

    def is_live(self, row: Row) -> bool:
        return row.owner is not None and row.expires_at > self._begun_at


@WING.mutant(expiry.expired_is_not_renewed, races.no_renewal_against_a_takeover, renewing_many.answers_are_in_place)
class RenewsTheExpired(SoundStore):
    """renew() compares the owner, and forgets the expiry."""

    def extend(self, key: str, owner: str, ttl_ms: int) -> bool:
        row = self.find(key)
        if row is None or row.owner != owner:
            return False
        row.expires_at = self.expiry(ttl_ms)
        return True


@WING.mutant(expiry.expired_is_not_released, remaining.after_is_true, queueing.expired_lock_grants_nobody)
class ReleasesTheExpired(SoundStore):
    """release() compares the owner, and forgets the expiry."""

    def free(self, key: str, owner: str) -> bool:
        row = self.find(key)
        if row is None or row.owner != owner:
            self.leave(key, owner)
            return False
        self.let_go(key, row)
        return True


@WING.mutant(expiry.ttl_past_31_bits, expiry.ttl_past_32_bits)
class WrapsAt31Bits(SoundStore):
    """The ttl is a signed integer of 32 bits."""

    def expiry(self, ttl_ms: int) -> float:
        return self.now() + ctypes.c_int32(ttl_ms).value / 1000


@WING.mutant(expiry.ttl_past_32_bits)
class WrapsAt32Bits(SoundStore):
    """The ttl is an unsigned integer of 32 bits."""

    def expiry(self, ttl_ms: int) -> float:
        return self.now() + ctypes.c_uint32(ttl_ms).value / 1000


@WING.mutant(expiry.ttl_past_31_bits, expiry.ttl_past_32_bits)
class StopsAtADay(SoundStore):
    """A ttl is cut down to a day, without a word."""

    def expiry(self, ttl_ms: int) -> float:
        return self.now() + min(ttl_ms, 86_400_000) / 1000


@WING.mutant(expiry.extreme_ttls)
class OverflowsItsDate(SoundStore):
    """A date after the year 2100 is none, and the lock has none."""

    def expiry(self, ttl_ms: int) -> float:
        return self.now() + (0 if ttl_ms > 75 * 366 * 86_400_000 else ttl_ms / 1000)


@WING.mutant(expiry.extreme_ttls)
class TakesOneForNone(SoundStore):
    """A ttl of one millisecond rounds to none, and none means for ever."""

    def grant(self, key: str, row: Row | None, owner: str, ttl_ms: int) -> Acquired:
        granted = super().grant(key, row, owner, ttl_ms)
        if ttl_ms == 1:
            self.server.rows[self.name(key)].expires_at = math.inf
        return granted

    def left_ms(self, row: Row) -> int | None:
        return None if math.isinf(row.expires_at) else int(super().left_ms(row))
