"""The frame of the suite: a claim that cannot fail, or a report that loses one, would make the rest worthless."""

import json
from pathlib import Path
from typing import Any

import pytest

from chaos.cases import Case, run_all
from chaos.guarantees import filled
from chaos.ledger import Ledger
from chaos.outcome import Control, Limit, Outcome, Times, Zero
from chaos.report import write_report
from chaos.scenario import Run, Scenario, carry_out
from chaos.scenarios import SCENARIOS
from tenure.testing.history import HistoryRecorder


def outcome(store: str = "valkey", **found: Any) -> Outcome:
    return Outcome("C1", "kill -9 of the holder", store, 3, **found)


async def nothing(_: Run) -> None:
    return None


def scenario_of(body: Any) -> Scenario:
    return Scenario("C1", "a fault", "H1", ("valkey",), 1, 1, ("valkey",), body)


@pytest.mark.parametrize(
    ("found", "ok"),
    [
        ({}, True),
        ({"zeros": [Zero("tokens repeated", 0, 3)]}, True),
        ({"zeros": [Zero("tokens repeated", 1, 3)]}, False),
        ({"zeros": [Zero("tokens repeated", 0, 0)]}, False),
        ({"limits": [Limit("takeover", 1.0, 1.0, 0.0)]}, True),
        ({"limits": [Limit("takeover", 1.01, 1.0, 0.0)]}, False),
        ({"limits": [Limit("takeover", 1.2, 1.0, 0.1)]}, True),
        ({"limits": [Limit("takeover", 1.3, 1.0, 0.1)]}, False),
        ({"limits": [Limit("takeover", float("nan"), 1.0, 0.1)]}, False),
        ({"controls": [Control("a counter", 1, 3)]}, True),
        ({"controls": [Control("a counter", 0, 3)]}, False),
        ({"broken": ["H1 a token came back"]}, False),
    ],
)
def test_a_claim_holds_or_the_outcome_does_not(found: dict[str, Any], ok: bool) -> None:
    assert outcome(**found).ok is ok
    assert outcome(**found).line().startswith("ok" if ok else "FAIL")


def test_a_zero_tells_the_rate_that_it_bounds() -> None:
    assert str(Zero("tokens repeated", 0, 300)) == "tokens repeated: 0 of 300 (<1 % at 95 %)"
    assert str(Zero("tokens repeated", 0, 3)) == "tokens repeated: 0 of 3"
    assert str(Zero("tokens repeated", 2, 300)) == "tokens repeated: 2 of 300"


def test_a_sample_is_summarised_by_its_own_values() -> None:
    assert Times.of([0.3, 0.1, 0.2]) == Times(3, 0.2, 0.3, 0.3)
    assert Times.of([number / 100 for number in range(100)]).p99 == 0.98
    assert Times.of([]).n == 0


async def test_a_scenario_that_raises_is_an_outcome_that_failed(tmp_path: Path) -> None:
    async def raises(_: Run) -> None:
        raise OSError("the server is gone")

    run = Run(scenario_of(raises), "valkey", full=False, directory=tmp_path)
    assert (await carry_out(scenario_of(raises), run)).broken == ["OSError: the server is gone"]


async def test_a_broken_history_is_a_broken_outcome(tmp_path: Path) -> None:
    async def believes_in_what_it_has_not(run: Run) -> None:
        run.promise(ttl_s=1)
        with HistoryRecorder(run.history_file("liar"), process="liar") as recorder:
            recorder.note("believes", key="job", token=7)
        run.check_history()

    found = scenario_of(believes_in_what_it_has_not)
    run = Run(found, "valkey", full=False, directory=tmp_path)
    broken = (await carry_out(found, run)).broken
    assert any(text.startswith("H8 ") for text in broken)
    assert any(text.startswith("The history proves nothing: ") for text in broken)


@pytest.mark.parametrize(("fenced", "taken"), [(True, False), (False, True)])
def test_a_ledger_refuses_a_token_below_one_that_it_has_taken_unless_it_is_the_control(
    fenced: bool, taken: bool
) -> None:
    ledger = Ledger(HistoryRecorder([], process="nemesis"), fenced=fenced)
    assert [ledger.take("shelf", "job", token) for token in (5, 5, 6, 5)] == [True, True, True, taken]
    assert ledger.stale_accepted == taken


def test_a_case_whose_process_dies_is_reported_and_the_others_run(tmp_path: Path) -> None:
    gone = Case("C1", "no such store", full=False, n=1, directory=tmp_path / "gone")
    (ended,) = run_all([gone], jobs=2)
    assert not ended.ok
    assert "There is no store 'no such store'" in ended.line()


def test_a_report_renews_what_ran_and_keeps_the_rest(tmp_path: Path) -> None:
    to = tmp_path / "report"
    figures = {"takeover": Times(3, 0.1, 0.2, 0.2), "asked": {"released": 10}, "seconds": 1.25}
    write_report([outcome(figures=figures), outcome("postgres", broken=["H1"])], to, size="full", at="2026-01-01")
    write_report([outcome("postgres", skipped="no server")], to, size="full", at="2026-01-02")
    written = json.loads(to.with_suffix(".json").read_text())
    assert [(one["store"], one["ok"], one["at"]) for one in written["outcomes"]] == [
        ("postgres", True, "2026-01-02"),
        ("valkey", True, "2026-01-01"),
    ]
    text = to.with_suffix(".md").read_text()
    assert "1 of 2 passed, 1 skipped; 2026-01-01 to 2026-01-02" in text
    assert "p50 0.1 s, p99 0.2 s, max 0.2 s (n=3)<br>asked {'released': 10}<br>seconds 1.25" in text
    write_report([outcome()], to, size="quick", at="2026-01-03")
    assert len(json.loads(to.with_suffix(".json").read_text())["outcomes"]) == 1


def test_a_guarantees_cell_holds_what_its_scenario_found_on_all_stores() -> None:
    rows = [
        outcome(store, zeros=[Zero("repeated", 0, 100)], limits=[Limit("takeover", span, 2, 0)]).as_dict()
        for store, span in (("postgres", 0.5), ("valkey", 0.75))
    ]
    assert filled("| <!-- C1 -->old<!-- / --> | <!-- C2 --><!-- / --> |", rows) == (
        "| <!-- C1 -->repeated: 0 of 200; takeover 0.75 s (postgres, valkey)<!-- / --> | <!-- C2 --><!-- / --> |"
    )


def test_every_scenario_of_the_list_is_there_and_says_what_it_claims() -> None:
    assert [found.id for found in SCENARIOS] == [f"C{number}" for number in range(1, 29)]
    for found in SCENARIOS:
        assert found.claims
        assert set(found.quick_stores) <= set(found.stores)
        assert 0 < found.quick <= found.full
