"""
Taking a key and giving it back: the conversation with the store about one lock.

Those of a process who wait for one key stand in a *line*, and only its head talks to the store: one call for all of
them, and first come first served. A store that keeps a queue of its own (`QueuesWaiters`) has one place in it for each
process, which is the head's; there a release grants the lock, and the head hears of it. Elsewhere the head is woken by
a release, or polls. Whoever only tries (`wait=0`) joins no line and asks the store, which knows if the key is free.

Two things can go wrong in a call: it fails, or it does not end. Either way its outcome is unknown, and the caller does
not wait for more than its bound. Behind an acquire of unknown outcome goes an owner-checked release, so that a grant
that nobody heard of keeps nobody out for a ttl. A release is shielded from the caller's cancellation, and bounded.
"""

import asyncio
import contextlib
import os
import random
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, TypeVar, final

from tenure._acquirer.line import Lines, Wait
from tenure._backoff import Backoff
from tenure._keeper import Call, Keeper
from tenure._kept import Kept, Renewer
from tenure._lease_machine import RENEWALS_PER_TTL, LeaseEvent, trusted_until
from tenure.clock import Clock, sleep_until, wait_until
from tenure.errors import LeaseStateError, LossReason, StoreReplyError, StoreTimeoutError
from tenure.events import Event, LeaseAcquired, LeaseLost, LeaseReleased, ReleaseFailed
from tenure.lease import Lease
from tenure.store import (
    Acquired,
    Claim,
    Held,
    LockStore,
    QueuesWaiters,
    RenewsMany,
    WakesWaiters,
    check_acquire_reply,
)

__all__ = ["Acquirer", "ask_in_time", "draw_owner", "shielded"]

_T = TypeVar("_T")

_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 1.0
"""A waiter's pauses, in seconds: short while the holder may be about to finish, at most a call a second after."""

_SHORTEST_PAUSE_S = 0.001
"""However little the store says is left of a lock: one that says nothing is left is not asked without a pause."""

_PLACE_PAUSES = 4
"""How many of the longest pauses a place in a store's queue is kept: a poll that is late does not lose it."""


