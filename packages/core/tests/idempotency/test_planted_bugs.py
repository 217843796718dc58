"""Bugs planted in the idempotency engine, each seen in a released library, each caught by the fact that it breaks."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tenure import LossReason, _acquirer
from tenure.idempotency import engine, execution, recorder
from tenure.idempotency.envelope import RESPONSE
from tenure.idempotency.execution import Execution, Settled
from tenure.idempotency.recorder import Recorder
from tenure.idempotency_store import Abandoned, Acquired, Completion, InFlight, Mismatch

Plant = Callable[[pytest.MonkeyPatch], None]

acquire, complete, release = Recorder.acquire, Recorder.complete, Recorder.release


def an_acquire_is_asked_again_under_another_owner(patch: pytest.MonkeyPatch) -> None:
    async def twice(self: Recorder, key: str, owner: str, fingerprint: str, *, takeover: bool) -> Any:
        try:
            return await self.store.acquire(key, owner, fingerprint, 3000, 3_600_000, takeover=takeover), 0.0
        except ConnectionError:
            return await acquire(self, key, self.draw_owner(), fingerprint, takeover=takeover)

    patch.setattr(Recorder, "acquire", twice)


def a_failed_acquire_is_not_asked_again(patch: pytest.MonkeyPatch) -> None:
    async def once(self: Recorder, ask: Callable[[], Awaitable[Any]]) -> Any:
        return await ask()

    patch.setattr(Recorder, "_ask_twice", once)


def nothing_goes_behind_an_acquire_that_was_given_up(patch: pytest.MonkeyPatch) -> None:
    async def nothing(*_: Any) -> None:
        return None

    patch.setattr(_acquirer, "_release_behind", nothing)


def whatever_is_no_refusal_is_a_grant(patch: pytest.MonkeyPatch) -> None:
    refusals = (InFlight, Mismatch, Abandoned)
    patch.setattr(recorder, "check_acquire_reply", lambda reply: reply if isinstance(reply, refusals) else Acquired(1))


def a_cancelled_function_releases(patch: pytest.MonkeyPatch) -> None:
    async def releases(execution: Execution, error: BaseException, on_error: str) -> None:
        await execution.release()

    patch.setattr(engine, "_settle_failed", releases)


def every_error_abandons(patch: pytest.MonkeyPatch) -> None:
    async def abandons(execution: Execution, error: BaseException, on_error: str) -> None:
        execution.abandon()

    patch.setattr(engine, "_settle_failed", abandons)


def a_result_that_cannot_be_stored_frees_its_key(patch: pytest.MonkeyPatch) -> None:
    async def frees(self: Execution, summary: bytes = b"") -> Any:
        return await self.release()

    patch.setattr(Execution, "leave_tombstone", frees)


def a_tombstone_is_replayed_as_an_empty_response(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Recorder, "open", lambda *_: (True, b""))


def the_lock_is_as_long_as_the_retention(patch: pytest.MonkeyPatch) -> None:
    init = Recorder.__init__

    def long(self: Recorder, *args: Any, **options: Any) -> None:
        init(self, *args, **{**options, "lock_ttl_ms": options["grace_ms"]})

    patch.setattr(Recorder, "__init__", long)


def nobody_extends(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Execution, "_extend", lambda *_, **__: None)


def a_lost_lock_is_given_up(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(execution, "_NOT_RECOVERED", frozenset())


def a_refused_execution_goes_on_extending(patch: pytest.MonkeyPatch) -> None:
    ended = Execution._lock_ended

    def goes_on(self: Execution, reason: Any) -> None:
        ended(self, reason)
        if reason is LossReason.REFUSED:
            self._extend(self._clock.now())

    patch.setattr(Execution, "_lock_ended", goes_on)


def a_hung_function_is_extended_for_ever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Execution, "_overdue", lambda _: None)


def a_failed_completion_fails_the_request(patch: pytest.MonkeyPatch) -> None:
    async def once(self: Execution, sealed: bytes, size: int, outcome: Any) -> Settled:
        await self._try(sealed, size, outcome)
        assert self._settled is not None
        return self._settled

    patch.setattr(Execution, "_first_try", once)


def a_failed_completion_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    async def forgets(self: Execution, *_: Any) -> None:
        self._stop_extending()
        self._ended(self)

    patch.setattr(Execution, "_more_tries", forgets)


def a_completion_in_the_background_is_not_kept_alive(patch: pytest.MonkeyPatch) -> None:
    more = Execution._more_tries

    async def alone(self: Execution, *args: Any) -> None:
        self._stop_extending()
        await more(self, *args)

    patch.setattr(Execution, "_more_tries", alone)


def a_completion_is_tried_again_for_ever(patch: pytest.MonkeyPatch) -> None:
    init = Execution.__init__

    def patient(self: Execution, *args: Any, **options: Any) -> None:
        init(self, *args, **{**options, "completion_deadline_s": float("inf")})

    patch.setattr(Execution, "__init__", patient)


def a_completion_is_not_shielded(patch: pytest.MonkeyPatch) -> None:
    async def exposed(task: Any) -> Any:
        return await task

    patch.setattr(execution, "shielded", exposed)


def an_execution_is_settled_as_often_as_one_likes(patch: pytest.MonkeyPatch) -> None:
    def settle(self: Execution, as_: Settled) -> bool:
        self._settled = as_
        self._stop_extending()
        return True

    patch.setattr(Execution, "_settle", settle)


def stale_is_taken_for_stored(patch: pytest.MonkeyPatch) -> None:
    async def believes(self: Recorder, *args: Any, **options: Any) -> Completion | None:
        await complete(self, *args, **options)
        return Completion.STORED

    patch.setattr(Recorder, "complete", believes)


def a_silent_commit_failure_is_stored(patch: pytest.MonkeyPatch) -> None:
    async def trusting(self: Recorder, *args: Any, asserted: bool) -> Completion | None:
        return await complete(self, *args, asserted=False)

    patch.setattr(Recorder, "complete", trusting)


def a_response_is_sealed_to_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(recorder, "bound_to", lambda *_: b"")


def a_response_of_somebody_elses_is_replayed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(recorder, "open_envelope", lambda _, stored, __: (RESPONSE, stored))


def the_codecs_own_error_comes_through(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(engine, "decode_stored", lambda codec, stored: codec.decode(stored))


def closing_waits_for_nobody(patch: pytest.MonkeyPatch) -> None:
    async def at_once(*_: Any) -> None:
        return None

    patch.setattr(engine.Idempotency, "_all_ended", at_once)


def waiters_are_not_counted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(engine, "_MAX_WAITING", 10**9)


def a_downstream_key_is_the_attempts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        execution.IdempotencyContext, "downstream_key", lambda self, label="": f"{self.attempt:030}{label[:2]}"
    )


RUN, EXECUTION, AROUND = "idempotency/test_run", "idempotency/test_execution", "idempotency/test_around"
PLANTED: list[tuple[Plant, str, str]] = [
    (
        an_acquire_is_asked_again_under_another_owner,
        EXECUTION,
        "test_an_acquire_whose_reply_was_lost_is_asked_again_and_runs",
    ),
    (
        a_failed_acquire_is_not_asked_again,
        EXECUTION,
        "test_an_acquire_whose_reply_was_lost_is_asked_again_and_runs",
    ),
    (
        nothing_goes_behind_an_acquire_that_was_given_up,
        EXECUTION,
        "test_a_grant_that_comes_after_the_time_is_over_is_released",
    ),
    (
        nothing_goes_behind_an_acquire_that_was_given_up,
        EXECUTION,
        "test_a_caller_that_is_cancelled_while_it_acquires_leaves_nothing_behind",
    ),
    (
        whatever_is_no_refusal_is_a_grant,
        EXECUTION,
        "test_an_answer_that_the_contract_does_not_allow_never_lets_an_execution_begin",
    ),
    (a_cancelled_function_releases, RUN, "test_a_cancelled_function_is_neither_released_nor_completed"),
    (every_error_abandons, RUN, "test_a_function_that_raises_may_run_again"),
    (
        a_result_that_cannot_be_stored_frees_its_key,
        RUN,
        "test_a_result_that_cannot_be_stored_is_returned_once_and_never_leads_to_a_second_run",
    ),
    (
        a_tombstone_is_replayed_as_an_empty_response,
        EXECUTION,
        "test_a_tombstone_tells_its_summary_and_never_runs_again",
    ),
    (
        the_lock_is_as_long_as_the_retention,
        EXECUTION,
        "test_after_a_crash_the_key_is_usable_after_the_locks_life_and_the_next_one_knows",
    ),
    (nobody_extends, EXECUTION, "test_an_execution_of_ten_times_its_locks_life_is_never_taken_over"),
    (
        a_lost_lock_is_given_up,
        EXECUTION,
        "test_a_store_that_is_away_for_longer_than_the_lock_lives_is_told_once_and_extended_again",
    ),
    (
        a_refused_execution_goes_on_extending,
        EXECUTION,
        "test_an_execution_that_was_replaced_is_told_and_extends_no_more",
    ),
    (a_hung_function_is_extended_for_ever, EXECUTION, "test_a_hung_execution_does_not_block_its_key_for_ever"),
    (
        a_failed_completion_fails_the_request,
        EXECUTION,
        "test_a_completion_that_fails_answers_its_caller_and_is_stored_later",
    ),
    (
        a_failed_completion_is_forgotten,
        EXECUTION,
        "test_a_completion_that_fails_answers_its_caller_and_is_stored_later",
    ),
    (
        a_completion_in_the_background_is_not_kept_alive,
        EXECUTION,
        "test_a_completion_that_fails_answers_its_caller_and_is_stored_later",
    ),
    (
        a_completion_is_tried_again_for_ever,
        EXECUTION,
        "test_a_completion_is_given_up_at_its_deadline_and_the_key_becomes_usable",
    ),
    (a_completion_is_not_shielded, EXECUTION, "test_a_caller_that_is_cancelled_while_it_completes_still_completes"),
    (an_execution_is_settled_as_often_as_one_likes, EXECUTION, "test_an_execution_is_settled_once"),
    (
        stale_is_taken_for_stored,
        EXECUTION,
        "test_after_a_crash_the_key_is_usable_after_the_locks_life_and_the_next_one_knows",
    ),
    (a_silent_commit_failure_is_stored, AROUND, "test_a_commit_that_failed_silently_is_not_stored_as_done"),
    (a_response_is_sealed_to_nothing, AROUND, "test_what_is_stored_is_sealed_and_bound_to_its_record"),
    (
        a_response_of_somebody_elses_is_replayed,
        AROUND,
        "test_a_response_that_something_else_wrote_is_an_error_and_never_a_reason_to_run",
    ),
    (
        the_codecs_own_error_comes_through,
        AROUND,
        "test_a_stored_result_that_the_codec_cannot_read_is_an_error_without_a_word_of_it",
    ),
    (closing_waits_for_nobody, AROUND, "test_leaving_waits_for_a_completion_that_is_being_tried_again"),
    (waiters_are_not_counted, RUN, "test_a_storm_of_waiting_callers_is_bounded"),
    (
        a_downstream_key_is_the_attempts,
        RUN,
        "test_a_downstream_key_is_the_same_for_every_attempt_and_another_for_every_key_and_label",
    ),
]


@pytest.mark.parametrize(
    ("plant", "file", "fact"), PLANTED, ids=[f"{plant.__name__}-{fact[5:25]}" for plant, _, fact in PLANTED]
)
def test_a_planted_bug_is_caught_by_the_fact_that_it_breaks(
    plant: Plant, file: str, fact: str, assert_caught: Callable[..., None]
) -> None:
    assert_caught(plant, file, fact)
