"""CPU time: of this process, of the servers, of the whole machine. From Linux's /proc; elsewhere it is 0."""

import contextlib
import os
import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Meter", "Usage", "machine_busy_s", "process_cpu_s"]

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Usage:
    """
    What was used between two moments, in seconds of CPU time.

    Attributes:
        wall_s: The time that passed.
        client_s: Of this process and the children that it waited for.
        server_s: Of the servers.
        machine_s: Of everything on the machine.
        faults: This process's page faults that needed no disk.
    """

    wall_s: float
    client_s: float
    server_s: float
    machine_s: float
    faults: int

    def to_json(self) -> dict[str, float]:
        """As a JSON object."""
        return {
            "wall_s": self.wall_s,
            "client_s": self.client_s,
            "server_s": self.server_s,
            "machine_s": self.machine_s,
            "faults": self.faults,
        }


class Meter:
    """
    Measures from its making on.

    Args:
        servers: The servers' process ids; what they start is counted as theirs.
    """

    def __init__(self, servers: Sequence[int]) -> None:
        self._servers = servers
        self._wall_s = time.perf_counter()
        self._client_s, self._faults = _own()
        self._server_s = _servers_s(servers)
        self._machine_s = machine_busy_s()

    def read(self) -> Usage:
        """What was used since."""
        wall_s = time.perf_counter() - self._wall_s
        client_s, faults = _own()
        server_s = _servers_s(self._servers)
        return Usage(
            wall_s=wall_s,
            client_s=client_s - self._client_s,
            server_s=max(0.0, server_s - self._server_s),
            machine_s=machine_busy_s() - self._machine_s,
            faults=faults - self._faults,
        )


def machine_busy_s() -> float:
    """How long the machine's processors were busy since its start, by whatever."""
    try:
        words = (_PROC / "stat").read_text(encoding="ascii").split("\n", 1)[0].split()
    except OSError:
        return 0.0
    user, nice, system, _idle, _waiting, irq, softirq, steal = (int(word) for word in words[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def process_cpu_s(pid: int) -> float:
    """What one process has used, all of its threads."""
    total = 0
    with contextlib.suppress(OSError):
        for thread in (_PROC / str(pid) / "task").iterdir():
            with contextlib.suppress(OSError):
                total += int((thread / "schedstat").read_text(encoding="ascii").split()[0])
    return total / 1e9


def _own() -> tuple[float, int]:
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime, own.ru_minflt


def _servers_s(servers: Sequence[int]) -> float:
    """What servers have used with all that they started: PostgreSQL has a process a connection, and some end."""
    return sum(process_cpu_s(pid) for root in servers for pid in (root, *_children(root))) + sum(
        _ended_children_s(root) for root in servers
    )


def _ended_children_s(pid: int) -> float:
    try:
        # The name in parentheses may hold spaces.
        words = (_PROC / str(pid) / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(words[13]) + int(words[14])) / os.sysconf("SC_CLK_TCK")


def _children(pid: int) -> list[int]:
    try:
        return [int(word) for word in (_PROC / str(pid) / "task" / str(pid) / "children").read_text().split()]
    except OSError:
        return []
