"""The rules of the idempotency machine on random lives of a record, and planted bugs that they catch."""

import random
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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

# ------------------------------------------------------------------------- random lives of a record


NOBODY = ""
"""The owner of a record whose owner released it after an earlier attempt."""


class Record(NamedTuple):
    """What a store keeps. A repeated acquire of the same owner, or an extension, only moves `lock_ends`."""

    owner: str
    fingerprint: str
    attempt: int
    lock_ends: int
    expires: int
    outcome: str | None = None
    effect: bool = False


class Ask(NamedTuple):
    """One call, `after` ticks later than the one before. An extension that `commits` comes with the owner's effect."""

    call: IdempotencyCall
    owner: str
    fingerprint: str
    takeover: bool
    commits: bool
    after: int


class Turn(NamedTuple):
    """One call as a record met it."""

    ask: Ask
    state: RecordState
    before: Record | None
    verdict: Verdict
    after: Record | None

    @property
    def is_owners(self) -> bool:
        return self.before is not None and self.before.owner == self.ask.owner


Judge = Callable[..., Verdict]

LOCK, KEEP = 5, 20
ASKS = [
    (call, owner, payload, takeover, commits)
    for call in [*IdempotencyCall, ACQUIRE]
    for owner in "AB"
    for payload in "xxy"
    for takeover in (True, False)
    for commits in (False, call is EXTEND)
]


def ask(drawn: int) -> Ask:
    after, kind = divmod(drawn, len(ASKS))
    return Ask(*ASKS[kind], (0, 1, 2, LOCK, LOCK + 1, KEEP)[after])


def live(under_test: Judge, asks: list[Ask]) -> Iterator[Turn]:
    """Keep one record as a store would: ask the judge, write what the verdict says, and nothing else."""
    record: Record | None = None
    now = 0
    for number, asked in enumerate(asks):
        now += asked.after
        state = ABSENT
        if record is not None:
            outcome = record.outcome is not None
            state = state_at(now, completed=outcome, lock_ends=record.lock_ends, expires=record.expires)
        before = None if state is ABSENT else record
        caller = OWNER if before is not None and before.owner == asked.owner else OTHER
        same = before is None or before.fingerprint == asked.fingerprint
        verdict = under_test(
            state,
            asked.call,
            caller,
            same_fingerprint=same,
            takeover=asked.takeover,
            first=before is None or before.attempt == 1,
            effect=before is not None and before.effect,
        )
        record = written(before, verdict, asked, now, f"outcome {number}")
        yield Turn(asked, state, before, verdict, record)


def written(record: Record | None, verdict: Verdict, asked: Ask, now: int, outcome: str) -> Record | None:
    if not verdict.writes:
        return record
    if verdict.new_attempt:
        attempt = 1 if record is None else record.attempt + 1
        fingerprint = asked.fingerprint if record is None else record.fingerprint
        return Record(asked.owner, fingerprint, attempt, now + LOCK, now + KEEP)
    if verdict.state is ABSENT or record is None:
        return None
    if verdict.state is COMPLETED:
        return record._replace(outcome=outcome, expires=now + KEEP)
    if verdict.state is ABANDONED:
        return record._replace(owner=NOBODY, lock_ends=now, expires=now + KEEP)
    return record._replace(lock_ends=now + LOCK, expires=now + KEEP, effect=record.effect or asked.commits)


def the_first_completion_wins(turn: Turn) -> None:
    if turn.before is not None and turn.before.outcome is not None and turn.after is not None:
        assert turn.after.outcome == turn.before.outcome


def nothing_but_time_removes_an_outcome(turn: Turn) -> None:
    assert turn.state is not COMPLETED or turn.after is not None


def a_release_never_removes_an_outcome(turn: Turn) -> None:
    if turn.ask.call is RELEASE and turn.state is COMPLETED:
        assert turn.after == turn.before


def only_an_acquire_changes_the_owner(turn: Turn) -> None:
    if turn.before is not None and turn.after is not None and turn.after.owner != turn.before.owner:
        assert turn.ask.call is ACQUIRE or (turn.ask.call is RELEASE and turn.after.owner == NOBODY)


def only_the_owner_extends_completes_and_releases(turn: Turn) -> None:
    if turn.ask.call is not ACQUIRE and not turn.is_owners:
        assert turn.after == turn.before
        assert turn.verdict.answer in (Answer.NO, Answer.GONE, Answer.STALE)


