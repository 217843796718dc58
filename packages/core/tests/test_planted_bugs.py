"""
Bugs planted in the engine, each caught by the fact that it breaks: so the facts have teeth.

Every row replaces one piece of the engine by a wrong one, of a kind that was seen in a released library, and runs
the named fact, which must fail.
"""

import asyncio
import contextlib
import dataclasses
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from tenure import _acquirer, _job_leases, _keeper, jobs, locks
from tenure import _lease_machine as machine
from tenure import lease as lease_module
from tenure._acquirer import Acquirer
from tenure._keeper import Keeper, agenda, calls
from tenure._kept import Kept
from tenure._lease_machine import LeaseEvent, LeaseState
from tenure.lease import Lease, LeaseScope
from tenure.locks import Locks

Plant = Callable[[pytest.MonkeyPatch], None]

step, begin, init = machine.step, machine.begin, Kept.__init__


def deadline_of_an_acquire_from_its_reply(patch: pytest.MonkeyPatch) -> None:
    def late(self: Kept, clock: Any, claim: Any, token: int, _: float, renewer: Any) -> None:
        init(self, clock, claim, token, clock.now(), renewer)

    patch.setattr(Kept, "__init__", late)


def deadline_of_a_renewal_from_its_reply(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(machine, "step", lambda term, event, now, **rest: step(term, event, now, **{**rest, "sent_at": now}))


def unknown_taken_for_confirmed(patch: pytest.MonkeyPatch) -> None:
    def believes(term: Any, event: LeaseEvent, now: float, **rest: Any) -> Any:
        confirmed = event is LeaseEvent.UNKNOWN
        return step(term, LeaseEvent.CONFIRMED if confirmed else event, now, **{**rest, "sent_at": now})

    patch.setattr(machine, "step", believes)


def no_local_deadline(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(machine, "trusted_until", lambda sent_at, ttl_s: sent_at + 10_000 * ttl_s)


def deadline_looked_at_only_after_a_call(patch: pytest.MonkeyPatch) -> None:
    apply = Keeper._apply

    def waits(self: Keeper, kept: Kept, event: LeaseEvent, now: float, **rest: Any) -> None:
        if event is LeaseEvent.TIME and kept.attempts:
            kept.term = dataclasses.replace(kept.term, trusted_until=now + 1, renew_at=now + 1)
            self._push(kept)
            return
        apply(self, kept, event, now, **rest)

    patch.setattr(Keeper, "_apply", waits)


def a_late_confirmation_revives(patch: pytest.MonkeyPatch) -> None:
    answered = Keeper._answered

    def revives(self: Keeper, attempt: Any) -> None:
        for kept in attempt.kept:
            if kept.term.state is LeaseState.LOST and not attempt.task.cancelled():
                kept.term = begin(self._clock.now(), kept.ttl_s)
        answered(self, attempt)

    patch.setattr(Keeper, "_answered", revives)
    patch.setattr(Keeper, "_give_up", lambda *_: None)


def held_is_a_flag_that_a_timer_sets(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Kept, "held", property(lambda self: self.term.state is LeaseState.HELD))


def a_child_process_believes_too(patch: pytest.MonkeyPatch) -> None:
    parent = os.getpid()
    patch.setattr(os, "getpid", lambda: parent)


def a_group_is_one_call_for_all_of_its_leases(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_keeper, "_MAX_BATCH", 1)


def renewals_keep_the_step_of_their_acquires(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_keeper, "_SPREAD", 0.0)
    patch.setattr(_keeper, "_WIDE_SPREAD", 0.0)
    patch.setattr(Keeper, "_push", lambda self, kept, *_: self._put(kept, kept.term.renew_at))


def a_crowd_stays_one(patch: pytest.MonkeyPatch) -> None:
    push = Keeper._push

    def pushes(self: Keeper, kept: Kept, spread: float = 0.0) -> None:
        push(self, kept, spread if kept.entry == 0 else 0.0)

    patch.setattr(Keeper, "_push", pushes)


def renewals_come_much_too_early(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_keeper, "_GATHER_SHARE", 0.2)


def all_that_is_due_is_sent_in_one_turn(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_keeper, "_MAX_BATCH", 10**6)


def a_slow_store_is_sent_everything_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_keeper, "_MAX_GROUPS", 10**6)


def a_group_that_hangs_stands_in_the_way_for_ever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_keeper, "_PATIENCE_SHARE", 10.0**6)


def what_waits_has_no_deadline(patch: pytest.MonkeyPatch) -> None:
    def waits(self: Keeper, leases: Any, now: float) -> None:
        if not self._may_send(now):
            self._waiting.append(leases)
            return
        self._renew(leases)

    patch.setattr(Keeper, "_renew_in_turn", waits)


