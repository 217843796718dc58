"""What every server of the test bed can do: start, be proven, end, die, stand still."""

import signal
import subprocess
import threading
from abc import abstractmethod
from collections.abc import Callable

from tenure_testbed.account import server_account
from tenure_testbed.errors import NotReachedError, ServerError
from tenure_testbed.lifecycle import Lifecycle
from tenure_testbed.process import Child, Program
from tenure_testbed.scratch import Scratch
from tenure_testbed.startup import ServerLog, await_serving, find_a_port


class Server(Lifecycle):
    """
    A server of this process's own on loopback, proven to be the one that answers on its port.

    It keeps its port and its directory from one `start()` to the next, and loses both with `close()`. It ends
    when this process ends, however that ends. Every method may be called from any thread.

    Args:
        name: What errors call it.
        port: A fixed port, or what names the next port to try.
    """

    def __init__(self, name: str, port: int | Callable[[], int]) -> None:
        self.name = name
        self._wanted_port = port
        self._port: int | None = None
        self._scratch: Scratch | None = None
        self._log: ServerLog | None = None
        self._child: Child | None = None
        self._lock = threading.RLock()

    @abstractmethod
    def _require(self) -> None:
        """Raise `ServerUnavailableError` where the program is not on this machine."""

    @abstractmethod
    def _furnish(self, scratch: Scratch) -> None:
        """Fill the directory of a server that starts for the first time."""

    @abstractmethod
    def _boot(self, port: int) -> None:
        """Start it on a port, by way of `_launch()`."""

    @abstractmethod
    def stop(self) -> None:
        """Stop it in good order and keep its directory; nothing happens when it does not run."""

    def start(self) -> None:
        """
        Start it; nothing happens when it runs. Returns when it serves.

        Raises:
            ServerUnavailableError: Its program is not on this machine, or does not run here.
            PortTakenError: Something else has the port (a fixed one, or the one of the first start).
            ServerStartError: It ended instead of serving; the text has the tail of its log.
        """
        with self._lock:
            if self.running:
                return
            self._require()
            if self._scratch is None:
                self._make_directory()
            self._port = find_a_port(self._boot, self._wanted_port if self._port is None else self._port)

    def restart(self) -> None:
        """Stop it and start it again on its port."""
        with self._lock:
            self.stop()
            self.start()

    def kill(self) -> None:
        """SIGKILL to it and its children, as a lost machine would; returns when all are gone."""
        with self._lock:
            if self._child is not None:
                self._child.kill_tree()
                self._child = None

    def pause(self) -> None:
        """
        SIGSTOP to it and its children: connections stay open and nobody answers.

        Raises:
            ServerError: It does not run.
        """
        with self._lock:
            self._running().pause_tree()

    def resume(self) -> None:
        """
        SIGCONT to it and its children: what was sent meanwhile is carried out now.

        Raises:
            ServerError: It does not run.
        """
        with self._lock:
            self._running().resume_tree()

    def close(self) -> None:
        """Stop it and remove what it wrote; may be called again. A later `start()` begins afresh."""
        with self._lock:
            self.stop()
            if self._scratch is not None:
                self._scratch.remove()
            self._scratch = self._log = self._port = None

    @property
    def running(self) -> bool:
        """Whether its process is there, paused or not."""
        return self._child is not None and self._child.poll() is None

    @property
    def paused(self) -> bool:
        """Whether its process is there and stands still."""
        child = self._child
        return child is not None and child.paused

    @property
    def port(self) -> int:
        """
        Its port on 127.0.0.1.

        Raises:
            ServerError: It was not started yet.
        """
        if self._port is None:
            raise ServerError(f"{self.name} has no address yet: start() it, or use it in a with statement.")
        return self._port

    @property
    def pid(self) -> int:
        """
        Its process id.

        Raises:
            ServerError: It does not run.
        """
        return self._running().pid

    @property
    def log(self) -> str:
        """The last lines of its log since the last start."""
        return "(not started)" if self._log is None else self._log.tail()

    def _launch(
        self, program: Program, port: int, serving: Callable[[Child], bool], prove: Callable[[], None] | None = None
    ) -> None:
        """
        Start the program, wait until it serves, and have it proven.

        Args:
            program: What to run.
            port: The port that it was told to listen on.
            serving: Whether that child serves.
            prove: Raises where somebody else answers on the port.
        """
        assert self._log is not None
        with self._log.begin() as handle:
            child = Child(program, stdout=handle, stderr=subprocess.STDOUT)
        await_serving(self.name, port, child, self._log, lambda: serving(child))
        try:
            if prove is not None:
                prove()
        except BaseException:
            child.kill_tree()
            raise
        self._child = child

    def _end(self, number: signal.Signals, timeout: float) -> bool:
        """Signal it and wait for its end; False when it is still there after `timeout`."""
        if self._child is not None:
            try:
                self._child.end(number, timeout)
            except NotReachedError:
                return False
            self._child = None
        return True

    def _running(self) -> Child:
        if self._child is None or self._child.poll() is not None:
            raise ServerError(f"{self.name} does not run.")
        return self._child

    def _make_directory(self) -> None:
        scratch = Scratch(server_account())
        try:
            self._furnish(scratch)
        except BaseException:
            scratch.remove()
            raise
        self._scratch = scratch
        self._log = ServerLog(scratch.path / "log")
