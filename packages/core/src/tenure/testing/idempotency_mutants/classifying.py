"""Stores that take one state for another."""

from dataclasses import replace

from tenure.idempotency_store import Abandoned, AcquireReply, InFlight
from tenure.testing.idempotency_contract import (
    classifying,
    effects,
    ending,
    names,
    ownership,
    races,
    releasing,
    responses,
    surviving,
)
from tenure.testing.idempotency_mutants.model import Row, SoundRecords
from tenure.testing.idempotency_mutants.museum import Wing

__all__ = ["WING"]

WING = Wing()


@WING.mutant(
    classifying.mismatch_in_flight,
    classifying.mismatch_writes_nothing,
    classifying.takeover_keeps_the_payload,
    surviving.records_survive,
    names.payloads_are_exact,
    names.long_payloads_are_whole,
    races.payloads_at_once,
)
class InFlightFirst(SoundRecords):
    """A8. What is in flight is told so, whatever payload comes."""

    def is_same(self, row: Row, new: Row) -> bool:
        return super().is_same(row, new) or (not row.completed and self.is_live(row))


@WING.mutant(classifying.mismatch_abandoned, releasing.released_second_keeps_its_payload)
class AnyPayloadAfterACrash(SoundRecords):
    """A10. An abandoned execution may be begun again with another payload."""

    def is_same(self, row: Row, new: Row) -> bool:
        return super().is_same(row, new) or (not row.completed and not self.is_live(row))


@WING.mutant(classifying.mismatch_completed, responses.fingerprint_is_kept)
class AnyPayloadAfterTheOutcome(SoundRecords):
    """A response is given to any payload."""

    def is_same(self, row: Row, new: Row) -> bool:
        return super().is_same(row, new) or row.completed


@WING.mutant(classifying.mismatch_in_flight, classifying.mismatch_abandoned, classifying.mismatch_writes_nothing)
class OwnPayloadMayDiffer(SoundRecords):
    """The recorded owner may come with another payload."""

    def is_same(self, row: Row, new: Row) -> bool:
        return super().is_same(row, new) or (row.owner == new.owner and not row.completed)


@WING.mutant(classifying.mismatch_writes_nothing)
class MismatchExtends(SoundRecords):
    """A mismatch keeps the lock alive."""

    def mismatch(self, row: Row, owner: str) -> AcquireReply:
        reply = super().mismatch(row, owner)
        if not row.completed and self.is_live(row):
            self.move(row, self.now() + 60_000)
        return reply


@WING.mutant(
    classifying.in_flight_writes_nothing,
    classifying.what_is_left_is_told,
    ending.in_flight_until_the_lock_ends,
    ownership.stranger_does_not_release,
)
class PollingExtends(SoundRecords):
    """Who is told that it is in flight keeps the lock alive."""

    def wait_for(self, row: Row, owner: str) -> AcquireReply:
        reply = super().wait_for(row, owner)
        self.move(row, self.now() + 60_000)
        return reply


@WING.mutant(classifying.abandoned_is_shown, ownership.stranger_does_not_extend)
class TakesOverAtTheSecondLook(SoundRecords):
    """takeover=False is heeded once a record: who asks next takes over."""

    def take_same(self, key: str, row: Row, owner: str, new: Row, *, takeover: bool) -> AcquireReply:
        looked = self.server.marks.get(f"looked at {id(row)}") is row
        reply = super().take_same(key, row, owner, new, takeover=takeover or looked)
        if isinstance(reply, Abandoned):
            self.server.marks[f"looked at {id(row)}"] = row
        return reply


@WING.mutant(
    classifying.abandoned_is_shown,
    ownership.stranger_does_not_extend,
    releasing.second_is_not_forgotten,
    effects.effect_is_never_repeated,
    effects.rolled_back_is_none,
)
class CountsLooks(SoundRecords):
    """Each look at an abandoned execution counts as an attempt."""

    def show(self, row: Row) -> AcquireReply:
        reply = super().show(row)
        row.attempt += 1
        return reply


@WING.mutant(
    classifying.takeovers_are_counted, releasing.second_is_not_forgotten, releasing.released_second_has_no_owner
)
class CountsToTwo(SoundRecords):
    """A takeover is the second attempt, always."""

    def take_over(self, key: str, row: Row, new: Row) -> AcquireReply:
        return super().take_over(key, replace(row, attempt=1), new)


@WING.mutant(classifying.takeover_keeps_the_payload, releasing.released_second_keeps_its_payload)
class TakeoverForgetsThePayload(SoundRecords):
    """A takeover writes the row without its fingerprint, which then is any."""

    def take_over(self, key: str, row: Row, new: Row) -> AcquireReply:
        new.fingerprint = ""
        return super().take_over(key, row, new)

    def is_same(self, row: Row, new: Row) -> bool:
        return not row.fingerprint or super().is_same(row, new)


@WING.mutant(classifying.own_needs_no_takeover)
class OwnNeedsATakeover(SoundRecords):
    """A6. The owner of an abandoned execution is refused where it takes nothing over."""

    def repeat(self, row: Row, new: Row, *, takeover: bool) -> AcquireReply:
        if not takeover and not self.is_live(row):
            return Abandoned(row.attempt)
        return super().repeat(row, new, takeover=takeover)


@WING.mutant(classifying.what_is_left_is_told)
class TellsWholeSeconds(SoundRecords):
    """What is left of a lock is told in whole seconds."""

    def wait_for(self, row: Row, owner: str) -> AcquireReply:
        del owner
        return InFlight((row.lock_ends - self.now()) // 1000)


@WING.mutant(classifying.what_is_left_is_told)
class TellsTheRecordsEnd(SoundRecords):
    """What is left is told of the record, its grace included."""

    def wait_for(self, row: Row, owner: str) -> AcquireReply:
        del owner
        return InFlight(row.expires - self.now())


@WING.mutant(classifying.what_is_left_is_told)
class TellsAFloat(SoundRecords):
    """What is left of a lock is told with its fraction."""

    def wait_for(self, row: Row, owner: str) -> AcquireReply:
        del owner
        return InFlight((row.lock_ends - self.now()) / 1)  # type: ignore[arg-type]


@WING.mutant(races.payloads_at_once)
class ComparesInAReadOfItsOwn(SoundRecords):
    """A8. acquire() reads the fingerprint first; where nothing was recorded it compares nothing afterwards."""

    async def acquire(  # noqa: PLR0913 -- the contract's
        self, key: str, owner: str, fingerprint: str, lock_ttl_ms: int, grace_ms: int, *, takeover: bool = True
    ) -> AcquireReply:
        self.check_names(key, owner)
        self.check_payload(fingerprint)
        row = self.find(key)
        known = fingerprint if row is not None else None
        self.check_span(lock_ttl_ms)
        self.check_span(grace_ms)
        await self.travel()
        await self.unlocked(key)
        new = self.new_row(owner, fingerprint, lock_ttl_ms, grace_ms)
        now_there = self.find(key)
        if known is None and now_there is not None:
            new.fingerprint = now_there.fingerprint
        return self.take(key, owner, new, takeover=takeover)
