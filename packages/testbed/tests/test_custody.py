"""Nothing outlives the process that started it, however that ends."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tenure_testbed import NotReachedError, Replica, process_table
from tenure_testbed.custody import custody
from tenure_testbed.process import until
from tenure_testbed.process_table import Entry

# Starts one of everything, or what starts quickly, tells what it started, and does what the test says.
RUN = """
import json, os, signal, sys, threading
from tenure_testbed import *
from tenure_testbed import NotReachedError, Replica, process_table
from tenure_testbed.custody import custody

valkey = ValkeyServer()
replica = Replica([sys.executable, "-c", "import subprocess as s; s.run(['sleep', '600'])"])
servers = [valkey, replica]
if EVERYTHING:
    postgres, sentinel = PostgresServer(), Sentinel(name="Sentinel", binary="valkey-server", options={})
    servers = [postgres, valkey, sentinel, replica]
for thing in servers:  # in a thread that ends, as asyncio.to_thread may do
    if EVERYTHING and thing is sentinel:
        sentinel.watch("testbed", valkey.port, 1)
    thread = threading.Thread(target=thing.start)
    thread.start()
    thread.join()
if EVERYTHING and PgBouncer.available():
    bouncer = PgBouncer(postgres.access)
    bouncer.start()
    servers.append(bouncer)
while len(process_table.descendants(replica.pid)) < 1:
    pass
roots = [server.pid for server in servers] + [custody._warden.pid]
below = [entry.pid for root in roots for entry in process_table.descendants(root)]
pids = roots + below
directories = [str(server._scratch.path) for server in servers if server is not replica]
memory = postgres.data.postmaster().memory if EVERYTHING else -1
def tell(**more):
    print(json.dumps({"pids": pids, "directories": directories, "memory": memory, **more}), flush=True)
"""


@dataclass
class Started:
    parent: "subprocess.Popen[str]"
    entries: list[Entry]
    directories: list[Path]
    memory: int

    def await_the_end(self) -> None:
        until(lambda: not any(map(process_table.is_alive, self.entries)), "the end of what the parent started", 15)
        until(lambda: not any(path.exists() for path in self.directories), "the end of its directories", 15)
        assert self.memory not in shared_memory(), "PostgreSQL was ended in good order"


def shared_memory() -> set[int]:
    segments = Path("/proc/sysvipc/shm").read_text(encoding="ascii").splitlines()[1:]
    return {int(segment.split()[1]) for segment in segments}


def run(ending: str, *, everything: bool = True) -> Iterator[Started]:
    source = f"EVERYTHING = {everything}\n{RUN}{ending}"
    with subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        told = json.loads(parent.stdout.readline())
        entries = [entry for pid in told["pids"] if (entry := process_table.find(pid)) is not None]
        assert len(entries) >= (6 if everything else 4)
        yield Started(parent, entries, [Path(path) for path in told["directories"]], told["memory"])
        if parent.poll() is None:
            parent.kill()


@pytest.mark.parametrize(
    "before",
    ["", "postgres.pause(); valkey.pause(); sentinel.pause(); replica.pause()\n"],
    ids=["running", "paused"],
)
def test_a_parent_killed_with_sigkill_leaves_nothing(before: str) -> None:
    for started in run(before + "tell(); signal.pause()"):
        started.parent.send_signal(signal.SIGKILL)
        started.await_the_end()


def test_a_parent_that_just_ends_leaves_nothing() -> None:
    for started in run("tell(); sys.stdin.readline()", everything=False):
        started.parent.send_signal(signal.SIGINT)
        started.await_the_end()


def test_a_parent_that_ends_in_good_order_waits_for_the_end_of_its_servers() -> None:
    for started in run("tell()"):
        assert started.parent.wait(15) == 0
        assert not any(map(process_table.is_alive, started.entries))
        assert not any(path.exists() for path in started.directories)


def test_a_forked_child_that_lives_on_keeps_nothing_alive() -> None:
    # A child of fork() has a copy of every descriptor, the warden's pipe among them.
    fork = """
import time, warnings
warnings.simplefilter("ignore")  # a fork beside threads is what is tried here
child = os.fork()
if child == 0:
    time.sleep(600)
tell(forked=child)
signal.pause()
"""
    source = f"EVERYTHING = False\n{RUN}{fork}"
    with subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        told = json.loads(parent.stdout.readline())
        forked = process_table.find(told["forked"])
        assert forked is not None
        entries = [entry for pid in told["pids"] if (entry := process_table.find(pid)) is not None]
        try:
            parent.send_signal(signal.SIGKILL)
            Started(parent, entries, [Path(path) for path in told["directories"]], told["memory"]).await_the_end()
            assert process_table.is_alive(forked)
        finally:
            process_table.send(forked, signal.SIGKILL)


def test_a_warden_that_was_killed_is_replaced_by_one_that_knows_everything() -> None:
    ending = """
os.kill(custody._warden.pid, signal.SIGKILL)
custody._warden.wait()
second = ValkeyServer()
second.start()
pids += [second.pid, custody._warden.pid]
directories += [str(second._scratch.path)]
tell()
signal.pause()
"""
    for started in run(ending, everything=False):
        started.parent.send_signal(signal.SIGKILL)
        started.await_the_end()


def test_a_program_begins_only_when_the_warden_knows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Otherwise a parent killed between the two would leave it running for good.
    begun = tmp_path / "begun"
    seen: list[bool] = []

    def slow(entry: Entry, ending: int) -> None:
        with contextlib.suppress(NotReachedError):
            until(begun.exists, "the program to begin too early", 0.3)
        seen.append(begun.exists())
        take_process(entry, ending)

    take_process = custody.take_process
    monkeypatch.setattr(custody, "take_process", slow)
    with Replica(["touch", str(begun)]) as replica:
        assert replica.wait(10) == 0
    assert seen == [False]
    assert begun.exists()


def test_the_process_table_reads_the_same_through_ps() -> None:
    pid = os.getpid()
    proc, ps = process_table._from_proc(pid), process_table._ps(["-p", str(pid)])[pid]
    if proc is None:
        pytest.skip("no /proc on this machine: ps is what every other test uses")
    assert (ps.pid, ps.parent) == (proc.pid, proc.parent)
    assert pid in process_table._ps(["-ax"])


def test_a_later_process_with_the_pid_is_not_signalled() -> None:
    now = process_table.find(os.getpid())
    assert now is not None
    earlier = Entry(now.pid, now.parent, now.state, started="0")
    assert not process_table.is_alive(earlier)
    assert not process_table.send(earlier, signal.SIGKILL)
