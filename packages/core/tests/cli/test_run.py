"""`tenure run`: any program under a lock, ended with its lease, and its exit codes."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tenure.sync import Locks

PATIENCE_S = 60
Tenure = Callable[..., Any]

SLEEPS = (sys.executable, "-c", "import time; print('runs', flush=True); time.sleep(3600)")
STUBBORN = (
    sys.executable, "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('runs', flush=True); time.sleep(3600)",
)  # fmt: skip


def test_a_program_runs_under_the_lock_with_its_token_and_its_code_is_the_codes(start: Any, url: str) -> None:
    program = "import os, sys; print(os.environ['TENURE_KEY'], int(os.environ['TENURE_TOKEN']) > 0); sys.exit(7)"
    running = start("run", url, "job", "--", sys.executable, "-c", program)
    out, err = running.communicate(timeout=PATIENCE_S)
    assert (running.returncode, out, err) == (7, "job True\n", "")


def test_a_lock_that_is_anothers_is_a_conflict_and_nothing_runs(
    start: Any, url: str, locks: Locks, tmp_path: Path
) -> None:
    touched = tmp_path / "touched"
    with locks.hold("job"):
        running = start("run", url, "--json", "-E", "75", "job", "--", "touch", touched)
        _, err = running.communicate(timeout=PATIENCE_S)
    assert running.returncode == 75
    assert (json.loads(err)["outcome"], json.loads(err)["token"]) == ("held", None)
    assert not touched.exists()


@pytest.mark.matrix
def test_what_is_told_of_a_conflict(start: Any, url: str, locks: Locks) -> None:
    with locks.hold("job"):
        told, quiet = start("run", url, "job", "--", "true"), start("run", url, "-q", "job", "--", "true")
        assert told.communicate(timeout=PATIENCE_S)[1] == "tenure: 'job' is held by another owner.\n"
        assert quiet.communicate(timeout=PATIENCE_S)[1] == ""
    assert (told.returncode, quiet.returncode) == (1, 1)


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["job", "--", "no-such-program-anywhere"], 127),
        (["job", "--", "/etc/hostname"], 126),
        (["job", "--", "sh", "-c", "kill -9 $$"], 128 + 9),
        (["job"], 2),
        (["job", "--ttl", "soon", "--", "true"], 2),
        (["", "--", "true"], 2),
        (["job", "--", "true"], 0),
    ],
)
def test_exit_codes_are_those_of_the_documentation(start: Any, url: str, words: list[str], code: int) -> None:
    running = start("run", url, *words)
    _, err = running.communicate(timeout=PATIENCE_S)
    assert running.returncode == code, err
    assert "Traceback" not in err


@pytest.mark.matrix
def test_a_store_that_fails_is_69_and_tells_no_password(start: Any) -> None:
    running = start("run", "postgresql://shop:hunter2@127.0.0.1:1/shop", "job", "--", "true")
    _, err = running.communicate(timeout=PATIENCE_S)
    assert running.returncode in (2, 69)
    assert "hunter2" not in err


@pytest.mark.matrix
def test_the_lock_is_held_while_the_program_runs_and_free_afterwards(start: Any, url: str, locks: Locks) -> None:
    running = start("run", url, "--instance", "cron-1", "job", "--", *SLEEPS)
    assert running.stdout.readline() == "runs\n"
    assert [record.instance for record in locks.list_locks("job")] == ["cron-1"]
    running.send_signal(signal.SIGTERM)
    running.communicate(timeout=PATIENCE_S)
    assert running.returncode == 128 + signal.SIGTERM
    assert locks.list_locks("job") == []


@pytest.mark.matrix
@pytest.mark.parametrize("program", [SLEEPS, STUBBORN], ids=["a program that ends", "one that ignores SIGTERM"])
def test_a_program_is_ended_with_its_lease(start: Any, url: str, locks: Locks, tenure: Tenure, program: Any) -> None:
    running = start("run", url, "--ttl", "2s", "--kill-after", "200ms", "--json", "job", "--", *program)
    assert running.stdout.readline() == "runs\n"
    [record] = locks.list_locks("job")
    assert tenure("release", url, "job", "--token", record.token).code == 0
    _, err = running.communicate(timeout=PATIENCE_S)
    shape = json.loads(err)
    assert running.returncode == 70
    assert (shape["outcome"], shape["token"]) == ("lost", record.token)


def is_there(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.matrix
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_the_program_does_not_outlive_the_trust_of_a_command_that_does_not_run(
    start: Any, url: str, end: signal.Signals
) -> None:
    program = (sys.executable, "-c", "import os, time; print(os.getpid(), flush=True); time.sleep(3600)")
    running = start("run", url, "--ttl", "1s", "--kill-after", "200ms", "job", "--", *program)
    pid = int(running.stdout.readline())
    assert is_there(pid)
    running.send_signal(end)
    until(lambda: not is_there(pid))
    if end is signal.SIGSTOP:
        running.send_signal(signal.SIGCONT)
        running.communicate(timeout=PATIENCE_S)
        assert running.returncode == 70


@pytest.mark.matrix
def test_a_wait_takes_the_lock_when_it_is_free_and_ends_with_a_signal(start: Any, url: str, locks: Locks) -> None:
    lease = locks.acquire("job")
    waiting = start("run", url, "--wait", "1m", "job", "--", "echo", "mine")
    other = start("run", url, "--wait", "forever", "job", "--", "echo", "never")
    time.sleep(1)  # so that both wait, which nobody outside can see
    other.send_signal(signal.SIGINT)
    assert other.communicate(timeout=PATIENCE_S)[0] == ""
    assert other.returncode == 128 + signal.SIGINT
    lease.release()
    assert waiting.communicate(timeout=PATIENCE_S)[0] == "mine\n"
    assert waiting.returncode == 0


@pytest.mark.matrix
def test_on_one_instance_keeps_the_job_between_runs_and_other_hosts_are_refused(
    start: Any, url: str, locks: Locks
) -> None:
    def tick(host: str) -> int:
        running = start("run", url, "--on-one-instance", "--instance", host, "--ttl", "60s", "job", "--", "true")
        running.communicate(timeout=PATIENCE_S)
        return int(running.returncode)

    assert [tick("one"), tick("two"), tick("one")] == [0, 1, 0]
    [owner] = locks.list_locks("job")
    assert (owner.key, owner.instance) == ("job:owner", "one")


@pytest.mark.matrix
def test_signals_reach_the_program(start: Any, url: str) -> None:
    program = (
        "import os, signal, sys\n"
        "signal.signal(signal.SIGUSR1, lambda *_: (print('told', flush=True), sys.exit(3)))\n"
        "print('runs', flush=True)\nsignal.pause()\nsignal.pause()"
    )
    running = start("run", url, "job", "--", sys.executable, "-c", program)
    assert running.stdout.readline() == "runs\n"
    running.send_signal(signal.SIGUSR1)
    assert running.communicate(timeout=PATIENCE_S)[0] == "told\n"
    assert running.returncode == 3


@pytest.mark.matrix
def test_a_program_that_is_left_to_run_is_found_where_nobody_watches(url: str) -> None:
    """The planted bug: a watchman that hears of no deadline. The program outlives the trust in a stopped command."""
    planted = (
        "from tenure.cli.run import program as at; tell = at.Watchman.tell\n"
        "at.Watchman.tell = lambda self, line: None if line.startswith('until') else tell(self, line)\n"
        "from tenure.cli import main; main()"
    )
    program = (sys.executable, "-c", "import os, time; print(os.getpid(), flush=True); time.sleep(3600)")
    words = ("run", url, "--ttl", "1s", "--kill-after", "100ms", "job", "--", *program)
    with subprocess.Popen([sys.executable, "-c", planted, *words], stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        pid = int(running.stdout.readline())
        running.send_signal(signal.SIGSTOP)
        try:
            time.sleep(2.5)
            assert is_there(pid)
        finally:
            os.kill(pid, signal.SIGKILL)
            running.send_signal(signal.SIGCONT)
