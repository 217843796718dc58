"""The command: what it prints, and its exit code."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tenure.testing.history import HistoryRecorder
from tenure.testing.history.__main__ import main


def save(story: Any, path: Path) -> str:
    with HistoryRecorder(path, process="told") as recorder:
        for event in sorted(story.events, key=lambda one: one["at"]):
            fields = dict(event)
            recorder.note(fields.pop("what"), **fields)
    return str(path)


@pytest.fixture
def good(tell: Any, tmp_path: Path) -> str:
    story = tell()
    story.grant("a", 1, 5)
    return save(story, tmp_path / "good.jsonl")


@pytest.fixture
def bad(tell: Any, tmp_path: Path) -> str:
    story = tell()
    story.grant("a", 1, 5)
    story.grant("b", 2, 6)
    return save(story, tmp_path / "bad.jsonl")


def test_the_command_says_what_is_wrong_and_exits_with_one(bad: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "tenure.testing.history", bad], capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 1, ran.stderr
    assert ran.stderr == ""
    assert "H3         1  no two running processes believe" in ran.stdout
    assert "H1        ok" in ran.stdout


def test_a_history_that_breaks_nothing_exits_with_zero(good: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([good]) == 0
    shown = capsys.readouterr().out
    assert "grants" in shown
    assert "BROKEN" not in shown


def test_json_is_one_object(good: str, bad: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--json", bad]) == 1
    told = json.loads(capsys.readouterr().out)
    assert [one["rule"] for one in told["violations"]] == ["H3"]
    assert main(["--json", good]) == 0
    assert json.loads(capsys.readouterr().out)["ok"] is True


def test_what_cannot_be_read_exits_with_two(good: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([good, str(tmp_path / "nowhere.jsonl")]) == 2
    assert "nowhere.jsonl" in capsys.readouterr().err
    (tmp_path / "odd.jsonl").write_text("{}\n")
    assert main([good, str(tmp_path / "odd.jsonl")]) == 2
    assert "odd.jsonl, line 1: " in capsys.readouterr().err


def test_a_broken_assumption_exits_with_two_unless_it_is_lifted(
    tell: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    story = tell()
    story.refuse("b", 1)
    story.grant("b", 2, 5)
    path = save(story, tmp_path / "late.jsonl")
    assert main([path]) == 2
    assert "BROKEN   nothing was locked at the start" in capsys.readouterr().out
    assert main(["--started-before", path]) == 0
