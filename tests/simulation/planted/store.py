"""Bugs planted in the store, and in the fence of the resource."""

from collections.abc import Callable, Sequence
from typing import Any, Final

from simulation.resource import Fence
from tenure.idempotency import InMemoryIdempotencyStore
from tenure.idempotency_store import Acquired as Begun
from tenure.idempotency_store import Completion
from tenure.memory import InMemoryLockStore
from tenure.memory.locks import _Row
from tenure.store import Acquired, Held

__all__ = ["STORE_BUGS"]

Plant = Callable[[Callable[..., None]], None]

_acquire, _release = InMemoryLockStore.acquire, InMemoryLockStore.release


def renewed_for_anybody(patch: Callable[..., None]) -> None:
    async def renews(self: InMemoryLockStore, key: str, owner: str, ttl_ms: int) -> bool:
        del owner
        row = self._rows.get(key)
        if row is None or row.owner is None or row.expires_at <= self._clock.now():
            return False
        row.expires_at = self._clock.now() + ttl_ms / 1000
        return True

    patch(InMemoryLockStore, "renew", renews)


def a_renewal_revives_what_expired(patch: Callable[..., None]) -> None:
    async def renews(self: InMemoryLockStore, key: str, owner: str, ttl_ms: int) -> bool:
        row = self._rows.get(key)
        if row is None or row.owner != owner:
            return False
        row.expires_at = self._clock.now() + ttl_ms / 1000
        return True

    patch(InMemoryLockStore, "renew", renews)


def released_by_anybody(patch: Callable[..., None]) -> None:
    async def releases(self: InMemoryLockStore, key: str, owner: str) -> bool:
        row = self._rows.get(key)
        return await _release(self, key, row.owner if row is not None and row.owner is not None else owner)

    patch(InMemoryLockStore, "release", releases)


def the_token_begins_again_after_a_release(patch: Callable[..., None]) -> None:
    async def releases(self: InMemoryLockStore, key: str, owner: str) -> bool:
        released = await _release(self, key, owner)
        if released:
            del self._rows[key]
        return released

    async def acquires(self: InMemoryLockStore, key: str, owner: str, ttl_ms: int) -> Acquired | Held:
        fresh = key not in self._rows
        reply = await _acquire(self, key, owner, ttl_ms)
        if fresh and isinstance(reply, Acquired):
            self._rows[key].token = 1
            return Acquired(1)
        return reply

    patch(InMemoryLockStore, "release", releases)
    patch(InMemoryLockStore, "acquire", acquires)


def the_token_is_a_counter(patch: Callable[..., None]) -> None:
    async def acquires(self: InMemoryLockStore, key: str, owner: str, ttl_ms: int) -> Acquired | Held:
        row = self._rows.get(key)
        before, holder = (0, None) if row is None else (row.token, row.owner)
        reply = await _acquire(self, key, owner, ttl_ms)
        if isinstance(reply, Acquired) and not (holder == owner and reply.token == before):
            self._rows[key].token = before + 1
            return Acquired(before + 1, reply.after)
        return reply

    patch(InMemoryLockStore, "acquire", acquires)


def a_release_grants_to_nobody_who_waits(patch: Callable[..., None]) -> None:
    patch(InMemoryLockStore, "_grant_to_head", lambda *_: None)


def a_waiter_that_left_keeps_its_place(patch: Callable[..., None]) -> None:
    patch(InMemoryLockStore, "_leave", lambda *_: None)


def the_queue_of_an_expired_lock_stays(patch: Callable[..., None]) -> None:
    take = InMemoryLockStore._take

    def takes(self: InMemoryLockStore, key: str, owner: str, ttl_ms: int) -> Acquired | Held:
        queue = self._queues.get(key)
        reply = take(self, key, owner, ttl_ms)
        if queue and key not in self._queues:
            self._queues[key] = queue
        return reply

    patch(InMemoryLockStore, "_take", takes)


def two_win_a_race(patch: Callable[..., None]) -> None:
    async def acquires(self: InMemoryLockStore, key: str, owner: str, ttl_ms: int) -> Acquired | Held:
        row, now = self._rows.get(key), self._clock.now()
        # Who asks within some milliseconds of a grant read the row before it was written.
        if row is not None and row.owner not in (None, owner) and 0 <= now + ttl_ms / 1000 - row.expires_at < 0.02:
            self._rows[key] = _Row(owner, row.token + 1, now + ttl_ms / 1000, row.after)
            return Acquired(row.token + 1, row.after)
        return await _acquire(self, key, owner, ttl_ms)

    patch(InMemoryLockStore, "acquire", acquires)


