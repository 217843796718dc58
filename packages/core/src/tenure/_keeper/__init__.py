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
import random
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, final

from tenure import _lease_machine as machine
from tenure._backoff import Backoff
from tenure._keeper.agenda import Agenda
from tenure._keeper.calls import Call, Calls
from tenure._kept import Attempt, Kept, Renewer
from tenure._lease_machine import LeaseEvent, LeaseState
from tenure.clock import Alarm, Clock
from tenure.errors import StoreReplyError
from tenure.events import Event, LeaseLost, LeaseRenewedLate, RenewalFailed

__all__ = ["Call", "Keeper"]

_NEVER = float("inf")

_GATHER_SHARE = 0.01
"""Renewals due within a hundredth of a ttl travel together: early by less than anyone can tell, in fewer calls."""

_SPREAD = 0.1
_WIDE_SPREAD = 0.5
"""
How much early a renewal is sent at most, as a share of its interval (a third of the ttl); how much is drawn for each.
What was acquired in one burst (by one process at its start, or by a fleet after a roll-out) would otherwise be renewed
in one burst for ever. The wide one is for a lease's first renewal, and for those that were due in a crowd: it makes
five seconds of a burst at a ttl of 30. After that the small one keeps them apart, and costs a twentieth more renewals.
"""

_CROWD_SHARE = 0.1
"""More than a tenth of all leases in one call are a crowd: of leases that are spread evenly it carries a thirtieth."""

_LATE_SHARE = 0.1
"""A renewal sent later than a tenth of its ttl is reported: three such stalls in a row lose the lease."""

_MAX_UNDER_WAY = 2
"""Calls under way for one lease. The second covers for a reply that was lost; a third would meet the same fate."""

_MAX_BATCH = 500
"""
Leases in one call: enough to carry thousands in a few, small enough to be answered within milliseconds. Also the
renewals sent in one turn of the event loop: what else runs on it waits for a millisecond or two, not for all of them.
"""

_MAX_GROUPS = 4
"""Calls for many under way at a time: a slow store is not made slower, and what waits is still sent in a moment."""

_PATIENCE_SHARE = 0.1
"""After a tenth of the ttl a call for many stands in nobody's way: one that hangs must not hold up other leases."""

_RETRY_BASE_SHARE = 1 / 30
_RETRY_CAP_SHARE = 1 / 6
"""The span between retries of a failed renewal, as shares of the ttl: some seven tries before the deadline."""


