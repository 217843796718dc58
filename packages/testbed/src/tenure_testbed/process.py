"""Child processes that do not outlive this one, and the signals that tests send them."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tenure_testbed import process_table
from tenure_testbed.account import Account
from tenure_testbed.custody import custody
from tenure_testbed.errors import NotReachedError
from tenure_testbed.process_table import Entry

# The child waits for a line before it becomes the program, so that the warden knows it first: a parent killed
# between the two leaves a shell that reads the end of its input and goes.
_GATE = 'read -r _ && exec "$@" </dev/null'

POLL_SECONDS = 0.005
# Signals to processes of our own on this machine take milliseconds; a busy CI machine takes its time.
SIGNAL_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Program:
    """
    What to run.

    Attributes:
        command: The program and its arguments.
        cwd: Its working directory.
        env: Its whole environment.
        account: Who it runs as; None for this process's own account.
        ending: The signal by which the warden ends it, should this process die first.
    """

    command: Sequence[str]
    cwd: Path
    env: Mapping[str, str]
    account: Account | None = None
    ending: signal.Signals = signal.SIGKILL


class Child:
    """
    A child process in a session of its own, ended by the warden when this process ends.

    Signals reach the whole tree below the child where the method says so. Every method may be called from any
    thread; none needs an event loop.
    """

    def __init__(self, program: Program, *, stdout: int | IO[bytes], stderr: int | IO[bytes]) -> None:
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", _GATE, "sh", *program.command],
            cwd=program.cwd,
            env=dict(program.env),
            stdin=subprocess.PIPE,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
            **(program.account.identity() if program.account else {}),
        )
        entry = process_table.find(self._process.pid)
        assert entry is not None, "a child is in the process table until it is waited for"
        self.entry: Entry = entry
        custody.take_process(entry, program.ending)
        gate = self._process.stdin
        assert gate is not None
        with contextlib.suppress(BrokenPipeError):  # killed already: wait() tells
            gate.write(b"\n")
            gate.close()

    @property
    def pid(self) -> int:
        """The process id; it is the program's own, no shell stands between."""
        return self.entry.pid

    @property
    def stdout(self) -> IO[bytes] | None:
        """The reading end of its standard output, when it was asked for as a pipe."""
        return self._process.stdout

    @property
    def stderr(self) -> IO[bytes] | None:
        """The reading end of its standard error, when it was asked for as a pipe."""
        return self._process.stderr

    def poll(self) -> int | None:
        """The exit code, minus the number of the signal that killed it, or None while it is there."""
        code = self._process.poll()
        if code is not None:
            custody.drop_process(self.entry)
        return code

    def wait(self, timeout: float) -> int:
        """
        Wait for the end of the child.

        Args:
            timeout: Seconds.

        Returns:
            The exit code, or minus the number of the signal that killed it.

        Raises:
            NotReachedError: It is still there after `timeout`.
        """
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise NotReachedError(f"Process {self.pid} has not ended within {timeout:g} s.") from None
        custody.drop_process(self.entry)
        assert self._process.returncode is not None
        return self._process.returncode

    def send(self, number: signal.Signals) -> None:
        """Signal the child itself, if it is still there."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    def end(self, number: signal.Signals, timeout: float) -> int:
        """
        Signal the child, wait for it, and kill what it leaves behind of its descendants.

        Args:
            number: The signal; a stopped child sees it because it is continued first.
            timeout: Seconds.

        Returns:
            The exit code, as `wait()`.

        Raises:
            NotReachedError: It is still there after `timeout`; nothing was killed then.
        """
        below = process_table.descendants(self.pid) if self.poll() is None else []
        if self.paused:
            self.resume_tree()
        self.send(number)
        code = self.wait(timeout)
        _kill_all(below)
        return code

    def kill_tree(self) -> None:
        """SIGKILL to the child and to every descendant; returns when all are gone."""
        below = process_table.descendants(self.pid) if self.poll() is None else []
        self.send(signal.SIGKILL)  # the root first: it starts no further children
        _kill_all(below)
        self.wait(SIGNAL_SECONDS)

    def pause_tree(self) -> None:
        """SIGSTOP to the child and to every descendant; returns when every thread of theirs is stopped."""
        self.send(signal.SIGSTOP)
        until(lambda: self.poll() is not None or process_table.is_stopped(self.entry), f"stop of {self.pid}")

        def all_stopped() -> bool:
            running = [
                entry
                for entry in process_table.descendants(self.pid)
                if not entry.ended and not process_table.is_stopped(entry)
            ]
            for entry in running:
                process_table.send(entry, signal.SIGSTOP)
            return not running

        until(all_stopped, f"stop of the processes below {self.pid}")

    def resume_tree(self) -> None:
        """SIGCONT to the child and to every descendant; returns when none of them is stopped."""
        tree = [*process_table.descendants(self.pid), self.entry]
        for entry in tree:
            process_table.send(entry, signal.SIGCONT)
        until(lambda: not any(map(process_table.is_stopped, tree)), f"continuation of {self.pid}")

    @property
    def paused(self) -> bool:
        """Whether the child itself is stopped."""
        return self.poll() is None and process_table.is_stopped(self.entry)


def _kill_all(entries: list[Entry]) -> None:
    for entry in entries:
        process_table.send(entry, signal.SIGKILL)
    until(lambda: not any(map(process_table.is_alive, entries)), "the end of the processes that a child left")


def until(reached: Callable[[], bool], what: str, timeout: float = SIGNAL_SECONDS) -> None:
    """
    Poll until something is so.

    Args:
        reached: Asked every few milliseconds.
        what: What is waited for, for the error.
        timeout: Seconds.

    Raises:
        NotReachedError: It was not so within `timeout`.
    """
    deadline = time.monotonic() + timeout
    while not reached():
        if time.monotonic() >= deadline:
            raise NotReachedError(f"Waited {timeout:g} s in vain for: {what}.")
        time.sleep(POLL_SECONDS)


def plain_environment(home: Path) -> dict[str, str]:
    """
    An environment for servers and their tools that no setting of the caller reaches.

    PGHOST, PGOPTIONS, a ~/.psqlrc or a locale of the developer's would otherwise change what a test sees.
    """
    return {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(home), "LC_ALL": "C", "TZ": "UTC"}
