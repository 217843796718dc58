"""
What a store must answer: small, pure, and sharing no line with any store.

It is asked beside the store, at the same moment on the same clock, and the answers are compared. That finds what the
instances' own carefulness hides: a store that renews for anybody harms no holder that watches its deadline.
"""

import copy
from dataclasses import dataclass, field, replace
from typing import Any, Final

__all__ = ["LockModel", "RecordModel"]

_ENDED: Final = ""


@dataclass(slots=True)
class _Lock:
    owner: str
    token: int
    until: float
    before: str | None
    queue: list[tuple[str, int, float]] = field(default_factory=list)
    """Who waits, with its ttl in milliseconds and until when its place is kept, in the order in which they came."""


class LockModel:
    """Locks, as the contract describes them. Replies are tuples, in the order of the reply's fields."""

    def __init__(self) -> None:
        self.locks: dict[str, _Lock] = {}

    def _live(self, key: str, owner: str, now: float) -> _Lock | None:
        lock = self.locks.get(key)
        return lock if lock is not None and lock.owner == owner and now < lock.until else None

    def acquire(self, now: float, key: str, owner: str, ttl_ms: int) -> tuple[Any, ...]:
        lock = self.locks.get(key)
        until = now + ttl_ms / 1000
        if lock is None:
            lock = self.locks[key] = _Lock(owner, int(now * 1e6), until, None)
        elif lock.owner == _ENDED or now >= lock.until:
            before = "released" if lock.owner == _ENDED else "expired"
            lock = self.locks[key] = _Lock(owner, max(int(now * 1e6), lock.token + 1), until, before)
        elif lock.owner == owner:
            lock.until = until
        else:
            return ("held", lock.until - now)
        return ("acquired", lock.token, lock.before)

    def acquire_queued(self, now: float, key: str, owner: str, ttl_ms: int, place_ms: int) -> tuple[Any, ...]:
        reply = self.acquire(now, key, owner, ttl_ms)
        if reply[0] == "held":
            lock = self.locks[key]
            lock.queue = [place for place in lock.queue if place[2] > now]
            at = next((number for number, (who, _, _) in enumerate(lock.queue) if who == owner), len(lock.queue))
            lock.queue[at : at + 1] = [(owner, ttl_ms, now + place_ms / 1000)]
        return reply

    def renew(self, now: float, key: str, owner: str, ttl_ms: int) -> bool:
        lock = self._live(key, owner, now)
        if lock is not None:
            lock.until = now + ttl_ms / 1000
        return lock is not None

    def release(self, now: float, key: str, owner: str) -> bool:
        lock = self._live(key, owner, now)
        if lock is None:
            if key in self.locks:
                self.locks[key].queue = [place for place in self.locks[key].queue if place[0] != owner]
            return False
        lock.owner = _ENDED
        queue = [place for place in lock.queue if place[2] > now]
        if queue:
            (head, ttl_ms, _), *behind = queue
            token = max(int(now * 1e6), lock.token + 1)
            self.locks[key] = _Lock(head, token, now + ttl_ms / 1000, "released", behind)
        else:
            lock.queue = []
        return True

    def holder(self, now: float, key: str) -> tuple[str, int, str | None] | None:
        lock = self.locks.get(key)
        live = lock is not None and lock.owner != _ENDED and now < lock.until
        return (lock.owner, lock.token, lock.before) if live and lock is not None else None

    def live_keys(self, now: float) -> list[str]:
        return sorted(key for key, lock in self.locks.items() if lock.owner != _ENDED and now < lock.until)

    def snapshot(self) -> dict[str, _Lock]:
        return {key: replace(lock, queue=list(lock.queue)) for key, lock in self.locks.items()}


@dataclass(slots=True)
class _Record:
    owner: str
    fingerprint: str
    attempt: int
    lock_ends: float
    grace_s: float
    ends: float
    response: bytes | None = None


class RecordModel:
    """Records of idempotency, as the contract describes them."""

    def __init__(self) -> None:
        self.records: dict[str, _Record] = {}

    def _known(self, key: str, now: float) -> _Record | None:
        record = self.records.get(key)
        return record if record is not None and now < record.ends else None

    def acquire(
        self, now: float, key: str, owner: str, fingerprint: str, *, ttl_ms: int, grace_ms: int, takeover: bool
    ) -> tuple[Any, ...]:
        record, until = self._known(key, now), now + ttl_ms / 1000
        if record is None:
            attempt = 1
        elif record.fingerprint != fingerprint:
            return ("mismatch",)
        elif record.response is not None:
            return ("completed", record.response, record.owner)
        elif record.owner == owner:
            record.lock_ends = max(record.lock_ends, until)
            record.ends = record.lock_ends + record.grace_s
            return ("acquired", record.attempt)
        elif now < record.lock_ends:
            return ("in flight", record.lock_ends - now)
        elif not takeover:
            return ("abandoned", record.attempt)
        else:
            attempt = record.attempt + 1
        grace_s = grace_ms / 1000
        self.records[key] = _Record(owner, fingerprint, attempt, until, grace_s, until + grace_s)
        return ("acquired", attempt)

    def extend(self, now: float, key: str, owner: str, ttl_ms: int) -> bool:
        record = self._known(key, now)
        if record is None or record.owner != owner or record.response is not None:
            return False
        record.lock_ends = max(record.lock_ends, now + ttl_ms / 1000)
        record.ends = record.lock_ends + record.grace_s
        return True

    def complete(self, now: float, key: str, owner: str, response: bytes, retention_ms: int) -> str:
        record = self._known(key, now)
        if record is None:
            return "gone"
        if record.owner != owner:
            return "stale"
        if record.response is None:
            record.response = response
            record.ends = now + retention_ms / 1000
        return "stored"

    def release(self, now: float, key: str, owner: str) -> bool:
        record = self._known(key, now)
        if record is None or record.owner != owner or record.response is not None:
            return False
        if record.attempt == 1:
            del self.records[key]
        else:
            record.owner, record.lock_ends, record.ends = _ENDED, now, now + record.grace_s
        return True

    def snapshot(self) -> dict[str, _Record]:
        return {key: copy.copy(record) for key, record in self.records.items()}