def an_execution_believed_alive_is_nobody_elses(turn: Turn) -> None:
    if turn.state is IN_FLIGHT and not turn.is_owners:
        assert turn.after == turn.before


def another_payload_changes_nothing(turn: Turn) -> None:
    if turn.before is not None and turn.ask.call is ACQUIRE and turn.ask.fingerprint != turn.before.fingerprint:
        assert turn.verdict.answer is Answer.MISMATCH
        assert turn.after == turn.before


def an_attempt_is_counted_once_an_owner(turn: Turn) -> None:
    if turn.before is not None and turn.after is not None:
        is_new = turn.after.owner not in (turn.before.owner, NOBODY)
        assert turn.after.attempt - turn.before.attempt == is_new


def the_verdict_tells_the_state_after(turn: Turn) -> None:
    if turn.after is None:
        assert turn.verdict.state is ABSENT
    elif turn.after.outcome is None:
        assert turn.verdict.state in (IN_FLIGHT, ABANDONED)
    else:
        assert turn.verdict.state is COMPLETED


def nobody_repeats_what_was_begun_without_being_asked_to(turn: Turn) -> None:
    if turn.state is ABANDONED and not turn.ask.takeover and not turn.is_owners:
        assert turn.after == turn.before


def a_release_forgets_no_earlier_attempt(turn: Turn) -> None:
    if turn.ask.call is RELEASE and turn.before is not None and turn.before.attempt > 1:
        assert turn.after is not None
        assert turn.after.attempt == turn.before.attempt
        assert turn.after.fingerprint == turn.before.fingerprint


def who_released_owns_nothing(turn: Turn) -> None:
    if turn.ask.call is RELEASE and turn.verdict.answer is Answer.YES:
        assert turn.after is None or turn.after.owner == NOBODY


def a_committed_effect_is_not_released(turn: Turn) -> None:
    if turn.ask.call is RELEASE and turn.before is not None and turn.before.effect:
        assert turn.verdict.answer is Answer.NO
        assert turn.after == turn.before


def a_committed_effect_is_not_begun_again(turn: Turn) -> None:
    if turn.before is not None and turn.before.effect:
        assert turn.after is not None
        assert turn.after.attempt == turn.before.attempt


RULES: list[Callable[[Turn], None]] = [
    the_first_completion_wins,
    nothing_but_time_removes_an_outcome,
    a_release_never_removes_an_outcome,
    only_an_acquire_changes_the_owner,
    only_the_owner_extends_completes_and_releases,
    an_execution_believed_alive_is_nobody_elses,
    another_payload_changes_nothing,
    an_attempt_is_counted_once_an_owner,
    the_verdict_tells_the_state_after,
    nobody_repeats_what_was_begun_without_being_asked_to,
    a_release_forgets_no_earlier_attempt,
    who_released_owns_nothing,
    a_committed_effect_is_not_released,
    a_committed_effect_is_not_begun_again,
]


@given(st.lists(st.integers(0, len(ASKS) * 6 - 1).map(ask), max_size=15))
@settings(deadline=None, max_examples=200)
def test_every_life_of_a_record_keeps_every_rule(asks: list[Ask]) -> None:
    for turn in live(judge, asks):
        for rule in RULES:
            rule(turn)


# --------------------------------------------------------------------------- the museum of mutants


def with_table(change: dict[tuple[RecordState, IdempotencyCall, Caller], Verdict]) -> Judge:
    """The shipped judge with other verdicts in a few places of its table."""

    def judge_otherwise(state: RecordState, call: IdempotencyCall, caller: Caller, **options: bool) -> Verdict:
        verdict = judge(state, call, caller, **options)
        other = change.get((state, call, caller))
        return other if other is not None and verdict == TRANSITIONS[state, call, caller] else verdict

    return judge_otherwise


def blind_to(option: str) -> Judge:
    return lambda *pair, **options: judge(*pair, **{**options, option: True})


def without_effects(blind: IdempotencyCall) -> Judge:
    """The shipped judge, to which no effect is committed where *blind* is asked."""

    def judge_blindly(state: RecordState, call: IdempotencyCall, caller: Caller, **options: bool) -> Verdict:
        if call is blind:
            options["effect"] = False
        return judge(state, call, caller, **options)

    return judge_blindly


