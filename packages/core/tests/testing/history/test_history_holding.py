"""H3 and H8: who believes does so alone and by right, is told of his loss, and is not kept waiting."""

from collections.abc import Callable
from typing import Any

import pytest

from tenure._startup import PROBE_PREFIX

Expect = Callable[..., Any]

RIGHT = 1 + 3 * 0.99
"""Until when a lease of three seconds that was asked for at 1 may be believed in."""


# ----------------------------------------------------------------------------------------------- H3


def test_two_that_were_granted_one_key_at_once_are_told(tell: Any, expect: Expect) -> None:
    story = tell()
    story.grant("a", 1, 5)
    story.grant("b", 2, 6)
    [violation] = expect(story, "H3").violations
    assert "'a' (token 5) and 'b' (token 6)" in violation.text
    assert violation.at == 2.125


def test_a_renewed_lease_that_another_takes_is_told(tell: Any, expect: Expect) -> None:
    story = tell()
    story.grant("a", 1, 5)
    story.renew("a", 2)
    story.renew("a", 3)
    story.grant("b", 4.5, 6)
    expect(story, "H3")


def test_two_of_one_process_are_two(tell: Any, expect: Expect) -> None:
    story = tell()
    story.grant("a", 1, 5, owner="first")
    story.grant("a", 2, 6, owner="second")
    expect(story, "H3")


def test_the_next_may_be_granted_at_the_very_deadline(tell: Any, expect: Expect) -> None:
    story = tell()
    story.grant("a", 1, 5)
    story.grant("b", RIGHT - 0.125, 6)
    expect(story)
    early = tell()
    early.grant("a", 1, 5)
    early.grant("b", RIGHT - 0.126, 6)
    expect(early, "H3")


@pytest.mark.parametrize("end", ["lost", "gave_back", "died"])
def test_who_has_ended_believes_no_more(end: str, tell: Any, expect: Expect) -> None:
    story = tell()
    story.grant("a", 1, 5)
    if end == "lost":
        story.says("lost", "a", 2, 5, reason="refused")
    elif end == "gave_back":
        story.give_back("a", 2, 5)
    else:
        story.happens("died", "a", 2)
    story.grant("b", 2, 6)
    expect(story)


def test_a_holder_that_was_paused_does_not_overlap_while_it_does_not_run(tell: Any, expect: Expect) -> None:
    story = tell()
    story.grant("a", 1, 5)
    story.happens("paused", "a", 2)
    story.grant("b", 2.5, 6)
    story.give_back("b", 3, 6)
    story.happens("resumed", "a", 3)
    expect(story)


def test_a_holder_that_runs_again_beside_another_is_told(tell: Any, expect: Expect) -> None:
    story = tell()
    story.grant("a", 1, 5)
    story.happens("paused", "a", 2)
    story.grant("b", 2.5, 6)
    story.happens("resumed", "a", 3)
    expect(story, "H3")


def test_an_unknown_renewal_moves_no_deadline(tell: Any, expect: Expect) -> None:
    story = tell()
    story.grant("a", 1, 5)
    story.renew("a", 2, result="unknown")
    story.renew("a", 3, took=None)
    story.grant("b", 4, 6)
    expect(story)


def test_a_confirmation_after_the_deadline_revives_nothing(tell: Any, expect: Expect) -> None:
    story = tell()
    story.grant("a", 1, 5)
    story.renew("a", 3.5, took=1)
    story.grant("b", 5, 6)
    expect(story)


def test_a_grant_that_came_after_its_own_deadline_is_nobodys(tell: Any, expect: Expect) -> None:
    story = tell(call_timeout_s=9)
    story.grant("a", 1, 5, took=4)
    story.grant("b", 4, 6)
    expect(story)


def test_an_acquire_that_is_answered_behind_its_release_is_nobodys(tell: Any, expect: Expect) -> None:
    story = tell()
    story.grant("a", 1, 5, took=1)
    story.call("release", "a", 1.5)
    story.grant("b", 2, 6)
    expect(story)


