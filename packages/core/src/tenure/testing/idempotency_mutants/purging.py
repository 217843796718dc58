"""Stores whose purge deletes what it must not, or not what it has to."""

from tenure.idempotency_store import AcquireReply
from tenure.testing.idempotency_contract import purging, races
from tenure.testing.idempotency_mutants.model import Row, SoundRecords
from tenure.testing.idempotency_mutants.museum import Wing

__all__ = ["WING"]

WING = Wing()


@WING.mutant(purging.purge_leaves_what_lives)
class PurgesAbandoned(SoundRecords):
    """purge() deletes what its lock has left."""

    def may_go(self, row: Row) -> bool:
        return super().may_go(row) or (not row.completed and not self.is_live(row))


@WING.mutant(purging.purge_leaves_what_lives, purging.purge_leaves_what_began_anew)
class PurgesCompleted(SoundRecords):
    """purge() deletes what is completed, although it is still replayed."""

    def may_go(self, row: Row) -> bool:
        return row.completed or super().may_go(row)


@WING.mutant(purging.purge_leaves_what_began_anew, races.purge_against_acquire)
class PurgesByTheFirstEnd(SoundRecords):
    """purge() goes by the end that the key had first."""

    def insert(self, key: str, new: Row) -> AcquireReply:
        self.server.marks.setdefault(f"ends {key}", new.expires)
        return super().insert(key, new)

    def may_go(self, row: Row) -> bool:
        ends = [self.server.marks.get(f"ends {name}") for name, one in self.server.rows.items() if one is row]
        return super().may_go(row) or (ends[0] is not None and ends[0] <= self.now())


@WING.mutant(races.purge_against_acquire)
class PurgesInTwoRequests(SoundRecords):
    """A5. purge() reads what has ended, and deletes it in a second request."""

    async def purge(self, limit: int = 1000) -> int:
        self.check_count(limit)
        ended = [name for name, row in self.server.rows.items() if self.may_go(row)][:limit]
        await self.travel()
        await self.travel()
        return sum(self.server.rows.pop(name, None) is not None for name in ended)


@WING.mutant(purging.purge_deletes_what_ended)
class PurgesNothing(SoundRecords):
    """purge() finds nothing, ever."""

    def may_go(self, row: Row) -> bool:
        del row
        return False


@WING.mutant(purging.purge_deletes_what_ended)
class IgnoresTheLimit(SoundRecords):
    """purge() deletes all at once."""

    async def purge(self, limit: int = 1000) -> int:
        self.check_count(limit)
        return await super().purge(1_000_000)


@WING.mutant(purging.purge_deletes_what_ended, purging.purge_leaves_what_lives, purging.purge_leaves_what_began_anew)
class CountsNothing(SoundRecords):
    """purge() answers that something was deleted."""

    async def purge(self, limit: int = 1000) -> int:
        return await super().purge(limit) > 0
