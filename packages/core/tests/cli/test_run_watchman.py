"""`tenure run`: no program outlives the trust in its lease, also where tenure is killed, or does not run."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tenure.cli.run import launch, watchman

PATIENCE_S = 60

SLEEPS = (sys.executable, "-c", "import os, time; print(os.getpid(), flush=True); time.sleep(3600)")
STUBBORN_CHILD = (
    "import signal, time, os; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    "print(os.getpid(), flush=True); time.sleep(3600)"
)
"""It is started by the program, and hears of no SIGTERM."""


def planted(bug: str) -> tuple[str, ...]:
    """Make the command with a bug in it."""
    return (sys.executable, "-c", f"{bug}\nfrom tenure.cli import main; main()")


DEAF = """
from tenure.cli.run.program import Watchman
tell = Watchman.tell
Watchman.tell = lambda self, line: None if line.startswith({word!r}) else tell(self, line)
"""

MUTE = """
from tenure.cli.run import holding
async def feed(*_): pass
holding._feed = feed
"""
"""It tells of no deadline once the command has begun: as one that was stopped at that moment."""

LATE = """
import time
from tenure.cli.run.program import Watchman
tell = Watchman.tell
Watchman.tell = lambda self, line: (tell(self, line), time.sleep(1.2) if line.startswith("group") else None)
"""
"""It stalls past the deadline while the command's process is up and has not begun."""


@pytest.fixture
def begin(start: Any, url: str) -> Callable[..., tuple[Any, int]]:
    """Start a program under a lock that has a ttl of three seconds; gives the command and the program's pid."""

    def run(key: str, bug: str | None = None, command: tuple[str, ...] = SLEEPS) -> tuple[Any, int]:
        words = ("run", url, "--ttl", "3s", "--kill-after", "200ms", key, "--", *command)
        running = start(*words) if bug is None else start(*words, program=planted(bug))
        return running, int(running.stdout.readline())

    return run


@pytest.mark.matrix
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_the_program_does_not_outlive_the_trust_of_a_command_that_does_not_run(
    begin: Any, state: Any, until: Any, end: signal.Signals
) -> None:
    running, pid = begin("job")
    assert state(pid)
    running.send_signal(end)
    until(lambda: not state(pid))
    if end is signal.SIGSTOP:
        running.send_signal(signal.SIGCONT)
        running.communicate(timeout=PATIENCE_S)
        assert running.returncode == 70


@pytest.mark.matrix
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_what_the_program_started_goes_with_it_even_if_it_ignores_sigterm(
    begin: Any, state: Any, until: Any, end: signal.Signals
) -> None:
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {STUBBORN_CHILD!r}])"
    running, child = begin("job", command=(sys.executable, "-c", parent))
    running.send_signal(end)
    until(lambda: not state(child))


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("word", "end"),
    [("until", signal.SIGSTOP), ("group", signal.SIGKILL)],
    ids=["a watchman who hears of no deadline", "a watchman who hears of no program"],
)
def test_a_program_that_is_left_to_run_is_found(
    begin: Any, state: Any, until: Any, word: str, end: signal.Signals
) -> None:
    """The planted bugs. Beside each runs a command without it: when its program has ended, the other still runs."""
    wrong, outlives = begin("wrong", DEAF.format(word=word))
    right, ends = begin("right")
    for running in (wrong, right):
        running.send_signal(end)
    until(lambda: not state(ends))
    try:
        assert state(outlives)
    finally:
        os.kill(outlives, signal.SIGKILL)


@pytest.mark.matrix
def test_a_command_that_is_stopped_as_soon_as_its_program_has_begun_has_told_the_deadline(
    begin: Any, state: Any, until: Any
) -> None:
    running, pid = begin("job", MUTE)
    running.send_signal(signal.SIGSTOP)
    until(lambda: not state(pid))


@pytest.mark.matrix
def test_a_program_does_not_begin_once_its_lease_is_lost(start: Any, url: str, tmp_path: Path) -> None:
    touched = tmp_path / "touched"
    running = start("run", url, "--ttl", "1s", "--json", "job", "--", "touch", touched, program=planted(LATE))
    _, err = running.communicate(timeout=PATIENCE_S)
    told = json.loads(err)
    assert running.returncode == 70
    assert (told["outcome"], told["command_exit_code"]) == ("lost", None)
    assert not touched.exists()
    again = start("run", url, "--ttl", "1s", "--wait", "1m", "job", "--", "touch", touched, program=planted(LATE))
    _, err = again.communicate(timeout=PATIENCE_S)
    assert ", and the command was not begun: another instance may hold the lock now." in err


@pytest.mark.matrix
def test_ctrl_z_stops_the_program_too_and_both_go_on_together(
    start: Any, url: str, state: Any, until: Any, listens: Any
) -> None:
    running = start("run", url, "--ttl", "1h", "job", "--", *SLEEPS)
    pid = int(running.stdout.readline())
    running.send_signal(signal.SIGTSTP)
    until(lambda: (state(running.pid), state(pid)) == ("T", "T"))
    running.send_signal(signal.SIGCONT)
    until(lambda: state(pid) == "S")
    running.send_signal(signal.SIGTERM)
    running.communicate(timeout=PATIENCE_S)
    assert running.returncode == 128 + signal.SIGTERM


def test_what_waits_for_the_word_becomes_no_program_without_it(tmp_path: Path) -> None:
    """tenure is killed between the start of the process and the word: nothing was begun."""
    touched = tmp_path / "touched"
    held, go = os.pipe()
    command = [sys.executable, "-I", "-S", launch.__file__, str(held), "touch", str(touched)]
    with subprocess.Popen(command, pass_fds=(held,)) as process:
        os.close(held)
        os.close(go)
        assert process.wait(PATIENCE_S) == launch.CANNOT_RUN
    assert not touched.exists()


def test_the_watchman_ends_a_program_once_when_its_deadline_passed_or_nobody_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended: list[tuple[int, float]] = []
    at = [1000.0]
    monkeypatch.setattr(watchman, "end", lambda group, after_s: ended.append((group, after_s)))
    monkeypatch.setattr(watchman, "now", lambda: at[0])

    def duty(*lines: bytes) -> watchman.Duty:
        made = watchman.Duty(10.0)
        for line in lines:
            made.told(line)
        return made

    duty().act(alone=True)  # nothing was begun
    duty(b"group 4711").act(alone=False)  # tenure runs, and told no deadline
    one = duty(b"until 1001.0", b"group 4711", b"a word of a later version")
    at[0] = 1001.0
    one.act(alone=False)  # tenure is left a moment to end it itself
    one.told(b"until 1002.0")
    at[0] = 1002.4
    one.act(alone=False)
    assert ended == []
    at[0] = 1002.5
    one.act(alone=False)
    one.act(alone=True)
    assert ended == [(4711, 10.0)]
    duty(b"group 4712").act(alone=True)
    assert ended[1:] == [(4712, 10.0)]
