"""Stores that let two begin, or too few."""

from tenure.idempotency_store import Abandoned, Acquired, AcquireReply, InFlight
from tenure.testing.idempotency_contract import (
    beginning,
    effects,
    extending,
    ownership,
    purging,
    races,
    repeating,
    surviving,
)
from tenure.testing.idempotency_mutants.model import Row, SoundRecords
from tenure.testing.idempotency_mutants.museum import Wing

__all__ = ["WING"]

WING = Wing()


@WING.mutant(
    beginning.one_of_two_begins, races.absent_has_one_winner, races.ended_has_one_winner, races.payloads_at_once
)
class ReadsThenWrites(SoundRecords):
    """A1. acquire() reads that the key is new, and writes in a second request."""

    async def acquire(  # noqa: PLR0913 -- the contract's
        self, key: str, owner: str, fingerprint: str, lock_ttl_ms: int, grace_ms: int, *, takeover: bool = True
    ) -> AcquireReply:
        was_absent = self.find(key) is None
        reply = await super().acquire(key, owner, fingerprint, lock_ttl_ms, grace_ms, takeover=takeover)
        if was_absent and not isinstance(reply, Acquired):
            return self.insert(key, self.new_row(owner, fingerprint, lock_ttl_ms, grace_ms))
        return reply


@WING.mutant(
    races.abandoned_has_one_winner,
    races.extend_against_takeover,
    races.complete_against_takeover,
    races.release_against_takeover,
)
class TakesOverInTwoRequests(SoundRecords):
    """A2. acquire() reads that an execution is abandoned, and takes over in a second request."""

    async def acquire(  # noqa: PLR0913 -- the contract's
        self, key: str, owner: str, fingerprint: str, lock_ttl_ms: int, grace_ms: int, *, takeover: bool = True
    ) -> AcquireReply:
        self.check_names(key, owner)
        row = self.find(key)
        was_abandoned = row is not None and not row.completed and not self.is_live(row) and takeover
        reply = await super().acquire(key, owner, fingerprint, lock_ttl_ms, grace_ms, takeover=takeover)
        row = self.find(key)
        if was_abandoned and row is not None and isinstance(reply, InFlight):
            return self.take_over(key, row, self.new_row(owner, fingerprint, lock_ttl_ms, grace_ms))
        return reply


@WING.mutant(races.ended_has_one_winner)
class DeletesThenInserts(SoundRecords):
    """A1. acquire() first deletes what has ended in a request of its own, whatever is there by then."""

    async def acquire(  # noqa: PLR0913 -- the contract's
        self, key: str, owner: str, fingerprint: str, lock_ttl_ms: int, grace_ms: int, *, takeover: bool = True
    ) -> AcquireReply:
        self.check_names(key, owner)
        row = self.server.rows.get(key)
        if row is not None and self.has_ended(row):
            await self.travel()
            self.server.rows.pop(key, None)
            return self.insert(key, self.new_row(owner, fingerprint, lock_ttl_ms, grace_ms))
        return await super().acquire(key, owner, fingerprint, lock_ttl_ms, grace_ms, takeover=takeover)


@WING.mutant(beginning.in_flight_is_refused)
class LetsInWhoAsksAgain(SoundRecords):
    """The third repetition of a client is let in."""

    def wait_for(self, row: Row, owner: str) -> AcquireReply:
        asked = self.server.marks.get(f"{id(row)} {owner}", 0) + 1
        self.server.marks[f"{id(row)} {owner}"] = asked
        if asked > 2:
            return Acquired(row.attempt)
        return super().wait_for(row, owner)


@WING.mutant(
    beginning.keys_are_independent,
    ownership.ended_is_nobodys,
    repeating.repeated_acquire_keeps_the_grace,
    repeating.repeated_complete_keeps_the_retention,
    extending.extend_after_complete,
    surviving.records_survive,
    purging.purge_leaves_what_began_anew,
    effects.rolled_back_is_none,
)
class OneRecordAnOwner(SoundRecords):
    """An owner that is at one key is refused every other."""

    def insert(self, key: str, new: Row) -> AcquireReply:
        for other in self.server.rows.values():
            if other.owner == new.owner and not other.completed and self.is_live(other):
                return InFlight(1)
        return super().insert(key, new)


@WING.mutant(beginning.absent_is_begun)
class RefusesTheFirstCaller(SoundRecords):
    """The first call after the server's start makes the table, and is refused. The first case makes that call."""

    def insert(self, key: str, new: Row) -> AcquireReply:
        if not self.server.marks.setdefault("made", 0):
            self.server.marks["made"] = 1
            return InFlight(1)
        return super().insert(key, new)


@WING.mutant(beginning.absent_needs_no_takeover)
class NeedsATakeover(SoundRecords):
    """acquire() of an absent record is shown as abandoned to who takes nothing over."""

    def take(self, key: str, owner: str, new: Row, *, takeover: bool) -> AcquireReply:
        if self.find(key) is None and not takeover:
            return Abandoned(1)
        return super().take(key, owner, new, takeover=takeover)


@WING.mutant(beginning.begun_is_recorded, purging.purge_leaves_what_began_anew, races.ended_has_one_winner)
class ProceedsWithoutARecord(SoundRecords):
    """A9. The insert does nothing where a row has ended, the look after it finds none, and the caller proceeds."""

    def insert(self, key: str, new: Row) -> AcquireReply:
        if self.name(key) in self.server.rows:
            return Acquired(new.attempt)
        return super().insert(key, new)