def test_two_may_overlap_for_as_long_as_the_run_allows(tell: Any, expect: Expect) -> None:
    for overlap_s, broken in ((2.0, ()), (1.0, ("H3",))):
        story = tell(overlap_s=overlap_s)
        story.grant("a", 1, 5)
        story.grant("b", 2, 6)
        report = expect(story, *broken)
        assert report.figures["longest overlap"] == pytest.approx(RIGHT - 2.125)


def test_a_later_run_says_what_is_allowed_from_then_on(tell: Any, expect: Expect) -> None:
    story = tell()
    story.run(1.5, overlap_s=3)
    story.grant("a", 1, 5)
    story.grant("b", 2, 6)
    expect(story)
    story.run(2.05)
    expect(story, "H3")


def test_beliefs_that_interleave_are_evidence_of_their_own(tell: Any, expect: Expect) -> None:
    story = tell()
    story.grant("a", 1, 5)
    story.grant("b", 4, 6)
    story.says("believes", "b", 4.5, 6)
    story.says("believes", "a", 5, 5)
    expect(story, "H3", "H8")


# ----------------------------------------------------------------------------------------------- H8


def test_a_belief_after_the_deadline_is_told(tell: Any, expect: Expect) -> None:
    story = tell()
    story.grant("a", 1, 5)
    story.says("believes", "a", RIGHT, 5)
    expect(story)
    story.says("believes", "a", RIGHT + 0.25, 5)
    story.says("lost", "a", RIGHT, 5, reason="expired")
    expect(story, "H8")


def test_a_belief_after_a_confirmation_that_came_too_late_is_told(tell: Any, expect: Expect) -> None:
    story = tell()
    story.grant("a", 1, 5)
    story.renew("a", 3.5, took=1)
    story.says("lost", "a", RIGHT, 5, reason="expired")
    story.says("believes", "a", 4.75, 5)
    expect(story, "H8")


@pytest.mark.parametrize("end", ["lost", "gave_back"])
def test_a_belief_after_the_end_is_told(end: str, tell: Any, expect: Expect) -> None:
    story = tell()
    story.grant("a", 1, 5)
    if end == "lost":
        story.says("lost", "a", 2, 5, reason="max_hold")
    else:
        story.give_back("a", 2, 5)
    story.says("enter", "a", 2, 5)
    expect(story)
    story.says("enter", "a", 2.25, 5)
    expect(story, "H8")


def test_a_belief_in_what_was_never_granted_is_told(tell: Any, expect: Expect) -> None:
    story = tell()
    story.grant("a", 1, 5)
    story.give_back("a", 2, 5)
    story.says("believes", "b", 1.5, 5)
    expect(story, "H8")


def test_a_belief_that_is_said_late_by_no_more_than_the_stall_is_none(tell: Any, expect: Expect) -> None:
    story = tell(stall_s=0.5)
    story.grant("a", 1, 5)
    story.grant("b", 4, 6)
    story.says("believes", "a", RIGHT + 0.5, 5)
    expect(story)


def test_a_belief_that_is_said_after_a_pause_is_none(tell: Any, expect: Expect) -> None:
    story = tell()
    story.grant("a", 1, 5)
    story.happens("paused", "a", 2)
    story.grant("b", 5, 6)
    story.happens("resumed", "a", 9)
    story.says("believes", "a", 9, 5)
    story.says("lost", "a", 9, 5, reason="stalled")
    expect(story)
    story.says("believes", "a", 9.25, 5)
    expect(story, "H8")


def test_a_signal_fires_at_the_deadline_and_not_later(tell: Any, expect: Expect) -> None:
    for late_s, broken in ((0.0, ()), (0.5, ()), (0.51, ("H8",))):
        story = tell(stall_s=0.5)
        story.grant("a", 1, 5)
        story.says("lost", "a", RIGHT + late_s, 5, reason="expired")
        report = expect(story, *broken)
        assert report.figures["latest signal"] == pytest.approx(late_s, abs=1e-9)


