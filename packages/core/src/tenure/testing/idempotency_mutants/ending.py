"""Stores whose locks, graces and retentions end at another time."""

from typing import Any

from tenure._durations import MAX_MS
from tenure.idempotency_store import AcquireReply
from tenure.testing.idempotency_contract import (
    beginning,
    classifying,
    ending,
    extending,
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


@WING.mutant(ending.in_flight_until_the_lock_ends, classifying.in_flight_writes_nothing)
class LocksEndEarly(SoundRecords):
    """A lock ends two milliseconds early."""

    def is_live(self, row: Row) -> bool:
        return row.lock_ends - 2 > self.now()


@WING.mutant(
    ending.in_flight_until_the_lock_ends, classifying.mismatch_writes_nothing, classifying.in_flight_writes_nothing
)
class LocksEndLate(SoundRecords):
    """A lock ends two milliseconds late."""

    def is_live(self, row: Row) -> bool:
        # A released one is no lock.
        return row.lock_ends + 2 > self.now() and row.owner != ""


@WING.mutant(ending.kept_until_the_grace_ends)
class GraceBeginsAtOnce(SoundRecords):
    """The grace is counted from the acquisition, not from the lock's end."""

    def new_row(self, owner: str, fingerprint: str, lock_ttl_ms: int, grace_ms: int) -> Row:
        row = super().new_row(owner, fingerprint, lock_ttl_ms, grace_ms)
        row.expires = max(row.lock_ends, self.now() + row.grace_ms)
        return row


@WING.mutant(
    ending.kept_until_the_grace_ends,
    beginning.begun_is_recorded,
    ending.grace_is_the_records,
    ending.takeover_has_its_own_grace,
    ending.extension_moves_the_grace,
    ending.times_are_not_rounded_up,
    ending.extreme_times,
    ownership.ended_is_nobodys,
    repeating.repeated_acquire_keeps_the_grace,
    releasing.released_second_has_its_grace,
    purging.purge_leaves_what_began_anew,
    purging.purge_deletes_what_ended,
    races.ended_has_one_winner,
    races.purge_against_acquire,
)
class NeverForgetsAbandoned(SoundRecords):
    """What was begun and not completed is kept for ever."""

    def has_ended(self, row: Row) -> bool:
        return row.completed and super().has_ended(row)


@WING.mutant(
    ending.kept_until_the_retention_ends,
    ending.times_are_not_rounded_up,
    ending.extreme_times,
    ownership.ended_is_nobodys,
    repeating.repeated_complete_keeps_the_retention,
    extending.extend_after_complete,
    responses.complete_is_one_write,
    purging.purge_deletes_what_ended,
)
class NeverForgetsCompleted(SoundRecords):
    """What was completed is kept for ever."""

    def has_ended(self, row: Row) -> bool:
        return not row.completed and super().has_ended(row)


@WING.mutant(
    ending.kept_until_the_retention_ends,
    ending.kept_until_the_grace_ends,
    ending.extension_moves_the_grace,
    extending.extend_keeps_the_records_end,
    releasing.released_second_has_its_grace,
)
class RecordsEndEarly(SoundRecords):
    """A record ends two milliseconds early."""

    def has_ended(self, row: Row) -> bool:
        return row.expires - 2 <= self.now()


@WING.mutant(
    ending.kept_until_the_retention_ends,
    ending.kept_until_the_grace_ends,
    ending.extension_moves_the_grace,
    releasing.released_second_has_its_grace,
)
class RecordsEndLate(SoundRecords):
    """A record ends two milliseconds late."""

    def has_ended(self, row: Row) -> bool:
        return row.expires + 2 <= self.now()


@WING.mutant(
    ending.retention_replaces_the_grace,
    ending.kept_until_the_retention_ends,
    ending.times_are_not_rounded_up,
    ending.times_past_31_bits,
    ending.times_past_32_bits,
    ending.extreme_times,
    ownership.ended_is_nobodys,
    repeating.repeated_complete_keeps_the_retention,
    extending.extend_after_complete,
    responses.complete_is_one_write,
    purging.purge_leaves_what_began_anew,
    purging.purge_deletes_what_ended,
    races.extend_against_complete,
)
class KeepsTheGraceAtCompletion(SoundRecords):
    """C7. complete() writes the response and not its time."""

    def store(self, row: Row, response: Any, retention_ms: int) -> None:
        del retention_ms
        row.completed, row.response = True, response


@WING.mutant(
    ending.retention_replaces_the_grace,
    ending.times_past_31_bits,
    ending.times_past_32_bits,
    extending.extend_after_complete,
    purging.purge_leaves_what_began_anew,
    races.extend_against_complete,
)
class TakesTheBrieferEnd(SoundRecords):
    """complete() never lengthens what the record has."""

    def store(self, row: Row, response: Any, retention_ms: int) -> None:
        row.completed, row.response = True, response
        row.expires = min(row.expires, self.now() + retention_ms)


@WING.mutant(
    ending.kept_until_the_retention_ends,
    ending.times_are_not_rounded_up,
    ending.extreme_times,
    ownership.ended_is_nobodys,
    repeating.repeated_complete_keeps_the_retention,
    extending.extend_after_complete,
    responses.complete_is_one_write,
    purging.purge_deletes_what_ended,
)
class TakesTheLongerEnd(SoundRecords):
    """complete() never shortens what the record has."""

    def store(self, row: Row, response: Any, retention_ms: int) -> None:
        row.completed, row.response = True, response
        row.expires = max(row.expires, self.now() + retention_ms)


@WING.mutant(
    ending.grace_is_the_records,
    beginning.begun_is_recorded,
    ending.takeover_has_its_own_grace,
    ending.times_are_not_rounded_up,
    ending.times_past_31_bits,
    ending.times_past_32_bits,
    ending.extreme_times,
    ownership.ended_is_nobodys,
    repeating.repeated_acquire_keeps_the_grace,
    releasing.released_second_has_its_grace,
    races.ended_has_one_winner,
    races.purge_against_acquire,
)
class OneGraceForAll(SoundRecords):
    """The store keeps one grace: the one that was told last."""

    def has_ended(self, row: Row) -> bool:
        if row.completed:
            return super().has_ended(row)
        grace_ms: int = self.server.marks.get("grace", row.grace_ms)
        return row.lock_ends + grace_ms <= self.now()

    def insert(self, key: str, new: Row) -> AcquireReply:
        self.server.marks["grace"] = new.grace_ms
        return super().insert(key, new)


@WING.mutant(ending.takeover_has_its_own_grace, releasing.released_second_has_its_grace)
class TakeoverKeepsTheGrace(SoundRecords):
    """A takeover keeps the grace of the attempt before it."""

    def take_over(self, key: str, row: Row, new: Row) -> AcquireReply:
        new.grace_ms, new.expires = row.grace_ms, new.lock_ends + row.grace_ms
        return super().take_over(key, row, new)


@WING.mutant(
    ending.extension_moves_the_grace,
    ending.times_past_31_bits,
    ending.times_past_32_bits,
    purging.purge_leaves_what_began_anew,
)
class ExtensionLeavesTheEnd(SoundRecords):
    """extend() moves the lock, and leaves the record's end."""

    def move(self, row: Row, lock_ends: int) -> None:
        row.lock_ends = max(row.lock_ends, lock_ends)


@WING.mutant(
    ending.times_are_not_rounded_up,
    beginning.begun_is_recorded,
    classifying.what_is_left_is_told,
    ending.extreme_times,
    ownership.ended_is_nobodys,
    purging.purge_deletes_what_ended,
    races.ended_has_one_winner,
    races.purge_against_acquire,
)
class CountsQuarters(SoundRecords):
    """Durations are rounded up to quarters of a second."""

    def span(self, span_ms: int) -> int:
        return -(-span_ms // 250) * 250


@WING.mutant(
    ending.in_flight_until_the_lock_ends,
    classifying.mismatch_writes_nothing,
    classifying.in_flight_writes_nothing,
    ownership.replaced_does_not_extend,
    ownership.stranger_does_not_release,
    extending.extend_keeps_the_records_end,
    extending.extend_does_not_add,
    releasing.second_is_not_forgotten,
    releasing.released_second_keeps_its_payload,
    releasing.released_second_has_no_owner,
    releasing.released_second_has_its_grace,
    purging.purge_leaves_what_lives,
)
class LocksForAsLongAsTheRecord(SoundRecords):
    """A lock of a second or more lasts as long as the record: a crash blocks the key while a response would be kept."""

    def is_live(self, row: Row) -> bool:
        return super().is_live(row) or (row.expires - row.grace_ms == row.lock_ends and self.was_long(row))

    def was_long(self, row: Row) -> bool:
        return self.server.marks.get(f"long {id(row)}") is row

    def new_row(self, owner: str, fingerprint: str, lock_ttl_ms: int, grace_ms: int) -> Row:
        row = super().new_row(owner, fingerprint, lock_ttl_ms, grace_ms)
        if lock_ttl_ms >= 1000:
            self.server.marks[f"long {id(row)}"] = row
        return row


@WING.mutant(ending.times_are_not_cut)
class CountsSecondsDown(SoundRecords):
    """Durations under a second are cut to none."""

    def span(self, span_ms: int) -> int:
        return 0 if 900 < span_ms < 1000 else span_ms


@WING.mutant(ending.times_past_31_bits)
class CountsIn31Bits(SoundRecords):
    """Durations are numbers of 32 bits with a sign."""

    def span(self, span_ms: int) -> int:
        return (span_ms + 2**31) % 2**32 - 2**31 if span_ms < 2**32 else span_ms


@WING.mutant(ending.times_past_32_bits, classifying.what_is_left_is_told)
class CountsIn32Bits(SoundRecords):
    """Durations are numbers of 32 bits."""

    def span(self, span_ms: int) -> int:
        return span_ms % 2**32


@WING.mutant(ending.times_past_32_bits, classifying.what_is_left_is_told)
class CutsTo32Bits(SoundRecords):
    """Durations are cut to the greatest number of 32 bits: what ends after 49 days looks long enough at first."""

    def span(self, span_ms: int) -> int:
        return min(span_ms, 2**31)


@WING.mutant(ending.extreme_times)
class OverflowsItsDate(SoundRecords):
    """A lock and a grace of a hundred years each are a date that the server does not know."""

    def new_row(self, owner: str, fingerprint: str, lock_ttl_ms: int, grace_ms: int) -> Row:
        if lock_ttl_ms + grace_ms > MAX_MS + 3_600_000:
            raise OverflowError("date out of range")
        return super().new_row(owner, fingerprint, lock_ttl_ms, grace_ms)


@WING.mutant(
    ending.extreme_times,
    beginning.begun_is_recorded,
    purging.purge_deletes_what_ended,
    races.ended_has_one_winner,
    races.purge_against_acquire,
)
class CountsHundredths(SoundRecords):
    """Durations are counted in hundredths of a second, and rounded up: a millisecond is fifty."""

    def span(self, span_ms: int) -> int:
        return max(span_ms, 50)
