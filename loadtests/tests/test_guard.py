import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tenure_loadtests.contenders.catalogue import CATALOGUE, Entry
from tenure_loadtests.driver.environments import Environments
from tenure_loadtests.driver.machine import on_one_processor
from tenure_loadtests.driver.rounds import Rounds
from tenure_loadtests.driver.servers import Servers
from tenure_loadtests.guard.limits import Limit, judge, read_limits, recorded, write_limits
from tenure_loadtests.guard.watch import GUARD_PLAN, guard, limits_file
from tenure_loadtests.records import RecordError, RunRecord
from tenure_loadtests.scenarios.catalogue import SCENARIOS

LIMIT = Limit("tenure.locks.memory", "tenure.store.memory", "1 task", "client_us", expected=4.0, band=1.7)

MakeRecord = Callable[..., RunRecord]


def cpu(record_of: MakeRecord, ours: float, floor: float = 10.0) -> RunRecord:
    figures = {LIMIT.contender: [{"client_us": ours}], LIMIT.floor: [{"client_us": floor}]}
    return record_of("cycle", "1 task", figures)


@pytest.mark.parametrize(("ours", "passed"), [(40, True), (67, True), (69, False), (80, False)])
def test_noise_stays_in_the_band_and_a_doubling_leaves_it(record_of: MakeRecord, ours: float, *, passed: bool) -> None:
    [verdict] = judge(cpu(record_of, ours), [LIMIT])
    assert verdict.passed is passed


def test_a_slower_machine_changes_nothing(record_of: MakeRecord) -> None:
    [verdict] = judge(cpu(record_of, ours=120, floor=30), [LIMIT])
    assert verdict.ratio == LIMIT.expected


def test_a_contender_that_did_not_take_part_fails(record_of: MakeRecord) -> None:
    [verdict] = judge(record_of("cycle", "1 task", {}), [LIMIT])
    assert not verdict.passed


def test_a_great_gain_asks_to_be_recorded(record_of: MakeRecord) -> None:
    [verdict] = judge(cpu(record_of, 10), [LIMIT])
    assert verdict.passed
    assert verdict.outdated


def test_what_is_recorded_is_expected_from_then_on(record_of: MakeRecord, tmp_path: Path) -> None:
    write_limits(tmp_path / "guard.json", recorded(cpu(record_of, 25), [LIMIT]))
    assert read_limits(tmp_path / "guard.json") == [replace(LIMIT, expected=2.5)]


def test_nothing_is_recorded_where_one_is_missing(record_of: MakeRecord) -> None:
    with pytest.raises(RecordError, match=r"tenure\.locks\.memory"):
        recorded(record_of("cycle", "1 task", {}), [LIMIT])


def test_a_band_that_a_doubling_passes_is_refused(tmp_path: Path) -> None:
    write_limits(tmp_path / "guard.json", [replace(LIMIT, band=2.0)])
    with pytest.raises(RecordError, match="a doubling would pass"):
        read_limits(tmp_path / "guard.json")


def test_the_committed_limits_are_of_contenders_that_there_are() -> None:
    for limit in read_limits(limits_file()):
        assert {limit.contender, limit.floor} <= set(CATALOGUE)
        assert limit.expected > 0


@pytest.mark.parametrize(("second", "code"), [(41, 0), (80, 1)], ids=["a disturbance", "a regression"])
def test_what_is_outside_of_its_band_is_measured_once_more(
    record_of: MakeRecord, tmp_path: Path, capsys: pytest.CaptureFixture[str], second: float, code: int
) -> None:
    runs = iter([cpu(record_of, 80), cpu(record_of, second)])
    write_limits(tmp_path / "guard.json", [LIMIT])
    assert guard(lambda *_: next(runs), tmp_path / "guard.json", record=False) == code
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("guard: FAIL: tenure.locks.memory" if code else "guard: pass")


def test_a_planted_doubling_fails_where_the_same_code_passes() -> None:
    floor, ours = CATALOGUE[LIMIT.floor], CATALOGUE[LIMIT.contender]
    doubled = Entry(
        "planted.doubled", "tenure", "memory", "planted:Doubled", {"of": ours.path, **ours.options}, floor=floor.name
    )
    record = measured([floor, ours, doubled])
    [limit] = recorded(record, [LIMIT])
    assert judge(record, [limit])[0].passed
    assert not judge(record, [replace(limit, contender=doubled.name)])[0].passed


def test_everything_that_the_guard_starts_is_on_one_processor() -> None:
    before = os.sched_getaffinity(0)
    with on_one_processor():
        told = subprocess.check_output([sys.executable, "-c", "import os; print(len(os.sched_getaffinity(0)))"])
    assert int(told) == 1
    assert os.sched_getaffinity(0) == before


def measured(entries: Sequence[Entry]) -> RunRecord:
    record = RunRecord(machine={}, plan={})
    with on_one_processor(), Servers({}) as servers:
        rounds = Rounds(servers, Environments(), replace(GUARD_PLAN, cell_s=0.2), record, lambda _: None)
        rounds.run(SCENARIOS["cycle"], entries, only=["1 task"])
    assert record.absences == []
    return record
