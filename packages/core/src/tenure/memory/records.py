"""The idempotency store in memory."""

import asyncio
import math
from dataclasses import dataclass
from typing import Final, Literal, final

from tenure._idempotency_machine import Answer, Caller, IdempotencyCall, RecordState, Verdict, judge, state_at
from tenure.clock import Clock, SystemClock
from tenure.errors import ConfigurationError, LeaseStateError, StoreFullError
from tenure.idempotency_store import (
    Abandoned,
    Acquired,
    AcquireReply,
    Completed,
    Completion,
    InFlight,
    Mismatch,
    check_fingerprint,
    check_key,
    check_limit,
    check_owner,
    check_response,
    check_ttl_ms,
)
from tenure.store import Reach

__all__ = ["InMemoryIdempotencyStore", "open_memory_idempotency_store"]

_NOBODY: Final = ""
"""The owner of a record that was released after an earlier attempt: no owner is empty."""


@dataclass(slots=True)
class _Record:
    """What is kept of a key. Times are on the store's clock, in seconds; the response is None until completed."""

    owner: str
    fingerprint: str
    attempt: int
    lock_ends: float
    grace_s: float
    expires: float
    response: bytes | None = None

    def extend(self, until: float) -> None:
        self.lock_ends = max(self.lock_ends, until)
        self.expires = self.lock_ends + self.grace_s