def test_a_paused_process_is_told_when_it_runs_again(tell: Any, expect: Expect) -> None:
    story = tell()
    story.grant("a", 1, 5)
    story.happens("paused", "a", 2)
    story.happens("resumed", "a", 9)
    story.says("lost", "a", 9, 5, reason="stalled")
    expect(story)


def test_a_refusal_is_a_loss_at_once(tell: Any, expect: Expect) -> None:
    for told_at, broken in ((2.125, ()), (2.5, ("H8",))):
        story = tell()
        story.grant("a", 1, 5)
        story.renew("a", 2, result="no")
        story.says("lost", "a", told_at, 5, reason="refused")
        expect(story, *broken)


def test_a_holder_that_is_never_told_is_told_of(tell: Any, expect: Expect) -> None:
    story = tell()
    story.grant("a", 1, 5)
    story.says("believes", "a", 2, 5)
    story.happens("started", "b", 9)
    expect(story)  # nothing shows that it went on
    story.grant("a", 9, 7, owner="next")
    expect(story, "H8")


def test_a_slot_that_is_left_to_expire_has_no_signal(tell: Any, expect: Expect) -> None:
    story = tell()
    story.grant("a", 1, 5)
    story.grant("a", 9, 7, owner="next")
    expect(story)


@pytest.mark.parametrize(("op", "longest"), [("acquire", 1.25), ("release", 1.25), ("renew", 3.25)])
def test_a_call_ends_within_its_time_out_and_a_quarter_of_a_second(
    op: str, longest: float, tell: Any, expect: Expect
) -> None:
    for took, broken in ((longest, ()), (longest + 0.01, ("H8",))):
        story = tell()
        story.grant("a", 1, 5)
        story.call(op, "a", 2, took=took, result="unknown")
        if op == "renew":
            story.says("lost", "a", RIGHT, 5, reason="expired")
        expect(story, *broken)


def test_a_call_that_never_ends_is_told_once_its_process_is_seen_to_go_on(tell: Any, expect: Expect) -> None:
    story = tell()
    story.call("acquire", "a", 1, took=None)
    story.grant("b", 9, 5)
    expect(story)
    story.grant("a", 19, 6, owner="next")
    expect(story, "H8")


def test_a_call_of_a_process_that_died_or_was_paused_may_take_longer(tell: Any, expect: Expect) -> None:
    story = tell()
    story.grant("a", 1, 5, took=0.5)
    story.call("acquire", "b", 1.25, took=None, result="unknown")
    story.happens("died", "b", 1.5)
    story.happens("started", "b", 9)
    story.happens("paused", "c", 10.5)
    story.call("acquire", "c", 10, took=9, result="unknown")
    story.happens("resumed", "c", 18.5)
    story.grant("b", 20, 6, owner="next")
    expect(story)


def test_a_renewal_of_what_was_given_back_is_waited_for_by_nobody(tell: Any, expect: Expect) -> None:
    story = tell()
    story.grant("a", 1, 5)
    story.renew("a", 2, took=20, result="unknown")
    story.give_back("a", 2.5, 5)
    expect(story)


@pytest.mark.parametrize(("took", "rules"), [(3, ()), (4, ("H8",))])
def test_what_a_start_measures_the_round_trip_with_has_a_limit_of_its_own(
    tell: Any, expect: Expect, took: float, rules: tuple[str, ...]
) -> None:
    """Its first call also waits for the client to connect: longer than a call of a second may take."""
    story = tell()
    story.call("release", "a", 1, took=took, result="no", key=f"{PROBE_PREFIX}nobody")
    story.grant("a", 6, 5)
    expect(story, *rules)
