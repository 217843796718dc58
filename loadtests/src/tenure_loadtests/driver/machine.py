"""What the run is on, so that a reader can tell one record from another."""

import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["describe_machine", "on_one_processor"]


def describe_machine() -> dict[str, Any]:
    """The interpreter, the kernel, the processors, the memory, and when."""
    return {
        "when": time.strftime("%Y-%m-%d %H:%M %Z"),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "processors": os.cpu_count(),
        "processor": _field(Path("/proc/cpuinfo"), "model name") or platform.machine(),
        "memory": _field(Path("/proc/meminfo"), "MemTotal"),
        "load_before": round(os.getloadavg()[0], 2),
    }


@contextmanager
def on_one_processor() -> Iterator[None]:
    """
    Keep this process, and the servers and contenders that it starts meanwhile, on one processor.

    A client that speaks to its server across two processors uses up to twice the CPU time of one that shares its
    server's, and which of the two it is changes from start to start. Where there is no affinity, nothing changes.
    """
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(allowed)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def _field(path: Path, name: str) -> str:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")
