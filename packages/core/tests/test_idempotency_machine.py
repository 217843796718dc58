"""The idempotency machine: every pair by every caller, and what hangs on payloads, attempts, effects and time."""

import dataclasses

import pytest

from tenure._idempotency_machine import (
    TRANSITIONS,
    Answer,
    Caller,
    IdempotencyCall,
    RecordState,
    Verdict,
    judge,
    state_at,
)

ABSENT, IN_FLIGHT, ABANDONED, COMPLETED = RecordState
ACQUIRE, EXTEND, COMPLETE, RELEASE = IdempotencyCall
OWNER, OTHER = Caller

# What the caller is told, the state after, whether the record changes, whether it is one attempt more.
TABLE: dict[tuple[RecordState, IdempotencyCall, Caller], tuple[Answer, RecordState, bool, bool]] = {
    (ABSENT, ACQUIRE, OTHER): (Answer.ACQUIRED, IN_FLIGHT, True, True),
    (ABSENT, EXTEND, OTHER): (Answer.NO, ABSENT, False, False),
    (ABSENT, COMPLETE, OTHER): (Answer.GONE, ABSENT, False, False),
    (ABSENT, RELEASE, OTHER): (Answer.NO, ABSENT, False, False),
    (IN_FLIGHT, ACQUIRE, OWNER): (Answer.ACQUIRED, IN_FLIGHT, True, False),
    (IN_FLIGHT, ACQUIRE, OTHER): (Answer.IN_FLIGHT, IN_FLIGHT, False, False),
    (IN_FLIGHT, EXTEND, OWNER): (Answer.YES, IN_FLIGHT, True, False),
    (IN_FLIGHT, EXTEND, OTHER): (Answer.NO, IN_FLIGHT, False, False),
    (IN_FLIGHT, COMPLETE, OWNER): (Answer.STORED, COMPLETED, True, False),
    (IN_FLIGHT, COMPLETE, OTHER): (Answer.STALE, IN_FLIGHT, False, False),
    (IN_FLIGHT, RELEASE, OWNER): (Answer.YES, ABSENT, True, False),
    (IN_FLIGHT, RELEASE, OTHER): (Answer.NO, IN_FLIGHT, False, False),
    (ABANDONED, ACQUIRE, OWNER): (Answer.ACQUIRED, IN_FLIGHT, True, False),
    (ABANDONED, ACQUIRE, OTHER): (Answer.ACQUIRED, IN_FLIGHT, True, True),
    (ABANDONED, EXTEND, OWNER): (Answer.YES, IN_FLIGHT, True, False),
    (ABANDONED, EXTEND, OTHER): (Answer.NO, ABANDONED, False, False),
    (ABANDONED, COMPLETE, OWNER): (Answer.STORED, COMPLETED, True, False),
    (ABANDONED, COMPLETE, OTHER): (Answer.STALE, ABANDONED, False, False),
    (ABANDONED, RELEASE, OWNER): (Answer.YES, ABSENT, True, False),
    (ABANDONED, RELEASE, OTHER): (Answer.NO, ABANDONED, False, False),
    (COMPLETED, ACQUIRE, OWNER): (Answer.COMPLETED, COMPLETED, False, False),
    (COMPLETED, ACQUIRE, OTHER): (Answer.COMPLETED, COMPLETED, False, False),
    (COMPLETED, EXTEND, OWNER): (Answer.NO, COMPLETED, False, False),
    (COMPLETED, EXTEND, OTHER): (Answer.NO, COMPLETED, False, False),
    (COMPLETED, COMPLETE, OWNER): (Answer.STORED, COMPLETED, False, False),
    (COMPLETED, COMPLETE, OTHER): (Answer.STALE, COMPLETED, False, False),
    (COMPLETED, RELEASE, OWNER): (Answer.NO, COMPLETED, False, False),
    (COMPLETED, RELEASE, OTHER): (Answer.NO, COMPLETED, False, False),
}

KEPT = [state for state in RecordState if state is not ABSENT]


def test_the_table_knows_every_call_by_every_caller_in_every_state() -> None:
    pairs = {(state, call, caller) for state in RecordState for call in IdempotencyCall for caller in Caller}
    assert TRANSITIONS.keys() == {pair for pair in pairs if pair[0] is not ABSENT or pair[2] is OTHER}
    assert TRANSITIONS.keys() == TABLE.keys()


@pytest.mark.parametrize("pair", TABLE, ids=["-".join(part.name for part in pair) for pair in TABLE])
def test_a_call_is_answered_as_the_table_says(pair: tuple[RecordState, IdempotencyCall, Caller]) -> None:
    answer, state, writes, new_attempt = TABLE[pair]
    assert judge(*pair) == Verdict(answer, state, writes=writes, new_attempt=new_attempt)


def test_a_verdict_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        judge(ABSENT, ACQUIRE, OTHER).writes = False  # type: ignore[misc]