def releases_nothing_of_a_second(state: RecordState, call: IdempotencyCall, caller: Caller, **options: bool) -> Verdict:
    verdict = judge(state, call, caller, **options)
    if call is RELEASE and verdict.state is ABANDONED and verdict.writes:
        return EXTENDS
    return verdict


def takes_over_before_it_compares(
    state: RecordState, call: IdempotencyCall, caller: Caller, **options: bool
) -> Verdict:
    if state is ABANDONED:
        options["same_fingerprint"] = True
    return judge(state, call, caller, **options)


STORES = Verdict(Answer.STORED, COMPLETED, writes=True)
GRANTS = Verdict(Answer.ACQUIRED, IN_FLIGHT, writes=True, new_attempt=True)
FREES = Verdict(Answer.YES, ABSENT, writes=True)
EXTENDS = Verdict(Answer.YES, IN_FLIGHT, writes=True)

MUSEUM: dict[str, tuple[Judge, Callable[[Turn], None]]] = {
    "the last completion wins": (with_table({(COMPLETED, COMPLETE, OWNER): STORES}), the_first_completion_wins),
    "a late owner overwrites": (with_table({(COMPLETED, COMPLETE, OTHER): STORES}), the_first_completion_wins),
    "a release forgets the outcome": (
        with_table({(COMPLETED, RELEASE, OWNER): FREES}),
        a_release_never_removes_an_outcome,
    ),
    "an outcome is run again": (with_table({(COMPLETED, ACQUIRE, OTHER): FREES}), nothing_but_time_removes_an_outcome),
    "a replaced owner completes": (
        with_table({(IN_FLIGHT, COMPLETE, OTHER): STORES}),
        only_the_owner_extends_completes_and_releases,
    ),
    "a replaced owner releases": (
        with_table({(ABANDONED, RELEASE, OTHER): FREES}),
        only_the_owner_extends_completes_and_releases,
    ),
    "an extension takes over": (with_table({(ABANDONED, EXTEND, OTHER): GRANTS}), only_an_acquire_changes_the_owner),
    "two run at once": (with_table({(IN_FLIGHT, ACQUIRE, OTHER): GRANTS}), an_execution_believed_alive_is_nobody_elses),
    "payloads are not compared": (blind_to("same_fingerprint"), another_payload_changes_nothing),
    "payloads are not compared after a crash": (takes_over_before_it_compares, another_payload_changes_nothing),
    "takes over unasked": (blind_to("takeover"), nobody_repeats_what_was_begun_without_being_asked_to),
    "a repeated acquire is one attempt more": (
        with_table({(IN_FLIGHT, ACQUIRE, OWNER): GRANTS}),
        an_attempt_is_counted_once_an_owner,
    ),
    "a release forgets the attempts before it": (blind_to("first"), a_release_forgets_no_earlier_attempt),
    "a second attempt that is released stays in flight": (releases_nothing_of_a_second, who_released_owns_nothing),
    "a committed effect is released": (without_effects(RELEASE), a_committed_effect_is_not_released),
    "a committed effect is begun again": (without_effects(ACQUIRE), a_committed_effect_is_not_begun_again),
    "says that it stored what it did not": (
        with_table({(IN_FLIGHT, COMPLETE, OWNER): Verdict(Answer.STORED, COMPLETED)}),
        the_verdict_tells_the_state_after,
    ),
}


def follow(under_test: Judge, rules: list[Callable[[Turn], None]]) -> None:
    """Let the same few thousand records live in every run."""
    rng = random.Random(20)
    for _ in range(3000):
        asks = [ask(rng.randrange(len(ASKS) * 6)) for _ in range(rng.randint(1, 12))]
        for turn in live(under_test, asks):
            for rule in rules:
                rule(turn)


@pytest.mark.parametrize("bug", MUSEUM)
def test_a_planted_bug_is_caught_by_its_rule(bug: str) -> None:
    under_test, rule = MUSEUM[bug]
    with pytest.raises(AssertionError):
        follow(under_test, [rule])


def test_the_shipped_judge_keeps_every_rule_in_the_lives_that_catch_the_bugs() -> None:
    follow(judge, RULES)


def test_every_rule_catches_a_planted_bug() -> None:
    assert {rule for _, rule in MUSEUM.values()} == {*RULES}
