"""The command: what it refuses, and a short run of it on real servers, replicas and users."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cat_store_load import crowd
from cat_store_load.cli import main
from cat_store_load.crowd import CrowdError, check_locust
from cat_store_load.outcome import Wanted
from cat_store_load.plan import PLAN, Plan

PACKAGE = Path(crowd.__file__).resolve().parent.parent


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--users", "3"], "--users is at least 10"),
        (["--seconds", "5"], "--seconds at least 15"),
        (["--pairs", "0"], "--pairs is at least 1"),
        (["--think", "0"], "--think is more than 0"),
        (["--report", "/nowhere/at/all.json"], "/nowhere/at is no directory"),
        (["--answers", "/nowhere"], "/nowhere is no directory"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_is_started(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert said in capsys.readouterr().err


def test_without_locust_the_command_says_how_to_have_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main([]) == 2
    assert "uv run --group load cat-store-load" in capsys.readouterr().err


def test_locust_stays_out_of_the_process_of_the_command() -> None:
    look = "import sys, cat_store_load.cli; sys.exit('gevent' in sys.modules or 'locust' in sys.modules)"
    paths = os.pathsep.join([str(PACKAGE), *filter(None, [os.environ.get("PYTHONPATH")])])
    subprocess.run([sys.executable, "-c", look], check=True, env={**os.environ, "PYTHONPATH": paths}, timeout=120)


def test_the_users_read_the_plan_that_they_were_told(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan(
        block="storm", urls=["http://127.0.0.1:1"], admin_headers={}, keys=True, storm=3, think_s=0.5, answers="a.jsonl"
    )
    monkeypatch.setenv(PLAN, plan.environment()[PLAN])
    assert Plan.from_environment() == plan
    monkeypatch.delenv(PLAN)
    with pytest.raises(LookupError, match="start the users through `cat-store-load`"):
        Plan.from_environment()


@pytest.mark.parametrize(("seconds", "pairs"), [(15, 1), (60, 3), (600, 4)])
def test_calm_blocks_together_are_as_long_as_the_storm(seconds: int, pairs: int) -> None:
    wanted = Wanted(seconds=seconds, pairs=pairs)
    assert 0 <= seconds - wanted.calm_s * 2 * pairs < 2 * pairs


@pytest.mark.chaos
@pytest.mark.parametrize("arguments", [[], ["--store", "valkey", "--records", "valkey"]], ids=["postgres", "valkey"])
def test_two_dozen_users_a_kill_and_a_pause_leave_books_that_hold(arguments: list[str], tmp_path: Path) -> None:
    try:
        check_locust()
    except CrowdError as error:
        if os.environ.get("CI"):
            pytest.fail(f"Needed where CI is set: {error}", pytrace=False)
        pytest.skip(str(error))
    report = tmp_path / "report.json"
    assert main(["--quick", "--report", str(report), *arguments]) == 0
    found = json.loads(report.read_text(encoding="utf-8"))
    assert found["passed"]
    assert found["duplicates_without_keys"] > 0
    assert found["books"]["repeats"] > 0
