"""Stores that make another thing of a call that is sent again."""

from typing import Any

from tenure.idempotency_store import Acquired, AcquireReply, Completion
from tenure.testing.idempotency_contract import (
    classifying,
    effects,
    extending,
    names,
    ownership,
    races,
    releasing,
    repeating,
    responses,
    surviving,
)
from tenure.testing.idempotency_mutants.model import Row, SoundRecords
from tenure.testing.idempotency_mutants.museum import Wing

__all__ = ["WING"]

WING = Wing()


@WING.mutant(
    repeating.acquire_is_repeated,
    repeating.repeated_acquire_extends,
    repeating.second_attempt_is_repeated,
    repeating.repeated_acquire_keeps_the_grace,
    extending.repeated_acquire_never_shortens,
    surviving.records_survive,
    names.payloads_are_exact,
    names.long_payloads_are_whole,
    races.repeats_agree,
)
class RefusesItsOwn(SoundRecords):
    """A6. The recorded owner that asks again is told that it is in flight."""

    def repeat(self, row: Row, new: Row, *, takeover: bool) -> AcquireReply:
        if self.is_live(row):
            return self.wait_for(row, row.owner)
        return super().repeat(row, new, takeover=takeover)


@WING.mutant(repeating.repeated_acquire_extends)
class RepeatDoesNotExtend(SoundRecords):
    """A6. An acquire that is sent again answers, and leaves the lock."""

    def repeat(self, row: Row, new: Row, *, takeover: bool) -> AcquireReply:
        if self.is_live(row):
            return Acquired(row.attempt)
        return super().repeat(row, new, takeover=takeover)


@WING.mutant(repeating.late_acquire_is_repeated, classifying.own_needs_no_takeover)
class LateOwnIsAnother(SoundRecords):
    """A6. The owner of an abandoned execution takes it over from itself."""

    def repeat(self, row: Row, new: Row, *, takeover: bool) -> AcquireReply:
        row.attempt += not self.is_live(row)
        return super().repeat(row, new, takeover=takeover)


@WING.mutant(repeating.late_acquire_is_repeated)
class LateRepeatDoesNotExtend(SoundRecords):
    """A6. The owner of an abandoned execution is told that it has it, and it stays abandoned."""

    def repeat(self, row: Row, new: Row, *, takeover: bool) -> AcquireReply:
        if not self.is_live(row):
            return Acquired(row.attempt)
        return super().repeat(row, new, takeover=takeover)


@WING.mutant(repeating.second_attempt_is_repeated, surviving.records_survive, races.repeats_agree)
class CountsRepeats(SoundRecords):
    """A6. The second attempt that asks again is counted."""

    def repeat(self, row: Row, new: Row, *, takeover: bool) -> AcquireReply:
        row.attempt += row.attempt > 1
        return super().repeat(row, new, takeover=takeover)


@WING.mutant(repeating.repeated_acquire_keeps_the_grace)
class RepeatBringsItsGrace(SoundRecords):
    """An acquire that is sent again brings a grace of its own."""

    def repeat(self, row: Row, new: Row, *, takeover: bool) -> AcquireReply:
        row.grace_ms = new.grace_ms
        return super().repeat(row, new, takeover=takeover)


@WING.mutant(repeating.replaced_owner_is_somebody_else)
class RemembersPastOwners(SoundRecords):
    """A replaced owner that asks again takes the record back."""

    def take_over(self, key: str, row: Row, new: Row) -> AcquireReply:
        self.server.marks[f"past {new.attempt} {id(new)}"] = row.owner
        return super().take_over(key, row, new)

    def wait_for(self, row: Row, owner: str) -> AcquireReply:
        if owner in self.server.marks.values():
            row.owner = owner
            return Acquired(row.attempt)
        return super().wait_for(row, owner)


@WING.mutant(repeating.own_outcome_is_given)
class RunsItsOwnOutcome(SoundRecords):
    """The owner that completed and asks again begins again."""

    def replay(self, row: Row, owner: str) -> AcquireReply:
        if self.is_mine(row, owner):
            return Acquired(row.attempt)
        return super().replay(row, owner)


@WING.mutant(repeating.complete_is_repeated, extending.completed_is_immutable)
class LastCompletionWins(SoundRecords):
    """C4. complete() that is sent again overwrites the response."""

    def settle(self, key: str, owner: str, response: bytes, retention_ms: int) -> Completion:
        row = self.find(key)
        if row is not None and row.completed and self.is_mine(row, owner):
            row.response = response
        return super().settle(key, owner, response, retention_ms)


@WING.mutant(
    repeating.complete_is_repeated,
    repeating.repeated_complete_keeps_the_retention,
    extending.completed_is_immutable,
    responses.complete_is_one_write,
    races.completions_agree,
)
class RefusesRepeatedCompletions(SoundRecords):
    """C4. complete() that is sent again is stale: the owner was forgotten with the completion."""

    def settle(self, key: str, owner: str, response: bytes, retention_ms: int) -> Completion:
        row = self.find(key)
        if row is not None and row.completed:
            return Completion.STALE
        return super().settle(key, owner, response, retention_ms)


@WING.mutant(repeating.repeated_complete_keeps_the_retention)
class RestartsTheRetention(SoundRecords):
    """C4. complete() that is sent again begins the retention anew."""

    def settle(self, key: str, owner: str, response: bytes, retention_ms: int) -> Completion:
        row = self.find(key)
        if row is not None and row.completed and self.is_mine(row, owner):
            row.expires = self.now() + retention_ms
        return super().settle(key, owner, response, retention_ms)


@WING.mutant(
    repeating.owner_stays,
    ownership.owner_extends,
    names.case_is_kept,
    names.spaces_are_kept,
    names.normal_forms_are_apart,
    names.collation_is_exact,
    names.marks_are_data,
    names.keys_are_text,
    names.long_keys_are_whole,
    effects.effect_is_completed,
    races.extend_against_complete,
)
class RotatesOwners(SoundRecords):
    """E5. extend() draws a new owner, whom a caller that lost the reply does not know."""

    def prolong(self, key: str, owner: str, lock_ttl_ms: int) -> bool:
        row = self.find(key)
        extended = super().prolong(key, owner, lock_ttl_ms)
        if extended and row is not None:
            row.owner = f"{owner}+"
        return extended


@WING.mutant(repeating.complete_after_release, races.release_against_complete)
class CompletesAfterRelease(SoundRecords):
    """C5. complete() by who released is stored after all."""

    def forget(self, key: str, row: Row) -> None:
        self.server.marks[f"released {key}"] = row
        super().forget(key, row)

    def settle(self, key: str, owner: str, response: bytes, retention_ms: int) -> Completion:
        released: Row | None = self.server.marks.get(f"released {key}")
        if self.find(key) is None and released is not None and self.is_mine(released, owner):
            self.server.rows[self.name(key)] = released
        return super().settle(key, owner, response, retention_ms)


@WING.mutant(repeating.complete_after_release, releasing.released_second_has_no_owner)
class CompletesUnderTheSuccessor(SoundRecords):
    """C5. complete() by who released is stored in the record that was begun since."""

    def forget(self, key: str, row: Row) -> None:
        self.server.marks[f"released {key}"] = row.owner
        super().forget(key, row)

    def settle(self, key: str, owner: str, response: bytes, retention_ms: int) -> Completion:
        row: Any = self.find(key)
        if row is not None and not row.completed and self.server.marks.get(f"released {key}") == owner:
            self.store(row, response, retention_ms)
        return super().settle(key, owner, response, retention_ms)
