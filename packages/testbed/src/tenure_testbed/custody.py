"""The parent's side of the warden: what this process started and has not ended yet."""

import atexit
import contextlib
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from tenure_testbed.process_table import Entry
from tenure_testbed.warden import GRACE_SECONDS

_SOURCE = Path(__file__).resolve().parent.parent


class Custody:
    """
    Everything that the warden of this process has to end.

    One a process; thread-safe. After `os.fork()` the child starts with an empty one, and drops its copy of the
    pipe: otherwise the warden would wait for the child as well before it saw the parent's end.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._warden: subprocess.Popen[bytes] | None = None
        self._entries: dict[tuple[Any, ...], list[Any]] = {}

    def take_process(self, entry: Entry, ending: int) -> None:
        """
        Have a process ended when this one ends.

        Args:
            entry: The process.
            ending: The signal that ends it in good order; its descendants are killed after a grace period.
        """
        key = ("process", entry.pid, entry.started)
        self._tell(key, ["process", entry.pid, entry.started, int(ending)], keep=True)

    def drop_process(self, entry: Entry) -> None:
        """The process has ended and was collected: its pid may be given away from now on."""
        key = ("process", entry.pid, entry.started)
        self._tell(key, ["collected", entry.pid, entry.started], keep=False)

    def take_directory(self, path: Path) -> None:
        """Have a directory removed when this process ends."""
        self._tell(("directory", str(path)), ["directory", str(path)], keep=True)

    def drop_directory(self, path: Path) -> None:
        """The directory was removed."""
        self._tell(("directory", str(path)), ["removed", str(path)], keep=False)

    def close(self) -> None:
        """Let the warden end what is left, and wait for it."""
        with self._lock:
            warden, self._warden = self._warden, None
            if warden is None or warden.stdin is None:
                return
            warden.stdin.close()
            # Two grace periods (the signal, then SIGKILL) and room for a busy machine.
            with contextlib.suppress(subprocess.TimeoutExpired):
                warden.wait(timeout=2 * GRACE_SECONDS + 4)

    def forget(self) -> None:
        """In a forked child: nothing here is this process's own."""
        warden, self._warden = self._warden, None
        self._lock = threading.Lock()
        self._entries = {}
        if warden is not None and warden.stdin is not None:
            warden.stdin.close()
            warden.returncode = 0  # not a child of this process: nothing to warn about or to wait for

    def _tell(self, key: tuple[Any, ...], message: list[Any], *, keep: bool) -> None:
        with self._lock:
            if keep:
                self._entries[key] = message
            else:
                self._entries.pop(key, None)
            try:
                self._write(message)
            except BrokenPipeError:  # somebody killed the warden: a new one learns everything
                self._warden = None
                for entry in self._entries.values():
                    self._write(entry)

    def _write(self, message: list[Any]) -> None:
        if self._warden is None:
            self._warden = _start_warden()
        pipe = self._warden.stdin
        assert pipe is not None
        # Unbuffered and shorter than PIPE_BUF: the line goes out whole or not at all, and a fork copies none.
        pipe.write(json.dumps(message).encode() + b"\n")


def _start_warden() -> subprocess.Popen[bytes]:
    # -S, -P and -W: the standard library and this package, nothing that a site, a working directory or a variable
    # that turns warnings into errors brings along.
    # A session of its own keeps it out of reach of a Ctrl-C and of a signal to the caller's process group.
    return subprocess.Popen(
        [sys.executable, "-S", "-P", "-W", "ignore", "-c", "from tenure_testbed import warden; warden.main()"],
        stdin=subprocess.PIPE,
        bufsize=0,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(_SOURCE)},
        cwd="/",
        start_new_session=True,
    )


custody = Custody()
atexit.register(custody.close)
os.register_at_fork(after_in_child=custody.forget)