@final
class InMemoryIdempotencyStore:
    """
    Records in a dictionary. Atomic because no method awaits between its check and its write.

    At its bound it forgets records whose time has ended, then the completed ones, the oldest first; never one that is
    in flight or abandoned, for that would run a request twice. Where nothing may be forgotten, `acquire` fails.

    Args:
        clock: The store's clock, which decides expiry. Give it the test's `ManualClock` and expiry moves with it.
        max_records: The bound. A record costs some 500 bytes and its response.

    Raises:
        ConfigurationError: The bound is no count.
    """

    reach: Reach = "process"

    def __init__(self, clock: Clock | None = None, *, max_records: int = 10_000) -> None:
        if type(max_records) is not int or max_records < 1:
            raise ConfigurationError("max_records is the most records that the store keeps: an int from 1 on.")
        self._clock = clock or SystemClock()
        self._max_records = max_records
        # In the order of acquisition, and of completion for the completed.
        self._records: dict[str, _Record] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    async def acquire(  # noqa: PLR0913 -- the contract's
        self, key: str, owner: str, fingerprint: str, lock_ttl_ms: int, grace_ms: int, *, takeover: bool = True
    ) -> AcquireReply:
        """
        Begin an execution, or say what the record allows instead, as the contract says.

        Raises:
            StoreFullError: The store is at its bound, and every record in it is of an execution that may be alive.
        """
        check_key(key)
        check_owner(owner)
        check_fingerprint(fingerprint)
        check_ttl_ms(lock_ttl_ms, "lock_ttl_ms")
        check_ttl_ms(grace_ms, "grace_ms")
        self._refuse_other_loop()
        now = self._clock.now()
        record = self._records.get(key)
        verdict = self._judge(record, owner, IdempotencyCall.ACQUIRE, now, fingerprint=fingerprint, takeover=takeover)
        if verdict.answer is not Answer.ACQUIRED:
            assert record is not None
            return self._refusal(record, verdict, now)
        lock_ends, grace_s = now + lock_ttl_ms / 1000, grace_ms / 1000
        if record is not None and not verdict.new_attempt:
            record.extend(lock_ends)
            return Acquired(record.attempt)
        before = 0 if record is None or record.expires <= now else record.attempt
        if self._records.pop(key, None) is None:
            self._make_room()
        self._records[key] = _Record(owner, fingerprint, before + 1, lock_ends, grace_s, lock_ends + grace_s)
        return Acquired(before + 1)

    @staticmethod
    def _refusal(record: _Record, verdict: Verdict, now: float) -> AcquireReply:
        match verdict.answer:
            case Answer.MISMATCH:
                return Mismatch(verdict.state)
            case Answer.IN_FLIGHT:
                # Rounded up, to the microsecond first: the difference of two floats is a hair off.
                return InFlight(max(1, math.ceil(round((record.lock_ends - now) * 1000, 3))))
            case Answer.ABANDONED:
                return Abandoned(record.attempt)
            case _:
                assert record.response is not None
                return Completed(record.response, record.owner)

    async def extend(self, key: str, owner: str, lock_ttl_ms: int) -> bool:
        """Have the lock end *lock_ttl_ms* from now or later, if *owner* is the recorded one and has not completed."""
        check_key(key)
        check_owner(owner)
        check_ttl_ms(lock_ttl_ms, "lock_ttl_ms")
        self._refuse_other_loop()
        record, now = self._records.get(key), self._clock.now()
        if record is None or not self._judge(record, owner, IdempotencyCall.EXTEND, now).writes:
            return False
        record.extend(now + lock_ttl_ms / 1000)
        return True

    async def complete(self, key: str, owner: str, response: bytes, retention_ms: int) -> Completion:
        """Store *response* as the outcome, if *owner* is the recorded one."""
        check_key(key)
        check_owner(owner)
        check_response(response)
        check_ttl_ms(retention_ms, "retention_ms")
        self._refuse_other_loop()
        record, now = self._records.get(key), self._clock.now()
        verdict = self._judge(record, owner, IdempotencyCall.COMPLETE, now)
        if record is not None and verdict.writes:
            record.response = response
            record.expires = now + retention_ms / 1000
            self._records[key] = self._records.pop(key)
        return Completion(verdict.answer.value)

    async def release(self, key: str, owner: str) -> bool:
        """Forget the execution of *owner*, which is known to have had no effect."""
        check_key(key)
        check_owner(owner)
        self._refuse_other_loop()
        record, now = self._records.get(key), self._clock.now()
        verdict = self._judge(record, owner, IdempotencyCall.RELEASE, now)
        if record is None or not verdict.writes:
            return False
        if verdict.state is RecordState.ABSENT:
            del self._records[key]
            return True
        record.owner, record.lock_ends = _NOBODY, now
        record.expires = record.lock_ends + record.grace_s
        return True

    async def purge(self, limit: int = 1000) -> int:
        """Delete records whose time has ended, at most *limit* of them."""
        check_limit(limit)
        self._refuse_other_loop()
        now = self._clock.now()
        ended = [key for key, record in self._records.items() if record.expires <= now][:limit]
        for key in ended:
            del self._records[key]
        return len(ended)

    def _judge(  # noqa: PLR0913 -- what the machine is asked
        self,
        record: _Record | None,
        owner: str,
        call: IdempotencyCall,
        now: float,
        *,
        fingerprint: str | None = None,
        takeover: bool = True,
    ) -> Verdict:
        if record is None:
            return judge(RecordState.ABSENT, call, Caller.OTHER)
        # One reading of the clock a call: what ends between two of them would be judged one way and written another.
        state = state_at(
            now,
            completed=record.response is not None,
            lock_ends=record.lock_ends,
            expires=record.expires,
        )
        caller = Caller.OWNER if record.owner == owner else Caller.OTHER
        same = fingerprint is None or record.fingerprint == fingerprint
        return judge(state, call, caller, same_fingerprint=same, takeover=takeover, first=record.attempt == 1)

    def _make_room(self) -> None:
        """Forget something, if the store is at its bound."""
        if len(self._records) < self._max_records:
            return
        now = self._clock.now()
        for key in [key for key, record in self._records.items() if record.expires <= now]:
            del self._records[key]
        if len(self._records) < self._max_records:
            return
        oldest = next((key for key, record in self._records.items() if record.response is not None), None)
        if oldest is None:
            raise StoreFullError(
                f"The idempotency store in memory holds its {self._max_records} records, each of an execution that may "
                "be alive: nothing was begun. Raise max_records, or use a store that the instances share."
            )
        del self._records[oldest]

    def _refuse_other_loop(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is None or self._loop.is_closed():
            self._loop = loop
        if self._loop is not loop:
            raise LeaseStateError(
                "This store in memory belongs to another event loop: two loops in two threads would race for its "
                "records. Use one store a loop, or a store that is made to be shared."
            )

    async def aclose(self) -> None:
        """Nothing to close; here so that a store opened by URL can be left like any other."""

    async def __aenter__(self) -> "InMemoryIdempotencyStore":
        return self

    async def __aexit__(self, *_: object) -> Literal[False]:
        return False


def open_memory_idempotency_store(url: str) -> InMemoryIdempotencyStore:
    """Open `memory://`. Each call is a store of its own."""
    del url
    return InMemoryIdempotencyStore()
