"""
The model of lease and fence (`lease.pml`), every state of it, and what becomes of it without each of its rules.

A model that holds says little by itself: it may hold because nothing happens in it. So each rule is taken away once,
and the very fact that the rule stands for has to fail then.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

MODEL = Path(__file__).with_name("lease.pml")

_TOOLS = ("spin", "gcc")

# All seven searches take some ten seconds on an idle core, so that one which takes minutes has grown.
_BOUND_S = 240
_MEMORY_MB = 1024
_DEEPEST = 100_000

_ASSERTION = re.compile(r"assertion violated\s+!\(?\s*(\w+)\s*\)?")
_STORED = re.compile(r"^\s*(\d+) states, stored", re.MULTILINE)
_ELAPSED = re.compile(r"elapsed time ([\d.]+) seconds")
_ERRORS = re.compile(r"errors: (\d+)")


class Verdict(NamedTuple):
    """What a search found: the fact that failed, if one did, and how many states it saw in how many seconds."""

    failed: str | None
    states: int
    seconds: float


Search = Callable[..., Verdict]


def _tools_or_skip() -> None:
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if not missing:
        return
    reason = f"{' and '.join(missing)} not installed (Debian: apt-get install spin gcc): the model cannot be searched."
    if os.environ.get("CI", "").lower() not in ("", "0", "false"):
        pytest.fail(f"Needed where CI is set: {reason}", pytrace=False)
    pytest.skip(reason)


@pytest.fixture
def search(tmp_path: Path, record_property: Callable[[str, object], None]) -> Search:
    """Search every state of the model, with the switches that are given."""
    _tools_or_skip()

    def run(*command: str) -> str:
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=_BOUND_S, check=False)
        assert done.returncode == 0, f"{command[0]} said: {done.stdout}{done.stderr}"
        return done.stdout

    def searched(*switches: str) -> Verdict:
        # A hundred bytes of state, compared whole: no hash stands for a state, so none is taken for another.
        run("spin", "-a", *(f"-D{switch}" for switch in switches), str(MODEL))
        run("gcc", "-O1", "-w", "-DSAFETY", "-DVECTORSZ=1024", f"-DMEMLIM={_MEMORY_MB}", "-o", "pan", "pan.c")
        said = run("./pan", f"-m{_DEEPEST}", "-w22")
        verdict = _read(said)
        record_property("states", verdict.states)
        record_property("seconds", verdict.seconds)
        what = " ".join(switches) or MODEL.name
        print(f"{what}: {verdict}")  # noqa: T201 -- the figures, for whoever runs this with -rA
        return verdict

    return searched


def _read(said: str) -> Verdict:
    """Read what the search said; one that ended early says nothing about the rest, and fails here."""
    errors, states, seconds = _ERRORS.search(said), _STORED.search(said), _ELAPSED.search(said)
    assert errors, said
    assert states, said
    assert seconds, said
    failed = _ASSERTION.search(said)
    assert int(errors[1]) == (failed is not None), said
    assert failed is not None or "Search not completed" not in said, said
    assert "max search depth too small" not in said
    return Verdict(failed[1] if failed else None, int(states[1]), float(seconds[1]))


@pytest.mark.matrix
def test_no_state_of_the_model_breaks_a_fact(search: Search) -> None:
    verdict = search()
    assert verdict.failed is None
    # A model that ends after a few steps holds too.
    assert verdict.states > 1_000_000


VARIANTS = [
    (("FENCED=0",), "regressed"),
    (("DEADLINE_FROM_REPLY=1",), "two_believers"),
    (("RENEW_BY_ANYONE=1",), "false_yes"),
    (("RENEW_BY_ANYONE=1", "REVIVE=1", "ANSWERS_UNCHECKED=1"), "two_believers"),
    (("RELEASE_BY_ANYONE=1",), "two_believers"),
    (("FORGETS_TOKENS=1",), "token_reused"),
]


@pytest.mark.matrix
@pytest.mark.parametrize(("switches", "fact"), VARIANTS, ids=["+".join(switches) for switches, _ in VARIANTS])
def test_planted_without_its_rule_the_fact_fails(search: Search, switches: tuple[str, ...], fact: str) -> None:
    assert search(*switches).failed == fact


def test_every_switch_of_the_model_is_thrown_here() -> None:
    told = set(re.findall(r"^#ifn?def (\w+)$", MODEL.read_text(encoding="utf-8"), re.MULTILINE))
    assert told == {switch.partition("=")[0] for switches, _ in VARIANTS for switch in switches}
