"""What the rules rely on: where it does not hold, nothing can be said, and the report says why."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tenure.testing.history import RULES, check_history


@pytest.fixture
def broken() -> Callable[..., str]:
    """Check a story that breaks no rule, and require that it breaks one assumption; return how."""

    def check(story: Any, name: str, **options: Any) -> str:
        report = story.check(**options)
        assert report.broken_rules == (), str(report)
        [one] = [one for one in report.assumptions if not one.holds]
        assert one.name == name
        assert not report.ok
        with pytest.raises(AssertionError, match="an assumption does not hold"):
            report.raise_if_broken()
        return "; ".join(one.problems)

    return check


def test_the_time_of_a_writer_must_not_go_back(tell: Any, broken: Any) -> None:
    story = tell()
    story.grant("a", 1, 5)
    story.give_back("a", 2, 5)
    events = [*story.events, {"what": "exit", "at": 1.5, "process": "a", "key": "k", "token": 5}]
    story.check = lambda: check_history(events)
    assert "'a' goes back to 1.5" in broken(story, "the time of each writer never goes back")


def test_what_a_nemesis_writes_stands_on_its_own_time(tell: Any, expect: Any) -> None:
    story = tell()
    story.grant("a", 1, 5)
    late = [
        *story.events,
        {"what": "paused", "at": 1.05, "process": "a", "by": "nemesis"},
        {"what": "resumed", "at": 1.1, "process": "a", "by": "nemesis"},
    ]
    assert check_history(late).ok


def test_a_return_must_have_a_call(tell: Any, broken: Any, expect: Any) -> None:
    story = tell()
    story.grant("a", 1, 5)
    story.tell("return", 2, "a", call=9, result="no")
    assert "its call 9" in broken(story, "each return belongs to one call")
    expect(story, starts_empty=False)  # it was sent before the history began


def test_a_call_has_a_number_of_its_own_until_its_process_starts_again(tell: Any, broken: Any, expect: Any) -> None:
    story = tell()
    story.grant("a", 1, 5)
    story.happens("started", "a", 2)
    story._calls.pop("a")
    story.grant("a", 9, 6, owner="second life")
    expect(story)
    story._calls.pop("a")
    story.grant("a", 19, 7, owner="no third one")
    assert "two calls of the number 1" in broken(story, "each return belongs to one call")


def test_a_grant_must_have_a_token(tell: Any, broken: Any) -> None:
    story = tell()
    story.grant("a", 1, 5, key="other")
    story.call("acquire", "a", 2)
    assert "without a token" in broken(story, "each return belongs to one call")


def test_what_is_promised_must_be_said_first(tell: Any, broken: Any) -> None:
    story = tell()
    story.events.clear()
    story.grant("a", 1, 5)
    story.run(2)
    assert "no run event" in broken(story, "what is promised is said before it is tried")


def test_a_refusal_at_the_start_tells_of_somebody_else(tell: Any, broken: Any, expect: Any) -> None:
    story = tell()
    story.refuse("b", 0.5)
    story.grant("a", 1, 5)
    assert "'k' was refused" in broken(story, "nothing was locked at the start")
    expect(story, starts_empty=False)


def test_two_that_refuse_each_other_at_the_start_tell_of_somebody_else(tell: Any, broken: Any) -> None:
    story = tell()
    story.refuse("a", 0.5)
    story.refuse("b", 0.55)
    story.grant("a", 4, 5)
    broken(story, "nothing was locked at the start")


def test_a_first_grant_that_follows_another_lock_tells_of_somebody_else(tell: Any, broken: Any, expect: Any) -> None:
    story = tell()
    story.grant("a", 1, 5, after="expired")
    assert "after another lock" in broken(story, "nothing was locked at the start")
    expect(story, starts_empty=False)


def test_a_refusal_beside_a_grant_under_way_is_its_doing(tell: Any, expect: Any) -> None:
    story = tell()
    story.grant("a", 1, 5, took=0.5)
    story.refuse("b", 1.25)
    expect(story)


@pytest.mark.parametrize("op", ["acquire", "renew"])
def test_an_owner_must_not_call_beside_its_acquire(op: str, tell: Any, broken: Any) -> None:
    story = tell()
    story.call("acquire", "a", 1, took=1, result="unknown")
    story.grant("b", 1, 5, key="other")
    story.call(op, "a", 1.5, result="unknown")
    broken(story, "an owner has one call under way")


def test_a_release_may_go_behind_an_acquire_that_is_unknown(tell: Any, expect: Any) -> None:
    story = tell()
    story.grant("b", 1, 5, key="other")
    story.call("acquire", "a", 1, took=1.25, result="unknown")
    story.call("release", "a", 2, result="no")
    expect(story)


def test_two_renewals_and_a_release_may_be_under_way(tell: Any, expect: Any) -> None:
    story = tell()
    story.grant("a", 1, 5)
    story.renew("a", 2, took=1)
    story.renew("a", 2.25, took=1)
    story.give_back("a", 2.5, 5)
    expect(story)


def test_an_acquire_behind_a_renewal_under_way_is_none_of_the_engines(tell: Any, broken: Any) -> None:
    story = tell()
    story.grant("a", 1, 5)
    story.renew("a", 2, took=1)
    story.grant("a", 2.5, 5)
    broken(story, "an owner has one call under way")


@pytest.mark.parametrize(
    ("what", "fields", "says"),
    [
        ("fault", {"fault": "hole", "kind": "blackhole"}, "'hole' began at 2.000000 and was not healed"),
        ("healed", {"fault": "hole"}, "'hole' was healed at 2.000000 and was not on"),
        ("resumed", {}, "was not paused"),
        ("paused", {}, "neither resumed nor died"),
    ],
)
def test_a_fault_must_begin_and_end(what: str, fields: Any, says: str, tell: Any, broken: Any) -> None:
    story = tell()
    story.grant("a", 1, 5)
    story.happens(what, "nemesis", 2, **fields)
    assert says in broken(story, "every fault and every pause began and ended")


def test_faults_of_one_name_end_one_by_one_and_by_scope(tell: Any, broken: Any, expect: Any) -> None:
    story = tell()
    story.grant("a", 1, 5)
    for scope in ("a", "b"):
        story.happens("fault", "nemesis", 2, fault="hole", kind="blackhole", scope=scope)
        story.happens("healed", "nemesis", 3, fault="hole", scope=scope)
    report = expect(story)
    assert report.counts["fault blackhole"] == 2
    story.happens("fault", "nemesis", 4, fault="hole", kind="blackhole", scope="a")
    story.happens("healed", "nemesis", 5, fault="hole", scope="b")
    broken(story, "every fault and every pause began and ended")


def test_something_must_be_granted_in_each_phase(tell: Any, broken: Any, expect: Any) -> None:
    story = tell()
    story.tell("phase", 0.5, "runner", name="calm")
    story.grant("a", 1, 5)
    story.give_back("a", 2, 5)
    expect(story)
    story.tell("phase", 3, "runner", name="storm")
    story.tell("effect", 4, "a", record="r", attempt=1, committed=False)
    assert "'storm'" in broken(story, "something was granted, or had its effect, in each phase")


# ------------------------------------------------------------------------------------------ reports


def test_a_report_is_what_json_can_hold(tell: Any) -> None:
    story = tell()
    story.grant("a", 1, 5)
    story.grant("b", 2, 5, took=0.1)
    told = json.loads(json.dumps(story.check().as_dict()))
    assert told["ok"] is False
    assert {one["rule"] for one in told["violations"]} == {"H1", "H3"}
    assert all(one["holds"] for one in told["assumptions"])
    assert told["counts"]["grants"] == 2


def test_a_report_in_words_is_short_however_much_is_wrong(tell: Any) -> None:
    story = tell()
    for number in range(200):
        story.grant("a", 1 + number * 10, 5, owner=f"owner {number}")
    words = str(story.check())
    assert "H1" in words
    assert "199 times" in words
    assert "and 189 more" in words
    assert len(words.splitlines()) < 30


def test_the_rules_are_ten() -> None:
    assert list(RULES) == [f"H{number}" for number in range(1, 11)]


def test_an_effect_that_was_committed_puts_a_phase_to_the_test_as_a_grant_does(tell: Any, expect: Any) -> None:
    story = tell()
    story.tell("phase", 0.5, "runner", name="requests")
    story.tell("effect", 1, "a", record="r", attempt=1, committed=True)
    expect(story)
