from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from tenure_loadtests.contenders.catalogue import CATALOGUE
from tenure_loadtests.records import Absence, RecordError, RunRecord
from tenure_loadtests.report.chart import panels
from tenure_loadtests.report.check import check_promises, render_check
from tenure_loadtests.report.promises import PROMISES, Promise
from tenure_loadtests.report.tables import render
from tenure_loadtests.scenarios.catalogue import SCENARIOS
from tenure_loadtests.scenarios.contract import Plan

OURS, FLOOR = "tenure.store.valkey-redis", "floor.valkey.evalsha-redis"
SLOW_PEER, FAST_PEER = "peer.valkey.pottery", "peer.valkey.grelmicro"
NODE = "peer.valkey.redlock-universal-on-node"

MakeRecord = Callable[..., RunRecord]


def rates(*values: float) -> list[dict[str, float]]:
    return [{"cycles_per_s": value} for value in values]


@pytest.fixture
def run(record_of: MakeRecord) -> RunRecord:
    return record_of(
        "cycle",
        "256 tasks",
        {
            FLOOR: rates(1000, 500),
            OURS: rates(6000, 3000),
            SLOW_PEER: rates(500, 250),
            FAST_PEER: rates(1000, 500),
            NODE: rates(9000, 4500),
        },
    )


def test_a_row_has_its_ratios_to_the_floor_and_to_the_best_python_peer(run: RunRecord) -> None:
    [row] = [line for line in render(run).splitlines() if line.startswith(f"| {OURS} ")]
    assert row.split(" | ")[1:4] == ["4\u202f500", "6.00", "6.00"]


def test_node_is_not_the_best_python_peer(run: RunRecord) -> None:
    assert f"{FAST_PEER} (best peer)" in render(run)
    assert f"{NODE} (best peer)" not in render(run)


def test_a_promise_against_the_best_peer_is_held_against_the_one_that_won(run: RunRecord) -> None:
    promise = Promise("cycle", "256 tasks", OURS, "cycles_per_s", "at least", 5, "the best Python peer")
    [outcome] = check_promises(run, [promise])
    assert (outcome.against, outcome.value, outcome.word) == (FAST_PEER, 6, "pass")


def test_a_missed_promise_fails_and_is_named(run: RunRecord) -> None:
    promise = Promise("cycle", "256 tasks", OURS, "cycles_per_s", "at least", 1, NODE)
    [outcome] = check_promises(run, [promise])
    assert outcome.failed
    assert "FAIL" in render_check([outcome])


def test_what_was_not_measured_was_not_kept(run: RunRecord) -> None:
    promise = Promise("cycle", "32 tasks", OURS, "cycles_per_s", "at least", 1, NODE)
    [outcome] = check_promises(run, [promise])
    assert outcome.failed
    assert outcome.word == "not measured"


def test_promises_of_scenarios_that_were_not_run_are_left_out(run: RunRecord) -> None:
    assert {one.promise.scenario for one in check_promises(run)} == {"cycle"}


def test_one_overlap_in_one_round_is_one_too_many(record_of: MakeRecord) -> None:
    name = "tenure.locks.postgres"
    record = record_of("section", "16 contenders", {name: [{"overlaps": 0.0}, {"overlaps": 1.0}, {"overlaps": 0.0}]})
    [outcome] = check_promises(record, [Promise("section", "16 contenders", name, "overlaps", "at most", 0)])
    assert outcome.failed


@pytest.mark.parametrize(
    "promise", PROMISES, ids=lambda one: f"{one.scenario}-{one.setting}-{one.contender}-{one.figure}"
)
def test_every_promise_is_of_something_that_a_full_run_measures(promise: Promise) -> None:
    scenario = SCENARIOS[promise.scenario]
    settings = {setting.label: setting for setting in scenario.settings(Plan())}
    assert scenario.includes(CATALOGUE[promise.contender], settings[promise.setting])
    if promise.against is not None and promise.against in CATALOGUE:
        assert scenario.includes(CATALOGUE[promise.against], settings[promise.setting])


def test_who_did_not_take_part_is_listed_with_the_reason(run: RunRecord) -> None:
    run.absences.append(Absence("peer.valkey.mithril-locks", "cycle", "1 task", "pip | failed"))
    run.absences.append(Absence("peer.valkey.mithril-locks", "cycle", "32 tasks", "pip | failed"))
    assert "| peer.valkey.mithril-locks | cycle, 1 task; cycle, 32 tasks | pip \\| failed |" in render(run)


def test_a_record_reads_back_as_it_was_written(run: RunRecord, tmp_path: Path) -> None:
    run.write(tmp_path / "bench.json")
    assert render(RunRecord.read(tmp_path / "bench.json")) == render(run)


def test_a_record_of_another_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bench.json").write_text('{"format": 0}')
    with pytest.raises(RecordError, match="run the benchmark again"):
        RunRecord.read(tmp_path / "bench.json")


def test_the_chart_has_the_best_at_the_top(run: RunRecord) -> None:
    [panel] = panels(run)
    assert [name for name, _ in panel.bars] == [NODE, OURS, FLOOR, FAST_PEER, SLOW_PEER]


def test_the_chart_is_a_picture(run: RunRecord, tmp_path: Path, or_skip: Callable[[str | None], None]) -> None:
    or_skip(None if find_spec("matplotlib") else "matplotlib, which draws the chart, is not installed: uv sync")
    from tenure_loadtests.report.chart import draw

    draw(run, tmp_path / "bench.png")
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")
