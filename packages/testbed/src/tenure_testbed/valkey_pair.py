"""A Valkey primary with a replica, and a replication link that can be cut."""

import threading
from collections.abc import Mapping

from tenure_testbed.errors import ServerError
from tenure_testbed.lifecycle import Lifecycle
from tenure_testbed.linked_server import LinkedServer
from tenure_testbed.ports import LOOPBACK
from tenure_testbed.valkey import ValkeyServer
from tenure_testbed.valkey_program import Binary, reason_unavailable
from tenure_testbed.valkey_replication import REPLICATION, await_caught_up, follow, is_primary, lead

# A cut link is a partition that both ends sit out: neither may find it by itself and reconnect. An hour is longer
# than any test.
_PATIENCE = {"repl-timeout": "3600"}


class ValkeyPair(Lifecycle):
    """
    A Valkey primary and an asynchronous replica, with nobody who would promote it but the test.

    A kill alone loses nothing on loopback: the replica has every write within microseconds. To lose the tail that
    a failover loses, `cut_replication()` first, go on writing, then `kill_primary()` and `promote()`.

    Args:
        settings: Settings of both servers beside those of the test bed.
        binary: As in `ValkeyServer`.
    """

    def __init__(self, *, settings: Mapping[str, str] | None = None, binary: Binary = "valkey-server") -> None:
        merged = REPLICATION | _PATIENCE | dict(settings or {})
        self._primary = LinkedServer(ValkeyServer(name="Valkey server a", settings=merged, binary=binary))
        self._replica = LinkedServer(ValkeyServer(name="Valkey server b", settings=merged, binary=binary))
        self._lock = threading.RLock()

    @staticmethod
    def unavailable() -> str | None:
        """Why no pair can be started on this machine, or None when one can."""
        return reason_unavailable("valkey-server")

    @property
    def primary(self) -> ValkeyServer:
        """The server that is the primary: the first one, and after `promote()` the other."""
        return self._primary.server

    @property
    def replica(self) -> ValkeyServer:
        """The server that is not the primary; after `promote()` the old primary, whatever state it is in."""
        return self._replica.server

    def start(self) -> None:
        """Start both and return when the replica has what the primary has."""
        with self._lock:
            if self.primary.running or self.replica.running:
                return
            self.primary.start()
            self._follow()
            self.replica.start()
            self.catch_up()

    def close(self) -> None:
        """End both and remove what they wrote; may be called again."""
        with self._lock:
            self._replica.close()
            self._primary.close()

    def catch_up(self) -> None:
        """
        Wait until the replica has what the primary has written so far.

        Raises:
            NotReachedError: It had not within half a minute: the link is cut, or a server does not run.
        """
        await_caught_up(self.primary, self.replica)

    def cut_replication(self) -> None:
        """
        Cut the link, silently: both ends keep their connection and hear nothing more.

        The primary goes on granting what the replica will not have.
        """
        with self._lock:
            self._primary.open_link().blackhole()

    def heal(self) -> None:
        """
        Mend the link; returns when the replica has caught up, if both servers run.

        What was under way when a primary was killed is lost, as with the machine that it was on.
        """
        with self._lock:
            self._primary.open_link().heal()
            if self.primary.running and self.replica.running:
                self.catch_up()

    def kill_primary(self) -> None:
        """SIGKILL the primary; what a cut link held back is lost with it."""
        with self._lock:
            self.primary.kill()
            self._primary.open_link().reset_all()

    def promote(self) -> None:
        """
        Make the replica the primary and swap the roles; returns when it accepts writes.

        A primary that still runs is not touched: two primaries take writes then, as in a split brain.
        """
        with self._lock:
            old = self._primary.open_link()
            old.blackhole()  # nothing more comes from the old primary, nor from the line between
            old.reset_all()
            lead(self.replica)
            self._primary, self._replica = self._replica, self._primary

    def rejoin(self) -> None:
        """
        Bring the old primary back as the replica of the new one, started if it does not run; returns in step.

        What it had taken and the new primary does not have is thrown away.

        Raises:
            ServerError: There was no `promote()`, so that the replica follows already.
        """
        with self._lock:
            if self.replica.running and not is_primary(self.replica):
                raise ServerError(f"{self.replica.name} follows the primary already: rejoin() comes after promote().")
            self._primary.open_link().heal()
            self._follow()
            self.replica.start()
            self.catch_up()

    def url(self, database: int = 0, scheme: str = "redis") -> str:
        """The URL of the server that is the primary now; see `ValkeyServer.url`."""
        return self.primary.url(database, scheme)

    def flush_all(self) -> None:
        """Remove every key of both; needs a link that is whole."""
        self.primary.flush_all()
        self.catch_up()

    def add_user(self, name: str, password: str, *rules: str) -> None:
        """Make a user on both servers; see `ValkeyServer.add_user`."""
        self.primary.add_user(name, password, *rules)
        self.replica.add_user(name, password, *rules)

    def _follow(self) -> None:
        follow(self.replica, LOOPBACK, self._primary.open_link().port)
