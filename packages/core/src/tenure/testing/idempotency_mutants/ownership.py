"""Stores that extend, complete and release for whoever asks, or not for the one who may."""

from typing import Any

from tenure.idempotency_store import AcquireReply, Completion
from tenure.testing.idempotency_contract import (
    classifying,
    effects,
    ending,
    extending,
    names,
    ownership,
    purging,
    races,
    releasing,
    repeating,
    responses,
)
from tenure.testing.idempotency_mutants.model import Row, SoundRecords
from tenure.testing.idempotency_mutants.museum import Wing

__all__ = ["WING"]

WING = Wing()


@WING.mutant(ownership.owner_extends, repeating.owner_stays)
class ExtendsTwice(SoundRecords):
    """extend() extends a record twice, and no more."""

    def prolong(self, key: str, owner: str, lock_ttl_ms: int) -> bool:
        mark = f"extended {key} {owner}"
        if self.server.marks.get(mark, 0) >= 2:
            return False
        extended = super().prolong(key, owner, lock_ttl_ms)
        self.server.marks[mark] = self.server.marks.get(mark, 0) + extended
        return extended


@WING.mutant(
    ownership.owner_extends,
    classifying.what_is_left_is_told,
    ending.extension_moves_the_grace,
    ending.times_past_31_bits,
    ending.times_past_32_bits,
    purging.purge_leaves_what_began_anew,
)
class ConfirmsWithoutWriting(SoundRecords):
    """extend() says that the execution is the owner's, and leaves its lock."""

    def prolong(self, key: str, owner: str, lock_ttl_ms: int) -> bool:
        row = self.find(key)
        if row is None or self.is_live(row):
            return row is not None and not row.completed and self.is_mine(row, owner)
        return super().prolong(key, owner, lock_ttl_ms)


@WING.mutant(
    ownership.replaced_does_not_extend,
    ownership.stranger_does_not_extend,
    ownership.owners_are_exact,
    names.long_owners_are_whole,
    races.extend_against_takeover,
)
class ExtendsByKeyAlone(SoundRecords):
    """E1. extend() extends whatever is in flight under the key."""

    def prolong(self, key: str, owner: str, lock_ttl_ms: int) -> bool:
        row = self.find(key)
        return row is not None and super().prolong(key, row.owner or owner, lock_ttl_ms)


@WING.mutant(
    ownership.replaced_does_not_extend, ownership.stranger_does_not_extend, releasing.released_second_has_no_owner
)
class MovesThenCompares(SoundRecords):
    """E1. extend() writes the lock, then looks whose it was, and says no too late."""

    def prolong(self, key: str, owner: str, lock_ttl_ms: int) -> bool:
        row = self.find(key)
        if row is None or row.completed:
            return False
        self.move(row, self.now() + lock_ttl_ms)
        return self.is_mine(row, owner)


@WING.mutant(ownership.stranger_does_not_extend)
class ExtendsAbandonedForAnyone(SoundRecords):
    """extend() revives an abandoned execution for whoever asks."""

    def prolong(self, key: str, owner: str, lock_ttl_ms: int) -> bool:
        row = self.find(key)
        if row is not None and not self.is_live(row) and row.owner:
            owner = row.owner
        return super().prolong(key, owner, lock_ttl_ms)


@WING.mutant(ownership.absent_is_nobodys, releasing.first_is_forgotten)
class CreatesByExtending(SoundRecords):
    """extend() is an upsert: where there is no record, it makes one."""

    def prolong(self, key: str, owner: str, lock_ttl_ms: int) -> bool:
        if self.name(key) not in self.server.rows:
            self.insert(key, self.new_row(owner, "any", lock_ttl_ms, 1000))
        return super().prolong(key, owner, lock_ttl_ms)


@WING.mutant(ownership.absent_is_nobodys, repeating.complete_after_release, races.release_against_complete)
class CreatesByCompleting(SoundRecords):
    """complete() is an upsert: where there is no record, it makes one."""

    def settle(self, key: str, owner: str, response: bytes, retention_ms: int) -> Completion:
        if self.name(key) not in self.server.rows:
            self.insert(key, self.new_row(owner, "any", 1, 1000))
        return super().settle(key, owner, response, retention_ms)


@WING.mutant(
    ownership.late_owner_extends,
    classifying.mismatch_writes_nothing,
    classifying.abandoned_is_shown,
    effects.effect_is_completed,
)
class RefusesLateExtensions(SoundRecords):
    """E3. extend() of an ended lock is refused, although nobody took over."""

    def prolong(self, key: str, owner: str, lock_ttl_ms: int) -> bool:
        row = self.find(key)
        return row is not None and self.is_live(row) and super().prolong(key, owner, lock_ttl_ms)


