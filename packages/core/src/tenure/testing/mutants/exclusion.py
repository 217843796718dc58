"""Stores that let two in, or too few."""

from tenure.store import Acquired, Held
from tenure.testing.contract import exclusion, queueing, races, remaining, renewing_many
from tenure.testing.mutants.model import Row, SoundStore
from tenure.testing.mutants.museum import Wing

__all__ = ["WING"]

WING = Wing()


@WING.mutant(
    exclusion.one_of_two_wins,
    races.free_key_has_one_winner,
    races.expired_lock_has_one_winner,
    races.no_renewal_against_a_takeover,
    races.tokens_are_in_order,
    races.counter_loses_nothing,
    queueing.expired_lock_grants_nobody,
)
class ReadsThenWrites(SoundStore):
    """acquire() reads whether the key is free, and writes in a second request."""

    async def acquire(self, key: str, owner: str, ttl_ms: int) -> Acquired | Held:
        self.check_arguments(key, owner, ttl_ms)
        await self.travel()
        row = self.find(key)
        if row is not None and self.is_live(row):
            return self.take(key, owner, ttl_ms)
        await self.travel()
        return self.grant(key, row, owner, ttl_ms)


@WING.mutant(
    races.expired_lock_has_one_winner,
    races.no_renewal_against_a_takeover,
    remaining.after_is_true,
    queueing.expired_lock_grants_nobody,
)
class DeletesThenInserts(SoundStore):
    """acquire() first deletes an expired row in a request of its own, whoever has put it there by then."""

    async def acquire(self, key: str, owner: str, ttl_ms: int) -> Acquired | Held:
        self.check_arguments(key, owner, ttl_ms)
        await self.travel()
        row = self.find(key)
        if row is not None and row.owner is not None and not self.is_live(row):
            await self.travel()
            found = self.find(key)
            if found is not None:
                found.owner, found.after = None, "expired"
        return self.take(key, owner, ttl_ms)


@WING.mutant(exclusion.held_key_is_refused)
class LetsInWhoAsksAgain(SoundStore):
    """The third attempt of a waiter is granted."""

    def refuse(self, row: Row, owner: str) -> Held:
        asked = self.server.rows.setdefault(f"asked {row.key} {owner}", Row("", None, 0, 0, None))
        asked.token += 1
        if asked.token > 2:
            row.owner = None
        return super().refuse(row, owner)


@WING.mutant(
    exclusion.keys_are_independent,
    races.opposite_orders_end,
    renewing_many.answers_are_in_place,
    renewing_many.each_has_its_ttl,
    renewing_many.a_thousand_claims,
)
class OneLockAnOwner(SoundStore):
    """An owner that holds one key is refused every other."""

    def grant(self, key: str, row: Row | None, owner: str, ttl_ms: int) -> Acquired:
        for other in self.server.rows.values():
            if other.owner == owner and self.is_live(other):
                return Held(self.left_ms(other))  # type: ignore[return-value]
        return super().grant(key, row, owner, ttl_ms)


@WING.mutant(exclusion.free_key_is_granted)
class RefusesTheFirstCaller(SoundStore):
    """The first call after the server's start makes the table, and is refused. The first case makes that call."""

    def take(self, key: str, owner: str, ttl_ms: int) -> Acquired | Held:
        if not self.server.rows:
            self.server.rows["made"] = Row("", None, 0, 0.0, None)
            return Held()
        return super().take(key, owner, ttl_ms)
