"""Stores that renew and release for whoever asks, or not for the one who may."""

import unicodedata

from tenure.store import Acquired, Held
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
    waking,
)
from tenure.testing.mutants.model import Row, SoundStore
from tenure.testing.mutants.museum import Wing

__all__ = ["WING"]

WING = Wing()


@WING.mutant(ownership.owner_renews, races.opposite_orders_end, repeating.cancelled_calls_cost_nothing)
class RenewsTwice(SoundStore):
    """renew() extends a lock twice, and no more, as pottery's lock is extended three times."""

    def extend(self, key: str, owner: str, ttl_ms: int) -> bool:
        renewed = self.server.rows.setdefault(f"renewed {key} {owner}", Row("", None, 0, 0.0, None))
        if renewed.token == 2:
            return False
        extended = super().extend(key, owner, ttl_ms)
        renewed.token += extended
        return extended


@WING.mutant(
    ownership.renewal_extends,
    expiry.ttl_past_31_bits,
    expiry.ttl_past_32_bits,
    ownership.renewal_replaces,
    remaining.left_shrinks,
    renewing_many.each_has_its_ttl,
)
class ConfirmsWithoutWriting(SoundStore):
    """renew() says that the lock is the owner's, and leaves its expiry."""

    def extend(self, key: str, owner: str, ttl_ms: int) -> bool:
        del ttl_ms
        return self.is_mine(self.find(key), owner)


@WING.mutant(ownership.renewal_replaces, remaining.left_shrinks, renewing_many.each_has_its_ttl)
class AddsToWhatIsLeft(SoundStore):
    """renew() adds the ttl to what is left, as redis-py's extend() does by default."""

    def extend(self, key: str, owner: str, ttl_ms: int) -> bool:
        row = self.find(key)
        if row is None or not self.is_mine(row, owner):
            return False
        row.expires_at += ttl_ms / 1000
        return True


@WING.mutant(ownership.renewal_replaces, renewing_many.each_has_its_ttl)
class OnlyLengthens(SoundStore):
    """renew() takes the greater of the two expiries."""

    def extend(self, key: str, owner: str, ttl_ms: int) -> bool:
        row = self.find(key)
        if row is None or not self.is_mine(row, owner):
            return False
        row.expires_at = max(row.expires_at, self.expiry(ttl_ms))
        return True


@WING.mutant(
    ownership.stranger_does_not_renew,
    ownership.late_renewal_of_taken_lock,
    ownership.owners_are_exact,
    races.no_renewal_against_a_takeover,
    races.overtaken_renewal_writes_nothing,
    renewing_many.answers_are_in_place,
    renewing_many.refusal_stays_alone,
    renewing_many.one_key_twice,
    queueing.third_does_not_barge,
    queueing.waiter_owns_nothing,
    queueing.leaver_is_skipped,
    queueing.old_place_is_skipped,
)
class RenewsByKeyAlone(SoundStore):
    """renew() moves the expiry of whatever live lock is on the key."""

    def extend(self, key: str, owner: str, ttl_ms: int) -> bool:
        row = self.find(key)
        return row is not None and super().extend(key, row.owner or owner, ttl_ms)


@WING.mutant(ownership.stranger_does_not_renew, ownership.late_renewal_of_taken_lock, renewing_many.refusal_stays_alone)
class MovesThenCompares(SoundStore):
    """renew() writes the expiry, then looks whose lock it was, and says no too late."""

    def extend(self, key: str, owner: str, ttl_ms: int) -> bool:
        row = self.find(key)
        if row is None or not self.is_live(row):
            return False
        row.expires_at = self.expiry(ttl_ms)
        return self.is_mine(row, owner)


@WING.mutant(ownership.renewal_creates_nothing, renewing_many.answers_are_in_place, renewing_many.a_thousand_claims)
class CreatesByRenewing(SoundStore):
    """renew() is an upsert: where the key has no row, it makes one."""

    def extend(self, key: str, owner: str, ttl_ms: int) -> bool:
        if self.find(key) is None:
            self.grant(key, None, owner, ttl_ms)
        return super().extend(key, owner, ttl_ms)


@WING.mutant(
    ownership.renewal_after_release,
    ownership.gone_and_free_again,
    renewing_many.answers_are_in_place,
    queueing.old_place_is_skipped,
    queueing.expired_lock_grants_nobody,
)
class TakesFreedByRenewing(SoundStore):
    """renew() takes a key that was released."""

    def extend(self, key: str, owner: str, ttl_ms: int) -> bool:
        row = self.find(key)
        if row is not None and row.owner is None:
            self.grant(key, row, owner, ttl_ms)
        return super().extend(key, owner, ttl_ms)


@WING.mutant(ownership.gone_and_free_again)
class RemembersPastOwners(SoundStore):
    """renew() takes the key anew for a past owner of it that lost it by expiry, once it is free."""

    def grant(self, key: str, row: Row | None, owner: str, ttl_ms: int) -> Acquired:
        if row is not None and row.owner is not None:
            self.server.rows[f"lost {key} {row.owner}"] = Row("", None, 0, 0.0, None)
        return super().grant(key, row, owner, ttl_ms)

    def extend(self, key: str, owner: str, ttl_ms: int) -> bool:
        row = self.find(key)
        if row is not None and row.owner is None and f"lost {key} {owner}" in self.server.rows:
            self.grant(key, row, owner, ttl_ms)
        return super().extend(key, owner, ttl_ms)