@WING.mutant(ownership.ended_is_nobodys)
class RevivesTheEnded(SoundRecords):
    """extend() looks at the owner, and not at the record's end."""

    def prolong(self, key: str, owner: str, lock_ttl_ms: int) -> bool:
        row = self.server.rows.get(self.name(key))
        if row is None or row.completed or not self.is_mine(row, owner):
            return False
        self.move(row, self.now() + lock_ttl_ms)
        return True


@WING.mutant(ownership.ended_is_nobodys)
class CompletesTheEnded(SoundRecords):
    """complete() looks at the owner, and not at the record's end."""

    def settle(self, key: str, owner: str, response: bytes, retention_ms: int) -> Completion:
        row = self.server.rows.get(self.name(key))
        if row is not None and self.has_ended(row) and self.is_mine(row, owner):
            self.store(row, response, retention_ms)
        return super().settle(key, owner, response, retention_ms)


@WING.mutant(ownership.ended_is_nobodys)
class ReleasesTheEnded(SoundRecords):
    """release() looks at the owner, and not at the record's end."""

    def free(self, key: str, owner: str) -> bool:
        row = self.server.rows.get(self.name(key))
        if row is not None and self.has_ended(row) and not row.completed and self.is_mine(row, owner):
            self.server.rows.pop(self.name(key))
            return True
        return super().free(key, owner)


@WING.mutant(
    ownership.owner_completes,
    repeating.complete_is_repeated,
    extending.completed_is_immutable,
    responses.empty_is_kept,
    responses.nul_is_kept,
    responses.every_byte_is_kept,
    responses.looks_are_nothing,
    responses.large_is_kept,
    responses.fingerprint_is_kept,
    responses.complete_is_one_write,
    races.acquire_against_complete,
    races.completions_agree,
)
class AnswersOnce(SoundRecords):
    """A response is given to one repetition, and then forgotten."""

    def replay(self, row: Row, owner: str) -> AcquireReply:
        row.expires = 0
        return super().replay(row, owner)


@WING.mutant(
    ownership.replaced_does_not_complete,
    ownership.stranger_does_not_complete,
    ownership.owners_are_exact,
    repeating.complete_after_release,
    releasing.released_second_has_no_owner,
    races.complete_against_takeover,
)
class CompletesByKeyAlone(SoundRecords):
    """C1. complete() stores the outcome of whatever is in flight under the key."""

    def settle(self, key: str, owner: str, response: bytes, retention_ms: int) -> Completion:
        row = self.find(key)
        return super().settle(key, row.owner if row and not row.completed else owner, response, retention_ms)


@WING.mutant(
    ownership.replaced_does_not_complete,
    ownership.stranger_does_not_complete,
    ownership.owners_are_exact,
    repeating.complete_after_release,
    releasing.released_second_has_no_owner,
    races.complete_against_takeover,
)
class WritesThenCompares(SoundRecords):
    """C1. complete() stores what it was given, then looks whose record it was, and says STALE too late."""

    def settle(self, key: str, owner: str, response: bytes, retention_ms: int) -> Completion:
        row = self.find(key)
        if row is not None and not row.completed:
            self.store(row, response, retention_ms)
        return super().settle(key, owner, response, retention_ms)


@WING.mutant(
    ownership.replaced_does_not_overwrite, ownership.stranger_does_not_complete, extending.completed_is_immutable
)
class OverwritesOutcomes(SoundRecords):
    """C2. complete() checks the owner of what is in flight, and not that of what is completed."""

    def settle(self, key: str, owner: str, response: bytes, retention_ms: int) -> Completion:
        row = self.find(key)
        if row is not None and row.completed and not self.is_mine(row, owner):
            self.store(row, response, retention_ms)
        return super().settle(key, owner, response, retention_ms)


@WING.mutant(
    ownership.stranger_does_not_complete,
    ownership.replaced_does_not_complete,
    ownership.replaced_does_not_overwrite,
    ownership.owners_are_exact,
    repeating.complete_after_release,
    extending.completed_is_immutable,
    releasing.released_second_has_no_owner,
    races.complete_against_takeover,
)
class TellsGoneForStale(SoundRecords):
    """complete() of another's record says that there is none."""

    def settle(self, key: str, owner: str, response: bytes, retention_ms: int) -> Completion:
        reply = super().settle(key, owner, response, retention_ms)
        return Completion.GONE if reply is Completion.STALE else reply


