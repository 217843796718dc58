"""
The idempotency store in a SQLite file: one row a key, one statement a decision.

What each statement prevents stands in its file under `sql/`; how one is run, in `store_file.py`; on which clock, in
`clock.py`.
"""

import os
from collections.abc import Sequence
from typing import Any, Final, Literal, Self, final

from tenure._durations import Duration
from tenure.idempotency_store import (
    Abandoned,
    Acquired,
    AcquireReply,
    Completed,
    Completion,
    InFlight,
    Mismatch,
    RecordState,
    check_fingerprint,
    check_key,
    check_limit,
    check_owner,
    check_response,
    check_ttl_ms,
)
from tenure.store import Finding, Reach
from tenure_sqlite.clock import HostClock
from tenure_sqlite.place import Place
from tenure_sqlite.startup_check import check_file
from tenure_sqlite.statements import read_statement
from tenure_sqlite.store_file import Synchronous

__all__ = ["SqliteIdempotencyStore"]

_BATCH: Final = 1000
"""Records deleted in one transaction: a few milliseconds, during which nobody else writes."""


@final
class SqliteIdempotencyStore:
    """
    Idempotency records in a SQLite file, for the processes of one host; it may be the file of the locks.

    Each decision is one statement in a transaction of its own, and repeats of a request only read. Until its outcome is
    known, a record's times are on the host's boot clock; outcomes are kept by the wall clock, across reboots.

    Args:
        path: As of `SqliteLockStore`.
        busy_timeout: As of `SqliteLockStore`.
        synchronous: As of `SqliteLockStore`. With "normal" a power failure may undo the last commits: a request whose
            record is lost runs again when it is repeated.
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

    async def acquire(  # noqa: PLR0913 -- the contract's
        self, key: str, owner: str, fingerprint: str, lock_ttl_ms: int, grace_ms: int, *, takeover: bool = True
    ) -> AcquireReply:
        """
        Begin an execution, or say what the record allows instead, as the contract says.

        Raises:
            ConfigurationError: An argument is outside the rules; nothing was done.
            LockFileReplacedError: The file is not the one that was opened; nothing was done.
            ForeignClockError: Another kernel uses the file; nothing was done.
            sqlite3.Error: As SQLite has it, with a note on what to do.
        """
        check_key(key)
        check_owner(owner)
        check_fingerprint(fingerprint)
        check_ttl_ms(lock_ttl_ms, "lock_ttl_ms")
        check_ttl_ms(grace_ms, "grace_ms")
        asked = {"key": key, "owner": owner, "fingerprint": fingerprint, "takeover": bool(takeover)}
        begun = {**asked, "lock_us": lock_ttl_ms * 1000, "grace_us": grace_ms * 1000}
        while True:
            for row in await self._file.read(read_statement("look_record"), asked):
                if (reply := _reply(row)) is not None:
                    return reply
            for row in await self._file.write(read_statement("take_record"), begun):
                return Acquired(attempt=row[0])
            # Another took it between the two: the next look tells what became of it.

    async def extend(self, key: str, owner: str, lock_ttl_ms: int) -> bool:
        """Have the lock end *lock_ttl_ms* from now or later, if *owner* is the recorded one. Raises as `acquire`."""
        check_key(key)
        check_owner(owner)
        check_ttl_ms(lock_ttl_ms, "lock_ttl_ms")
        asked = {"key": key, "owner": owner, "lock_us": lock_ttl_ms * 1000}
        return bool(await self._file.write(read_statement("extend"), asked))

    async def complete(self, key: str, owner: str, response: bytes, retention_ms: int) -> Completion:
        """Store *response* as the outcome, for *retention_ms* from now. Raises as `acquire`."""
        check_key(key)
        check_owner(owner)
        check_response(response)
        check_ttl_ms(retention_ms, "retention_ms")
        asked = {"key": key, "owner": owner}
        stored = {**asked, "response": response, "retention_us": retention_ms * 1000}
        while not await self._file.write(read_statement("complete"), stored):
            rows = await self._file.read(read_statement("look_outcome"), asked)
            if not rows:
                return Completion.GONE
            if rows[0][0] != "in flight":
                return Completion(rows[0][0])
            # Its owner acquired it again between the two.
        return Completion.STORED

    async def release(self, key: str, owner: str) -> bool:
        """Forget the execution of *owner*, which is known to have had no effect. Raises as `acquire`."""
        check_key(key)
        check_owner(owner)
        asked = {"key": key, "owner": owner}
        # Each decides by the attempt, which does not change under its owner.
        return bool(
            await self._file.write(read_statement("release_record"), asked)
            or await self._file.write(read_statement("disown_record"), asked)
        )

    async def purge(self, limit: int = 1000) -> int:
        """Delete records whose time has ended, at most *limit* of them. Raises as `acquire`."""
        left = check_limit(limit)
        purged = 0
        while left:
            batch = min(left, _BATCH)
            found = len(await self._file.write(read_statement("purge"), {"batch": batch}))
            purged += found
            left = left - found if found == batch else 0
        return purged

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
        return f"SqliteIdempotencyStore({str(self.path)!r})"


def _reply(row: Any) -> AcquireReply | None:
    """Read a row of look_record.sql; None where the statement that writes has to decide."""
    answer, state, attempt, expires_in_ms, response, owner = row
    match answer:
        case "mismatch":
            return Mismatch(RecordState(state))
        case "completed":
            return Completed(response, owner)
        case "in flight":
            return InFlight(expires_in_ms)
        case "abandoned":
            return Abandoned(attempt)
        case _:
            return None
