"""
The keeper: renewals and deadlines of every lease of a process, and the only file that creates tasks.

There is one heap of moments, one timer at its head, and no task that waits: holding ten thousand leases costs a
heap entry each. When the timer fires, what is due is looked at:

- a lease past its deadline is lost, whatever calls are still under way (R4);
- the leases whose renewal is due are renewed together where the store can do that (`renew_many`), each alone
  where it cannot.

Each store call is a task of its own that nobody awaits directly. A call that hangs therefore delays nobody: not
the deadline, not the other leases, not a caller that is cancelled. Its answer is looked at whenever it comes, and
counts as far as the lease machine says.
"""

import asyncio
import heapq
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from typing import Any, TypeVar, final

from tenure import _lease_machine as machine
from tenure._backoff import Backoff
from tenure._kept import Attempt, Kept, Renewer
from tenure._lease_machine import LeaseEvent, LeaseState
from tenure.clock import Clock, ObservesCalls, Timer, wait_until
from tenure.errors import LeaseStateError, StoreReplyError, StoreTimeoutError
from tenure.events import Event, LeaseLost, LeaseRenewedLate, RenewalFailed

__all__ = ["Keeper"]

_T = TypeVar("_T")

_GATHER_SHARE = 0.01
"""Renewals due within a hundredth of a ttl travel together: early by less than anyone can tell, in fewer calls."""

_LATE_SHARE = 0.1
"""A renewal sent later than a tenth of its ttl is reported: three such stalls in a row lose the lease."""

_MAX_UNDER_WAY = 2
"""Calls under way for one lease. The second covers for a reply that was lost; a third would meet the same fate."""

_MAX_BATCH = 500
"""Leases in one call: enough to carry thousands in a few, small enough to be answered within milliseconds."""

_RETRY_BASE_SHARE = 1 / 30
_RETRY_CAP_SHARE = 1 / 6
"""The span between retries of a failed renewal, as shares of the ttl: some seven tries before the deadline."""

_STRAGGLERS_S = 1.0
"""How long closing waits for calls that it cancelled, in seconds of real time; a driver may not answer at all."""

_ROUNDS = 2
"""How often closing cancels what is left: the calls that are late, and what goes behind those."""

_TURNS = 3
"""Turns of the event loop that a waiter needs to hear of a call's end, and to send something behind it."""

_log = logging.getLogger("tenure")


