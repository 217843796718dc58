"""`tenure run`: any program under a lock, ended with its lease, and its exit codes."""

import json
import os
import re
import signal
import sys
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
        (["job", "--kill-after", "forever", "--", "true"], 2),
        (["job", "-E", "256", "--", "true"], 2),
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
    running = start("run", "postgresql+asyncpg://shop:hunter2@127.0.0.1:1/shop", "job", "--", "touch", "/never")
    _, err = running.communicate(timeout=PATIENCE_S)
    assert running.returncode == 69
    assert err.startswith("tenure: The store postgresql+asyncpg://127.0.0.1:1/shop failed: ")
    assert "See that it is up" in err
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
    running = start("run", url, "--ttl", "6s", "--kill-after", "200ms", "--json", "job", "--", *program)
    assert running.stdout.readline() == "runs\n"
    [record] = locks.list_locks("job")
    assert tenure("release", url, "job", "--token", record.token).code == 0
    _, err = running.communicate(timeout=PATIENCE_S)
    shape = json.loads(err)
    assert running.returncode == 70
    assert (shape["outcome"], shape["token"]) == ("lost", record.token)


@pytest.mark.matrix
def test_a_wait_takes_the_lock_when_it_is_free_and_ends_with_a_signal(
    start: Any, url: str, locks: Locks, until: Any, listens: Any
) -> None:
    lease = locks.acquire("job")
    waiting = start("run", url, "--wait", "1m", "job", "--", "echo", "mine")
    other = start("run", url, "--wait", "forever", "--json", "job", "--", "echo", "never")
    until(lambda: listens(waiting.pid) and listens(other.pid))
    other.send_signal(signal.SIGINT)
    out, err = other.communicate(timeout=PATIENCE_S)
    assert (other.returncode, out) == (128 + signal.SIGINT, "")
    assert json.loads(err) == {
        "key": "job", "outcome": "interrupted", "exit_code": 130, "token": None, "command_exit_code": None,
    }  # fmt: skip
    assert waiting.poll() is None
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
def test_a_wait_that_runs_out_is_a_conflict(start: Any, url: str, locks: Locks) -> None:
    with locks.hold("job"):
        waiting = start("run", url, "--wait", "200ms", "job", "--", "echo", "never")
        out, err = waiting.communicate(timeout=PATIENCE_S)
    assert (waiting.returncode, out, err) == (1, "", "tenure: 'job' is held by another owner.\n")


@pytest.mark.matrix
def test_a_run_is_one_line_of_json_behind_what_the_program_writes(start: Any, url: str) -> None:
    running = start("run", url, "--json", "job", "--", "sh", "-c", "echo $TENURE_TOKEN; echo aside >&2; kill -15 $$")
    out, err = running.communicate(timeout=PATIENCE_S)
    aside, told = err.splitlines()
    assert aside == "aside"
    assert json.loads(told) == {
        "key": "job", "outcome": "ran", "exit_code": 143, "token": int(out), "command_exit_code": 143,
    }  # fmt: skip


@pytest.mark.matrix
def test_a_program_has_what_it_would_have_without_tenure(start: Any, url: str, tmp_path: Path) -> None:
    """Its input, its directory, its variables and the signals that Python ignores; no owner is anywhere."""
    program = "cat; pwd; echo $SHOP; env | grep ^TENURE_ | sort; sed -n 's/^SigIgn:.//p' /proc/self/status"
    given = tmp_path / "given"
    given.write_text("from stdin\n")
    environment = {**os.environ, "TENURE_STORE": url, "TENURE_TTL": "20s", "SHOP": "cats"}
    with given.open() as stdin:
        running = start("run", "job", "--", "sh", "-c", program, stdin=stdin, cwd=tmp_path, env=environment)
        out, err = running.communicate(timeout=PATIENCE_S)
    *said, ignored = out.splitlines()
    assert said[:4] == ["from stdin", str(tmp_path), "cats", "TENURE_KEY=job"]
    assert sorted(line.partition("=")[0] for line in said[3:]) == [
        "TENURE_KEY", "TENURE_STORE", "TENURE_TOKEN", "TENURE_TTL",
    ]  # fmt: skip
    assert not int(ignored, 16) >> (signal.SIGPIPE - 1) & 1
    assert not re.search("[0-9a-f]{32}", out + err)


@pytest.mark.matrix
def test_a_run_in_progress_is_told_from_a_job_of_another_host(start: Any, url: str, locks: Locks) -> None:
    def tick(host: str, *command: str) -> Any:
        return start("run", url, "--on-one-instance", "--instance", host, "job", "--", *command)

    first = tick("one", *SLEEPS)
    assert first.stdout.readline() == "runs\n"
    again, other = tick("one", "true"), tick("two", "true")
    again_told, other_told = again.communicate(timeout=PATIENCE_S)[1], other.communicate(timeout=PATIENCE_S)[1]
    assert again_told == "tenure: 'job' is held by another owner. A run is still in progress.\n"
    assert other_told == "tenure: The job 'job' runs on another instance.\n"
    assert (again.returncode, other.returncode) == (1, 1)
    assert [(record.key, record.instance) for record in locks.list_locks("job")] == [
        ("job", "one"), ("job:owner", "one"),
    ]  # fmt: skip


@pytest.mark.matrix
def test_the_jobs_lease_is_renewed_while_the_program_runs_and_left_behind(
    start: Any, url: str, locks: Locks, until: Any
) -> None:
    def left() -> int:
        [owner] = locks.list_locks("job:owner")
        return owner.expires_in_ms

    running = start("run", url, "--on-one-instance", "--instance", "one", "--ttl", "6s", "job", "--", *SLEEPS)
    assert running.stdout.readline() == "runs\n"
    lowest = [left()]

    def moved() -> bool:
        lowest.append(min(lowest[-1], left()))
        return left() > lowest[-1] + 500

    until(moved)
    running.send_signal(signal.SIGTERM)
    running.communicate(timeout=PATIENCE_S)
    assert [record.key for record in locks.list_locks("job")] == ["job:owner"]
    assert left() <= 6000


@pytest.mark.matrix
def test_a_store_in_memory_is_refused_for_nobody_else_sees_it(start: Any) -> None:
    running = start("run", "memory://", "job", "--", "true")
    _, err = running.communicate(timeout=PATIENCE_S)
    assert running.returncode == 2
    assert "seen by one process alone" in err
    assert "give the URL" in err


def test_the_owner_of_a_hosts_job_is_the_same_for_each_tick_and_for_no_other_host_name_or_key(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from tenure.cli.run import ownership

    machine = tmp_path / "machine-id"
    machine.write_text("8f1d0c5b7a7e4c52b6f1f1f8b9a0c3d4\n")
    monkeypatch.setattr(ownership, "_MACHINE_IDS", (str(tmp_path / "not-there"), str(machine)))
    first = ownership._host_digest("shop-1", "job:owner")
    assert first == ownership._host_digest("shop-1", "job:owner")
    assert re.fullmatch("[0-9a-f]{32}", first)
    assert "8f1d0c5b" not in first
    others = {first, ownership._host_digest("shop-2", "job:owner"), ownership._host_digest("shop-1", "other:owner")}
    machine.write_text("00000000000000000000000000000000\n")
    others.add(ownership._host_digest("shop-1", "job:owner"))
    assert len(others) == 4