@pytest.mark.parametrize("call", IdempotencyCall)
def test_an_absent_record_has_no_owner(call: IdempotencyCall) -> None:
    assert judge(ABSENT, call, OWNER) == judge(ABSENT, call, OTHER)


@pytest.mark.parametrize("takeover", [True, False])
@pytest.mark.parametrize("caller", Caller)
@pytest.mark.parametrize("state", KEPT)
def test_another_payload_is_a_mismatch_before_anything_else_is_looked_at(
    state: RecordState, caller: Caller, takeover: bool
) -> None:
    verdict = judge(state, ACQUIRE, caller, same_fingerprint=False, takeover=takeover)
    assert verdict == Verdict(Answer.MISMATCH, state)


@pytest.mark.parametrize("caller", Caller)
def test_no_payload_is_another_where_nothing_is_recorded(caller: Caller) -> None:
    assert judge(ABSENT, ACQUIRE, caller, same_fingerprint=False, takeover=False).answer is Answer.ACQUIRED


@pytest.mark.parametrize("call", [EXTEND, COMPLETE, RELEASE])
@pytest.mark.parametrize("caller", Caller)
@pytest.mark.parametrize("state", RecordState)
def test_only_an_acquire_brings_a_payload_and_asks_for_a_takeover(
    state: RecordState, caller: Caller, call: IdempotencyCall
) -> None:
    assert judge(state, call, caller, same_fingerprint=False, takeover=False) == judge(state, call, caller)


def test_an_abandoned_execution_is_begun_again_only_where_that_is_allowed() -> None:
    assert judge(ABANDONED, ACQUIRE, OTHER, takeover=False) == Verdict(Answer.ABANDONED, ABANDONED)
    assert judge(ABANDONED, ACQUIRE, OTHER, takeover=True).new_attempt


def test_the_late_owner_of_an_abandoned_execution_goes_on_without_a_takeover() -> None:
    assert judge(ABANDONED, ACQUIRE, OWNER, takeover=False) == judge(ABANDONED, ACQUIRE, OWNER)


# ------------------------------------------------------- earlier attempts, and effects that are committed

WRITABLE = [IN_FLIGHT, ABANDONED]


@pytest.mark.parametrize("state", WRITABLE)
def test_a_release_after_an_earlier_attempt_leaves_what_is_not_known_of_it(state: RecordState) -> None:
    assert judge(state, RELEASE, OWNER, first=True) == Verdict(Answer.YES, ABSENT, writes=True)
    assert judge(state, RELEASE, OWNER, first=False) == Verdict(Answer.YES, ABANDONED, writes=True)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("state", WRITABLE)
def test_a_committed_effect_is_not_released_whatever_attempt_it_is(state: RecordState, first: bool) -> None:
    assert judge(state, RELEASE, OWNER, first=first, effect=True) == Verdict(Answer.NO, state)


@pytest.mark.parametrize("takeover", [True, False])
def test_a_committed_effect_is_not_begun_again_whatever_is_asked_for(takeover: bool) -> None:
    verdict = judge(ABANDONED, ACQUIRE, OTHER, takeover=takeover, effect=True)
    assert verdict == Verdict(Answer.ABANDONED, ABANDONED)


@pytest.mark.parametrize("caller", Caller)
@pytest.mark.parametrize("state", KEPT)
def test_another_payload_is_a_mismatch_also_where_the_effect_is_committed(state: RecordState, caller: Caller) -> None:
    verdict = judge(state, ACQUIRE, caller, same_fingerprint=False, first=False, effect=True)
    assert verdict == Verdict(Answer.MISMATCH, state)


@pytest.mark.parametrize("pair", TABLE, ids=["-".join(part.name for part in pair) for pair in TABLE])
def test_nothing_else_hangs_on_earlier_attempts_or_on_effects(
    pair: tuple[RecordState, IdempotencyCall, Caller],
) -> None:
    state, call, caller = pair
    releases = call is RELEASE and caller is OWNER and state in WRITABLE
    if not releases:
        assert judge(*pair, first=False) == TRANSITIONS[pair]
    if not releases and pair != (ABANDONED, ACQUIRE, OTHER):
        assert judge(*pair, effect=True) == TRANSITIONS[pair]


@pytest.mark.parametrize(
    ("now", "completed", "state"),
    [
        (9.9, False, IN_FLIGHT),
        (10.0, False, ABANDONED),
        (19.9, False, ABANDONED),
        (20.0, False, ABSENT),
        (9.9, True, COMPLETED),
        (10.0, True, COMPLETED),
        (19.9, True, COMPLETED),
        (20.0, True, ABSENT),
    ],
)
def test_the_state_of_a_stored_record_follows_from_the_time(now: float, completed: bool, state: RecordState) -> None:
    assert state_at(now, completed=completed, lock_ends=10.0, expires=20.0) is state


def test_a_record_that_expired_is_absent_although_its_lock_would_last() -> None:
    assert state_at(5.0, completed=False, lock_ends=10.0, expires=5.0) is ABSENT