@WING.mutant(ownership.late_owner_completes, ownership.stranger_does_not_complete)
class RefusesLateCompletions(SoundRecords):
    """C3. complete() after the lock's end is stale, although nobody took over."""

    def settle(self, key: str, owner: str, response: bytes, retention_ms: int) -> Completion:
        row = self.find(key)
        if row is not None and not row.completed and not self.is_live(row):
            return Completion.STALE
        return super().settle(key, owner, response, retention_ms)


@WING.mutant(
    ownership.replaced_does_not_release,
    ownership.stranger_does_not_release,
    ownership.owners_are_exact,
    races.acquire_against_release,
    races.release_against_takeover,
)
class ReleasesByKeyAlone(SoundRecords):
    """R1. release() frees whatever is in flight under the key."""

    def free(self, key: str, owner: str) -> bool:
        row = self.find(key)
        return super().free(key, row.owner if row and not row.completed and self.is_live(row) else owner)


@WING.mutant(ownership.stranger_does_not_release)
class ReleasesAbandonedForAnyone(SoundRecords):
    """release() frees an abandoned execution for whoever asks."""

    def free(self, key: str, owner: str) -> bool:
        row = self.find(key)
        abandoned = row is not None and not row.completed and not self.is_live(row) and row.owner
        return super().free(key, row.owner if row and abandoned else owner)


@WING.mutant(ownership.owners_are_exact)
class FoldsOwners(SoundRecords):
    """The owner's column ignores case."""

    def owner_name(self, owner: str) -> str:
        return owner.casefold() if owner.startswith("a:") else owner

    def store(self, row: Row, response: Any, retention_ms: int) -> None:
        super().store(row, response, retention_ms)
        # What it shows is as it was given.
        row.owner = row.owner.replace("a:cat", "a:Cat")


@WING.mutant(races.extend_against_takeover, races.extend_against_complete)
class ExtendsInTwoRequests(SoundRecords):
    """E1, E2. extend() reads whose record it is, and writes in a second request."""

    async def extend(self, key: str, owner: str, lock_ttl_ms: int) -> bool:
        self.check_names(key, owner)
        self.check_span(lock_ttl_ms)
        row = self.find(key)
        if row is None or row.completed or not self.is_mine(row, owner):
            return await super().extend(key, owner, lock_ttl_ms)
        await self.travel()
        found = self.find(key)
        if found is not None:
            self.move(found, self.now() + lock_ttl_ms)
        return True


@WING.mutant(races.complete_against_takeover)
class CompletesInTwoRequests(SoundRecords):
    """C3, C4. complete() reads whose record it is, and writes in a second request."""

    async def complete(self, key: str, owner: str, response: bytes, retention_ms: int) -> Completion:
        self.check_names(key, owner)
        self.check_body(response)
        self.check_span(retention_ms)
        row = self.find(key)
        may = row is not None and not row.completed and self.is_mine(row, owner)
        await self.travel()
        await self.unlocked(key)
        found = self.find(key)
        if may and found is not None:
            self.store(found, response, retention_ms)
            return Completion.STORED
        return self.settle(key, owner, response, retention_ms)


@WING.mutant(races.release_against_takeover, races.acquire_against_release, races.release_against_complete)
class ReleasesInTwoRequests(SoundRecords):
    """A4, R1, R2. release() reads whose record it is, and deletes in a second request."""

    async def release(self, key: str, owner: str) -> bool:
        self.check_names(key, owner)
        row = self.find(key)
        may = row is not None and not row.completed and not row.effect and self.is_mine(row, owner)
        await self.travel()
        await self.unlocked(key)
        found = self.find(key)
        if may and found is not None:
            self.forget(key, found)
            return True
        return self.free(key, owner)


@WING.mutant(races.acquire_against_complete, responses.complete_is_one_write, races.completions_agree)
class CompletesByDeleting(SoundRecords):
    """A3. complete() deletes the claim in one request, and inserts the outcome in a second."""

    async def complete(self, key: str, owner: str, response: bytes, retention_ms: int) -> Completion:
        reply = await super().complete(key, owner, response, retention_ms)
        row = self.server.rows.get(self.name(key))
        if reply is Completion.STORED and row is not None:
            del self.server.rows[self.name(key)]
            await self.travel()
            self.server.rows[self.name(key)] = row
        return reply
