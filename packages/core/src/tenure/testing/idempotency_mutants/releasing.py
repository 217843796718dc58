"""Stores that forget too much at a release, or too little."""

from tenure.idempotency_store import Completion
from tenure.testing.idempotency_contract import ownership, purging, races, releasing, repeating, responses
from tenure.testing.idempotency_mutants.model import Row, SoundRecords
from tenure.testing.idempotency_mutants.museum import Wing

__all__ = ["WING"]

WING = Wing()


@WING.mutant(
    releasing.first_is_forgotten,
    repeating.complete_after_release,
    releasing.late_owner_releases,
    races.absent_has_one_winner,
    races.acquire_against_release,
    races.release_against_complete,
)
class KeepsWhatIsReleased(SoundRecords):
    """release() of a first attempt leaves an abandoned record."""

    def forget(self, key: str, row: Row) -> None:
        del key
        self.disown(row)


@WING.mutant(releasing.first_is_forgotten)
class ReleasesTheReleased(SoundRecords):
    """release() of an absent record by who released it says yes again."""

    def free(self, key: str, owner: str) -> bool:
        mark = f"released {key}"
        if self.find(key) is None:
            return bool(self.server.marks.get(mark) == owner)
        freed = super().free(key, owner)
        if freed:
            self.server.marks[mark] = owner
        return freed


@WING.mutant(releasing.late_owner_releases, releasing.late_second_is_not_forgotten)
class RefusesLateReleases(SoundRecords):
    """release() after the lock's end is refused, although nobody took over."""

    def free(self, key: str, owner: str) -> bool:
        row = self.find(key)
        return row is not None and self.is_live(row) and super().free(key, owner)


@WING.mutant(
    releasing.second_is_not_forgotten,
    releasing.released_second_keeps_its_payload,
    releasing.released_second_has_no_owner,
    releasing.late_second_is_not_forgotten,
    releasing.released_second_has_its_grace,
    purging.purge_leaves_what_lives,
)
class ForgetsEveryAttempt(SoundRecords):
    """release() of a second attempt forgets the first."""

    def forget(self, key: str, row: Row) -> None:
        del row
        del self.server.rows[self.name(key)]


@WING.mutant(
    releasing.second_is_not_forgotten,
    releasing.released_second_has_no_owner,
    releasing.late_second_is_not_forgotten,
    releasing.released_second_has_its_grace,
    purging.purge_leaves_what_lives,
)
class TakesTheAttemptBack(SoundRecords):
    """release() of a second attempt counts back: the next one is the second again."""

    def disown(self, row: Row) -> None:
        super().disown(row)
        row.attempt -= 1


@WING.mutant(releasing.released_second_keeps_its_payload)
class ReleaseForgetsThePayload(SoundRecords):
    """release() of a second attempt forgets the fingerprint, which then is any."""

    def disown(self, row: Row) -> None:
        super().disown(row)
        row.fingerprint = ""

    def is_same(self, row: Row, new: Row) -> bool:
        return not row.fingerprint or super().is_same(row, new)


@WING.mutant(releasing.released_second_has_no_owner)
class ReleaseLeavesTheOwner(SoundRecords):
    """C5. release() of a second attempt ends its lock, and leaves its owner."""

    def disown(self, row: Row) -> None:
        owner = row.owner
        super().disown(row)
        row.owner = owner


@WING.mutant(releasing.late_second_is_not_forgotten)
class DeletesTheEndedAtRelease(SoundRecords):
    """release() after the lock's end deletes the record, whatever attempt it is."""

    def forget(self, key: str, row: Row) -> None:
        if self.is_live(row):
            super().forget(key, row)
        else:
            del self.server.rows[self.name(key)]


@WING.mutant(releasing.released_second_has_its_grace)
class ReleaseLeavesTheEnd(SoundRecords):
    """release() of a second attempt leaves the record's end where the lock had it."""

    def disown(self, row: Row) -> None:
        expires = row.expires
        super().disown(row)
        row.expires = expires


@WING.mutant(
    releasing.second_completes,
    ownership.replaced_does_not_complete,
    ownership.replaced_does_not_overwrite,
    ownership.replaced_does_not_release,
    repeating.replaced_owner_is_somebody_else,
    responses.owner_is_named,
    races.complete_against_takeover,
    races.release_against_takeover,
)
class CompletesFirstAttemptsOnly(SoundRecords):
    """complete() of a second attempt is stale."""

    def settle(self, key: str, owner: str, response: bytes, retention_ms: int) -> Completion:
        row = self.find(key)
        if row is not None and row.attempt > 1:
            return Completion.STALE
        return super().settle(key, owner, response, retention_ms)