@final
class Keeper:
    """
    Keeps leases renewed, and tells of their end.

    Args:
        clock: The holder's clock.
        emit: Where events go.
        rng: Where jitter comes from.
    """

    def __init__(self, clock: Clock, emit: Callable[[Event], None], rng: random.Random) -> None:
        self._clock = clock
        self._emit = emit
        self._rng = rng
        # A dict for its order: leases are looked through in the order in which they came, so that a seed repeats a run.
        self._kept: dict[Kept, None] = {}
        self._heap: list[tuple[float, int, Kept]] = []
        self._entries = 0
        self._timer: Timer | None = None
        self._timer_at = float("inf")
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._closing = False
        self._observer = clock if isinstance(clock, ObservesCalls) else None
        self.renewals = 0
        self.renewals_failed = 0

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[Kept]:
        return iter(list(self._kept))

    # ------------------------------------------------------------------------------------ leases

    def keep(self, kept: Kept) -> None:
        """Renew *kept* from now on, until it ends."""
        self._kept[kept] = None
        self._push(kept)
        self._arm()

    def end(self, kept: Kept, event: LeaseEvent) -> None:
        """End *kept*: given back, closed, or overdue."""
        self._apply(kept, event, self._clock.now())

    def _push(self, kept: Kept) -> None:
        """Set the next moment at which *kept* is looked at; the older entry is skipped when it is met."""
        self._entries += 1
        kept.entry = self._entries
        heapq.heappush(self._heap, (kept.term.renew_at, kept.entry, kept))

    def _arm(self) -> None:
        while self._heap and self._heap[0][1] != self._heap[0][2].entry:
            heapq.heappop(self._heap)
        when = self._heap[0][0] if self._heap else float("inf")
        if when == self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_at = when
        if self._heap:
            self._timer = self._clock.call_at(when, self._wake)

    def _wake(self) -> None:
        """Look at every lease that is due."""
        self._timer, self._timer_at = None, float("inf")
        now = self._clock.now()
        due: dict[Renewer, list[Kept]] = {}
        while self._heap:
            when, entry, kept = self._heap[0]
            gathered = now + _GATHER_SHARE * kept.ttl_s
            if when > gathered:
                break
            heapq.heappop(self._heap)
            if entry != kept.entry:
                continue
            if now >= kept.term.trusted_until:
                self._apply(kept, LeaseEvent.TIME, now)
            elif kept.term.renew_at >= kept.term.trusted_until:
                # What is due is the deadline, and that is never early.
                self._push(kept)
                break
            else:
                self._report_if_late(kept, now)
                due.setdefault(kept.renewer, []).append(kept)
        for renewer, leases in due.items():
            self._renew(renewer, leases)
        self._arm()

    def _report_if_late(self, kept: Kept, now: float) -> None:
        late_s = now - kept.term.renew_at
        if late_s > _LATE_SHARE * kept.ttl_s:
            self._emit(LeaseRenewedLate(kept.claim.key, kept.token, late_s, kept.ttl_s))

    def _renew(self, renewer: Renewer, leases: list[Kept]) -> None:
        """Send a renewal for each of *leases*, and set the moment at which the next one is due."""
        sent_at = self._clock.now()
        for kept in leases:
            pause_s = kept.ttl_s / machine.RENEWALS_PER_TTL
            if len(kept.attempts) + 1 >= _MAX_UNDER_WAY:
                pause_s = float("inf")  # nothing more to send before the deadline, unless an answer comes
            kept.term = machine.postponed(kept.term, sent_at + pause_s)
            self._push(kept)
        if renewer.many is None or len(leases) == 1:
            for kept in leases:
                self._renew_alone(kept, sent_at)
            return
        for start in range(0, len(leases), _MAX_BATCH):
            batch = leases[start : start + _MAX_BATCH]
            self._send(batch, renewer.many([kept.claim for kept in batch]), sent_at, grouped=True)

    def _renew_alone(self, kept: Kept, sent_at: float) -> None:
        claim = kept.claim
        self._send([kept], kept.renewer.one(claim.key, claim.owner, claim.ttl_ms), sent_at, grouped=False)

    def _send(self, leases: list[Kept], call: Awaitable[Any], sent_at: float, *, grouped: bool) -> None:
        self.renewals += len(leases)
        attempt = Attempt(sent_at, leases, self.start(call), grouped)
        for kept in leases:
            kept.attempts += (attempt,)
        attempt.task.add_done_callback(lambda _: self._answered(attempt))

    def _answered(self, attempt: Attempt) -> None:
        """Follow the answers of a renewing call, whenever they come."""
        now = self._clock.now()
        answers, error = _read_answers(attempt)
        for kept, answer in zip(attempt.kept, answers, strict=True):
            awaited = attempt in kept.attempts
            kept.attempts = tuple(other for other in kept.attempts if other is not attempt)
            if kept.term.state is not LeaseState.HELD:
                continue
            if answer is True:
                kept.backoff = None
                self._apply(kept, LeaseEvent.CONFIRMED, now, sent_at=attempt.sent_at)
                self._drop_older(kept, attempt.sent_at)
            elif answer is False:
                self._apply(kept, LeaseEvent.REFUSED, now)
            elif not awaited:
                continue  # a later one was confirmed: that this one came to nothing tells nothing
            elif error is None:
                # The group could not tell: somebody else has the row locked. Alone it may wait for it.
                self._renew_alone(kept, self._clock.now())
            else:
                self._failed(kept, now, error)
        self._arm()

    def _failed(self, kept: Kept, now: float, error: str) -> None:
        self.renewals_failed += 1
        self._emit(RenewalFailed(kept.claim.key, kept.token, error))
        self._apply(kept, LeaseEvent.UNKNOWN, now)
        if kept.term.state is not LeaseState.HELD:
            return
        if kept.backoff is None:
            kept.backoff = Backoff(kept.ttl_s * _RETRY_BASE_SHARE, kept.ttl_s * _RETRY_CAP_SHARE, self._rng)
        retry_at = now + kept.backoff.next_s()
        if not kept.attempts or retry_at < kept.term.renew_at:
            kept.term = machine.postponed(kept.term, retry_at)
            self._push(kept)

    def _apply(self, kept: Kept, event: LeaseEvent, now: float, *, sent_at: float = 0.0) -> None:
        before = kept.term
        kept.term = machine.step(before, event, now, sent_at=sent_at, ttl_s=kept.ttl_s)
        if kept.term is before:
            return
        if kept.term.state is LeaseState.HELD:
            if kept.term.renew_at != before.renew_at:
                self._push(kept)
            return
        kept.entry = 0
        self._kept.pop(kept, None)
        if kept.term.reason is not None:
            held_s = now - kept.held_since
            self._emit(LeaseLost(kept.claim.key, kept.token, kept.term.reason, held_s))
            self._give_up(kept)
        kept.tell_watchers()
        self._arm()

    @staticmethod
    def _drop_older(kept: Kept, sent_at: float) -> None:
        """Wait no more for what was sent before a confirmed call: one that hangs would count as under way for ever."""
        for attempt in kept.attempts:
            if attempt.sent_at < sent_at:
                attempt.drop()
        kept.attempts = tuple(attempt for attempt in kept.attempts if attempt.sent_at >= sent_at)

    @staticmethod
    def _give_up(kept: Kept) -> None:
        """Cancel the calls that only lost leases wait for; a released one's may end, and keeps its connection."""
        for attempt in kept.attempts:
            attempt.drop()

    # ------------------------------------------------------------------------------------- calls

    def start(self, call: Awaitable[_T]) -> "asyncio.Task[_T]":
        """Start a store call as a task of its own, kept alive until it ends."""
        # A coroutine as it is: in another one, it would never be awaited where the task is cancelled before its start.
        task = self.spawn(call if isinstance(call, Coroutine) else _as_coroutine(call))
        if self._observer is not None:
            self._observer.store_call_started(task)
        return task

    def spawn(self, work: Coroutine[Any, Any, _T]) -> "asyncio.Task[_T]":
        """Run *work* beside everything else, kept alive until it ends or the keeper closes."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._forget)
        return task

    async def together(self, works: Iterable[Coroutine[Any, Any, Any]]) -> None:
        """Run *works* side by side and wait for their ends, however they end."""
        tasks = [self.spawn(work) for work in works]
        if tasks:
            await asyncio.wait(tasks)

    async def wait_while(self, busy: Callable[[], bool], one_ended: asyncio.Event, until: float) -> None:
        """Wait until nothing is *busy*, looked at whenever *one_ended* is set, or until *until*, in seconds."""
        while busy() and self._clock.now() < until:
            one_ended.clear()
            ended = self.spawn(one_ended.wait())
            try:
                await wait_until(self._clock, ended, when=until)
            finally:
                ended.cancel()

    def _forget(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.pop(task, None)
        if not task.cancelled():
            task.exception()  # looked at here, so that an abandoned call's late error is not reported as unseen

    async def call(
        self,
        operation: str,
        call: Awaitable[_T],
        *,
        timeout_s: float,
        behind: Callable[["asyncio.Task[_T]"], Coroutine[Any, Any, None]] | None = None,
    ) -> _T:
        """
        Run a store call, and wait for it for at most *timeout_s* seconds.

        Args:
            operation: The store method, for the error.
            call: The call.
            timeout_s: How long to wait, in seconds.
            behind: What to do behind a call whose outcome is unknown to the caller (time is up, the caller was
                cancelled, an error), once the call has ended or was given up. It gets the call's task.

        Raises:
            StoreTimeoutError: Time is up; the outcome is unknown.
            StoreReplyError: The call cancelled itself; the outcome is unknown.
            LeaseStateError: The keeper was closed meanwhile; the outcome is unknown.
            Exception: What the store raised.
        """
        until = self._clock.now() + timeout_s
        task = self.start(call)
        known = False
        try:
            if not await wait_until(self._clock, task, when=until):
                until = self._clock.now()
                raise StoreTimeoutError(operation, timeout_s)
            if task.cancelled() and self._closing:
                raise LeaseStateError(
                    f"This was closed while the store's {operation}() was under way; its outcome is unknown. Close "
                    "after what uses it has ended."
                )
            if task.cancelled():
                raise StoreReplyError(f"The store's {operation}() cancelled itself; its outcome is unknown.")
            reply = task.result()
            known = True
            return reply
        finally:
            if not known:
                self.spawn(self._settle(task, until, behind))

    async def _settle(
        self,
        task: "asyncio.Task[_T]",
        until: float,
        behind: Callable[["asyncio.Task[_T]"], Coroutine[Any, Any, None]] | None,
    ) -> None:
        """See a call to its end that nobody waits for: until *until* by itself, then cancelled, not for ever."""
        if not task.done() and self._clock.now() < until:
            await wait_until(self._clock, task, when=until)
        if not task.done():
            task.cancel()
            await asyncio.wait([task], timeout=_STRAGGLERS_S)
        if behind is not None:
            await behind(task)
            if not task.done():
                # A driver that goes on with what it was told to leave: what that comes to is followed up as well.
                await asyncio.wait([task])
                await behind(task)

    async def close(self) -> None:
        """Lose what is still held, let what is under way end, and cancel what does not."""
        for kept in self:
            self._apply(kept, LeaseEvent.CLOSED, self._clock.now())
        self._heap.clear()
        self._arm()
        self._closing = True
        await self._others_end()
        # More than once, for an end begins something: behind a cancelled acquire goes a release, which is waited for.
        for _ in range(_ROUNDS):
            for task in self._others():
                task.cancel()
            await self._others_end()
        if self._others():
            _log.warning("A store call did not end when it was cancelled; it is left to its driver's own time-outs.")

    def _others(self) -> "list[asyncio.Task[Any]]":
        return [task for task in self._tasks if task is not asyncio.current_task()]

    async def _others_end(self) -> None:
        """Wait for every other task, and for what they begin as they end; not for long."""
        loop = asyncio.get_running_loop()
        until = loop.time() + _STRAGGLERS_S
        for _ in range(_TURNS):
            while (others := self._others()) and loop.time() < until:
                await asyncio.wait(others, timeout=until - loop.time())
            await asyncio.sleep(0)


async def _as_coroutine(call: Awaitable[_T]) -> _T:
    return await call


def _read_answers(attempt: Attempt) -> tuple[Sequence[bool | None], str | None]:
    """Read the answers of a renewing call; for a call that has none, the type of what went wrong."""
    task, count = attempt.task, len(attempt.kept)
    unknown = [None] * count
    if task.cancelled():
        return unknown, asyncio.CancelledError.__name__
    error = task.exception()
    if error is not None:
        return unknown, type(error).__name__
    answers = task.result() if attempt.grouped else [task.result()]
    if not isinstance(answers, Sequence) or len(answers) != count:
        return unknown, StoreReplyError.__name__
    # Not truth but type: a driver's row or count that happens to be true confirms nothing.
    allowed = (bool, type(None)) if attempt.grouped else (bool,)
    if any(type(answer) not in allowed for answer in answers):
        return unknown, StoreReplyError.__name__
    return answers, None
