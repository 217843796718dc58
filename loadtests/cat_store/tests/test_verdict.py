"""What has to hold in a run: each fact fails on its own, and the last line tells so."""

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from cat_store_load.answers import IN_FLIGHT, Answer, Kind
from cat_store_load.books import Books, Finding, Rule
from cat_store_load.figures import BlockFigures, compare_p95, figures_of, middle, percentile
from cat_store_load.outcome import Outcome, Trouble, Wanted
from cat_store_load.report import HEAD, block_line, closing, document
from cat_store_load.troubles import rounds_in
from cat_store_load.verdict import facts_of


def block(name: str, p95_ms: float, *, keys: bool, failed: int = 0) -> BlockFigures:
    answers = [
        Answer(block=name, kind=Kind.ORDER, customer=f"c{number}", status=201, took_ms=p95_ms, replayed=keys)
        for number in range(100)
    ]
    answers += [Answer(block=name, kind=Kind.READ, took_ms=10.0) for _ in range(failed)]
    answers += [Answer(block=name, kind=Kind.STORM, status=409, code=IN_FLIGHT)]
    return figures_of(name, answers, keys=keys, seconds=10, cpu_s=0.5)


def outcome() -> Outcome:
    pairs = [(block("calm a", 20.0, keys=False), block("calm b", slow, keys=True)) for slow in (22.0, 28.0, 90.0)]
    return Outcome(
        control=block("control", 20.0, keys=False),
        pairs=pairs,
        storm=block("storm", 30.0, keys=True, failed=3),
        troubles=[Trouble("killed", "cat-store-1", 1.0, 2.0), Trouble("paused", "cat-store-2", 3.0, 8.0)],
        books=Books(orders=10, requests=30, repeats=20, replays=8, in_database=40, invoices=40, exports=4),
        duplicates_without_keys=12,
        settled=1,
    )


def broken(found: Outcome, limit: float | None = 1.5) -> list[str]:
    return [fact.name for fact in facts_of(found, limit=limit) if not fact.holds]


def test_a_run_in_which_everything_holds_passes() -> None:
    facts = facts_of(outcome(), limit=1.5)
    assert [fact for fact in facts if not fact.holds] == []
    assert closing(outcome(), facts).splitlines()[-1] == "PASS: every fact holds."


@pytest.mark.parametrize("rule", list(Rule))
def test_a_finding_of_any_rule_fails_the_run_and_is_shown(rule: Rule) -> None:
    found = outcome()
    found.books.findings.append(Finding(rule, "o9"))
    facts = facts_of(found, limit=1.5)
    assert sum(not fact.holds for fact in facts) == 1
    text = closing(found, facts)
    assert f"{rule.value}: o9" in text
    assert text.splitlines()[-1].startswith("FAIL: ")


def test_of_a_rule_that_is_broken_often_some_are_shown_and_no_other_rule_is_hidden() -> None:
    found = outcome()
    found.books.findings += [Finding(Rule.DUPLICATE_ORDER, f"d{number}") for number in range(100)]
    found.books.findings.append(Finding(Rule.LOST_INVOICE, "o9"))
    lines = closing(found, facts_of(found, limit=1.5)).splitlines()
    assert [line for line in lines if line.endswith(": o9")]
    assert [line for line in lines if line.endswith(": 97 more, which the report has")]
    assert lines[-1] == "FAIL: duplicate orders, lost invoices"


def _no_duplicates(found: Outcome) -> None:
    found.duplicates_without_keys = 0


def _nobody_killed(found: Outcome) -> None:
    found.troubles = found.troubles[1:]


def _nobody_paused(found: Outcome) -> None:
    found.troubles = found.troubles[:1]


def _no_repeat_met_the_first(found: Outcome) -> None:
    found.storm = replace(found.storm, in_flight=0)


def _no_replay(found: Outcome) -> None:
    found.storm = replace(found.storm, replays=0)


