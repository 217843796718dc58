"""The server: the in-memory stores on a clock of their own, each reply compared with the model's."""

import copy
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final, final

from simulation.clocks import ServerClock
from simulation.model import LockModel, RecordModel
from tenure.idempotency import InMemoryIdempotencyStore
from tenure.idempotency_store import Abandoned, Completed, Completion, InFlight, Mismatch
from tenure.idempotency_store import Acquired as Begun
from tenure.memory import InMemoryLockStore
from tenure.store import Acquired, Claim, Held
from tenure.testing import VirtualTimeLoop

__all__ = ["Server", "at_once"]

_SNAPSHOTS: Final = 12
"""How many older states a failover can fall back to."""


def at_once(call: Coroutine[Any, Any, Any]) -> Any:
    """Run *call*, which awaits nothing, as the one atomic step that a store's method is."""
    try:
        call.send(None)
    except StopIteration as done:
        return done.value
    call.close()
    raise AssertionError("A method of the store in memory awaits something: it is no atomic step any more.")


@final
class Server:
    """
    What all instances share.

    Args:
        loop: The true time.
        differs: Told of a reply that is not the model's.
    """

    def __init__(self, loop: VirtualTimeLoop, differs: Callable[[str], None]) -> None:
        self.clock = ServerClock(loop)
        self.locks = InMemoryLockStore(self.clock)
        self.records = InMemoryIdempotencyStore(self.clock)
        self._lock_model = LockModel()
        self._record_model = RecordModel()
        self._differs = differs
        self._snapshots: deque[tuple[Any, ...]] = deque(maxlen=_SNAPSHOTS)
        self._lock_calls: dict[str, Callable[..., Any]] = {
            "acquire": self._acquire,
            "acquire_queued": self._acquire_queued,
            "renew": self._renew,
            "release": self._release,
            "renew_many": self._renew_many,
            "list_locks": lambda prefix: at_once(self.locks.list_locks(prefix)),
            "begin": self._begin,
            "extend": self._extend,
            "complete": self._complete,
            "forget": self._forget,
        }

    def perform(self, op: str, args: tuple[Any, ...]) -> Any:
        """Make one call, in one step."""
        return self._lock_calls[op](*args)

    # --------------------------------------------------------------------------------------- locks

    def _acquire(self, key: str, owner: str, ttl_ms: int) -> Acquired | Held:
        expected = self._lock_model.acquire(self.clock.now(), key, owner, ttl_ms)
        reply: Acquired | Held = at_once(self.locks.acquire(key, owner, ttl_ms))
        self._compare("acquire", key, reply, expected, same=_same_acquire(reply, expected))
        return reply

    def _acquire_queued(self, key: str, owner: str, ttl_ms: int, place_ms: int) -> Acquired | Held:
        expected = self._lock_model.acquire_queued(self.clock.now(), key, owner, ttl_ms, place_ms)
        reply: Acquired | Held = at_once(self.locks.acquire_queued(key, owner, ttl_ms, place_ms))
        self._compare("acquire_queued", key, reply, expected, same=_same_acquire(reply, expected))
        return reply

    def _renew(self, key: str, owner: str, ttl_ms: int) -> bool:
        expected = self._lock_model.renew(self.clock.now(), key, owner, ttl_ms)
        reply: bool = at_once(self.locks.renew(key, owner, ttl_ms))
        self._compare("renew", key, reply, expected, same=reply is expected)
        return reply

    def _release(self, key: str, owner: str) -> bool:
        expected = self._lock_model.release(self.clock.now(), key, owner)
        reply: bool = at_once(self.locks.release(key, owner))
        self._compare("release", key, reply, expected, same=reply is expected)
        return reply

    def holder(self, key: str) -> tuple[str, Acquired] | None:
        """Name the owner of *key*, and what it was granted: after a release, the head of the queue."""
        expected = self._lock_model.holder(self.clock.now(), key)
        row = self.locks._rows.get(key)
        live = row is not None and row.owner is not None and row.expires_at > self.clock.now()
        found = (row.owner, row.token, row.after) if live and row is not None else None
        self._compare("the release", key, found and found[1:], expected and expected[1:], same=found == expected)
        return None if found is None or found[0] is None else (found[0], Acquired(*found[1:]))

    def _renew_many(self, *claims: Claim) -> list[bool]:
        now = self.clock.now()
        expected = [self._lock_model.renew(now, claim.key, claim.owner, claim.ttl_ms) for claim in claims]
        reply: list[bool] = at_once(self.locks.renew_many(claims))
        self._compare("renew_many", claims[0].key, reply, expected, same=reply == expected)
        return reply

    # ------------------------------------------------------------------------------------- records

    def _begin(self, key: str, owner: str, fingerprint: str, *spans_and_policy: Any) -> Any:
        ttl_ms, grace_ms, takeover = spans_and_policy
        now = self.clock.now()
        expected = self._record_model.acquire(
            now, key, owner, fingerprint, ttl_ms=ttl_ms, grace_ms=grace_ms, takeover=takeover
        )
        reply = at_once(self.records.acquire(key, owner, fingerprint, ttl_ms, grace_ms, takeover=takeover))
        match reply:
            case Begun(attempt=attempt):
                same = expected == ("acquired", attempt)
            case InFlight(expires_in_ms=left):
                same = expected[0] == "in flight" and _within_a_millisecond(left, expected[1])
            case Completed(response=response, owner=completed_by):
                same = expected == ("completed", response, completed_by)
            case Abandoned(attempt=attempt):
                same = expected == ("abandoned", attempt)
            case Mismatch():
                same = expected == ("mismatch",)
        self._compare("begin", key, reply, expected[0], same=same)
        return reply

    def _extend(self, key: str, owner: str, ttl_ms: int) -> bool:
        expected = self._record_model.extend(self.clock.now(), key, owner, ttl_ms)
        reply: bool = at_once(self.records.extend(key, owner, ttl_ms))
        self._compare("extend", key, reply, expected, same=reply is expected)
        return reply

    def _complete(self, key: str, owner: str, response: bytes, retention_ms: int) -> Completion:
        expected = self._record_model.complete(self.clock.now(), key, owner, response, retention_ms)
        reply: Completion = at_once(self.records.complete(key, owner, response, retention_ms))
        self._compare("complete", key, reply, expected, same=reply.value == expected)
        return reply

    def _forget(self, key: str, owner: str) -> bool:
        expected = self._record_model.release(self.clock.now(), key, owner)
        reply: bool = at_once(self.records.release(key, owner))
        self._compare("forget", key, reply, expected, same=reply is expected)
        return reply

    def _compare(self, op: str, key: str, reply: object, expected: object, *, same: bool) -> None:
        if not same:
            self._differs(f'the store answers {op} on "{key}" with {_shown(reply)}, and the model with {expected}')

    # ------------------------------------------------------------------------------------ failover

    def take_snapshot(self) -> None:
        """Keep the state as it is now, for a failover to fall back to."""
        rows, records = self.locks._rows, self.records._records
        queues = {key: dict(queue) for key, queue in self.locks._queues.items()}
        self._snapshots.append(
            (
                {key: copy.copy(row) for key, row in rows.items()},
                queues,
                {key: copy.copy(record) for key, record in records.items()},
                self._lock_model.snapshot(),
                self._record_model.snapshot(),
            )
        )

    def lose_tail(self, snapshots: int) -> bool:
        """Fall back to the state of *snapshots* ago, as an asynchronous standby does that is promoted."""
        if len(self._snapshots) < snapshots:
            return False
        rows, queues, records, locks_before, records_before = self._snapshots[-snapshots]
        self.locks._rows.clear()
        self.locks._rows.update(rows)
        self.locks._queues.clear()
        self.locks._queues.update(queues)
        self.records._records.clear()
        self.records._records.update(records)
        self._lock_model.locks = locks_before
        self._record_model.records = records_before
        self._snapshots.clear()
        return True

    def live_keys(self) -> list[str]:
        """Name the keys that are locked now, as the model has it."""
        return self._lock_model.live_keys(self.clock.now())


def _same_acquire(reply: Acquired | Held, expected: tuple[Any, ...]) -> bool:
    if isinstance(reply, Acquired):
        return expected == ("acquired", reply.token, reply.after)
    return bool(expected[0] == "held") and _within_a_millisecond(reply.expires_in_ms, expected[1])


def _within_a_millisecond(said_ms: int | None, left_s: float) -> bool:
    return said_ms is not None and left_s * 1000 - 0.01 <= said_ms <= left_s * 1000 + 1.01


def _shown(reply: object) -> str:
    # A record's reply carries its owner, which is no part of any line.
    return type(reply).__name__ if isinstance(reply, Begun | Completed | Abandoned | InFlight) else repr(reply)
