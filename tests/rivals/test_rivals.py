"""
The README's comparison with other libraries, measured: each in its pinned environment, on one Valkey.

    uv run pytest -n 0 -m rivals tests/rivals

The holders are real processes. The table of the README is compared with what came out, row by row: a peer that learns
something new fails the test, and the table is written anew. Where a peer's environment cannot be made (no network, no
such Python) its rows are skipped.
"""

import itertools
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tenure_loadtests.driver.environments import Environments, EnvironmentUnusableError

from tenure_testbed.valkey import ValkeyServer

pytestmark = pytest.mark.rivals

ROOT = Path(__file__).resolve().parents[2]
TTL = 2.0
_LONG = 60.0
"""A ttl that does not end while a test runs: not every library renews its locks."""
_WAIT_S = 3
ENVIRONMENTS = {
    "tenure": None,
    "redis_asyncio": "redis",
    "redis_lock_py": "redis",
    "grelmicro": "grelmicro",
    "mithril": "mithril",
}
_environments = Environments()
_keys = itertools.count()


@pytest.fixture(scope="module")
def valkey() -> Iterator[ValkeyServer]:
    with ValkeyServer() as server:
        yield server


class Holder:
    """A process that holds, and what it said."""

    def __init__(self, library: str, port: int, key: str, ttl: float) -> None:
        program = [_environments.python(ENVIRONMENTS[library]), str(Path(__file__).with_name("holder.py"))]
        self.process = subprocess.Popen(
            [*program, library, str(port), key, str(ttl)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.said: list[list[str]] = []

    def until(self, *words: str) -> list[str]:
        """Read until it says one of *words*; everything that it said stays in `said`."""
        assert self.process.stdout
        for line in self.process.stdout:
            self.said.append(line.split())
            if self.said[-1][0] in words:
                return self.said[-1]
        raise AssertionError(f"it ended without {words}: {self.said[-3:]}")

    def leave(self) -> None:
        assert self.process.stdin
        self.process.stdin.write("leave\n")
        self.process.stdin.flush()

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def hold(valkey: ValkeyServer, library: str) -> Iterator["Start"]:
    start = Start(library, valkey.port, [])
    try:
        yield start
    finally:
        for holder in start.started:
            holder.end()


@dataclass
class Start:
    library: str
    port: int
    started: list[Holder]

    def __call__(self, key: str, ttl: float = TTL) -> Holder:
        try:
            self.started.append(Holder(self.library, self.port, key, ttl))
        except EnvironmentUnusableError as error:
            pytest.skip(str(error))
        return self.started[-1]


@pytest.fixture(params=list(ENVIRONMENTS))
def library(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def key() -> str:
    return f"rivals:{next(_keys)}"


def _table() -> dict[str, dict[str, str]]:
    """The README's table: for each library, what each row says of it."""
    text = (
        (ROOT / "README.md").read_text(encoding="utf-8").partition("## Beside other libraries")[2].partition("\n## ")[0]
    )
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    names = [re.sub(r"\W", "_", cell.split()[0]) for cell in rows[0][1:]]
    return {name: {row[0]: row[1 + at] for row in rows[2:]} for at, name in enumerate(names)}


def _says(library: str, row: str) -> str:
    return _table()[library][row]


def test_the_table_has_the_libraries_that_are_measured() -> None:
    assert set(_table()) == set(ENVIRONMENTS)


def _pause_past_a_takeover(hold: Start, key: str) -> tuple[Holder, Holder]:
    """A holder that was paused until another one had the key, and runs again to its end; and that other one."""
    paused = hold(key)
    paused.until("held")
    paused.until("write")
    paused.process.send_signal(signal.SIGSTOP)
    other = hold(key)
    other.until("held")
    paused.process.send_signal(signal.SIGCONT)
    paused.until("left", "error")
    return paused, other


def test_a_body_that_was_paused_past_a_takeover(hold: Start, key: str) -> None:
    paused, other = _pause_past_a_takeover(hold, key)
    taken_over_at = float(other.said[-1][2]) if other.said[-1][0] == "held" else 0.0
    late = sum(words[0] == "write" and float(words[1]) > taken_over_at for words in paused.said)
    found = "is cancelled" if any(words[0] == "cancelled" for words in paused.said) else "runs on to its end"
    assert found == _says(hold.library, "a body that was paused past a takeover"), f"{late} late writes"
    # One write can be under way when a process is paused. Sixty are a body that nobody stops.
    assert late <= 1 if found == "is cancelled" else late > 30
    how = " ".join(paused.said[-1])
    told = {"left": "no"}.get(how, "yes, after the body" if found != "is cancelled" else "yes, in the body")
    assert told == _says(hold.library, "is told of the loss"), how


def test_the_release_of_a_late_holder_leaves_the_next_one_its_lock(hold: Start, key: str) -> None:
    _, other = _pause_past_a_takeover(hold, key)
    third = hold(key)
    other.until("write")
    other.leave()
    left = float(other.until("leaving")[1])
    other.until("left", "error")
    got = float(third.until("held")[2])
    # A peer that does not renew lets its lock expire while the late holder runs on: no release took it from it.
    kept = got >= left or got - float(other.said[0][2]) >= 0.9 * TTL
    assert ("yes" if kept else "no") == _says(hold.library, "its late release leaves the next holder its lock")


def test_fencing_tokens(hold: Start, key: str, valkey: ValkeyServer) -> None:
    tokens = []
    for again in range(3):
        if again == 2:
            valkey.flush_all()
        holder = hold(key)
        tokens.append(holder.until("held")[1])
        holder.leave()
        holder.until("left", "error")
    if tokens[0] == "None":
        found = "none"
    else:
        first, second, third = map(int, tokens)
        assert first < second
        found = (
            "grows, also past a server that lost its data" if second < third else "grows while the server has its data"
        )
    assert found == _says(hold.library, "fencing token"), tokens


def test_a_takeover_after_kill_9(hold: Start, key: str) -> None:
    first = hold(key)
    first.until("held")
    next_one = hold(key)
    first.until("write")
    first.process.kill()
    next_one.until("held")
    assert _says(hold.library, "takeover after `kill -9`") == "after the ttl"


def test_a_waiter_is_woken_or_looks_again(hold: Start, key: str, valkey: ValkeyServer) -> None:
    holder = hold(key, _LONG)
    holder.until("held")
    waiter = hold(key, _LONG)
    # It has imported what it needs and waits: a holder of a key of its own, which began later, holds by then.
    beside = hold(f"{key}:beside", _LONG)
    beside.until("held")
    beside.leave()
    beside.until("left")
    valkey.execute("CONFIG", "RESETSTAT")
    began = time.monotonic()
    while float(holder.until("write")[1]) < began + _WAIT_S:
        pass
    said = time.monotonic() - began
    # The most frequent command, and not the sum: what a script does in itself is counted as well.
    asked = max(int(line.partition("calls=")[2].partition(",")[0]) for line in valkey.info("commandstats").values())
    holder.leave()
    waiter.until("held")
    # Who polls asks ten times a second or more. Who is woken asks now and then, for a message can be lost.
    found = "is woken" if asked < 4 * said else "looks again"
    assert found == _says(hold.library, "who waits"), f"{asked} commands in {said:.1f} s"
