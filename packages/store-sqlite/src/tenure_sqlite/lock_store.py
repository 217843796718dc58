"""
The lock store in a SQLite file: one row a key, one statement a call.

What each statement prevents stands in its file under `sql/`; how one is run, in `store_file.py`; on which clock,
in `clock.py`.
"""

import json
import os
from collections.abc import Sequence
from typing import Final, Literal, Self, final

from tenure._durations import Duration, to_ms
from tenure.store import (
    Acquired,
    Claim,
    Finding,
    Held,
    LockRecord,
    Reach,
    check_key,
    check_owner,
    check_ttl_ms,
)
from tenure_sqlite.clock import HostClock
from tenure_sqlite.place import Place
from tenure_sqlite.startup_check import check_file
from tenure_sqlite.statements import read_statement
from tenure_sqlite.store_file import Synchronous

__all__ = ["SqliteLockStore"]

_PRUNE_AT_LEAST_MS: Final = 60_000
"""The youngest dead row that may be pruned: a wall clock that is kept by NTP is not set back by more."""

_PRUNE_BATCH: Final = 1000
"""Rows deleted in one transaction: a few milliseconds, during which nobody else writes."""


@final
class SqliteLockStore:
    """
    Locks in a SQLite file, for the processes of one host.

    Each method is one statement in a transaction of its own; `acquire` looks first, so that a waiter writes nothing.
    The file and its tables are made at the first call. Expiry is on the host's boot clock, which nobody sets.

    Args:
        path: The file's path, on a local disk; a file of its own, for the store switches it to WAL.
        busy_timeout: How long a call may wait for another process' write, at most half a minute. Longer waits fail with
            `sqlite3.OperationalError` ("database is locked"), and nothing is changed.
        synchronous: "full" waits for the disk at each commit. "normal" does not: a power failure may undo the last
            commits, whose holders it ended too. Tokens go on from the wall clock then, which has to be right at boot.
        clock: The host's clock. Given by tests.

    Raises:
        ConfigurationError: The path is none of a file that processes share, or an option is out of range.
    """

    reach: Reach = "host"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        busy_timeout: Duration = 5,
        synchronous: Synchronous = "full",
        clock: HostClock | None = None,
    ) -> None:
        self._place = Place(path, clock)
        self._file = self._place.file(busy_timeout, synchronous)
        self.path = self._place.path

    async def acquire(self, key: str, owner: str, ttl_ms: int) -> Acquired | Held:
        """
        Take *key* for *owner*, if no live lock of another owner is on it.

        Returns:
            `Acquired` with the token, or `Held` with what is left. The recorded owner of a live lock gets its token
            again and a fresh ttl.

        Raises:
            ConfigurationError: The key, owner or ttl is outside the rules; nothing was done.
            LockFileReplacedError: The file is not the one that was opened; nothing was done.
            ForeignClockError: Another kernel uses the file; nothing was done.
            sqlite3.Error: As SQLite has it, with a note on what to do.
        """
        check_key(key)
        check_owner(owner)
        check_ttl_ms(ttl_ms)
        asked = {"key": key, "owner": owner}
        while True:
            for row in await self._file.read(read_statement("look"), asked):
                return Held(expires_in_ms=row[0])
            for row in await self._file.write(read_statement("take"), {**asked, "ttl_us": ttl_ms * 1000}):
                return Acquired(token=row[0], after=row[1])
            # Another took it between the two: the next look tells for how long.

    async def renew(self, key: str, owner: str, ttl_ms: int) -> bool:
        """Move the expiry of *key* to *ttl_ms* from now, if *owner* still holds it. Raises as `acquire`."""
        check_key(key)
        check_owner(owner)
        check_ttl_ms(ttl_ms)
        asked = {"key": key, "owner": owner, "ttl_us": ttl_ms * 1000}
        return bool(await self._file.write(read_statement("renew"), asked))

    async def renew_many(self, claims: Sequence[Claim]) -> Sequence[bool]:
        """Renew each of *claims*, in one transaction; every answer is known at once here. Raises as `acquire`."""
        for claim in claims:
            check_key(claim.key)
            check_owner(claim.owner)
            check_ttl_ms(claim.ttl_ms)
        if not claims:
            return []
        sent = json.dumps([(claim.key, claim.owner, claim.ttl_ms * 1000) for claim in claims])
        rows = await self._file.write(read_statement("renew_many"), {"claims": sent})
        renewed = {(row[0], row[1]) for row in rows}
        return [(claim.key, claim.owner) in renewed for claim in claims]

    async def release(self, key: str, owner: str) -> bool:
        """Give *key* back, if *owner* still holds it. Its row stays, with its token. Raises as `acquire`."""
        check_key(key)
        check_owner(owner)
        return bool(await self._file.write(read_statement("release"), {"key": key, "owner": owner}))

    async def list_locks(self, prefix: str = "") -> Sequence[LockRecord]:
        """List the live locks whose key begins with *prefix*, sorted by the bytes of their keys."""
        if prefix:
            check_key(prefix)
        rows = await self._file.read(read_statement("list_locks"), {"prefix": prefix})
        return [LockRecord(*row) for row in rows]

    async def prune(self, older_than: Duration = "7d") -> int:
        """
        Delete the rows of keys that nobody holds and that were last acquired *older_than* ago.

        A row costs some hundred bytes; prune where keys are made up as work comes (`order:4711`), not where they are
        the names of jobs. The next token of a key without a row is the wall clock: past every token that was pruned,
        unless that clock is set back by more than *older_than*.

        Args:
            older_than: At least a minute.

        Returns:
            How many rows were deleted.

        Raises:
            ConfigurationError: It is shorter than a minute.
        """
        older_than_us = to_ms(older_than, name="older_than", at_least_ms=_PRUNE_AT_LEAST_MS) * 1000
        asked = {"older_than_us": older_than_us, "batch": _PRUNE_BATCH}
        pruned, batch = 0, _PRUNE_BATCH
        while batch == _PRUNE_BATCH:
            batch = len(await self._file.write(read_statement("prune"), asked))
            pruned += batch
        return pruned

    async def check(self) -> Sequence[Finding]:
        """Look at SQLite, the file and where it lies, without writing; see `tenure_sqlite.startup_check`."""
        return await check_file(self._place)

    async def aclose(self) -> None:
        """Close the file. May be called again."""
        await self._file.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> Literal[False]:
        await self.aclose()
        return False

    def __repr__(self) -> str:
        return f"SqliteLockStore({str(self.path)!r})"