@final
class Acquirer:
    """
    Takes keys for one instance, and gives them back.

    Args:
        store: The store.
        keeper: Who keeps what was taken, and runs the calls.
        clock: The holder's clock.
        emit: Where events go.
        unheard: Counts an event of a kind that nobody hears of, which then need not be built.
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
        unheard: Callable[[type[Event]], bool],
        instance: str,
        store_timeout_s: float,
    ) -> None:
        self._store = store
        self._keeper = keeper
        self._clock = clock
        self._emit = emit
        self._unheard = unheard
        self._rng = rng
        self._instance = instance
        self._store_timeout_s = store_timeout_s
        self._renewer = Renewer(store.renew, store.renew_many if isinstance(store, RenewsMany) else None)
        self._queue = store if isinstance(store, QueuesWaiters) else None
        self._wakes = store if isinstance(store, WakesWaiters) else None
        self._held: dict[str, tuple[Lease, weakref.ref[asyncio.Task[Any]] | None]] = {}
        self._gives_back, self._forgets = self.give_back, self._forget  # bound once, for all leases
        self.lines = Lines(clock)
        self.waiting = 0

    async def take(
        self, key: str, ttl_ms: int, *, wait_s: float, refuse_unless_open: Callable[[], None]
    ) -> tuple[Lease | None, float]:
        """
        Take *key*, trying for *wait_s* seconds.

        Returns:
            The lease, or None where it was another's for all of the wait; and the seconds waited.
        """
        self._refuse_nested(key)
        claim = Claim(key, draw_owner(self._instance), ttl_ms)
        started_at = self._clock.now()
        self.waiting += 1
        try:
            if wait_s <= 0:
                reply, sent_at = await self._ask(key, claim.owner, ttl_ms)
            elif self.lines.begin(key):
                reply, sent_at = await self._ask_first(claim, started_at + wait_s, refuse_unless_open)
            else:
                wait = Wait(claim, started_at + wait_s, refuse_unless_open)
                reply, sent_at = await self._wait_in_line(wait), wait.sent_at
            waited_s = self._clock.now() - started_at
            if isinstance(reply, Acquired):
                return self._begin(claim, reply, sent_at, waited_s), waited_s
            return None, waited_s
        finally:
            self.waiting -= 1

    async def claim(self, key: str, ttl_ms: int) -> bool:
        """Claim *key* for *ttl_ms*, and leave it to expire: no lease, no renewal, no release."""
        reply, _ = await self._ask(key, draw_owner(self._instance), ttl_ms)
        return isinstance(reply, Acquired)

    async def give_back(self, kept: Kept, *, wait: bool, trusted: bool) -> bool | None:
        """Give *kept* back. From here on nothing is held; with *wait*, the store's answer is waited for."""
        if trusted:
            self._keeper.end(kept, LeaseEvent.GIVEN_BACK)
        if not wait:
            self._keeper.spawn(self.release(kept, trusted=trusted))
            return None
        now = self._clock.now()
        asked, held_s = self._ask_release(kept, now), now - kept.held_since
        try:
            await asked.over
        except asyncio.CancelledError:
            # The caller is cancelled. It waits on all the same, but goes on beside its task, which may be so again.
            rest = self._keeper.spawn(self._released_in_time(kept, asked, held_s, trusted=trusted))
            with contextlib.suppress(Exception):
                await shielded(rest)
            raise
        return self._released(kept, asked, held_s, trusted=trusted)

    async def release(self, kept: Kept, *, trusted: bool) -> bool:
        """Send the release of *kept*, and report how it ended; *trusted* where it was held until now."""
        now = self._clock.now()
        return await self._released_in_time(kept, self._ask_release(kept, now), now - kept.held_since, trusted=trusted)

    def _ask_release(self, kept: Kept, now: float) -> Call[bool]:
        claim = kept.claim
        # Short, for the caller waits: the lock frees itself at the end of its ttl in any case.
        timeout_s = min(self._store_timeout_s, claim.ttl_ms / (1000 * RENEWALS_PER_TTL))
        releasing = self._store.release(claim.key, claim.owner)
        return self._keeper.ask("release", releasing, now=now, timeout_s=timeout_s)

    async def _released_in_time(self, kept: Kept, asked: Call[bool], held_s: float, *, trusted: bool) -> bool:
        """Wait for a release to its end, or until its time is up."""
        try:
            if asked.over.cancelled():  # with the caller who waited for it
                await wait_until(self._clock, asked.task, when=asked.until)
            else:
                await asked.over
        except BaseException:
            self._keeper.give_up(asked)
            raise
        return self._released(kept, asked, held_s, trusted=trusted)

    def _released(self, kept: Kept, asked: Call[bool], held_s: float, *, trusted: bool) -> bool:
        """Report how a release ended."""
        claim = kept.claim
        try:
            released = self._keeper.read(asked)
        except Exception as error:
            self._keeper.give_up(asked)
            self._emit(ReleaseFailed(claim.key, kept.token, type(error).__name__))
            raise
        if trusted and released is not True:
            self._emit(LeaseLost(claim.key, kept.token, LossReason.REFUSED, held_s))
        elif trusted and not self._unheard(LeaseReleased):
            self._emit(LeaseReleased(claim.key, kept.token, held_s))
        return released is True

    async def let_expire(self, lease: Lease, within_s: float) -> None:
        """End *lease* here, and let it live for *within_s* more in the store; a failure leaves it its ttl."""
        kept = lease._kept  # noqa: SLF001 -- the lease is this module's handle on it
        if not kept.held:
            return
        self._keeper.end(kept, LeaseEvent.GIVEN_BACK)
        # Told now: what follows may take longer than the lease would have lasted.
        self._emit(LeaseReleased(kept.claim.key, kept.token, self._clock.now() - kept.held_since))
        # A renewal that is under way may reach the store after this one, and give the lock its whole ttl again.
        until = self._clock.now() + self._store_timeout_s
        for attempt in kept.attempts:
            await wait_until(self._clock, attempt.task, when=until)
        renewal = self._store.renew(kept.claim.key, kept.claim.owner, max(1, round(within_s * 1000)))
        with contextlib.suppress(Exception):
            await self._keeper.call("renew", renewal, timeout_s=self._store_timeout_s)

    # -------------------------------------------------------------------------------- the line

    async def _ask_first(
        self, claim: Claim, until: float, refuse_unless_open: Callable[[], None]
    ) -> tuple[Acquired | Held, float]:
        """Ask at once, as the head of a line that nobody else is in; wait only where the key is another's."""
        try:
            reply, sent_at = await self._ask(claim.key, claim.owner, claim.ttl_ms)
            if isinstance(reply, Held):
                wait = Wait(claim, until, refuse_unless_open, sent_at)
                reply, sent_at = await self._wait_as_head(wait, reply), wait.sent_at
            return reply, sent_at
        finally:
            self.lines.call_next(claim.key)

    async def _wait_in_line(self, wait: Wait) -> Acquired | Held:
        """Wait for the turn behind others, and then for the key."""
        if not await self.lines.turn(wait.claim.key, wait.until):
            # No look of its own: those who came before it were asking, and one of them still is, or holds the key.
            return Held()
        try:
            wait.refuse_unless_open()
            return await self._wait_as_head(wait, None)
        finally:
            self.lines.call_next(wait.claim.key)

    async def _wait_as_head(self, wait: Wait, reply: Acquired | Held | None) -> Acquired | Held:
        """Ask the store, which answered *reply* before, until it grants or the time is up; between, listen or pause."""
        longest_s = min(_LONGEST_PAUSE_S, wait.ttl_s / RENEWALS_PER_TTL)
        # In a queue a lost message costs one poll: nothing is gained by short ones.
        pauses = Backoff(_FIRST_PAUSE_S if self._queue is None else longest_s, longest_s, self._rng)
        place_ms = max(1, round(longest_s * 1000 * _PLACE_PAUSES))
        try:
            if reply is None:
                reply = await self._ask_as_head(wait, place_ms)
            while isinstance(reply, Held) and self._clock.now() < wait.until:
                if self._queue is None or wait.placed:
                    await self._pause(wait, reply, pauses)
                    wait.refuse_unless_open()
                    if (granted := self._hear(wait)) is not None:
                        return granted
                reply = await self._ask_as_head(wait, place_ms)
            # A grant that came in the moment in which the time was up is one.
            return reply if isinstance(reply, Acquired) else self._hear(wait) or reply
        finally:
            if wait.wake is not None:
                wait.wake.cancel()
            if wait.placed:
                # Frees the place, or a grant that crossed this; nobody waits for it.
                self._keeper.spawn(self._freeing(wait.claim)(None))

    async def _ask_as_head(self, wait: Wait, place_ms: int) -> Acquired | Held:
        """Ask the store once, for a place in its queue as well where it has one."""
        claim = wait.claim
        if self._queue is None:
            self._listen(wait)  # before it asks: a release that comes between is heard
            reply, wait.sent_at = await self._ask(claim.key, claim.owner, claim.ttl_ms)
            return reply
        queue, before, was_placed, sent_at = self._queue, wait.sent_at, wait.placed, self._clock.now()
        useful_until = trusted_until(sent_at, wait.ttl_s)
        within_s = min(self._store_timeout_s, useful_until - sent_at)
        asking = _checked(partial(queue.acquire_queued, claim.key, claim.owner, claim.ttl_ms, place_ms))
        behind = self._freeing(claim)
        wait.placed = False  # whatever becomes of this call is freed behind it
        reply = await self._keeper.call("acquire", asking, timeout_s=within_s, behind=behind)
        now = self._clock.now()
        if isinstance(reply, Held):
            wait.sent_at, wait.placed = sent_at, True
            wait.doubtful = wait.doubtful or (was_placed and now >= trusted_until(before, wait.ttl_s))
            return reply
        if now >= useful_until:
            self._keeper.spawn(behind(None))
            raise StoreTimeoutError("acquire", within_s)
        wait.sent_at = sent_at
        return reply

    def _freeing(self, claim: Claim) -> "Callable[[asyncio.Task[Any] | None], Coroutine[Any, Any, None]]":
        """Make what frees *claim* behind a call, whatever that answers: where it stands in a queue, too."""
        release = partial(self._store.release, claim.key, claim.owner)
        return partial(_release_behind, self._keeper, release, object, self._store_timeout_s)

    async def _pause(self, wait: Wait, reply: Held, pauses: Backoff) -> None:
        """Pause before the next try: for the back-off, until the holder's lock ends, or until something is heard."""
        pause_s = pauses.next_s()
        if reply.expires_in_ms is not None:
            pause_s = min(pause_s, max(_SHORTEST_PAUSE_S, reply.expires_in_ms / 1000))
        when = min(self._clock.now() + pause_s, wait.until)
        wake = self._listen(wait)
        if wake is not None and await wait_until(self._clock, wake, when=when):
            if wait.heard():
                return
            # It ended without a word, by an error or by the end of all: not a reason to ask more often.
            wait.wake = None
            wait.refuse_unless_open()
        if self._clock.now() < when:
            await sleep_until(self._clock, when)

    def _listen(self, wait: Wait) -> "asyncio.Task[Any] | None":
        """Listen to the grant, or to a release of the key, as far as the store tells of them."""
        if wait.wake is None and self._queue is not None:
            wait.wake = self._keeper.spawn(self._queue.granted(wait.claim.key, wait.claim.owner))
        elif wait.wake is None and self._wakes is not None:
            wait.wake = self._keeper.spawn(self._wakes.released(wait.claim.key))
        return wait.wake

    def _hear(self, wait: Wait) -> Acquired | None:
        """
        Take the grant that was heard, if there is one that can be believed; otherwise the store is asked at once.

        A grant is believed from the sending of the last `acquire_queued`, which was answered `Held`. The store looked
        at the lock at some moment after that sending, and it was another's: so a grant that came later began later,
        and lives for longer than is believed. A grant that came earlier must have ended before that look, by its
        expiry, for nothing was released: so a whole ttl lies between the look before and this one, and between the
        sending of the one and the answer of the other. Where it does (the process was paused), what is heard may be
        the message of a lock that is gone, and only an answer of the store is believed (`doubtful`).
        """
        if not wait.heard():
            return None
        wake, wait.wake = wait.wake, None
        if self._queue is None or wake is None:
            return None
        granted = check_acquire_reply(wake.result())
        if wait.doubtful or self._clock.now() >= trusted_until(wait.sent_at, wait.ttl_s):
            return None
        wait.placed = False
        return granted if isinstance(granted, Acquired) else None

    # --------------------------------------------------------------------------------- one call

    async def _ask(self, key: str, owner: str, ttl_ms: int) -> tuple[Acquired | Held, float]:
        """Ask the store once. Behind a call whose outcome is unknown, a release is sent (contract, rule 9)."""
        return await ask_in_time(
            self._keeper,
            self._clock,
            self._store.acquire(key, owner, ttl_ms),
            granted=Acquired,
            ttl_s=ttl_ms / 1000,
            timeout_s=self._store_timeout_s,
            release=partial(self._store.release, key, owner),
            check=check_acquire_reply,
        )

    def _begin(self, claim: Claim, reply: Acquired, sent_at: float, waited_s: float) -> Lease:
        if self._keeper.ending:
            self._keeper.spawn(self._freeing(claim)(None))
            raise LeaseStateError(
                f"This Locks was closed while {claim.key!r} was being taken: what the store granted is given back. "
                "Close it after what uses it has ended."
            )
        kept = Kept(self._clock, claim, reply.token, sent_at, self._renewer)
        lease = Lease(kept, reply.after, self._gives_back)
        task = asyncio.current_task()
        # Weak: the task that took it may have ended long before its lease does.
        self._held[claim.key] = (lease, None if task is None else weakref.ref(task))
        kept.at_end = self._forgets
        self._keeper.keep(kept)
        if not self._unheard(LeaseAcquired):
            self._emit(LeaseAcquired(claim.key, reply.token, waited_s, reply.after))
        return lease

    def _forget(self, kept: Kept) -> None:
        lease, _ = self._held.get(kept.claim.key, (None, None))
        if lease is not None and lease._kept is kept:  # noqa: SLF001 -- the lease is this module's handle on it
            del self._held[kept.claim.key]

    def _refuse_nested(self, key: str) -> None:
        lease, holder = self._held.get(key, (None, None))
        if lease is not None and holder is not None and holder() is asyncio.current_task() and lease.held:
            raise LeaseStateError(
                f"This task holds {key!r} already (fencing token {lease.token}): it would wait for itself. "
                "Pass the lease on, or read it with current_lease()."
            )


