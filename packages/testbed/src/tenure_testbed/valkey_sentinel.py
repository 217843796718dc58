"""A Valkey primary with its replicas, watched by Sentinels that replace it."""

import contextlib
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from tenure_testbed.errors import NotReachedError, ServerError, StatementError
from tenure_testbed.lifecycle import Lifecycle
from tenure_testbed.ports import LOOPBACK
from tenure_testbed.process import until
from tenure_testbed.sentinel import Sentinel
from tenure_testbed.valkey import ValkeyServer
from tenure_testbed.valkey_program import Binary, reason_unavailable
from tenure_testbed.valkey_replication import REPLICATION, await_caught_up, follow, is_linked, is_primary

# A failover takes two seconds after the primary is found down; a busy CI machine takes its time.
OK_SECONDS = 60.0
# While an earlier failover winds down, Sentinels refuse the next one; and they give one up that is not done in the
# three seconds that `failover-timeout` gives it.
_FAILOVER_SECONDS = 6.0
_FAILOVER_ATTEMPTS = 3
_SENTINELS = 3


class ValkeySentinel(Lifecycle):
    """
    A Valkey primary and its replicas, watched by three Sentinels, of which two have to run for a failover.

    Nothing is written to disk: a server that comes back is empty until it has a copy of its primary's keys.

    Args:
        replicas: How many replicas the primary has.
        master_name: What clients ask the Sentinels for.
        down_after_ms: Milliseconds of silence after which a Sentinel finds a server down.
        settings: Settings of the primary and the replicas beside those of the test bed.
        binary: As in `ValkeyServer`; for the Sentinels too.
    """

    def __init__(
        self,
        *,
        replicas: int = 1,
        master_name: str = "testbed",
        down_after_ms: int = 1000,
        settings: Mapping[str, str] | None = None,
        binary: Binary = "valkey-server",
    ) -> None:
        self.master_name = master_name
        merged = REPLICATION | dict(settings or {})
        self.servers = tuple(
            ValkeyServer(name=f"Valkey server {index}", settings=merged, binary=binary) for index in range(1 + replicas)
        )
        options = {
            "down-after-milliseconds": str(down_after_ms),
            # Sentinels that split their votes try again after twice this; a promotion takes a second of it.
            "failover-timeout": "3000",
        }
        self.sentinels = tuple(
            Sentinel(name=f"Sentinel {index}", binary=binary, options=options) for index in range(_SENTINELS)
        )
        self._lock = threading.RLock()

    @staticmethod
    def unavailable() -> str | None:
        """Why none can be started on this machine, or None when one can."""
        return reason_unavailable("valkey-server")

    def start(self) -> None:
        """Start all; nothing happens when they run. Returns when the Sentinels know everybody and agree."""
        with self._lock:
            if any(server.running for server in self.servers):
                return
            primary, *replicas = self.servers
            primary.start()
            for replica in replicas:
                follow(replica, LOOPBACK, primary.port)
            quorum = _SENTINELS // 2 + 1
            for sentinel in self.sentinels:
                sentinel.watch(self.master_name, primary.port, quorum)
            self._start_all()
            self._greet(often=True)
            self.wait_until_ok()
            self._greet(often=False)

    def close(self) -> None:
        """End all and remove what they wrote; may be called again."""
        with self._lock:
            # The Sentinels first: they would begin to replace a primary that goes.
            for server in (*self.sentinels, *self.servers):
                server.close()

    @property
    def primary(self) -> ValkeyServer:
        """
        The server that the Sentinels send clients to, most of them if they do not agree.

        Raises:
            ServerError: No Sentinel runs.
        """
        votes = [sentinel.primary_port(self.master_name) for sentinel in self._live_sentinels()]
        if not votes:
            raise ServerError("No Sentinel runs that could tell the primary: restart() starts them.")
        winner = max(votes, key=votes.count)
        return next(server for server in self.servers if server.port == winner)

    @property
    def replicas(self) -> tuple[ValkeyServer, ...]:
        """The live servers that are not the primary."""
        primary = self.primary
        return tuple(server for server in self._live_servers() if server is not primary)

    @property
    def sentinel_addresses(self) -> list[tuple[str, int]]:
        """Host and port of every Sentinel, for a client to begin with."""
        return [(LOOPBACK, sentinel.port) for sentinel in self.sentinels]

    def url(self, scheme: str = "redis+sentinel") -> str:
        """
        A URL of all Sentinels with the name to ask them for.

        Args:
            scheme: What stands before `://`.
        """
        hosts = ",".join(f"{host}:{port}" for host, port in self.sentinel_addresses)
        return f"{scheme}://{hosts}/{self.master_name}"

    def wait_until_ok(self, timeout: float = OK_SECONDS) -> None:
        """
        Wait until the live Sentinels agree on a live primary, and every other live server has caught up with it.

        Servers that were killed or stand still are left out: after `kill_primary()` this waits for the successor.

        Args:
            timeout: Seconds.

        Raises:
            NotReachedError: It was not so within `timeout`.
        """
        until(self._is_ok, "the Sentinels to agree on a primary that the others follow", timeout)
        self.catch_up()

    def catch_up(self) -> None:
        """Wait until every live replica has what the primary has written so far."""
        primary = self.primary
        for replica in self.replicas:
            await_caught_up(primary, replica)

    def failover(self) -> ValkeyServer:
        """
        Have the Sentinels replace the primary (`SENTINEL FAILOVER`), which goes on running as a replica.

        Unlike a cluster's planned failover this one may lose writes of its own moment: the old primary takes
        them until it is told.

        Returns:
            The new primary, when all agree on it.

        Raises:
            NotReachedError: They refused or gave up, several times.
        """
        with self._lock:
            self.catch_up()
            old = self.primary
            self._replace(old)
            self.wait_until_ok()
            return self.primary

    def kill_primary(self) -> ValkeyServer:
        """
        SIGKILL the primary; `wait_until_ok()` waits for its successor.

        Writes that its replicas had not seen are lost.

        Returns:
            The server that was killed.
        """
        with self._lock:
            victim = self.primary
            victim.kill()
            return victim

    def restart(self) -> None:
        """Start what does not run, as replicas, and continue what stands still; returns when all agree."""
        with self._lock:
            for server in (*self.servers, *self.sentinels):
                if server.paused:
                    server.resume()
            primary = self.primary
            for server in self.servers:
                if not server.running and server is not primary:
                    follow(server, LOOPBACK, primary.port)
            self._start_all()
            self.wait_until_ok()

    def flush_all(self) -> None:
        """Remove every key; the replicas have caught up when it returns."""
        self.primary.flush_all()
        self.catch_up()

    def add_user(self, name: str, password: str, *rules: str) -> None:
        """Make a user on every server, and on no Sentinel; see `ValkeyServer.add_user`."""
        for server in self.servers:
            server.add_user(name, password, *rules)

    def _replace(self, old: ValkeyServer) -> None:
        for _ in range(_FAILOVER_ATTEMPTS):
            with contextlib.suppress(NotReachedError):
                until(lambda: self._has_begun(old), "the Sentinels to begin a failover", _FAILOVER_SECONDS)
                return until(lambda: self.primary is not old, "the Sentinels to end a failover", _FAILOVER_SECONDS)
        raise NotReachedError(
            f"{old.name} was not replaced in {_FAILOVER_ATTEMPTS} failovers:\n{self.sentinels[0].log}"
        )

    def _has_begun(self, old: ValkeyServer) -> bool:
        for sentinel in self._live_sentinels():
            try:
                sentinel.execute("SENTINEL", "FAILOVER", self.master_name)
            except StatementError as error:
                if "INPROG" in str(error):
                    return True
            else:
                return True
        return self.primary is not old

    def _is_ok(self) -> bool:
        servers, sentinels = self._live_servers(), self._live_sentinels()
        try:
            named = {sentinel.primary_port(self.master_name) for sentinel in sentinels}
            leaders = [server for server in servers if {server.port} == named]
            if not leaders or not is_primary(leaders[0]):
                return False
            others = [server for server in servers if server is not leaders[0]]
            return all(is_linked(each) and self._follows(each, leaders[0]) for each in others) and all(
                sentinel.knows(self.master_name, replicas=len(others), sentinels=len(sentinels) - 1)
                for sentinel in sentinels
            )
        except (OSError, StatementError):
            return False

    @staticmethod
    def _follows(replica: ValkeyServer, primary: ValkeyServer) -> bool:
        return replica.info("replication").get("master_port") == str(primary.port)

    def _greet(self, *, often: bool) -> None:
        for sentinel in self.sentinels:
            sentinel.greet(often=often)

    def _live_servers(self) -> list[ValkeyServer]:
        return [server for server in self.servers if server.running and not server.paused]

    def _live_sentinels(self) -> list[Sentinel]:
        return [sentinel for sentinel in self.sentinels if sentinel.running and not sentinel.paused]

    def _start_all(self) -> None:
        everybody = [*self.servers, *self.sentinels]
        with ThreadPoolExecutor(len(everybody)) as pool:
            for done in [pool.submit(ValkeyServer.start, each) for each in self.servers] + [
                pool.submit(Sentinel.start, each) for each in self.sentinels
            ]:
                done.result()