@final
class Keeper(Calls):
    """
    Keeps leases renewed, and tells of their end.

    Args:
        clock: The holder's clock.
        emit: Where events go.
        rng: Where jitter comes from.
    """

    def __init__(self, clock: Clock, emit: Callable[[Event], None], rng: random.Random) -> None:
        super().__init__(clock)
        self._emit = emit
        self._rng = rng
        # A dict for its order: leases are looked through in the order in which they came, so that a seed repeats a run.
        self._kept: dict[Kept, None] = {}
        self._agenda = Agenda()
        self._look = Alarm(clock, self._wake)
        self._groups: list[Attempt] = []
        self._waiting: deque[list[Kept]] = deque()
        self.ending = False
        """Whether nothing is kept any more: what is granted from now on would be renewed by nobody, or for ever."""
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
        self._push(kept, _WIDE_SPREAD)

    def end(self, kept: Kept, event: LeaseEvent) -> None:
        """End *kept*: given back, closed, or overdue."""
        self._apply(kept, event, self._clock.now())

    def _push(self, kept: Kept, spread: float = _SPREAD) -> None:
        """Set the next moment at which *kept* is looked at: when its renewal is due, or a little before."""
        term, when = kept.term, kept.term.renew_at
        if when < term.trusted_until:  # what is due then is the deadline, and that is never early
            when -= kept.claim.ttl_ms / (1000 * machine.RENEWALS_PER_TTL) * spread * self._rng.random()
        self._put(kept, when)

    def _put(self, kept: Kept, when: float) -> None:
        self._agenda.put(kept, when)
        if when < self._look.at:
            self._look.set(when)

    def _look_next(self) -> None:
        """Wake at the first moment at which there is something to do."""
        first = self._agenda.first()
        when = _NEVER if first is None else first[0]
        if self._waiting and self._groups:
            when = min(when, *(group.patient_until for group in self._groups))
        self._look.set(when)

    def _wake(self) -> None:
        """Look at every lease that is due."""
        now = self._clock.now()
        due: dict[Renewer, list[Kept]] = {}
        for _ in range(_MAX_BATCH):  # the rest is due in the next turn of the loop
            kept = self._take_due(now)
            if kept is None:
                break
            if now >= kept.term.trusted_until:
                self._apply(kept, LeaseEvent.TIME, now)
            else:
                self._report_if_late(kept, now)
                due.setdefault(kept.renewer, []).append(kept)
        for leases in due.values():
            self._renew_in_turn(leases, now)
        self._renew_waiting(now)
        self._look_next()

    def _take_due(self, now: float) -> Kept | None:
        """Take the first lease that is due from the agenda: its deadline or its renewal."""
        first = self._agenda.first()
        if first is None:
            return None
        when, kept = first
        if when > now:
            term = kept.term
            # Gathered a little early, which a deadline never is.
            if when > now + _GATHER_SHARE * kept.ttl_s or term.renew_at >= term.trusted_until:
                return None
        self._agenda.pop()
        return kept

    def _report_if_late(self, kept: Kept, now: float) -> None:
        late_s = now - kept.term.renew_at
        if late_s > _LATE_SHARE * kept.ttl_s:
            self._emit(LeaseRenewedLate(kept.claim.key, kept.token, late_s, kept.ttl_s))

    def _renew_in_turn(self, leases: list[Kept], now: float) -> None:
        """Send a renewal for each of *leases*, or have them wait where enough is under way already."""
        if leases[0].renewer.many is None or (not self._waiting and self._may_send(now)):
            self._renew(leases)
            return
        self._waiting.append(leases)
        for kept in leases:
            kept.term = machine.postponed(kept.term, _NEVER)  # what stands on the agenda meanwhile is the deadline
            self._push(kept)

    def _renew_waiting(self, now: float) -> None:
        while self._waiting and self._may_send(now):
            waited = self._waiting.popleft()
            leases = [kept for kept in waited if _still_waits(kept)]
            if leases:
                self._renew(leases)

    def _may_send(self, now: float) -> bool:
        self._groups = [group for group in self._groups if now < group.patient_until and not group.task.done()]
        return len(self._groups) < _MAX_GROUPS

    def _renew(self, leases: list[Kept]) -> None:
        """Send a renewal for each of *leases*, and set the moment at which the next one is due."""
        sent_at = self._clock.now()
        crowd = min(_MAX_BATCH, 2 + int(_CROWD_SHARE * len(self._kept)))
        spread = _WIDE_SPREAD if len(leases) >= crowd else _SPREAD
        for kept in leases:
            # With enough under way nothing more is sent before the deadline, unless an answer comes.
            full = len(kept.attempts) + 1 >= _MAX_UNDER_WAY
            next_at = _NEVER if full else sent_at + kept.ttl_s / machine.RENEWALS_PER_TTL
            kept.term = machine.postponed(kept.term, next_at)
            self._push(kept, spread)
        many = leases[0].renewer.many
        if many is None or len(leases) == 1:
            for kept in leases:
                self._renew_alone(kept, sent_at)
            return
        self._groups.append(self._send(leases, many([kept.claim for kept in leases]), sent_at, grouped=True))

    def _renew_alone(self, kept: Kept, sent_at: float) -> None:
        claim = kept.claim
        self._send([kept], kept.renewer.one(claim.key, claim.owner, claim.ttl_ms), sent_at, grouped=False)

    def _send(self, leases: list[Kept], call: Awaitable[Any], sent_at: float, *, grouped: bool) -> Attempt:
        self.renewals += len(leases)
        patient_until = sent_at + _PATIENCE_SHARE * min(kept.claim.ttl_ms for kept in leases) / 1000
        attempt = Attempt(sent_at, leases, self.start(call), grouped, patient_until)
        for kept in leases:
            kept.attempts += (attempt,)
        attempt.task.add_done_callback(lambda _: self._answered(attempt))
        return attempt

    def _answered(self, attempt: Attempt) -> None:
        """Follow the answers of a renewing call, whenever they come."""
        now = self._clock.now()
        answers, error = _read_answers(attempt)
        for kept, answer in zip(attempt.kept, answers, strict=True):
            awaited = attempt in kept.attempts
            # Nearly always it is the only one.
            alone = awaited and len(kept.attempts) == 1
            kept.attempts = () if alone else tuple([other for other in kept.attempts if other is not attempt])
            if kept.term.state is not LeaseState.HELD:
                continue
            if answer is True:
                kept.backoff = None
                self._apply(kept, LeaseEvent.CONFIRMED, now, sent_at=attempt.sent_at)
                if kept.attempts:
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
        if self._waiting:
            self._renew_waiting(now)
            self._look_next()

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
            self._put(kept, kept.term.renew_at)

    def _apply(self, kept: Kept, event: LeaseEvent, now: float, *, sent_at: float = 0.0) -> None:
        before = kept.term
        term = kept.term = machine.step(before, event, now, sent_at=sent_at, ttl_s=kept.ttl_s)
        if term is before:
            return
        if term.state is LeaseState.HELD:
            # A confirmation that comes while nothing else does finds what was put on the agenda at the sending.
            if term.renew_at != before.renew_at:
                self._push(kept)
            return
        self._agenda.drop(kept)
        self._kept.pop(kept, None)
        if term.reason is not None:
            held_s = now - kept.held_since
            self._emit(LeaseLost(kept.claim.key, kept.token, term.reason, held_s))
            self._give_up(kept)
        kept.tell_watchers()

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

    async def close(self) -> None:
        """Lose what is still held, let what is under way end, and cancel what does not."""
        self.ending = True
        for kept in self:
            self._apply(kept, LeaseEvent.CLOSED, self._clock.now())
        self._agenda.clear()
        self._waiting.clear()
        self._look.call_off()
        await self.end_calls()


def _still_waits(kept: Kept) -> bool:
    """Whether nothing has become of a lease since it was told to wait: an answer of an earlier call, or its end."""
    term = kept.term
    waits = term.state is LeaseState.HELD and term.renew_at >= term.trusted_until
    return waits and len(kept.attempts) < _MAX_UNDER_WAY


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