@WING.mutant(ownership.late_renewal_of_taken_lock)
class MovesTheSuccessorsExpiry(SoundStore):
    """renew() by a past owner is refused, and moves the expiry of the lock that followed."""

    def extend(self, key: str, owner: str, ttl_ms: int) -> bool:
        row = self.find(key)
        if row is not None and row.after == "expired" and row.owner != owner and self.is_live(row):
            row.expires_at = self.expiry(ttl_ms)
        return super().extend(key, owner, ttl_ms)


@WING.mutant(races.overtaken_renewal_writes_nothing)
class RenewsWhatItRead(SoundStore):
    """renew() reads the row, checks it, and writes all of it back in a second request."""

    async def renew(self, key: str, owner: str, ttl_ms: int) -> bool:
        self.check_arguments(key, owner, ttl_ms)
        await self.travel()
        row = self.find(key)
        if row is None or not self.is_mine(row, owner):
            return False
        seen = Row(row.key, row.owner, row.token, self.expiry(ttl_ms), row.after)
        await self.travel()
        await self.travel()
        self.server.rows[self.name(key)] = seen
        return True


@WING.mutant(
    ownership.release_frees,
    listing.leaves_out_the_released,
    ownership.renewal_after_release,
    ownership.gone_and_free_again,
    races.free_key_has_one_winner,
    races.double_release_frees_one,
    races.overtaken_renewal_writes_nothing,
    remaining.after_is_true,
    repeating.repeat_is_not_counted,
    repeating.own_released_lock_is_new,
    repeating.repeat_says_the_same,
    tokens.tokens_grow_across_a_release,
    tokens.tokens_grow_for_ever,
    tokens.tokens_grow_across_a_restart,
    waking.release_wakes,
    waking.cancelled_waiter_takes_nothing,
    queueing.order_of_arrival,
    queueing.third_does_not_barge,
    queueing.releaser_does_not_barge,
    queueing.plain_waiter_is_served,
    queueing.waiter_hears,
    queueing.deaf_waiter_keeps_its_place,
    queueing.token_grows,
    queueing.ttl_from_the_grant,
    queueing.granted_owner_owns,
    queueing.leaver_is_skipped,
    queueing.old_place_is_skipped,
    queueing.place_is_kept,
    queueing.repeat_keeps_the_place,
    queueing.repeat_prolongs_the_place,
    queueing.queues_are_exact,
    queueing.turns_are_taken_alone,
)
class KeepsWhatIsReleased(SoundStore):
    """release() marks the lock, and it stays until its ttl has passed."""

    def free(self, key: str, owner: str) -> bool:
        row = self.find(key)
        if row is None or not self.is_mine(row, owner):
            return False
        row.owner = "nobody"
        return True


@WING.mutant(ownership.second_release, races.double_release_frees_one, queueing.granted_owner_owns)
class ReleasesAnything(SoundStore):
    """release() of a key that nobody holds says that it was given back."""

    def free(self, key: str, owner: str) -> bool:
        row = self.find(key)
        return row is None or row.owner is None or super().free(key, owner)


@WING.mutant(
    ownership.stranger_does_not_release,
    ownership.late_release_of_taken_lock,
    ownership.owners_are_exact,
    queueing.waiter_owns_nothing,
    queueing.leaver_is_skipped,
    queueing.turns_are_taken_alone,
)
class ReleasesByKeyAlone(SoundStore):
    """release() deletes whatever live lock is on the key."""

    def free(self, key: str, owner: str) -> bool:
        row = self.find(key)
        return row is not None and super().free(key, row.owner or owner)


@WING.mutant(ownership.late_release_of_taken_lock)
class FreesTheSuccessor(SoundStore):
    """release() by a past owner is refused, and ends the lock that followed on its expiry."""

    def free(self, key: str, owner: str) -> bool:
        row = self.find(key)
        if row is not None and row.after == "expired" and row.owner != owner:
            row.owner = None
        return super().free(key, owner)


@WING.mutant(races.double_release_frees_one)
class ReadsThenReleases(SoundStore):
    """release() reads whose lock it is, and ends it in a second request."""

    async def release(self, key: str, owner: str) -> bool:
        self.check_arguments(key, owner, 1)
        await self.travel()
        if not self.is_mine(self.find(key), owner):
            self.leave(key, owner)
            return False
        await self.travel()
        row = self.find(key)
        assert row is not None
        self.let_go(key, row)
        return True


@WING.mutant(ownership.owners_are_exact)
class FoldsOwners(SoundStore):
    """The owner's column ignores case."""

    def owner_name(self, owner: str) -> str:
        return owner.lower()


@WING.mutant(ownership.owners_are_exact)
class PadsOwners(SoundStore):
    """The owner's column is padded with spaces, as char(n) is."""

    def owner_name(self, owner: str) -> str:
        return owner.rstrip(" ")


@WING.mutant(ownership.owners_are_exact)
class ComposesOwners(SoundStore):
    """The owner is stored in a normal form."""

    def owner_name(self, owner: str) -> str:
        return unicodedata.normalize("NFC", owner)


@WING.mutant(ownership.owners_are_exact)
class CutsOwners(SoundStore):
    """The owner's column has 128 characters, and the rest is cut."""

    def owner_name(self, owner: str) -> str:
        return owner[:128]


@WING.mutant(ownership.owners_are_exact)
class TakesAnEmptyOwnerForNull(SoundStore):
    """An owner that ends in a colon reads as one without a name: the store falls back on any."""

    def take(self, key: str, owner: str, ttl_ms: int) -> Acquired | Held:
        row = self.find(key)
        if owner.endswith(":") and row is not None and self.is_live(row):
            return self.repeat(row, ttl_ms)
        return super().take(key, owner, ttl_ms)
