"""Stores that shorten what is left, or change what is completed."""

from tenure.idempotency_store import AcquireReply, Completion
from tenure.testing.idempotency_contract import classifying, ending, extending, races, releasing
from tenure.testing.idempotency_mutants.model import Row, SoundRecords
from tenure.testing.idempotency_mutants.museum import Wing

__all__ = ["WING"]

WING = Wing()


@WING.mutant(extending.extend_never_shortens, extending.extend_keeps_the_records_end)
class SetsTheLock(SoundRecords):
    """E4. extend() sets the lock's end, however much was left."""

    def prolong(self, key: str, owner: str, lock_ttl_ms: int) -> bool:
        row = self.find(key)
        if row is not None and not row.completed and self.is_mine(row, owner):
            row.lock_ends = min(row.lock_ends, self.now() + lock_ttl_ms)
        return super().prolong(key, owner, lock_ttl_ms)


@WING.mutant(extending.extend_keeps_the_records_end)
class ShortensTheRecord(SoundRecords):
    """E4. extend() never shortens the lock, and sets the record's end."""

    def move(self, row: Row, lock_ends: int) -> None:
        super().move(row, lock_ends)
        row.expires = lock_ends + row.grace_ms


@WING.mutant(extending.repeated_acquire_never_shortens)
class RepeatSetsTheLock(SoundRecords):
    """E4. An acquire that is sent again sets the lock's end, however much was left."""

    def repeat(self, row: Row, new: Row, *, takeover: bool) -> AcquireReply:
        row.lock_ends = min(row.lock_ends, new.lock_ends)
        return super().repeat(row, new, takeover=takeover)


@WING.mutant(extending.extend_does_not_add, classifying.what_is_left_is_told, ending.extension_moves_the_grace)
class AddsToWhatIsLeft(SoundRecords):
    """extend() adds to what is left."""

    def prolong(self, key: str, owner: str, lock_ttl_ms: int) -> bool:
        row = self.find(key)
        if row is not None and not row.completed and self.is_mine(row, owner) and self.is_live(row):
            self.move(row, row.lock_ends + lock_ttl_ms)
        return super().prolong(key, owner, lock_ttl_ms)


@WING.mutant(extending.extend_after_complete, races.extend_against_complete)
class ExtendsOutcomes(SoundRecords):
    """E2. extend() says no after the completion, and sets the record's end all the same."""

    def prolong(self, key: str, owner: str, lock_ttl_ms: int) -> bool:
        row = self.find(key)
        if row is not None and row.completed and self.is_mine(row, owner):
            row.expires = self.now() + lock_ttl_ms
        return super().prolong(key, owner, lock_ttl_ms)


@WING.mutant(extending.extend_after_complete, races.extend_against_complete)
class ConfirmsAfterCompletion(SoundRecords):
    """E2. extend() after the completion says that its owner is in flight."""

    def prolong(self, key: str, owner: str, lock_ttl_ms: int) -> bool:
        row = self.find(key)
        if row is not None and row.completed:
            return self.is_mine(row, owner)
        return super().prolong(key, owner, lock_ttl_ms)


@WING.mutant(
    extending.release_after_complete,
    extending.completed_is_immutable,
    releasing.second_completes,
    races.release_against_complete,
)
class ReleasesOutcomes(SoundRecords):
    """R2. release() by its owner removes what is completed."""

    def free(self, key: str, owner: str) -> bool:
        row = self.find(key)
        if row is not None and row.completed and self.is_mine(row, owner):
            del self.server.rows[self.name(key)]
            return True
        return super().free(key, owner)


@WING.mutant(extending.completed_is_immutable)
class ForgetsUnderStrangers(SoundRecords):
    """complete() by another owner says STALE, and leaves its own retention on the record."""

    def settle(self, key: str, owner: str, response: bytes, retention_ms: int) -> Completion:
        reply = super().settle(key, owner, response, retention_ms)
        row = self.find(key)
        if reply is Completion.STALE and row is not None and retention_ms == 1:
            row.expires = self.now()
        return reply