def _overload(found: Outcome) -> None:
    found.pairs[0] = (found.pairs[0][0], block("calm b", 22.0, keys=True, failed=20))


def _broken_history(found: Outcome) -> None:
    found.history.append("H1 two holders at once")


@pytest.mark.parametrize(
    ("spoil", "name"),
    [
        (_no_duplicates, "the control: duplicates without keys"),
        (_nobody_killed, "troubles in the storm"),
        (_nobody_paused, "troubles in the storm"),
        (_no_repeat_met_the_first, "troubles in the storm"),
        (_no_replay, "troubles in the storm"),
        (_overload, "failures in calm blocks"),
        (_broken_history, "history of the locks"),
    ],
)
def test_a_run_in_which_nothing_could_go_wrong_proves_nothing(spoil: Callable[[Outcome], None], name: str) -> None:
    found = outcome()
    spoil(found)
    assert broken(found) == [name]


def test_the_middle_pair_decides_on_the_times_and_one_noisy_pair_does_not() -> None:
    assert compare_p95(outcome().pairs) == [1.1, 1.4, 4.5]
    assert broken(outcome(), limit=1.5) == []
    assert broken(outcome(), limit=1.3) == ["p95 of an order with a key, to one without"]
    assert broken(outcome(), limit=None) == []


def test_pairs_without_orders_decide_nothing() -> None:
    found = outcome()
    found.pairs = [(figures_of("a", [], keys=False, seconds=10), figures_of("b", [], keys=True, seconds=10))]
    assert broken(found, limit=None) == ["p95 of an order with a key, to one without"]
    assert middle([]) is None


@pytest.mark.parametrize(("share", "value"), [(50, 2.0), (51, 3.0), (95, 4.0), (100, 4.0), (1, 1.0)])
def test_a_percentile_is_a_value_that_was_measured(share: int, value: float) -> None:
    assert percentile([1.0, 2.0, 3.0, 4.0], share) == value


def test_of_nothing_a_percentile_is_zero() -> None:
    assert percentile([], 95) == 0.0


def test_only_the_first_request_of_an_order_that_was_placed_counts_as_its_time() -> None:
    answers = [
        Answer(block="storm", kind=Kind.ORDER, customer="a", status=201, took_ms=5.0),
        Answer(block="storm", kind=Kind.ORDER, customer="b", status=0, took_ms=3000.0),
        Answer(block="storm", kind=Kind.RETRY, customer="b", status=201, took_ms=900.0),
        Answer(block="storm", kind=Kind.AGAIN, customer="a", status=201, took_ms=1.0, replayed=True),
    ]
    figures = figures_of("storm", answers, keys=True, seconds=15, cpu_s=None)
    assert (figures.orders.requests, figures.orders.p99_ms) == (1, 5.0)
    assert (figures.requests, figures.failed, figures.replays, figures.cpu_ms) == (4, 1, 1, None)


def test_the_line_of_a_block_stands_under_its_head() -> None:
    line = block_line(block("calm 1b", 22.0, keys=True))
    assert len(line) == len(HEAD)
    assert line.split()[:2] == ["calm", "1b"]


def test_the_document_can_be_written_and_holds_what_was_found() -> None:
    found = outcome()
    found.books.findings.append(Finding(Rule.LOST_ORDER, "o9"))
    written = json.loads(json.dumps(document(Wanted(), found, facts_of(found, limit=1.5))))
    assert written["passed"] is False
    assert written["books"]["findings"] == [{"rule": "LOST_ORDER", "text": "o9"}]
    assert [trouble["what"] for trouble in written["troubles"]] == ["killed", "paused"]
    assert written["pairs"][0]["with_keys"]["orders"]["p95_ms"] == 22.0


@pytest.mark.parametrize(("seconds", "rounds"), [(15, 1), (59, 1), (60, 2), (300, 10)])
def test_a_longer_storm_has_more_troubles(seconds: float, rounds: int) -> None:
    assert rounds_in(seconds) == rounds