def old_entries_are_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(agenda, "_FEW", 10**9)


def calls_that_have_ended_are_waited_for(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(calls, "_FEW", 10**9)


def every_lease_has_tasks_of_its_own(patch: pytest.MonkeyPatch) -> None:
    keep = Keeper.keep

    def keeps(self: Keeper, kept: Kept) -> None:
        keep(self, kept)
        ends = [asyncio.Event() for _ in range(4)]
        kept.watch(lambda _, ends=ends: [end.set() for end in ends] and None)  # type: ignore[misc]
        for end in ends:
            self.spawn(end.wait())

    patch.setattr(Keeper, "keep", keeps)


def cannot_tell_taken_for_refused(patch: pytest.MonkeyPatch) -> None:
    read = _keeper._read_answers

    def refuses(attempt: Any) -> Any:
        answers, error = read(attempt)
        return ([answer is True for answer in answers], error) if error is None else (answers, error)

    patch.setattr(_keeper, "_read_answers", refuses)


def whatever_is_true_confirms(patch: pytest.MonkeyPatch) -> None:
    def trusts(attempt: Any) -> Any:
        if attempt.task.cancelled() or attempt.task.exception() is not None:
            return [None] * len(attempt.kept), "error"
        reply = attempt.task.result()
        return [bool(reply)] * len(attempt.kept), None

    patch.setattr(_keeper, "_read_answers", trusts)


def a_renewal_that_hangs_is_under_way_for_ever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Keeper, "_drop_older", lambda *_: None)


def closing_looks_at_its_tasks_once(patch: pytest.MonkeyPatch) -> None:
    async def close_once(self: Keeper) -> None:
        others = self._others()
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others)

    patch.setattr(Keeper, "close", close_once)


def a_call_that_was_given_up_is_followed_up_once(patch: pytest.MonkeyPatch) -> None:
    settle = Keeper._settle

    async def once(self: Keeper, task: Any, until: float, behind: Any) -> None:
        called: list[Any] = []

        async def first(call: Any) -> None:
            if not called:
                called.append(call)
                await behind(call)

        await settle(self, task, until, None if behind is None else first)

    patch.setattr(Keeper, "_settle", once)


def a_coroutine_in_a_coroutine(patch: pytest.MonkeyPatch) -> None:
    def wraps(self: Keeper, call: Any) -> Any:
        return self.spawn(calls._as_coroutine(call))

    patch.setattr(Keeper, "start", wraps)


async def _nothing(*_: Any, **__: Any) -> None: ...


def nothing_goes_behind_an_unknown_acquire(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_acquirer, "_release_behind", _nothing)


def a_late_grant_is_used(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_acquirer, "trusted_until", lambda sent_at, ttl_s: sent_at + 100 * ttl_s)


def a_release_that_its_caller_can_cancel(patch: pytest.MonkeyPatch) -> None:
    async def exposed(task: Any) -> Any:
        return await task

    patch.setattr(_acquirer, "shielded", exposed)


def a_reply_is_a_grant_if_it_has_a_token(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_acquirer, "check_acquire_reply", lambda reply: reply)


def nested_tasks_wait_for_themselves(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Acquirer, "_refuse_nested", lambda *_: None)


def the_cancellation_is_not_taken_back(patch: pytest.MonkeyPatch) -> None:
    async def keeps(self: LeaseScope, exc_type: Any) -> tuple[bool, None]:
        del self, exc_type
        return False, None

    patch.setattr(LeaseScope, "_take_cancellation_back", keeps)


def a_loss_is_told_to_nobody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Kept, "tell_watchers", lambda *_: None)


def a_swallowed_cancellation_is_the_end_of_it(patch: pytest.MonkeyPatch) -> None:
    leave = LeaseScope.__aexit__

    async def forgets(self: LeaseScope, exc_type: Any, exc: Any, traceback: Any) -> None:
        with contextlib.suppress(lease_module.LeaseLostError if exc_type is None else ()):
            await leave(self, exc_type, exc, traceback)

    patch.setattr(LeaseScope, "__aexit__", forgets)


def a_loss_wins_over_a_cancellation_from_outside(patch: pytest.MonkeyPatch) -> None:
    take = LeaseScope._take_cancellation_back

    async def ignores(self: LeaseScope, exc_type: Any) -> tuple[bool, None]:
        await take(self, exc_type)
        return False, None

    patch.setattr(LeaseScope, "_take_cancellation_back", ignores)