def draw_owner(instance: str) -> str:
    """Draw the id of an acquisition: 128 bits, and in front the instance's name, for a person to read who holds."""
    # From the kernel at each call: nothing is kept that a fork would hand out twice.
    return f"{instance}:{os.urandom(16).hex()}"


async def ask_in_time(  # noqa: PLR0913 -- one call, and what has to happen behind it
    keeper: Keeper,
    clock: Clock,
    asking: Awaitable[_T],
    *,
    granted: type,
    ttl_s: float,
    timeout_s: float,
    release: Callable[[], Awaitable[object]],
    check: Callable[[_T], _T] | None = None,
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
        check: Raises for an answer that the contract does not allow, and returns any other.

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
    asked = keeper.ask("acquire", asking, now=sent_at, timeout_s=ask_within_s)
    try:
        await asked.over
        reply = keeper.read(asked)
        if check is not None:
            reply = check(reply)
    except BaseException:
        keeper.give_up(asked, partial(_release_behind, keeper, release, granted, timeout_s, check=check))
        raise
    if isinstance(reply, granted) and clock.now() >= useful_until:
        keeper.spawn(_release_behind(keeper, release, granted, timeout_s, None))
        raise StoreTimeoutError("acquire", ask_within_s)
    return reply, sent_at


async def _release_behind(  # noqa: PLR0913 -- a call, and what frees what it may have been granted
    keeper: Keeper,
    release: Callable[[], Awaitable[object]],
    granted: type,
    timeout_s: float,
    call: "asyncio.Task[Any] | None",
    *,
    check: Callable[[Any], object] | None = None,
) -> None:
    """Free what a call may have been granted, so that a late grant is not held by nobody until its ttl ends."""
    if call is not None and _was_refused(call, granted, check):
        return
    with contextlib.suppress(Exception):
        await keeper.call("release", release(), timeout_s=timeout_s)


def _was_refused(call: "asyncio.Task[Any]", granted: type, check: Callable[[Any], object] | None) -> bool:
    """Whether a call was answered, and by no grant. What the contract does not allow is no answer."""
    if not call.done() or call.cancelled() or call.exception() is not None:
        return False
    try:
        return not isinstance(call.result() if check is None else check(call.result()), granted)
    except StoreReplyError:
        return False


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
