"""H1, H2 and H5: tokens are unique and grow, and a former owner can do nothing."""

from collections.abc import Callable
from typing import Any

import pytest

Expect = Callable[..., Any]


def handover(story: Any) -> None:
    """A holds token 5 and gives it back; B is granted token 6."""
    story.grant("a", 1, 5)
    story.give_back("a", 2, 5)
    story.grant("b", 3, 6, after="released")


def test_a_handover_breaks_nothing(tell: Any, expect: Expect) -> None:
    story = tell()
    handover(story)
    report = expect(story)
    assert report.counts["grants"] == 2
    assert report.counts["release ok"] == 1


# ----------------------------------------------------------------------------------------------- H1


def test_one_token_for_two_owners_is_told(tell: Any, expect: Expect) -> None:
    story = tell()
    story.grant("a", 1, 5)
    story.give_back("a", 2, 5)
    story.grant("b", 3, 5)
    [violation] = expect(story, "H1").violations
    assert violation.key == "k"
    assert violation.at == 3.125
    assert "'b' was granted token 5" in violation.text


def test_one_token_for_two_owners_of_one_process_is_told(tell: Any, expect: Expect) -> None:
    story = tell()
    story.grant("a", 1, 5, owner="first")
    story.give_back("a", 2, 5, owner="first")
    story.grant("a", 3, 5, owner="second")
    story.give_back("a", 4, 5, owner="second")
    expect(story, "H1")


def test_a_token_is_of_its_key_alone(tell: Any, expect: Expect) -> None:
    story = tell()
    story.grant("a", 1, 5, key="one", owner="x")
    story.grant("b", 1, 5, key="two", owner="y")
    expect(story)


def test_an_owner_that_asks_again_gets_its_own_token(tell: Any, expect: Expect) -> None:
    story = tell()
    story.call("acquire", "a", 1, result="unknown")
    story.grant("a", 2, 5)
    story.grant("a", 3, 5)
    expect(story)


# ----------------------------------------------------------------------------------------------- H2


def test_a_token_that_goes_back_is_told(tell: Any, expect: Expect) -> None:
    story = tell()
    story.grant("a", 1, 5)
    story.give_back("a", 2, 5)
    story.grant("b", 3, 4)
    expect(story, "H2")


def test_a_token_that_goes_back_below_the_last_but_one_is_told(tell: Any, expect: Expect) -> None:
    story = tell()
    handover(story)
    story.give_back("b", 4, 6)
    story.grant("c", 5, 7)
    story.give_back("c", 6, 7)
    story.grant("d", 7, 2)
    expect(story, "H2")


def test_an_owner_that_gets_its_old_token_after_another_was_granted_is_told(tell: Any, expect: Expect) -> None:
    story = tell()
    handover(story)
    story.give_back("b", 4, 6)
    story.grant("a", 5, 5)
    expect(story, "H2")


def test_grants_that_were_under_way_together_may_come_in_any_order(tell: Any, expect: Expect) -> None:
    story = tell()
    story.grant("a", 1.0, 6, took=0.5)
    story.tell("gave_back", 1.5, "a", key="k", token=6)
    story.grant("b", 1.25, 5, took=0.1)
    story.call("release", "b", 1.4, took=0.01)
    expect(story)


def test_a_grant_that_is_asked_for_as_another_returns_is_not_after_it(tell: Any, expect: Expect) -> None:
    story = tell(overlap_s=5)
    story.grant("a", 1, 6, took=1)
    story.grant("b", 2, 5)
    expect(story)


# ----------------------------------------------------------------------------------------------- H5


@pytest.mark.parametrize("op", ["renew", "release"])
def test_what_another_was_granted_before_is_not_a_former_owners(op: str, tell: Any, expect: Expect) -> None:
    story = tell()
    story.grant("a", 1, 5, ttl_s=1)
    story.grant("b", 3, 6)
    story.call(op, "a", 4, ttl_s=1)
    [violation] = expect(story, "H5").violations
    assert "after token 6" in violation.text


@pytest.mark.parametrize("op", ["renew", "release"])
@pytest.mark.parametrize("result", ["no", "unknown"])
def test_a_former_owner_that_is_refused_or_hears_nothing_breaks_nothing(
    op: str, result: str, tell: Any, expect: Expect
) -> None:
    story = tell()
    story.grant("a", 1, 5, ttl_s=1)
    story.grant("b", 3, 6)
    story.call(op, "a", 4, result=result, ttl_s=1)
    expect(story)


def test_a_renewal_that_was_sent_as_another_was_granted_breaks_nothing(tell: Any, expect: Expect) -> None:
    story = tell()
    story.grant("a", 1, 5, ttl_s=1)
    story.grant("b", 3, 6)
    story.renew("a", 3.125, ttl_s=1)
    expect(story)


def test_two_holders_that_may_overlap_may_both_renew_for_as_long(tell: Any, expect: Expect) -> None:
    story = tell(overlap_s=3)
    story.grant("a", 1, 5)
    story.grant("b", 2, 6)
    story.renew("a", 3)
    story.give_back("a", 4, 5, result="no")
    expect(story)
    late = tell(overlap_s=0.5)
    late.grant("a", 1, 5, ttl_s=1)
    late.grant("b", 2, 6)
    late.renew("a", 3, ttl_s=1)
    expect(late, "H5")


@pytest.mark.parametrize("op", ["renew", "release"])
def test_what_was_never_granted_is_not_renewed(op: str, tell: Any, expect: Expect) -> None:
    story = tell()
    story.grant("b", 1, 5)
    story.give_back("b", 2, 5)
    story.call(op, "a", 3, owner="nobody")
    expect(story, "H5")
    expect(story, starts_empty=False)


def test_a_release_behind_a_lost_acquire_may_find_its_lock(tell: Any, expect: Expect) -> None:
    story = tell()
    story.grant("b", 1, 5)
    story.give_back("b", 2, 5)
    story.call("acquire", "a", 3, result="unknown", error="StoreTimeoutError")
    story.call("release", "a", 4)
    expect(story)


@pytest.mark.parametrize("op", ["renew", "release"])
def test_what_was_released_is_not_renewed(op: str, tell: Any, expect: Expect) -> None:
    story = tell()
    story.grant("a", 1, 5)
    story.give_back("a", 2, 5)
    story.call(op, "a", 3)
    expect(story, "H5")


def test_what_was_released_and_acquired_again_is_renewed(tell: Any, expect: Expect) -> None:
    story = tell()
    story.grant("a", 1, 5)
    story.give_back("a", 2, 5)
    story.grant("a", 3, 6)
    story.renew("a", 4)
    expect(story)