def a_lent_lease_goes_on_after_its_guard(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Lease, "end_loan", lambda *_: None)


def a_fresh_lease_is_handed_back_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_job_leases, "_FRESH_S", 0.0)


def every_tick_asks_for_itself(patch: pytest.MonkeyPatch) -> None:
    async def asks(self: Any, key: str, name: str, ttl: Any) -> Any:
        return self.owned(key) or await self._ask(key, name, ttl)

    patch.setattr(jobs.JobLeases, "take", asks)


def a_slot_is_named_in_local_time(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(jobs, "_slot_name", lambda slot: f"{slot:%Y-%m-%dT%H:%M}")


def the_run_lock_ends_with_the_run(patch: pytest.MonkeyPatch) -> None:
    async def ends(used: Locks, run: Lease, not_before: float) -> None:
        del used, not_before
        await lease_module.give_back_quietly(run)

    patch.setattr(jobs, "_end_run", ends)


def closing_waits_for_nobody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Locks, "_guards_end", _nothing)


def closing_releases_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Locks, "_release_all", _nothing)


def a_grant_that_comes_while_closing_is_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Keeper, "ending", property(lambda _: False, lambda *_: None), raising=False)


def closing_can_be_cancelled(patch: pytest.MonkeyPatch) -> None:
    async def exposed(task: Any) -> Any:
        return await task

    patch.setattr(locks, "shielded", exposed)


