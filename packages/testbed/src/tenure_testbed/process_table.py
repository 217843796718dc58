"""
The processes of this machine: state, parent and start time.

A pid alone names nothing for long: the kernel gives it away again. A pid together with the time at which its
process started is a name, so nothing in the test bed signals a pid without comparing that time.
"""

import os
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Entry:
    """
    One process.

    Attributes:
        pid: Process id.
        parent: The parent's process id.
        state: One letter as `ps` prints it: R, S, D, T (stopped), Z (ended, not yet collected).
        started: Start time in whatever unit the system tells it; compared, never computed with.
    """

    pid: int
    parent: int
    state: str
    started: str

    @property
    def ended(self) -> bool:
        """A zombie holds no port, no file and no lock: it has ended."""
        return self.state in "ZX"


def find(pid: int) -> Entry | None:
    """The process with that pid, or None; a zombie is found and says so by its state."""
    return _from_proc(pid) if _PROC_IS_THERE else _ps(["-p", str(pid)]).get(pid)


def snapshot() -> dict[int, Entry]:
    """Every process that can be seen, by pid."""
    if not _PROC_IS_THERE:
        return _ps(["-ax"])
    entries = (_from_proc(int(path.name)) for path in _PROC.iterdir() if path.name.isdigit())
    return {entry.pid: entry for entry in entries if entry is not None}


def descendants(pid: int) -> list[Entry]:
    """The children of a process, their children and so on; parents stand before their children."""
    children: dict[int, list[Entry]] = {}
    for entry in snapshot().values():
        children.setdefault(entry.parent, []).append(entry)
    found: list[Entry] = []
    parents = [pid]
    for parent in parents:
        for child in children.get(parent, []):
            found.append(child)
            parents.append(child.pid)
    return found


def is_alive(entry: Entry) -> bool:
    """Whether that very process still runs (or is stopped); a later process with its pid does not count."""
    now = find(entry.pid)
    return now is not None and now.started == entry.started and not now.ended


def is_stopped(entry: Entry) -> bool:
    """
    Whether every thread of the process is stopped.

    SIGSTOP is asynchronous, and the threads of a process stop one by one: the main thread reads as stopped
    while another one still finishes a write.
    """
    if not _PROC_IS_THERE:
        now = find(entry.pid)
        return now is not None and now.state == "T"
    try:
        threads = [int(path.name) for path in (_PROC / str(entry.pid) / "task").iterdir()]
    except OSError:
        return False
    states = [_from_proc(entry.pid, thread) for thread in threads]
    return bool(states) and all(thread is None or thread.state in "Tt" for thread in states)


def send(entry: Entry, number: int) -> bool:
    """
    Signal that very process.

    Args:
        entry: The process as it was seen.
        number: The signal.

    Returns:
        False when it has ended meanwhile.
    """
    if not is_alive(entry):
        return False
    try:
        os.kill(entry.pid, signal.Signals(number))
    except ProcessLookupError:
        return False
    return True


def _from_proc(pid: int, thread: int | None = None) -> Entry | None:
    path = _PROC / str(pid) / "stat" if thread is None else _PROC / str(pid) / "task" / str(thread) / "stat"
    try:
        # The program's name stands in parentheses and may hold spaces and parentheses of its own.
        fields = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return Entry(pid=pid, parent=int(fields[1]), state=fields[0], started=fields[19])


def _ps(selection: list[str]) -> dict[int, Entry]:
    """The same through `ps`, for systems without /proc."""
    command = ["ps", *selection, "-o", "pid=,ppid=,state=,lstart="]
    run = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"})
    entries: dict[int, Entry] = {}
    for line in run.stdout.splitlines():
        pid, parent, state, started = line.split(maxsplit=3)
        entries[int(pid)] = Entry(int(pid), int(parent), state[0], started)
    return entries


def _proc_is_there(read: Callable[[int], Entry | None] = _from_proc) -> bool:
    return read(os.getpid()) is not None


_PROC_IS_THERE = _proc_is_there()
