"""One integer is one execution; under none of those that run here is a rule broken."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from simulation.batch import run_batch
from simulation.cli import main, regression_seeds
from simulation.observers.history import check_run
from simulation.plan import FAULTS, WORKLOADS, draw_plan
from simulation.world import run_seed

TESTS = Path(__file__).parents[1]

SEEDS = range(10_000, 10_070)
"""Others than those that are looked at by hand."""


def test_no_rule_is_broken_and_every_kind_of_fault_meets_somebody() -> None:
    batch = run_batch([SEEDS])
    assert batch.failing == {}
    assert batch.seeds == len(SEEDS)
    assert [fault for fault in FAULTS if not batch.fired[fault]] == []


@pytest.mark.parametrize("seed", sorted(regression_seeds()))
def test_a_seed_that_found_something_once_finds_it_no_more(seed: int) -> None:
    outcome = run_seed(seed)
    assert outcome.ok, outcome.violations


@pytest.mark.parametrize("seeds", [range(at, at + 20) for at in range(0, 60, 20)], ids=str)
def test_the_history_of_a_run_keeps_the_rules_of_histories(seeds: range) -> None:
    found = {seed: report.violations for seed in seeds if (report := check_run(run_seed(seed))).violations}
    assert found == {}


def test_the_same_seed_is_the_same_run_and_another_is_another() -> None:
    first, again, other = run_seed(7), run_seed(7), run_seed(8)
    assert first.journal.lines == again.journal.lines
    assert first.journal.hash() == again.journal.hash() != other.journal.hash()
    assert first.journal.history == again.journal.history


def test_the_same_seed_is_the_same_run_in_another_process() -> None:
    """Where strings hash otherwise, and everything lies at other addresses."""
    hashes = set()
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONPATH": str(TESTS), "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-m", "simulation", "--seed", "145"]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
        hashes.add(ended.stdout.rpartition("hash ")[2].split()[0])
    assert hashes == {run_seed(145).journal.hash()}


def test_the_trace_of_a_seed_is_a_timeline_to_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "3"]) == 0
    printed = capsys.readouterr().out
    assert "phase: faults" in printed
    assert "phase: shutdown" in printed
    assert "hash " in printed


def test_a_batch_says_what_it_saw(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "5"]) == 0
    printed = capsys.readouterr().out
    assert "seeds/s" in printed
    assert "a write accepted" in printed


def test_plans_turn_most_faults_off_and_every_one_on_in_some() -> None:
    plans = [draw_plan(seed) for seed in range(300)]
    assert {fault for plan in plans for fault in plan.faults} == set(FAULTS)
    assert {workload for plan in plans for workload in plan.workloads} == set(WORKLOADS)
    assert sum(len(plan.faults) for plan in plans) < len(plans) * len(FAULTS) / 2
    assert not any(plan.on("lost tail") and plan.on("store clock back") for plan in plans)