PLANTED: list[tuple[Plant, str, str]] = [
    (
        deadline_of_an_acquire_from_its_reply,
        "test_lease",
        "test_the_deadline_counts_from_the_sending_of_the_acquire_not_from_its_reply",
    ),
    (
        deadline_of_a_renewal_from_its_reply,
        "test_lease",
        "test_a_slow_confirmation_moves_the_deadline_from_its_sending_only",
    ),
    (
        unknown_taken_for_confirmed,
        "test_lease",
        "test_unknown_outcomes_move_nothing_and_are_tried_again_until_the_deadline",
    ),
    (no_local_deadline, "test_lease", "test_a_hung_renewal_never_delays_the_loss"),
    (deadline_looked_at_only_after_a_call, "test_lease", "test_a_hung_renewal_never_delays_the_loss"),
    (a_late_confirmation_revives, "test_lease", "test_a_lost_lease_is_never_held_again"),
    (held_is_a_flag_that_a_timer_sets, "test_lease", "test_a_stalled_loop_is_told_of_before_the_next_line_runs"),
    (a_child_process_believes_too, "test_lease", "test_after_a_fork_the_child_holds_nothing_and_says_so"),
    (
        a_group_is_one_call_for_all_of_its_leases,
        "test_lease",
        "test_leases_that_are_due_together_travel_in_one_call",
    ),
    (cannot_tell_taken_for_refused, "test_lease", "test_what_a_group_cannot_tell_is_asked_alone"),
    (
        nothing_goes_behind_an_unknown_acquire,
        "test_locks",
        "test_behind_an_acquire_whose_reply_was_lost_goes_a_release",
    ),
    (a_late_grant_is_used, "test_locks", "test_a_grant_that_the_process_slept_through_is_no_grant"),
    (
        a_release_that_its_caller_can_cancel,
        "test_lease",
        "test_a_release_is_sent_and_waited_for_however_often_its_caller_is_cancelled",
    ),
    (nested_tasks_wait_for_themselves, "test_locks", "test_a_task_that_asks_again_for_its_own_key_is_refused_at_once"),
    (
        the_cancellation_is_not_taken_back,
        "test_lease",
        "test_hold_cancels_its_body_at_the_loss_and_raises_in_place_of_the_cancellation",
    ),
    (
        a_loss_is_told_to_nobody,
        "test_lease",
        "test_hold_cancels_its_body_at_the_loss_and_raises_in_place_of_the_cancellation",
    ),
    (
        a_swallowed_cancellation_is_the_end_of_it,
        "test_lease",
        "test_a_body_that_swallows_its_cancellation_still_meets_the_loss",
    ),
    (
        a_loss_wins_over_a_cancellation_from_outside,
        "test_lease",
        "test_a_cancellation_from_outside_wins_over_a_loss_in_the_same_step",
    ),
    (
        a_lent_lease_goes_on_after_its_guard,
        "test_jobs",
        "test_the_run_reads_the_run_locks_lease_and_what_outlives_it_reads_it_as_ended",
    ),
    (
        a_fresh_lease_is_handed_back_at_once,
        "test_jobs",
        "test_a_lease_whose_run_has_just_started_is_kept_for_the_rest_of_the_second",
    ),
    (every_tick_asks_for_itself, "test_jobs", "test_ticks_that_come_together_on_one_instance_ask_the_store_once"),
    (
        a_slot_is_named_in_local_time,
        "test_jobs",
        "test_each_slot_runs_at_most_once_whatever_the_skew_and_the_handover",
    ),
    (
        the_run_lock_ends_with_the_run,
        "test_jobs",
        "test_a_run_on_its_own_lock_may_be_on_any_instance_but_one_at_a_time_for_at_least_a_second",
    ),
    (
        closing_waits_for_nobody,
        "test_shutdown",
        "test_closing_lets_guarded_bodies_end_and_refuses_new_work_meanwhile",
    ),
    (closing_releases_nothing, "test_shutdown", "test_closing_releases_what_is_still_held_and_says_that_it_was"),
    (
        a_renewal_that_hangs_is_under_way_for_ever,
        "test_stragglers",
        "test_renewals_that_hang_now_and_then_cost_no_lease",
    ),
    (
        closing_looks_at_its_tasks_once,
        "test_stragglers",
        "test_closing_waits_for_what_goes_behind_an_acquire_that_it_cancels",
    ),
    (
        a_call_that_was_given_up_is_followed_up_once,
        "test_stragglers",
        "test_a_grant_of_a_driver_that_goes_on_after_its_call_was_given_up_is_freed",
    ),
    (
        a_coroutine_in_a_coroutine,
        "test_stragglers",
        "test_a_lease_that_is_lost_in_the_turn_of_its_renewal_leaves_no_call_unawaited",
    ),
    (
        renewals_keep_the_step_of_their_acquires,
        "test_many_leases",
        "test_leases_that_were_acquired_in_one_burst_are_not_renewed_in_one",
    ),
    (a_crowd_stays_one, "test_many_leases", "test_a_crowd_that_a_standstill_made_is_spread_again"),
    (renewals_come_much_too_early, "test_many_leases", "test_no_renewal_is_late_and_few_are_more_than_needed"),
    (
        all_that_is_due_is_sent_in_one_turn,
        "test_many_leases",
        "test_one_turn_of_the_loop_sends_five_hundred_at_most",
    ),
    (
        a_slow_store_is_sent_everything_at_once,
        "test_many_leases",
        "test_a_slow_store_has_four_groups_to_answer_at_most_and_every_lease_is_renewed",
    ),
    (
        a_group_that_hangs_stands_in_the_way_for_ever,
        "test_many_leases",
        "test_groups_that_hang_hold_up_no_other_lease",
    ),
    (
        what_waits_has_no_deadline,
        "test_many_leases",
        "test_leases_that_wait_behind_groups_that_hang_are_lost_to_the_moment",
    ),
    (old_entries_are_kept, "test_many_leases", "test_what_came_and_went_leaves_nothing_behind_on_the_agenda"),
    (
        calls_that_have_ended_are_waited_for,
        "test_many_leases",
        "test_what_came_and_went_leaves_nothing_behind_on_the_agenda",
    ),
    (every_lease_has_tasks_of_its_own, "test_many_leases", "test_a_lease_takes_two_kibibytes_at_most"),
    (
        a_grant_that_comes_while_closing_is_kept,
        "test_shutdown",
        "test_a_grant_that_comes_while_closing_is_given_back_and_kept_by_nobody",
    ),
    (closing_can_be_cancelled, "test_shutdown", "test_closing_is_finished_however_often_it_is_cancelled"),
]


@pytest.mark.parametrize(("plant", "file", "fact"), PLANTED, ids=[plant.__name__ for plant, _, _ in PLANTED])
def test_a_planted_bug_is_caught_by_the_fact_that_it_breaks(
    plant: Plant, file: str, fact: str, assert_caught: Callable[..., None]
) -> None:
    assert_caught(plant, file, fact)


@pytest.mark.usefixtures("assert_caught")
@pytest.mark.parametrize("reply", [1, "yes", [True]])
def test_a_truthy_reply_that_is_trusted_is_caught(
    reply: object, facts_of: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = facts_of("test_lease")
    whatever_is_true_confirms(monkeypatch)
    with pytest.raises(TimeoutError):
        facts.test_a_reply_that_the_contract_does_not_allow_confirms_nothing(reply)


@pytest.mark.usefixtures("assert_caught")
def test_a_reply_that_is_not_checked_is_caught(
    facts_of: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = facts_of("test_locks")
    a_reply_is_a_grant_if_it_has_a_token(monkeypatch)
    with pytest.raises((Exception, pytest.fail.Exception)):
        facts.test_a_reply_that_the_contract_does_not_allow_is_an_error_and_never_a_grant(None)
