"""The start of a server: its port, its log, and the wait until it serves."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import IO

from tenure_testbed.errors import NotReachedError, PortTakenError, ServerStartError
from tenure_testbed.ports import free_port
from tenure_testbed.process import Child, until

# A port that was free a moment ago is rarely taken; five times in a row it is something else.
PORT_ATTEMPTS = 5
# A cold start with crash recovery on a busy machine; an ordinary one takes a tenth of a second.
START_SECONDS = 60.0
_TAIL_LINES = 20


def find_a_port(boot: Callable[[int], None], port: int | Callable[[], int] = free_port) -> int:
    """
    Start a server on one port after another until one was not taken.

    Args:
        boot: Starts the server on a port; raises `PortTakenError` where something else has it.
        port: A fixed port, tried once; or what names the next port to try.

    Returns:
        The port that it started on.

    Raises:
        PortTakenError: The fixed port, or each of `PORT_ATTEMPTS` ports, was taken.
    """
    if isinstance(port, int):
        boot(port)
        return port
    for _ in range(PORT_ATTEMPTS - 1):
        candidate = port()
        with contextlib.suppress(PortTakenError):
            boot(candidate)
            return candidate
    candidate = port()
    boot(candidate)
    return candidate


class ServerLog:
    """
    The log file of a server that may be started several times.

    What an earlier start wrote must not explain the failure of a later one, so the tail begins at the last start.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._mark = 0

    def begin(self) -> IO[bytes]:
        """A handle for the next start to write to."""
        self._mark = self.path.stat().st_size if self.path.exists() else 0
        return self.path.open("ab")

    def tail(self) -> str:
        """The last lines since the last start; says so when there are none."""
        try:
            written = self.path.read_bytes()[self._mark :]
        except OSError as error:
            return f"(no log: {error.strerror})"
        lines = written.decode("utf-8", errors="replace").splitlines()
        return "\n".join(lines[-_TAIL_LINES:]) or "(the log is empty)"


def await_serving(name: str, port: int, child: Child, log: ServerLog, serving: Callable[[], bool]) -> None:
    """
    Wait until a server that was just started serves.

    Args:
        name: The server's name, for errors.
        port: The port that it was given.
        child: Its process.
        log: Its log, for errors.
        serving: Whether it serves; asked every few milliseconds.

    Raises:
        PortTakenError: It ended because something else has the port.
        ServerStartError: It ended for another reason, or did not serve within `START_SECONDS`; it is ended then.
    """
    try:
        until(lambda: child.poll() is not None or serving(), f"{name} on port {port}", START_SECONDS)
    except NotReachedError:
        child.kill_tree()
        raise ServerStartError(f"{name} does not serve after {START_SECONDS:g} s:\n{log.tail()}") from None
    except BaseException:
        child.kill_tree()
        raise
    if child.poll() is None:
        return
    text = log.tail()
    if "ddress already in use" in text:
        raise PortTakenError(f"{name}: port {port} is taken by another process. Leave the port out to get a free one.")
    raise ServerStartError(f"{name} ended with code {child.poll()} instead of serving on port {port}:\n{text}")
