"""Bugs planted in the engine."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

from tenure import _acquirer, _job_leases, election, jobs
from tenure import _lease_machine as machine
from tenure._acquirer import Acquirer
from tenure._keeper import Keeper
from tenure._kept import Kept
from tenure._lease_machine import LeaseEvent, LeaseState
from tenure.events import LeadershipAcquired
from tenure.idempotency import engine as idempotency_engine
from tenure.idempotency.execution import Execution
from tenure.idempotency.recorder import Recorder
from tenure.idempotency_store import Acquired as Begun
from tenure.lease import LeaseScope
from tenure.locks import Locks
from tenure.store import Acquired

__all__ = ["ENGINE_BUGS"]

Plant = Callable[[Callable[..., None]], None]

_step, _begin, _kept_init = machine.step, machine.begin, Kept.__init__


def deadline_of_an_acquire_from_its_reply(patch: Callable[..., None]) -> None:
    def late(self: Kept, clock: Any, claim: Any, token: int, _: float, renewer: Any) -> None:
        _kept_init(self, clock, claim, token, clock.now(), renewer)

    patch(Kept, "__init__", late)


def deadline_of_a_renewal_from_its_reply(patch: Callable[..., None]) -> None:
    patch(machine, "step", lambda term, event, now, **rest: _step(term, event, now, **{**rest, "sent_at": now}))


def no_local_deadline(patch: Callable[..., None]) -> None:
    patch(machine, "trusted_until", lambda sent_at, ttl_s: sent_at + 10_000 * ttl_s)


def no_margin_for_slow_clocks(patch: Callable[..., None]) -> None:
    patch(machine, "MARGIN_SHARE", 0.0)


def a_late_grant_is_used(patch: Callable[..., None]) -> None:
    patch(_acquirer, "trusted_until", lambda sent_at, ttl_s: sent_at + 100 * ttl_s)


async def _nothing(*_: Any, **__: Any) -> None: ...


def nothing_goes_behind_a_lost_acquire(patch: Callable[..., None]) -> None:
    patch(_acquirer, "_release_behind", _nothing)


def a_waiter_leaves_without_its_release(patch: Callable[..., None]) -> None:
    freeing = Acquirer._freeing

    def frees(self: Acquirer, claim: Any) -> Any:
        behind = freeing(self, claim)
        # Behind a call that is under way it is sent: what the bug leaves out is the one of a waiter that has a place.
        return lambda call: behind(call) if call is not None else _nothing()

    patch(Acquirer, "_freeing", frees)


def a_grant_is_believed_from_its_arrival(patch: Callable[..., None]) -> None:
    hear = Acquirer._hear

    def hears(self: Acquirer, wait: Any) -> Any:
        granted = hear(self, wait)
        if granted is not None:
            wait.sent_at = self._clock.now()
        return granted

    patch(Acquirer, "_hear", hears)


def the_message_of_a_grant_that_is_over_is_believed(patch: Callable[..., None]) -> None:
    def hears(_: Acquirer, wait: Any) -> Any:
        heard = wait.heard()
        granted = wait.wake.result() if heard else None
        if heard:
            wait.wake = None
        if not isinstance(granted, Acquired):
            return None
        wait.placed = False
        return granted

    patch(Acquirer, "_hear", hears)


def renewals_go_on_after_the_release(patch: Callable[..., None]) -> None:
    end = Keeper.end

    def goes_on(self: Keeper, kept: Kept, event: LeaseEvent) -> None:
        end(self, kept, event)

        async def beat() -> None:
            for _ in range(3):
                await asyncio.sleep(kept.ttl_s / 3)
                await kept.renewer.one(kept.claim.key, kept.claim.owner, kept.claim.ttl_ms)

        if event is LeaseEvent.GIVEN_BACK:
            self.spawn(beat())

    patch(Keeper, "end", goes_on)


def unknown_taken_for_confirmed(patch: Callable[..., None]) -> None:
    def believes(term: Any, event: LeaseEvent, now: float, **rest: Any) -> Any:
        confirmed = LeaseEvent.CONFIRMED if event is LeaseEvent.UNKNOWN else event
        return _step(term, confirmed, now, **{"ttl_s": 3.0, **rest, "sent_at": now})

    patch(machine, "step", believes)


def a_refused_renewal_is_ignored(patch: Callable[..., None]) -> None:
    def ignores(term: Any, event: LeaseEvent, now: float, **rest: Any) -> Any:
        return _step(
            term, LeaseEvent.CONFIRMED if event is LeaseEvent.REFUSED else event, now, **{**rest, "sent_at": now}
        )

    patch(machine, "step", ignores)


def a_late_confirmation_revives(patch: Callable[..., None]) -> None:
    answered = Keeper._answered

    def revives(self: Keeper, attempt: Any) -> None:
        for kept in attempt.kept:
            if kept.term.state is LeaseState.LOST and not attempt.task.cancelled():
                kept.term = _begin(self._clock.now(), kept.ttl_s)
        answered(self, attempt)

    patch(Keeper, "_answered", revives)
    patch(Keeper, "_give_up", lambda *_: None)


def held_is_a_flag_that_a_timer_sets(patch: Callable[..., None]) -> None:
    patch(Kept, "held", property(lambda self: self.term.state is LeaseState.HELD))


def the_deadline_waits_for_the_call(patch: Callable[..., None]) -> None:
    apply = Keeper._apply

    def waits(self: Keeper, kept: Kept, event: LeaseEvent, now: float, **rest: Any) -> None:
        if event is LeaseEvent.TIME and kept.attempts:
            kept.term = machine.Term(kept.term.state, now + kept.ttl_s / 4, now + kept.ttl_s / 4)
            self._push(kept)
            return
        apply(self, kept, event, now, **rest)

    patch(Keeper, "_apply", waits)


def a_loss_is_told_to_nobody(patch: Callable[..., None]) -> None:
    patch(Kept, "tell_watchers", lambda *_: None)


def a_lead_is_not_cancelled_by_its_loss(patch: Callable[..., None]) -> None:
    async def runs_on(self: Any, lease: Any) -> None:
        await self._lead(lease)
        await lease.release()

    patch(election.LeaderElection, "_lead_under", runs_on)


def leadership_is_announced_before_the_old_one_is_lost(patch: Callable[..., None]) -> None:
    serve = election.LeaderElection._serve

    async def announces(self: Any, lease: Any) -> Any:
        self._locks.emit(LeadershipAcquired(self.key, lease.token))
        return await serve(self, lease)

    patch(election.LeaderElection, "_serve", announces)


def a_body_is_not_cancelled_by_its_loss(patch: Callable[..., None]) -> None:
    patch(LeaseScope, "_watcher_of", lambda _, __: lambda ___: None)


def closing_releases_nothing(patch: Callable[..., None]) -> None:
    patch(Locks, "_release_all", _nothing)
    patch(_job_leases.JobLeases, "hand_back", _nothing)


def closing_forgets_what_is_held(patch: Callable[..., None]) -> None:
    patch(Locks, "_release_all", _nothing)
    patch(Keeper, "close", _nothing)


def a_tick_runs_whoever_has_the_run_lock(patch: Callable[..., None]) -> None:
    take = Locks.try_acquire

    async def takes(self: Locks, key: str, **options: Any) -> Any:
        lease = await take(self, key, **options)
        # The bug: a run that is still in progress keeps no other away, who takes what it has.
        return lease or (await take(self, f"{key}:again", **options) if key == "job" else None)

    patch(Locks, "try_acquire", takes)


def a_slot_is_not_claimed(patch: Callable[..., None]) -> None:
    async def claims(*_: Any) -> bool:
        return True

    patch(jobs, "_claims_slot", claims)


def an_unknown_outcome_is_released(patch: Callable[..., None]) -> None:
    async def releases(execution: Execution, error: BaseException, on_error: str) -> None:
        del error, on_error
        await execution.release()

    patch(idempotency_engine, "_settle_failed", releases)


def a_completion_is_not_tried_again(patch: Callable[..., None]) -> None:
    async def releases(self: Execution, *_: Any) -> None:
        await self._release()
        self._ended(self)

    patch(Execution, "_more_tries", releases)


def a_second_try_asks_as_another(patch: Callable[..., None]) -> None:
    async def asks(self: Recorder, ask: Callable[[], Any]) -> Any:
        del self
        try:
            return await ask()
        except Exception:  # noqa: BLE001 -- the bug: any failure is taken for "nothing happened", and it begins
            return Begun(1)

    patch(Recorder, "_ask_twice", asks)


ENGINE_BUGS: Final[Sequence[tuple[Plant, int, int]]] = (
    (deadline_of_an_acquire_from_its_reply, 100, 0),
    (deadline_of_a_renewal_from_its_reply, 100, 0),
    (no_local_deadline, 100, 0),
    (no_margin_for_slow_clocks, 100, 0),
    (a_late_grant_is_used, 100, 33),
    (nothing_goes_behind_a_lost_acquire, 100, 3),
    (a_waiter_leaves_without_its_release, 100, 17),
    (a_grant_is_believed_from_its_arrival, 100, 17),
    (the_message_of_a_grant_that_is_over_is_believed, 300, 240),
    (renewals_go_on_after_the_release, 100, 0),
    (unknown_taken_for_confirmed, 100, 0),
    (a_refused_renewal_is_ignored, 100, 0),
    (a_late_confirmation_revives, 100, 36),
    (held_is_a_flag_that_a_timer_sets, 100, 0),
    (the_deadline_waits_for_the_call, 100, 9),
    (a_loss_is_told_to_nobody, 100, 6),
    (a_lead_is_not_cancelled_by_its_loss, 100, 10),
    (leadership_is_announced_before_the_old_one_is_lost, 100, 4),
    (a_body_is_not_cancelled_by_its_loss, 100, 6),
    (closing_releases_nothing, 100, 0),
    (closing_forgets_what_is_held, 100, 65),
    (a_tick_runs_whoever_has_the_run_lock, 100, 0),
    (a_slot_is_not_claimed, 100, 81),
    (an_unknown_outcome_is_released, 100, 2),
    (a_completion_is_not_tried_again, 100, 12),
    (a_second_try_asks_as_another, 100, 12),
)
