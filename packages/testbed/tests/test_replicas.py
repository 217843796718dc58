"""Replica and ReplicaGroup on real processes."""

import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tenure_testbed import NotReachedError, Replica, ReplicaGroup, ServerError, process_table

COUNTER = """
import itertools, os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (print("stepping down"), sys.exit(7)))
print("up", os.environ.get("NAME"), os.getpid())
print("complaint", file=sys.stderr)
for number in itertools.count():
    print("tick", number)
    time.sleep(0.01)
"""
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up'); time.sleep(60)"
PARENT = f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", {COUNTER!r}])
print("child", child.pid)
time.sleep(60)
"""


def python(source: str, **options: object) -> Replica:
    return Replica([sys.executable, "-c", source], **options)  # type: ignore[arg-type]


def test_lines_of_both_streams_are_seen_as_they_come() -> None:
    with python(COUNTER, env={"NAME": "cat-1"}) as replica:
        assert replica.wait_for_line(r"up (\S+)")[1] == "cat-1"
        replica.wait_for_line("complaint")
        replica.wait_for_line("tick 3$")
        assert {line.stream for line in replica.lines} == {"stdout", "stderr"}
        assert [line.number for line in replica.lines] == sorted(line.number for line in replica.lines)


def test_a_search_after_a_mark_skips_what_was_there() -> None:
    with python(COUNTER) as replica:
        first = int(replica.wait_for_line(r"tick (\d+)")[1])
        assert int(replica.wait_for_line(r"tick (\d+)", after=replica.mark)[1]) > first
        with pytest.raises(NotReachedError, match=r"no line matching 'up' within 0.1 s"):
            replica.wait_for_line("up", timeout=0.1, after=replica.mark)


def test_a_wait_for_a_line_ends_with_the_process() -> None:
    with python("print('last words'); raise SystemExit(3)") as replica:
        started = time.monotonic()
        with pytest.raises(NotReachedError, match=r"(?s)ended with code 3.*last words"):
            replica.wait_for_line("never", timeout=60)
        assert time.monotonic() - started < 30, "it did not sit out its timeout"
        assert replica.exit_code == 3
        assert replica.wait(timeout=5) == 3


def test_lines_are_kept_within_bounds() -> None:
    with python("for number in range(1000): print(number)", kept_lines=10) as replica:
        replica.wait(timeout=10)
        replica.kill()
        assert [line.text for line in replica.lines] == [str(number) for number in range(990, 1000)]
        assert replica.mark == 1000


def test_a_line_that_never_ends_is_cut() -> None:
    with python("import sys; sys.stdout.write('x' * 1_000_000)") as replica:
        replica.wait(timeout=10)
        replica.kill()
        assert max(len(line.text) for line in replica.lines) <= 64 * 1024
        assert sum(len(line.text) for line in replica.lines) == 1_000_000


def test_a_terminated_replica_ends_in_its_own_way() -> None:
    with python(COUNTER) as replica:
        replica.wait_for_line("tick")
        assert replica.terminate() == 7
        replica.wait_for_line("stepping down", timeout=0)
        assert not replica.running


def test_a_replica_that_ignores_sigterm_is_left_alone_and_told_of() -> None:
    with python(STUBBORN) as replica:
        replica.wait_for_line("up")
        with pytest.raises(NotReachedError, match=r"(?s)0.2 s after SIGTERM; kill\(\) it.*up"):
            replica.terminate(timeout=0.2)
        assert replica.running
        replica.kill()
        assert replica.exit_code == -signal.SIGKILL


def test_a_paused_replica_stands_still_until_it_is_resumed() -> None:
    with python(COUNTER) as replica:
        replica.wait_for_line("tick")
        replica.pause()
        assert replica.paused
        mark = settled(replica)
        with pytest.raises(NotReachedError):
            replica.wait_for_line("tick", timeout=0.2, after=mark)
        replica.resume()
        assert not replica.paused
        replica.wait_for_line("tick", after=mark)


def settled(replica: Replica) -> int:
    """The mark when the reader has read what was written before the pause."""
    while True:
        mark = replica.mark
        try:
            replica.wait_for_line("tick", timeout=0.1, after=mark)
        except NotReachedError:
            return mark


def test_a_paused_replica_can_be_killed_and_terminated() -> None:
    with python(COUNTER) as replica:
        replica.wait_for_line("tick")
        replica.pause()
        assert replica.terminate() == 7
        replica.start()
        replica.pause()
        replica.kill()
        assert replica.exit_code == -signal.SIGKILL


@pytest.mark.parametrize("how", [Replica.kill, Replica.close, Replica.terminate])
def test_what_the_replica_started_ends_with_it(how: Callable[[Replica], object]) -> None:
    with python(PARENT) as replica:
        child = int(replica.wait_for_line(r"child (\d+)")[1])
        replica.wait_for_line("tick")
        entry = process_table.find(child)
        assert entry is not None
        how(replica)
        assert not process_table.is_alive(entry)


def test_a_pause_reaches_what_the_replica_started() -> None:
    with python(PARENT) as replica:
        child = int(replica.wait_for_line(r"child (\d+)")[1])
        replica.wait_for_line("tick")
        replica.pause()
        entry = process_table.find(child)
        assert entry is not None
        assert entry.state == "T"
        replica.resume()
        replica.wait_for_line("tick", after=replica.mark)


def test_a_restart_is_a_new_process_with_the_lines_of_the_old_one() -> None:
    with python(COUNTER) as replica:
        first = replica.wait_for_line(r"up \S+ (\d+)")[1]
        mark = replica.mark
        replica.restart()
        assert replica.wait_for_line(r"up \S+ (\d+)", after=mark)[1] != first
        assert replica.wait_for_line(r"up \S+ (\d+)")[1] == first
        replica.wait_for_line("stepping down")


def test_a_wait_does_not_keep_others_from_killing() -> None:
    with python(STUBBORN) as replica:
        replica.wait_for_line("up")
        waiting = threading.Timer(0.1, replica.kill)
        waiting.start()
        assert replica.wait(timeout=10) == -signal.SIGKILL
        waiting.join()


def test_a_replica_that_does_not_run_says_so_with_its_last_lines() -> None:
    replica = python("print('bye')", name="cat-1")
    with pytest.raises(ServerError, match="cat-1 was not started"):
        replica.wait(1)
    with replica:
        replica.wait(10)
        replica.wait_for_line("bye")
        with pytest.raises(ServerError, match=r"(?s)cat-1 does not run.*bye"):
            replica.pause()
        replica.kill()  # nothing to do, and no error


def test_a_missing_program_is_told_by_its_output() -> None:
    with (
        Replica(["no-such-program"]) as replica,
        pytest.raises(NotReachedError, match=r"(?s)ended with code 127.*not found"),
    ):
        replica.wait_for_line("up")


def test_the_working_directory_is_the_one_that_is_given(tmp_path: Path) -> None:
    with python("import os; print(os.getcwd())", cwd=tmp_path) as replica:
        replica.wait_for_line(str(tmp_path))


def test_a_group_runs_side_by_side_and_loses_one() -> None:
    def build(index: int) -> Replica:
        return python(COUNTER, name=f"cat-{index}", env={"NAME": f"cat-{index}"})

    with ReplicaGroup(3, build) as group:
        names = [match[1] for match in group.wait_for_line(r"up (\S+)")]
        assert names == ["cat-0", "cat-1", "cat-2"]
        group[0].kill()
        assert [replica.name for replica in group.running] == ["cat-1", "cat-2"]
        entries = [process_table.find(replica.pid) for replica in group.running]
        assert len(group) == 3
        assert [replica.exit_code for replica in group] == [-signal.SIGKILL, None, None]
    assert not any(entry is not None and process_table.is_alive(entry) for entry in entries)


async def test_a_group_in_an_async_with() -> None:
    async with ReplicaGroup(2, lambda _: python(COUNTER)) as group:
        group.wait_for_line("up")
    assert group.running == []
