"""The published guarantees: every promise names what shows it, and every figure is one that was measured."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from chaos.guarantees import DOCS, filled
from chaos.scenarios import SCENARIOS

GUARANTEES = (DOCS / "guarantees.md").read_text(encoding="utf-8")
REPORT: dict[str, Any] = json.loads((DOCS / "failover-suite.json").read_text(encoding="utf-8"))
ROWS = [
    line
    for line in GUARANTEES.splitlines()
    if line.startswith("| ") and line.count("|") in (5, 6) and "---" not in line
]


def test_every_scenario_that_a_promise_names_exists() -> None:
    assert set(re.findall(r"\bC\d+\b", GUARANTEES)) <= {found.id for found in SCENARIOS}


def test_every_scenario_of_the_suite_stands_beside_a_promise_or_is_the_hour_of_all_of_them() -> None:
    assert {found.id for found in SCENARIOS} <= set(re.findall(r"\bC\d+\b", GUARANTEES))


def test_the_figures_are_those_of_the_published_report() -> None:
    assert filled(GUARANTEES, REPORT["outcomes"]) == GUARANTEES, "run: PYTHONPATH=tests python -m chaos.guarantees"


def test_a_figure_that_was_changed_by_hand_is_found() -> None:
    altered = re.sub(r": 0 of (\d+)", r": 0 of 9\1", GUARANTEES, count=1)
    assert altered != GUARANTEES
    assert filled(altered, REPORT["outcomes"]) == GUARANTEES


def test_the_published_report_is_of_a_full_run_in_which_every_claim_held() -> None:
    assert REPORT["size"] == "full"
    assert [one for one in REPORT["outcomes"] if not one["ok"]] == []
    ran = {one["scenario"] for one in REPORT["outcomes"] if not one["skipped"]}
    assert {found.id for found in SCENARIOS if not found.docker} <= ran


@pytest.mark.parametrize("outcome", REPORT["outcomes"], ids=lambda one: f"{one['scenario']}-{one['store']}")
def test_every_zero_of_the_report_stands_with_its_n(outcome: dict[str, Any]) -> None:
    assert all(zero["of"] > 0 for zero in outcome["zeros"])


def test_every_claim_of_safety_has_its_control_or_its_history() -> None:
    for outcome in REPORT["outcomes"]:
        assert outcome["controls"] or outcome["history"] or outcome["skipped"] or outcome["zeros"], outcome["scenario"]


def test_the_report_reads_as_its_json() -> None:
    text = Path(DOCS / "failover-suite.md").read_text(encoding="utf-8")
    assert all(f"## {one['scenario']}: " in text for one in REPORT["outcomes"])
