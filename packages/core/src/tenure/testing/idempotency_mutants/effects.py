"""Stores that lose the proof of an effect, or see one where there is none."""

from tenure.idempotency_store import AcquireReply, Completion
from tenure.testing.idempotency_contract import effects
from tenure.testing.idempotency_mutants.model import Row, SoundRecords, Transaction
from tenure.testing.idempotency_mutants.museum import Wing

__all__ = ["WING"]

WING = Wing()


@WING.mutant(effects.effect_is_never_repeated, effects.nobody_takes_over_amid_effect)
class RepeatsCommittedEffects(SoundRecords):
    """An abandoned execution is begun again, its committed effect notwithstanding."""

    def take_same(self, key: str, row: Row, owner: str, new: Row, *, takeover: bool) -> AcquireReply:
        effect, row.effect = row.effect, row.effect and not takeover
        reply = super().take_same(key, row, owner, new, takeover=takeover)
        row.effect = effect
        return reply


@WING.mutant(effects.effect_is_never_repeated)
class KnowsNoEffect(SoundRecords):
    """effect_committed() says no of what is committed."""

    async def effect_committed(self, key: str, owner: str) -> bool:
        await super().effect_committed(key, owner)
        return False


@WING.mutant(effects.effect_is_not_released)
class ReleasesEffects(SoundRecords):
    """release() forgets an execution whose effect is committed."""

    def free(self, key: str, owner: str) -> bool:
        row = self.find(key)
        if row is not None and self.is_mine(row, owner):
            row.effect = False
        return super().free(key, owner)


@WING.mutant(effects.effect_is_completed)
class CompletesNoEffects(SoundRecords):
    """complete() of an execution whose effect is committed is stale."""

    def settle(self, key: str, owner: str, response: bytes, retention_ms: int) -> Completion:
        row = self.find(key)
        if row is not None and row.effect and not row.completed:
            return Completion.STALE
        return super().settle(key, owner, response, retention_ms)


@WING.mutant(effects.rolled_back_is_none, effects.nobody_takes_over_amid_effect)
class ProvesAtOnce(SoundRecords):
    """assert_owner() writes its proof beside the transaction."""

    async def assert_owner(self, connection: Transaction, key: str, owner: str) -> None:
        await super().assert_owner(connection, key, owner)
        for row in connection.rows:
            row.effect = True


@WING.mutant(effects.replaced_has_no_effect)
class ProvesForAnyone(SoundRecords):
    """assert_owner() looks whether there is a record, and not whose it is."""

    def may_have_effect(self, row: Row, owner: str) -> bool:
        del owner
        return not row.completed


@WING.mutant(effects.replaced_has_no_effect)
class KnowsAnyonesEffect(SoundRecords):
    """effect_committed() looks at the record, and not at its owner."""

    async def effect_committed(self, key: str, owner: str) -> bool:
        row = self.find(key)
        return await super().effect_committed(key, owner if row is None else row.owner)


@WING.mutant(effects.late_owner_has_its_effect)
class RefusesLateEffects(SoundRecords):
    """assert_owner() after the lock's end is refused, although nobody took over."""

    def may_have_effect(self, row: Row, owner: str) -> bool:
        return self.is_live(row) and super().may_have_effect(row, owner)


@WING.mutant(effects.nobody_takes_over_amid_effect)
class TakesOverAmidEffects(SoundRecords):
    """acquire() reads past the lock that a transaction has on the row."""

    async def unlocked(self, key: str) -> None:
        del key