def its_owner_is_refused_what_it_asks_for_again(patch: Callable[..., None]) -> None:
    async def acquires(self: InMemoryLockStore, key: str, owner: str, ttl_ms: int) -> Acquired | Held:
        row = self._rows.get(key)
        if row is not None and row.owner == owner and row.expires_at > self._clock.now():
            return Held(expires_in_ms=1)
        return await _acquire(self, key, owner, ttl_ms)

    patch(InMemoryLockStore, "acquire", acquires)


def the_fence_lets_an_older_token_pass(patch: Callable[..., None]) -> None:
    def lets(self: Fence, key: str, token: int) -> bool:
        # What was accepted last is overwritten whatever it was: no comparison with the highest.
        passes = token <= self.highest[key] or token > self.highest[key]
        self.highest[key] = token
        return passes

    patch(Fence, "lets", lets)


def the_fence_refuses_its_own_holder(patch: Callable[..., None]) -> None:
    def lets(self: Fence, key: str, token: int) -> bool:
        # `<=` where `<` is meant: the second write of one holder is refused.
        if token <= self.highest[key]:
            return False
        self.highest[key] = token
        return True

    patch(Fence, "lets", lets)


_begin, _complete, _forget = (
    InMemoryIdempotencyStore.acquire,
    InMemoryIdempotencyStore.complete,
    InMemoryIdempotencyStore.release,
)


def a_stale_owner_completes(patch: Callable[..., None]) -> None:
    async def completes(
        self: InMemoryIdempotencyStore, key: str, owner: str, response: bytes, retention_ms: int
    ) -> Completion:
        record = self._records.get(key)
        return await _complete(self, key, owner if record is None else record.owner or owner, response, retention_ms)

    patch(InMemoryIdempotencyStore, "complete", completes)


def a_takeover_is_not_counted(patch: Callable[..., None]) -> None:
    async def begins(self: InMemoryIdempotencyStore, *args: Any, **options: Any) -> Any:
        reply = await _begin(self, *args, **options)
        if isinstance(reply, Begun) and reply.attempt > 1:
            self._records[args[0]].attempt = 1
            return Begun(1)
        return reply

    patch(InMemoryIdempotencyStore, "acquire", begins)


def a_release_forgets_earlier_attempts(patch: Callable[..., None]) -> None:
    async def forgets(self: InMemoryIdempotencyStore, key: str, owner: str) -> bool:
        released = await _forget(self, key, owner)
        if released:
            self._records.pop(key, None)
        return released

    patch(InMemoryIdempotencyStore, "release", forgets)


def the_last_completion_wins(patch: Callable[..., None]) -> None:
    async def completes(
        self: InMemoryIdempotencyStore, key: str, owner: str, response: bytes, retention_ms: int
    ) -> Completion:
        record = self._records.get(key)
        if record is not None and record.response is not None and record.expires > self._clock.now():
            record.response = response
            return Completion.STORED
        return await _complete(self, key, owner, response, retention_ms)

    patch(InMemoryIdempotencyStore, "complete", completes)


def a_completed_request_runs_again(patch: Callable[..., None]) -> None:
    async def begins(self: InMemoryIdempotencyStore, *args: Any, **options: Any) -> Any:
        record = self._records.get(args[0])
        if record is not None and record.response is not None and record.fingerprint == args[2]:
            del self._records[args[0]]
        return await _begin(self, *args, **options)

    patch(InMemoryIdempotencyStore, "acquire", begins)


STORE_BUGS: Final[Sequence[tuple[Plant, int, int]]] = (
    (renewed_for_anybody, 100, 34),
    (a_renewal_revives_what_expired, 100, 22),
    (released_by_anybody, 100, 1),
    (the_token_begins_again_after_a_release, 100, 0),
    (the_token_is_a_counter, 100, 0),
    (a_release_grants_to_nobody_who_waits, 100, 17),
    (a_waiter_that_left_keeps_its_place, 100, 17),
    (the_queue_of_an_expired_lock_stays, 100, 17),
    (two_win_a_race, 100, 0),
    (its_owner_is_refused_what_it_asks_for_again, 100, 61),
    (the_fence_lets_an_older_token_pass, 100, 4),
    (the_fence_refuses_its_own_holder, 100, 0),
    (a_stale_owner_completes, 100, 15),
    (a_takeover_is_not_counted, 100, 12),
    (a_release_forgets_earlier_attempts, 100, 54),
    (the_last_completion_wins, 100, 63),
    (a_completed_request_runs_again, 100, 2),
)
