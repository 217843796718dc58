"""A command as real processes of the operating system: replicas of a service, to be killed, paused and stopped."""

import contextlib
import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from tenure_testbed.errors import NotReachedError, ServerError
from tenure_testbed.lifecycle import Lifecycle
from tenure_testbed.output import KEPT_LINES, Line, Output
from tenure_testbed.process import Child, Program

# What a service has for an orderly end; orchestrators grant between 10 and 30 s.
TERMINATE_SECONDS = 15.0
LINE_SECONDS = 15.0
# The end of a pipe is read within a moment after the end of the last process that held it.
_READ_SECONDS = 5.0
_REAP_SECONDS = 1.0


class Replica(Lifecycle):
    """
    One process of a service, with its output and the signals that a machine or an orchestrator sends.

    `kill`, `pause` and `resume` reach the process and everything below it, so that a launcher in front
    (`uv run`, a shell) hides nothing; `terminate` reaches the process alone, as orchestrators do. It ends when
    this process ends, however that ends. Every method may be called from any thread.

    Args:
        command: The program and its arguments.
        name: What errors call it.
        env: Variables beside those of this process.
        cwd: Working directory; None for this process's.
        kept_lines: How many lines of its output are kept.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        name: str = "replica",
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        kept_lines: int = KEPT_LINES,
    ) -> None:
        self.command = tuple(command)
        self.name = name
        self.env = dict(env or {})
        self.output = Output(kept_lines)
        self._cwd = cwd
        self._child: Child | None = None
        self._readers: list[threading.Thread] = []
        self._lock = threading.RLock()

    def start(self) -> None:
        """Start the process unless it runs; returns at once: `wait_for_line` tells when it is up."""
        with self._lock:
            if self.running:
                return
            program = Program(
                command=self.command,
                cwd=self._cwd or Path.cwd(),
                # Unbuffered, so that a line is there when the process has written it and not when it ends.
                env={**os.environ, "PYTHONUNBUFFERED": "1", **self.env},
            )
            self._child = Child(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            assert self._child.stdout is not None
            assert self._child.stderr is not None
            self._readers = [
                self.output.follow("stdout", self._child.stdout),
                self.output.follow("stderr", self._child.stderr),
            ]

    def restart(self) -> None:
        """Start the process again; one that runs is terminated first. Lines and marks go on."""
        with self._lock:
            if self.running:
                self.terminate()
            self.start()

    def kill(self) -> None:
        """SIGKILL to it, if it runs, and everything below it; returns when all are gone."""
        with self._lock:
            if self._child is not None:
                self._child.kill_tree()
                self._finish_reading()

    def pause(self) -> None:
        """SIGSTOP to it and everything below it; returns when every thread is stopped."""
        with self._lock:
            self._running().pause_tree()

    def resume(self) -> None:
        """SIGCONT to it and everything below it; returns when none is stopped."""
        with self._lock:
            self._running().resume_tree()

    def terminate(self, timeout: float = TERMINATE_SECONDS) -> int:
        """
        SIGTERM; returns when it has ended.

        Args:
            timeout: Seconds; a process that is still there then is left alone.

        Returns:
            The exit code, or minus the number of the signal that ended it.

        Raises:
            ServerError: It does not run.
            NotReachedError: It is still there after `timeout`; the text ends with its last lines.
        """
        with self._lock:
            child = self._running()
            try:
                code = child.end(signal.SIGTERM, timeout)
            except NotReachedError:
                raise NotReachedError(
                    f"{self.name} has not ended {timeout:g} s after SIGTERM; kill() it. It wrote last:\n"
                    f"{self.output.tail()}"
                ) from None
            self._finish_reading()
            return code

    def wait(self, timeout: float) -> int:
        """
        Wait for its end by itself.

        Args:
            timeout: Seconds.

        Returns:
            The exit code, or minus the number of the signal that ended it.

        Raises:
            ServerError: It was never started.
            NotReachedError: It is still there after `timeout`.
        """
        child = self._child  # without the lock: a kill from another thread has to get through
        if child is None:
            raise ServerError(f"{self.name} was not started.")
        return child.wait(timeout)

    def close(self) -> None:
        """Kill it with everything below it; its output stays to be read."""
        self.kill()

    def wait_for_line(
        self, pattern: str | re.Pattern[str], timeout: float = LINE_SECONDS, *, after: int = 0
    ) -> re.Match[str]:
        """
        Wait until it has written a line that matches.

        Args:
            pattern: Searched for anywhere in a line of either stream.
            timeout: Seconds.
            after: A `mark`: earlier lines do not count. With 0 every line that is kept counts.

        Returns:
            The match.

        Raises:
            NotReachedError: There was none within `timeout`, or the process ended without one; the text ends
                with its last lines.
        """
        found = self.output.search(pattern, timeout, after)
        if found is None:
            code = self._settled_exit_code()
            state = f"within {timeout:g} s" if code is None else f"and ended with code {code}"
            expression = pattern if isinstance(pattern, str) else pattern.pattern
            raise NotReachedError(
                f"{self.name} wrote no line matching {expression!r} {state}. It wrote last:\n{self.output.tail()}"
            )
        return found

    @property
    def mark(self) -> int:
        """How many lines it has written so far; `wait_for_line(…, after=mark)` looks at later ones only."""
        return self.output.mark

    @property
    def lines(self) -> list[Line]:
        """The lines that are kept, both streams, in the order in which they were read."""
        return self.output.lines()

    @property
    def running(self) -> bool:
        """Whether the process is there, paused or not."""
        return self._child is not None and self._child.poll() is None

    @property
    def paused(self) -> bool:
        """Whether every thread of the process is stopped."""
        return self._child is not None and self._child.paused

    @property
    def exit_code(self) -> int | None:
        """The exit code of the last run, minus the number of the signal that ended it; None while it runs."""
        return None if self._child is None else self._child.poll()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._running().pid

    def _running(self) -> Child:
        if self._child is None or self._child.poll() is not None:
            raise ServerError(f"{self.name} does not run. It wrote last:\n{self.output.tail()}")
        return self._child

    def _settled_exit_code(self) -> int | None:
        """The exit code; the end of the output is seen a moment before the end of the process."""
        if self._child is not None and self.output.ended:
            with contextlib.suppress(NotReachedError):
                return self._child.wait(_REAP_SECONDS)
        return self.exit_code

    def _finish_reading(self) -> None:
        for reader in self._readers:
            reader.join(_READ_SECONDS)


class ReplicaGroup(Lifecycle):
    """
    Several replicas of one service.

    Args:
        count: How many.
        build: Makes the replica with an index from 0: its command, its name, its variables.
    """

    def __init__(self, count: int, build: Callable[[int], Replica]) -> None:
        self._replicas = [build(index) for index in range(count)]

    def start(self) -> None:
        """Start all of them, without waiting for one before the next."""
        for replica in self._replicas:
            replica.start()

    def close(self) -> None:
        """Kill all of them."""
        with contextlib.ExitStack() as ending:
            for replica in self._replicas:
                ending.callback(replica.close)

    def wait_for_line(self, pattern: str | re.Pattern[str], timeout: float = LINE_SECONDS) -> list[re.Match[str]]:
        """Wait until each of them has written a line that matches; see `Replica.wait_for_line`."""
        return [replica.wait_for_line(pattern, timeout) for replica in self._replicas]

    def __iter__(self) -> Iterator[Replica]:
        return iter(self._replicas)

    def __getitem__(self, index: int) -> Replica:
        return self._replicas[index]

    def __len__(self) -> int:
        return len(self._replicas)

    @property
    def running(self) -> list[Replica]:
        """Those whose process is there."""
        return [replica for replica in self._replicas if replica.running]
