"""
Taking a key and giving it back: the conversation with the store about one lock.

Two things can go wrong in a call: it fails, or it does not end. Either way its outcome is unknown, and the caller does
not wait for more than its bound. Behind an acquire of unknown outcome goes an owner-checked release, so that a grant
that nobody heard of does not keep everyone out until its ttl ends. A release is shielded from the caller's
cancellation, and bounded.
"""

import asyncio
import contextlib
import random
import secrets
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar, final

from tenure._backoff import Backoff
from tenure._keeper import Keeper
from tenure._kept import Kept, Renewer
from tenure._lease_machine import RENEWALS_PER_TTL, LeaseEvent, trusted_until
from tenure.clock import Clock, sleep_until, wait_until
from tenure.errors import LeaseStateError, LossReason, StoreTimeoutError
from tenure.events import Event, LeaseAcquired, LeaseLost, LeaseReleased, ReleaseFailed
from tenure.lease import Lease
from tenure.store import Acquired, Claim, Held, LockStore, RenewsMany, WakesWaiters, check_acquire_reply

__all__ = ["Acquirer", "ask_in_time", "draw_owner", "shielded"]

_T = TypeVar("_T")

_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 1.0
"""A waiter's pauses, in seconds: short while the holder may be about to finish, at most a call a second after."""

_SHORTEST_PAUSE_S = 0.001
"""However little the store says is left of a lock: one that says nothing is left is not asked without a pause."""


@final
class Acquirer:
    """
    Takes keys for one instance, and gives them back.

    Args:
        store: The store.
        keeper: Who keeps what was taken, and runs the calls.
        clock: The holder's clock.
        emit: Where events go.
        rng: Where jitter comes from.
        instance: The instance's name, with which its owners begin.
        store_timeout_s: How long a call may take, in seconds.
    """

    def __init__(  # noqa: PLR0913 -- what a `Locks` shares with it
        self,
        store: LockStore,
        keeper: Keeper,
        clock: Clock,
        emit: Callable[[Event], None],
        rng: random.Random,
        *,
        instance: str,
        store_timeout_s: float,
    ) -> None:
        self._store = store
        self._keeper = keeper
        self._clock = clock
        self._emit = emit
        self._rng = rng
        self._instance = instance
        self._store_timeout_s = store_timeout_s
        self._renewer = Renewer(store.renew, store.renew_many if isinstance(store, RenewsMany) else None)
        self._held: dict[str, tuple[Lease, asyncio.Task[Any] | None]] = {}
        self.waiting = 0

    async def take(
        self, key: str, ttl_ms: int, *, wait_s: float, refuse_unless_open: Callable[[], None]
    ) -> tuple[Lease | None, float]:
        """
        Take *key*, trying for *wait_s* seconds.

        Returns:
            The lease, or None where another owner held the key for all of the wait; and the seconds waited.
        """
        self._refuse_nested(key)
        owner = draw_owner(self._instance)
        pauses = Backoff(_FIRST_PAUSE_S, min(_LONGEST_PAUSE_S, ttl_ms / 1000 / RENEWALS_PER_TTL), self._rng)
        started_at = self._clock.now()
        until = started_at + wait_s
        self.waiting += 1
        try:
            while True:
                reply, sent_at = await self._ask(key, owner, ttl_ms)
                now = self._clock.now()
                waited_s = now - started_at
                if isinstance(reply, Acquired):
                    return self._begin(Claim(key, owner, ttl_ms), reply, sent_at, waited_s), waited_s
                # Not "waited_s >= wait_s": rounded, a wait that has come to its end may look a hair too short.
                if now >= until:
                    return None, waited_s
                await self._pause(key, reply, pauses, until)
                refuse_unless_open()
        finally:
            self.waiting -= 1

    async def claim(self, key: str, ttl_ms: int) -> bool:
        """Claim *key* for *ttl_ms*, and leave it to expire: no lease, no renewal, no release."""
        reply, _ = await self._ask(key, draw_owner(self._instance), ttl_ms)
        return isinstance(reply, Acquired)

    async def give_back(self, kept: Kept, *, wait: bool) -> bool | None:
        """Give *kept* back. From here on nothing is held; with *wait*, the store's answer is waited for."""
        trusted = kept.held
        if trusted:
            self._keeper.end(kept, LeaseEvent.GIVEN_BACK)
        release = self._keeper.spawn(self.release(kept, trusted=trusted))
        return await shielded(release) if wait else None

    async def release(self, kept: Kept, *, trusted: bool) -> bool:
        """Send the release of *kept*, and report how it ended; *trusted* where it was held until now."""
        claim, held_s = kept.claim, self._clock.now() - kept.held_since
        # Short, for the caller waits: the lock frees itself at the end of its ttl in any case.
        timeout_s = min(self._store_timeout_s, kept.ttl_s / RENEWALS_PER_TTL)
        try:
            released = await self._keeper.call(
                "release", self._store.release(claim.key, claim.owner), timeout_s=timeout_s
            )
        except Exception as error:
            self._emit(ReleaseFailed(claim.key, kept.token, type(error).__name__))
            raise
        if trusted and released is True:
            self._emit(LeaseReleased(claim.key, kept.token, held_s))
        elif trusted:
            self._emit(LeaseLost(claim.key, kept.token, LossReason.REFUSED, held_s))
        return released is True

    async def let_expire(self, lease: Lease, within_s: float) -> None:
        """End *lease* here, and let it live for *within_s* more in the store; a failure leaves it its ttl."""
        kept = lease._kept
        if not kept.held:
            return
        self._keeper.end(kept, LeaseEvent.GIVEN_BACK)
        claim, rest_ms = kept.claim, max(1, round(within_s * 1000))
        renewal = self._store.renew(claim.key, claim.owner, rest_ms)
        with contextlib.suppress(Exception):
            await self._keeper.call("renew", renewal, timeout_s=self._store_timeout_s)
        self._emit(LeaseReleased(claim.key, kept.token, self._clock.now() - kept.held_since))

    async def _ask(self, key: str, owner: str, ttl_ms: int) -> tuple[Acquired | Held, float]:
        """Ask the store once. Behind a call whose outcome is unknown, a release is sent (contract, rule 9)."""
        return await ask_in_time(
            self._keeper,
            self._clock,
            _checked(partial(self._store.acquire, key, owner, ttl_ms)),
            granted=Acquired,
            ttl_s=ttl_ms / 1000,
            timeout_s=self._store_timeout_s,
            release=partial(self._store.release, key, owner),
        )

    def _begin(self, claim: Claim, reply: Acquired, sent_at: float, waited_s: float) -> Lease:
        kept = Kept(self._clock, claim, reply.token, sent_at, self._renewer)
        lease = Lease(kept, reply.after, self.give_back)
        self._held[claim.key] = (lease, asyncio.current_task())
        kept.watch(lambda _: self._forget(claim.key, lease))
        self._keeper.keep(kept)
        self._emit(LeaseAcquired(claim.key, reply.token, waited_s, reply.after))
        return lease

    def _forget(self, key: str, lease: Lease) -> None:
        if self._held.get(key, (None, None))[0] is lease:
            del self._held[key]

    def _refuse_nested(self, key: str) -> None:
        lease, holder = self._held.get(key, (None, None))
        if lease is not None and lease.held and holder is not None and holder is asyncio.current_task():
            raise LeaseStateError(
                f"This task holds {key!r} already (fencing token {lease.token}): it would wait for itself. "
                "Pass the lease on, or read it with current_lease()."
            )

    async def _pause(self, key: str, reply: Held, pauses: Backoff, until: float) -> None:
        """Pause before the next try: for the back-off, or until the holder's lock ends, or its release."""
        pause_s = pauses.next_s()
        if reply.expires_in_ms is not None:
            pause_s = min(pause_s, max(_SHORTEST_PAUSE_S, reply.expires_in_ms / 1000))
        when = min(self._clock.now() + pause_s, until)
        if not isinstance(self._store, WakesWaiters):
            await sleep_until(self._clock, when)
            return
        woken = self._keeper.spawn(self._store.released(key))
        try:
            await wait_until(self._clock, woken, when=when)
        finally:
            woken.cancel()


