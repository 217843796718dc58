"""Stores that list what is not there, wake nobody, or find fault with a sound server."""

import asyncio
import fnmatch
import re
from collections.abc import Sequence
from typing import Any

from tenure.store import Finding, LockRecord
from tenure.testing.contract import listing, waking
from tenure.testing.mutants.model import Row, SoundStore
from tenure.testing.mutants.museum import Wing

__all__ = ["WING"]

WING = Wing()


@WING.mutant(listing.lists_the_live)
class ListsInTheOrderOfLocking(SoundStore):
    """A listing is in the order in which the locks were taken."""

    def order(self, row: Row) -> Any:
        return row.token


@WING.mutant(listing.lists_the_live)
class ListsInAnotherOrder(SoundStore):
    """A listing is in the order of a language, which knows no case."""

    def order(self, row: Row) -> Any:
        return row.key.lower()


@WING.mutant(listing.leaves_out_the_released)
class ListsTheReleased(SoundStore):
    """A listing shows every row whose expiry lies ahead."""

    def is_listed(self, row: Row, prefix: str) -> bool:
        return row.expires_at > self.now() and row.key.startswith(prefix)


@WING.mutant(listing.leaves_out_the_expired)
class ListsTheExpired(SoundStore):
    """A listing shows every row that has an owner."""

    def is_listed(self, row: Row, prefix: str) -> bool:
        return row.owner is not None and row.key.startswith(prefix)


@WING.mutant(listing.prefix_is_exact)
class ListsLike(SoundStore):
    """The prefix is a pattern of LIKE: _ is any character, % any number of them, a backslash escapes."""

    def is_listed(self, row: Row, prefix: str) -> bool:
        pattern = re.escape(prefix).replace("_", ".").replace("%", ".*")
        return self.is_live(row) and re.match(pattern, row.key, re.DOTALL) is not None


@WING.mutant(listing.prefix_is_exact)
class ListsByPattern(SoundStore):
    """The prefix is a pattern of SCAN: *, ? and brackets are wildcards."""

    def is_listed(self, row: Row, prefix: str) -> bool:
        return self.is_live(row) and fnmatch.fnmatchcase(row.key, prefix + "*")


@WING.mutant(listing.prefix_is_exact)
class ListsInAnyCase(SoundStore):
    """The prefix is compared without case."""

    def is_listed(self, row: Row, prefix: str) -> bool:
        return self.is_live(row) and row.key.lower().startswith(prefix.lower())


@WING.mutant(listing.prefix_is_exact)
class ListsWhatContains(SoundStore):
    """A listing shows each key that has the prefix somewhere in it."""

    def is_listed(self, row: Row, prefix: str) -> bool:
        return self.is_live(row) and prefix in row.key


@WING.mutant(listing.records_are_true)
class ListsAStaleToken(SoundStore):
    """A listing shows the token of the lock before."""

    def record(self, row: Row) -> LockRecord:
        return LockRecord(row.key, row.owner or "", row.token - 1, self.left_ms(row))


@WING.mutant(listing.records_are_true)
class ListsSeconds(SoundStore):
    """A listing tells what is left in seconds."""

    def record(self, row: Row) -> LockRecord:
        return LockRecord(row.key, row.owner or "", row.token, int(row.expires_at - self.now()))


@WING.mutant(listing.records_are_true)
class ListsInstancesAsOwners(SoundStore):
    """A listing shows the instance where the owner should be."""

    def record(self, row: Row) -> LockRecord:
        return LockRecord(row.key, (row.owner or "").rpartition(":")[0], row.token, self.left_ms(row))


@WING.mutant(waking.release_wakes, waking.cancelled_waiter_takes_nothing)
class WakesNobody(SoundStore):
    """A release tells nobody."""

    def wake(self, key: str) -> None:
        del key


@WING.mutant(waking.cancelled_waiter_takes_nothing)
class WakesOneWhoLeft(SoundStore):
    """A release wakes the first in line, and a waiter that gave up stays in line."""

    async def released(self, key: str) -> None:
        line = self.server.waiters[key]
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # As many places as a test has releases.
        line.extend([waiter] * 10)
        await waiter

    def wake(self, key: str) -> None:
        line = self.server.waiters[key]
        if line:
            first = line.pop(0)
            if not first.done():
                first.set_result(None)


@WING.mutant(waking.sound_server_is_sound)
class CriesWolf(SoundStore):
    """A check finds a fatal fault in every server."""

    async def check(self) -> Sequence[Finding]:
        return [Finding("table-missing", True, "There is no table.", "Make one.")]
