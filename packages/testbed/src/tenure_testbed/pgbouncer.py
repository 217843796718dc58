"""PgBouncer in transaction mode in front of a PostgreSQL server."""

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from tenure_testbed.account import Account, server_account
from tenure_testbed.errors import PortTakenError, ServerStartError, ServerUnavailableError, StatementError
from tenure_testbed.ports import LOOPBACK, free_port
from tenure_testbed.postgres_access import DEFAULT_DRIVER, PostgresAccess
from tenure_testbed.process import Program, plain_environment, until
from tenure_testbed.scratch import Scratch
from tenure_testbed.server import Server

STOP_SECONDS = 5.0
# The first version that can carry prepared statements from one transaction to the next.
PREPARED_STATEMENTS_SINCE = (1, 21)
# The first version whose SIGTERM waits until every client has gone; SIGQUIT does not wait since then.
PATIENT_SINCE = (1, 23)
_ADMIN = "pgbouncer"


class PgBouncer(Server):
    """
    A PgBouncer of this process's own in transaction mode; `Server` tells what holds for every server.

    The program comes from the system (`apt-get install pgbouncer`): there is no wheel of it. Prepared statements
    are not carried from one transaction to the next, whatever the version, which is the hardest case for a driver.

    Args:
        upstream: The server behind it; its role is the one that clients may log in as.
        name: What errors call it.
        port: A fixed port, or what names the next port to try.
        settings: Settings of its section `[pgbouncer]`, such as `{"default_pool_size": 5}`.
    """

    def __init__(
        self,
        upstream: PostgresAccess,
        *,
        name: str = "PgBouncer",
        port: int | Callable[[], int] = free_port,
        settings: Mapping[str, str | int] | None = None,
    ) -> None:
        super().__init__(name, port)
        self._upstream = upstream
        self._settings = dict(settings or {})
        self._users = {upstream.user: upstream.password}
        self._ending = signal.SIGTERM

    @staticmethod
    def unavailable() -> str | None:
        """Why none can be started on this machine, or None when one can."""
        try:
            _program()
        except ServerUnavailableError as error:
            return str(error)
        return None

    @staticmethod
    def available() -> bool:
        """Whether one can be started on this machine; `unavailable()` says why not."""
        return PgBouncer.unavailable() is None

    def stop(self, timeout: float = STOP_SECONDS) -> None:
        """
        Stop it at once, without waiting for its clients; nothing happens when it does not run.

        Args:
            timeout: Seconds until it is killed instead.
        """
        with self._lock:
            if not self._end(self._ending, timeout):
                self.kill()

    def allow(self, user: str, password: str = "") -> None:
        """
        Let clients log in as another role of the server.

        Args:
            user: The role.
            password: What PgBouncer logs in with where the server asks for it.
        """
        with self._lock:
            self._users[user] = password
            if self._scratch is None or not self.running:
                return
            _write(self._scratch.path / "users", _user_lines(self._users), server_account())
            self._running().send(signal.SIGHUP)
            until(lambda: self._knows(user), f"{self.name} to read its users again")

    @property
    def access(self) -> PostgresAccess:
        """
        The way through it to the server, as the role that the server was named with.

        Raises:
            ServerError: It was not started yet, so that it has no port.
        """
        return self._upstream.through(LOOPBACK, self.port)

    def url(self, database: str | None = None, driver: str = DEFAULT_DRIVER, **query: str) -> str:
        """See `PostgresAccess.url`."""
        return self.access.url(database, driver, **query)

    def _require(self) -> None:
        _program()

    def _furnish(self, scratch: Scratch) -> None:
        """Its files are written for each start."""

    def _boot(self, port: int) -> None:
        assert self._scratch is not None
        home = self._scratch.path
        program, account = _program(), server_account()
        version = _version(program)
        self._ending = _stop_signal(version)
        _write(home / "users", _user_lines(self._users), account)
        _write(home / "ini", self._configuration(home, version, port), account)
        run = Program(
            command=[str(program), str(home / "ini")],
            cwd=home,
            env=plain_environment(home),
            account=account,
            ending=self._ending,
        )
        pidfile = home / "pid"
        self._launch(
            run,
            port,
            serving=lambda child: _pid_in(pidfile) == child.pid,
            prove=lambda: _prove(self.name, self._upstream.through(LOOPBACK, port), pidfile),
        )

    def _knows(self, user: str) -> bool:
        return any(row[0] == user for row in self.access.execute("SHOW USERS", _ADMIN))

    def _configuration(self, home: Path, version: tuple[int, int], port: int) -> str:
        settings: dict[str, str | int] = {
            "listen_addr": LOOPBACK,
            "listen_port": port,
            "unix_socket_dir": "",
            "pidfile": str(home / "pid"),
            "pool_mode": "transaction",
            "auth_type": "trust",
            "auth_file": str(home / "users"),
            "admin_users": self._upstream.user,
            "max_client_conn": 500,
            "default_pool_size": 20,
            "ignore_startup_parameters": "extra_float_digits",
            # The default of 15 s makes every test that restarts the server wait as long.
            "server_login_retry": 1,
        }
        if version >= PREPARED_STATEMENTS_SINCE:  # earlier ones do not know the setting
            settings["max_prepared_statements"] = 0
        lines = [f"{name} = {value}" for name, value in (settings | self._settings).items()]
        database = f"* = host={self._upstream.host} port={self._upstream.port}"
        return "\n".join(["[databases]", database, "[pgbouncer]", *lines, ""])


def _program() -> Path:
    # /usr/sbin, where Debian puts it, is not on the path of every account.
    found = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/usr/local/sbin")
    if found is None:
        raise ServerUnavailableError("PgBouncer is not installed: apt-get install pgbouncer")
    return Path(found)


def _version(program: Path) -> tuple[int, int]:
    run = subprocess.run([str(program), "--version"], capture_output=True, text=True, check=False)
    found = re.search(r"PgBouncer (\d+)\.(\d+)", run.stdout + run.stderr)
    if found is None:
        raise ServerUnavailableError(f"{program} --version does not look like PgBouncer's.")
    return int(found[1]), int(found[2])


def _stop_signal(version: tuple[int, int]) -> signal.Signals:
    return signal.SIGQUIT if version >= PATIENT_SINCE else signal.SIGTERM


def _prove(name: str, answering: PostgresAccess, pidfile: Path) -> None:
    """Ask whoever answers for its pid file: a foreign one has another."""
    try:
        rows = answering.execute("SHOW CONFIG", _ADMIN)
    except StatementError as error:
        raise ServerStartError(f"{name} is up and does not answer on port {answering.port}: {error}") from error
    if not any(row[:2] == ["pidfile", str(pidfile)] for row in rows):
        raise PortTakenError(f"{name}: another server answers on port {answering.port}. Choose another port.")


def _user_lines(users: Mapping[str, str]) -> str:
    return "".join(f"{_quoted(user)} {_quoted(password)}\n" for user, password in users.items())


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


def _write(path: Path, text: str, account: Account) -> None:
    path.write_text(text, encoding="utf-8")
    if account.identity():
        os.chown(path, account.uid, account.gid)
    path.chmod(0o600)  # it may hold a password


def _pid_in(path: Path) -> int | None:
    try:
        text = path.read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