def draw_owner(instance: str) -> str:
    """Draw the id of an acquisition: 128 bits, and in front the instance's name, for a person to read who holds."""
    return f"{instance}:{secrets.token_hex(16)}"


async def ask_in_time(  # noqa: PLR0913 -- one call, and what has to happen behind it
    keeper: Keeper,
    clock: Clock,
    asking: Awaitable[_T],
    *,
    granted: type,
    ttl_s: float,
    timeout_s: float,
    release: Callable[[], Awaitable[object]],
) -> tuple[_T, float]:
    """
    Ask a store for something that it grants for *ttl_s*, and free what it may have granted where nobody hears of it.

    Args:
        keeper: Who runs the calls.
        clock: The holder's clock.
        asking: The store's call.
        granted: What it answers where it grants.
        ttl_s: For how long, in seconds.
        timeout_s: How long a call may take, in seconds.
        release: The release of what may have been granted, checked by its owner.

    Returns:
        The store's answer, and when it was asked, in seconds on the holder's clock.

    Cancellation: the outcome is unknown; a release is sent behind the call.

    Raises:
        StoreTimeoutError: It did not answer in time, or granted so late that the grant had ended. A release is sent.
        Exception: What the store raises. A release is sent.
    """
    sent_at = clock.now()
    useful_until = trusted_until(sent_at, ttl_s)  # a grant that comes later is lost on arrival
    ask_within_s = min(timeout_s, useful_until - sent_at)
    behind = partial(_release_behind, keeper, release, granted, timeout_s)
    reply = await keeper.call("acquire", asking, timeout_s=ask_within_s, behind=behind)
    if isinstance(reply, granted) and clock.now() >= useful_until:
        keeper.spawn(behind(None))
        raise StoreTimeoutError("acquire", ask_within_s)
    return reply, sent_at


async def _release_behind(
    keeper: Keeper,
    release: Callable[[], Awaitable[object]],
    granted: type,
    timeout_s: float,
    call: "asyncio.Task[Any] | None",
) -> None:
    """Free what a call may have been granted, so that a late grant is not held by nobody until its ttl ends."""
    answered = call is not None and call.done() and not call.cancelled() and call.exception() is None
    if answered and call is not None and not isinstance(call.result(), granted):
        return
    with contextlib.suppress(Exception):
        await keeper.call("release", release(), timeout_s=timeout_s)


async def _checked(acquire: Callable[[], Awaitable[Acquired | Held]]) -> Acquired | Held:
    return check_acquire_reply(await acquire())


async def shielded(task: "asyncio.Task[_T]") -> _T:
    """Wait for *task* to its end, however often the caller is cancelled; the cancellation is raised afterwards."""
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    return task.result()
