"""H4 and H10: what was accepted never goes back, and what was done once is not done twice."""

from collections.abc import Callable
from typing import Any

import pytest

Expect = Callable[..., Any]


@pytest.fixture
def shelf(tell: Any) -> Any:
    """A and B were granted one after the other; what they write is told in the test."""
    story = tell()
    story.grant("a", 1, 5)
    story.give_back("a", 1.5, 5)
    story.grant("b", 2, 6)
    return story


# ----------------------------------------------------------------------------------------------- H4


def test_a_late_write_that_is_accepted_is_told(shelf: Any, expect: Expect) -> None:
    shelf.write("b", 3, 6)
    shelf.write("a", 4, 5)
    [violation] = expect(shelf, "H4").violations
    assert violation.key == "shelf"


def test_a_late_write_below_the_last_but_one_is_told(shelf: Any, expect: Expect) -> None:
    shelf.write("b", 3, 6)
    shelf.write("a", 4, 5, accepted=False)
    shelf.write("b", 4.5, 6)
    shelf.write("a", 5, 5, sent_at=3.5)
    expect(shelf, "H4")


def test_a_late_write_that_is_refused_breaks_nothing_and_is_counted(shelf: Any, expect: Expect) -> None:
    shelf.write("a", 1.25, 5)
    shelf.write("b", 3, 6)
    shelf.write("a", 4, 5, accepted=False)
    counts = expect(shelf).counts
    assert (counts["writes accepted"], counts["writes refused"]) == (2, 1)


def test_equal_tokens_are_writes_of_one_holder(shelf: Any, expect: Expect) -> None:
    shelf.write("b", 3, 6)
    shelf.write("b", 4, 6)
    expect(shelf)


def test_a_write_that_was_sent_before_the_other_was_noted_may_have_come_first(shelf: Any, expect: Expect) -> None:
    # Its sender was paused before it could note the outcome.
    shelf.write("b", 3, 6)
    shelf.write("a", 9, 5, sent_at=1.25)
    expect(shelf)


def test_each_resource_has_an_order_of_its_own(shelf: Any, expect: Expect) -> None:
    shelf.write("b", 3, 6)
    shelf.tell("write", 4, "a", resource="other", key="k", token=5, accepted=True)
    expect(shelf)


# ---------------------------------------------------------------------------------------------- H10


def effect(story: Any, at: float, attempt: int, *, committed: bool = True) -> None:
    story.tell("effect", at, "worker", record="r", attempt=attempt, committed=committed)


def answer(story: Any, at: float, body: str, **rest: Any) -> None:
    usual = {"record": "r", "principal": "alice", "status": 201, "body": body, "replayed": True}
    story.tell("answer", at, "client", **{**usual, **rest})


@pytest.mark.parametrize("attempt", [1, 2])
def test_two_effects_of_one_attempt_are_told(attempt: int, shelf: Any, expect: Expect) -> None:
    effect(shelf, 3, attempt)
    effect(shelf, 4, attempt)
    expect(shelf, "H10")


def test_an_effect_that_was_rolled_back_is_none(shelf: Any, expect: Expect) -> None:
    effect(shelf, 3, 1, committed=False)
    effect(shelf, 4, 1)
    effect(shelf, 5, 1, committed=False)
    counts = expect(shelf).counts
    assert (counts["effects committed"], counts["effects rolled back"]) == (1, 2)


def test_an_effect_of_a_later_attempt_is_counted_apart(shelf: Any, expect: Expect) -> None:
    effect(shelf, 3, 1)
    effect(shelf, 4, 2)
    assert expect(shelf).counts["effects of a later attempt"] == 1


def test_replays_are_the_first_answer(shelf: Any, expect: Expect) -> None:
    answer(shelf, 3, "busy", status=409, replayed=False)
    answer(shelf, 4, "made", replayed=False)
    answer(shelf, 5, "made")
    answer(shelf, 6, "made")
    assert expect(shelf).counts["answers replayed"] == 2


@pytest.mark.parametrize("changed", [{"body": "other"}, {"status": 200}, {"principal": "bob"}])
def test_a_replay_that_differs_from_the_first_answer_is_told(changed: Any, shelf: Any, expect: Expect) -> None:
    answer(shelf, 4, "made", replayed=False)
    answer(shelf, 5, "made")
    answer(shelf, 6, **{"body": "made", **changed})
    [violation] = expect(shelf, "H10").violations
    assert violation.at == 6
    assert "made" not in violation.text
    assert "alice" not in violation.text


@pytest.mark.parametrize("changed", [{"body": "other"}, {"principal": "bob"}])
def test_a_replay_stands_for_a_first_answer_that_nobody_got(changed: Any, shelf: Any, expect: Expect) -> None:
    answer(shelf, 4, "busy", status=409, replayed=False)
    answer(shelf, 5, "made")
    answer(shelf, 6, "made")
    expect(shelf)
    answer(shelf, 7, **{"body": "made", **changed})
    expect(shelf, "H10")


def test_of_two_attempts_either_answer_may_be_the_stored_one_but_only_one(shelf: Any, expect: Expect) -> None:
    effect(shelf, 3, 1)
    effect(shelf, 4, 2)
    answer(shelf, 4, "made", replayed=False)
    answer(shelf, 5, "made again", replayed=False)
    answer(shelf, 6, "made again")
    expect(shelf)
    answer(shelf, 7, "made")
    expect(shelf, "H10")
