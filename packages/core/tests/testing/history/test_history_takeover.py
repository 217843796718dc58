"""H6, H7 and H9: what ended is another's in time, and a key is refused only for a reason."""

from collections.abc import Callable
from typing import Any

import pytest

Expect = Callable[..., Any]


def death(tell: Any, granted_at: float | None, **promised: Any) -> Any:
    """A dies at 2 with a lease that was renewed at 1.5; B asks every half second, and is granted at *granted_at*."""
    story = tell(**{"takeover_s": 5.0, **promised})
    story.grant("a", 1, 5)
    story.renew("a", 1.5)
    story.happens("died", "a", 2)
    at = 2.0
    while at < (granted_at or 4.5):
        story.refuse("b", at)
        at += 0.5
    if granted_at is not None:
        story.grant("b", granted_at - 0.125, 6)
    return story


# ----------------------------------------------------------------------------------------------- H6


def test_a_takeover_in_time_breaks_nothing_and_is_measured(tell: Any, expect: Expect) -> None:
    report = expect(death(tell, 5.0))
    assert report.counts["takeovers"] == 1
    assert report.figures["longest takeover"] == 3.0


def test_a_takeover_that_comes_late_is_told(tell: Any, expect: Expect) -> None:
    story = death(tell, None)
    story.grant("b", 7.125 - 0.125, 6)
    [violation] = expect(story, "H6").violations
    assert "5.125000 s later" in violation.text


def test_a_takeover_that_never_comes_is_told(tell: Any, expect: Expect) -> None:
    story = death(tell, None)
    story.happens("started", "a", 8)
    expect(story, "H6")


@pytest.mark.parametrize("promised", [{"takeover_s": None}, {"stall_s": 0.125}, {"late_expiry_s": 0.125}])
def test_a_late_takeover_is_right_where_nothing_else_is_promised(promised: Any, tell: Any, expect: Expect) -> None:
    story = death(tell, None, **promised)
    story.grant("b", 7, 6)
    expect(story)


def test_a_key_that_nobody_asks_for_is_not_taken_over(tell: Any, expect: Expect) -> None:
    story = tell(takeover_s=5.0)
    story.grant("a", 1, 5)
    story.happens("died", "a", 2)
    story.grant("b", 20, 6)
    expect(story)


def test_a_takeover_waits_for_the_end_of_a_fault(tell: Any, expect: Expect) -> None:
    story = death(tell, None)
    story.happens("fault", "nemesis", 2.5, fault="hole", kind="blackhole")
    story.happens("healed", "nemesis", 4, fault="hole")
    story.grant("b", 7, 6)
    expect(story)


def test_who_gave_its_lease_back_before_it_died_leaves_nothing_to_take_over(tell: Any, expect: Expect) -> None:
    story = tell(takeover_s=1.0)
    story.grant("a", 1, 5)
    story.give_back("a", 1.5, 5)
    story.happens("died", "a", 2)
    story.call("acquire", "b", 2.5, result="unknown")
    story.grant("b", 9, 6, owner="later")
    expect(story)


# ----------------------------------------------------------------------------------------------- H7


def test_a_lost_acquire_explains_refusals_for_a_ttl_and_no_longer(tell: Any, expect: Expect) -> None:
    story = tell()
    story.grant("c", 0.5, 1, key="other")
    story.call("acquire", "a", 1, result="unknown", took=1)
    story.refuse("b", 3)
    story.refuse("b", 5)
    report = expect(story)
    assert report.counts["refused for a lost acquire"] == 2
    assert report.figures["longest block by a lost acquire"] == 3.0
    story.refuse("b", 5.25)
    [violation] = expect(story, "H7").violations
    assert "0.25" in violation.text


def test_a_holder_that_has_ended_explains_nothing_after_its_ttl(tell: Any, expect: Expect) -> None:
    story = tell()
    story.grant("a", 1, 5)
    story.renew("a", 2)
    story.refuse("b", 5)
    expect(story)
    story.refuse("b", 5.25)
    expect(story, "H7")


