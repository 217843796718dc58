"""
The warden: a small process that ends what its parent started, however the parent ended.

A test run that is killed with SIGKILL runs no clean-up of its own. The warden reads a pipe whose other end
only the parent holds: when the parent is gone, by whatever way, the pipe ends and the warden ends the
processes and removes the directories that were entered on it.

`PR_SET_PDEATHSIG` is not used for this. It fires when the *thread* that forked ends, so that a server started
through `asyncio.to_thread` would die with the worker thread, and it leaves the children of a stopped or killed
postmaster alone.

`main()` is what `tenure_testbed.custody` runs in a process of its own. It reads one JSON array a line:
`["process", pid, started, signal]`, `["collected", pid, started]`, `["directory", path]`, `["removed", path]`.
"""

import json
import shutil
import signal
import sys
import time
from collections.abc import Iterable
from typing import Any

from tenure_testbed import process_table
from tenure_testbed.process_table import Entry

# What a PostgreSQL needs for an immediate shutdown with its shared memory removed, many times over.
GRACE_SECONDS = 3.0
_POLL_SECONDS = 0.01


class Ward:
    """What is in the warden's care."""

    def __init__(self) -> None:
        self.processes: dict[tuple[int, str], int] = {}
        self.directories: set[str] = set()

    def read(self, lines: Iterable[str]) -> None:
        """Follow the parent until its end of the pipe is closed."""
        for line in lines:
            if line.endswith("\n"):  # a parent killed while it wrote leaves half a line
                self._enter(json.loads(line))

    def _enter(self, message: list[Any]) -> None:
        match message:
            case ["process", int(pid), str(started), int(number)]:
                self.processes[pid, started] = number
            case ["collected", int(pid), str(started)]:
                self.processes.pop((pid, started), None)
            case ["directory", str(path)]:
                self.directories.add(path)
            case ["removed", str(path)]:
                self.directories.discard(path)

    def end(self) -> None:
        """End every process with its descendants, then remove the directories."""
        everything: list[Entry] = []
        for (pid, started), number in self.processes.items():
            root = Entry(pid, parent=0, state="?", started=started)
            below = process_table.descendants(pid) if process_table.is_alive(root) else []
            everything += [root, *below]
            process_table.send(root, number)
            if number == signal.SIGKILL:  # it cannot end what it started
                for entry in below:
                    process_table.send(entry, signal.SIGKILL)
        for entry in everything:  # a stopped process sees its signal when it is continued
            process_table.send(entry, signal.SIGCONT)
        if not _gone(everything):
            for entry in everything:
                process_table.send(entry, signal.SIGKILL)
            _gone(everything)
        for path in self.directories:
            shutil.rmtree(path, ignore_errors=True)


def _gone(entries: list[Entry]) -> bool:
    deadline = time.monotonic() + GRACE_SECONDS
    while any(process_table.is_alive(entry) for entry in entries):
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def main() -> None:
    """Read until the parent is gone, then clean up after it."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # a Ctrl-C is meant for the parent
    ward = Ward()
    ward.read(sys.stdin)
    ward.end()