def test_nobody_is_refused_for_its_own_lock(tell: Any, expect: Expect) -> None:
    story = tell()
    story.grant("a", 1, 5)
    story.call("acquire", "b", 1.5, result="unknown")
    story.refuse("b", 4)
    expect(story)
    story.refuse("b", 4.25)
    expect(story, "H7")


def test_a_call_that_never_ended_may_have_been_granted_at_any_time(tell: Any, expect: Expect) -> None:
    story = tell()
    story.grant("c", 0.5, 1, key="other")
    story.call("acquire", "a", 1, took=None)
    story.refuse("b", 60)
    expect(story)


def test_a_call_whose_process_died_may_be_carried_out_within_its_time_out(tell: Any, expect: Expect) -> None:
    story = tell()
    story.call("acquire", "a", 1, took=None)
    story.happens("died", "a", 2)
    story.refuse("b", 6)
    story.grant("b", 7, 5)
    expect(story)
    story.events = [event for event in story.events if event["at"] < 6]
    story.refuse("b", 6.25)
    story.grant("c", 7, 5)
    expect(story, "H7")


def test_a_call_in_a_fault_may_be_carried_out_until_it_ends(tell: Any, expect: Expect) -> None:
    story = tell()
    story.happens("fault", "nemesis", 0.5, fault="frozen", kind="server stopped")
    story.call("acquire", "a", 1, result="unknown")
    story.happens("healed", "nemesis", 6, fault="frozen")
    story.refuse("b", 9)
    story.grant("b", 9.25, 5)
    expect(story)
    story.events = [event for event in story.events if event["at"] < 9]
    story.refuse("b", 9.25)
    story.grant("b", 9.5, 5)
    expect(story, "H7")


def test_a_refusal_before_anybody_was_seen_is_not_judged_where_keys_were_locked_before(
    tell: Any, expect: Expect
) -> None:
    story = tell()
    story.refuse("b", 1)
    story.grant("b", 2, 5)
    expect(story, starts_empty=False)
    assert not story.check().ok


# ----------------------------------------------------------------------------------------------- H9


def healed(tell: Any, **promised: Any) -> Any:
    """A is granted; a fault is on from 2 to 4; the history goes on to 12, with B asking at 8 in vain."""
    story = tell(**promised)
    story.grant("a", 1, 5)
    story.give_back("a", 1.5, 5)
    story.happens("fault", "nemesis", 2, fault="hole", kind="blackhole")
    story.happens("healed", "nemesis", 4, fault="hole")
    story.call("acquire", "b", 8, result="unknown")
    story.grant("c", 12, 9, key="other")
    return story


def test_a_key_that_is_not_granted_after_the_last_fault_is_told(tell: Any, expect: Expect) -> None:
    [violation] = expect(healed(tell), "H9").violations
    assert violation.at == 10.0


def test_a_key_that_nobody_gets_although_its_holder_died_is_told(tell: Any, expect: Expect) -> None:
    story = healed(tell)
    story.happens("died", "a", 5)
    story.call("acquire", "b", 9, result="unknown", owner="again")
    [violation] = expect(story, "H9").violations
    assert violation.at == 11.0


def test_a_key_that_is_granted_or_kept_alive_breaks_nothing(tell: Any, expect: Expect) -> None:
    granted = healed(tell)
    granted.grant("b", 9.5, 6, owner="again")
    expect(granted)
    kept = healed(tell)
    kept.events = [event for event in kept.events if event["what"] != "gave_back" and event["at"] not in (1.5, 1.625)]
    for at in (2, 3.5, 5, 6.5):
        kept.renew("a", at)
    expect(kept)


def test_a_key_that_is_not_asked_for_need_not_be_granted(tell: Any, expect: Expect) -> None:
    story = healed(tell)
    story.events = [event for event in story.events if event["at"] not in (8, 8.125)]
    expect(story)


def test_a_history_that_ends_too_soon_after_the_last_fault_is_not_judged(tell: Any, expect: Expect) -> None:
    story = healed(tell, stall_s=3.0)
    assert "keys after the last fault" not in expect(story).counts
