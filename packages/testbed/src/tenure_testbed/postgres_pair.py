"""A PostgreSQL primary with a streaming standby, and a replication link that can be cut."""

import threading
from collections.abc import Mapping

from tenure_testbed.errors import ServerError, StatementError
from tenure_testbed.lifecycle import Lifecycle
from tenure_testbed.linked_server import LinkedServer
from tenure_testbed.ports import LOOPBACK
from tenure_testbed.postgres import PostgresServer
from tenure_testbed.postgres_access import DEFAULT_DRIVER
from tenure_testbed.postgres_data import DataDirectory, Setting
from tenure_testbed.process import until

# A base backup of an empty cluster and its first connection take a fraction of a second.
CATCH_UP_SECONDS = 30.0

_REPLICATION: Mapping[str, Setting] = {
    # pg_rewind asks for both: what it copies from a running server may be torn.
    "wal_log_hints": True,
    "full_page_writes": True,
    "wal_keep_size": "256MB",
    # A cut link is a partition that both ends sit out: neither may find it by itself and reconnect.
    "wal_sender_timeout": 0,
    "wal_receiver_timeout": 0,
    # A standby that lost its link tries again after five seconds by default, and a promotion waits for that too.
    "wal_retrieve_retry_interval": "100ms",
}
_REPLICATION_STATE = "SELECT application_name, state, sync_state FROM pg_stat_replication"


class PostgresPair(Lifecycle):
    """
    A primary and a streaming standby, synchronous or not.

    A kill alone loses nothing on loopback: the standby has every commit within microseconds. To lose the tail
    that an asynchronous failover loses, `cut_replication()` first, go on writing, then `kill_primary()` and
    `promote()`.

    Args:
        synchronous: Whether a commit waits until the standby has it on disk.
        settings: Settings of both servers beside those of the test bed.
        fsync: As in `PostgresServer`.
    """

    def __init__(
        self, *, synchronous: bool = False, settings: Mapping[str, Setting] | None = None, fsync: bool = False
    ) -> None:
        self.synchronous = synchronous
        merged = dict(_REPLICATION) | dict(settings or {})
        self._primary = LinkedServer(
            PostgresServer(name="PostgreSQL node a", settings=merged, fsync=fsync), label="node_a"
        )
        self._standby = LinkedServer(
            PostgresServer(name="PostgreSQL node b", settings=merged, fsync=fsync, prepare=self._back_up),
            label="node_b",
        )
        self._cut = False
        self._lock = threading.RLock()

    @property
    def primary(self) -> PostgresServer:
        """The server that is the primary: the first one, and after `promote()` the other."""
        return self._primary.server

    @property
    def standby(self) -> PostgresServer:
        """The server that is not the primary; after `promote()` the old primary, whatever state it is in."""
        return self._standby.server

    def start(self) -> None:
        """Start both and return when the standby streams, and is synchronous where it shall be."""
        with self._lock:
            if self.standby.running:
                return
            self.primary.start()
            self._follow()
            self.standby.start()
            self._join()

    def close(self) -> None:
        """Stop both at once and remove their data."""
        with self._lock:
            self._primary.close()
            self._standby.close()
            self._cut = False

    def catch_up(self) -> None:
        """
        Wait until the standby streams and has replayed what the primary has committed so far.

        Raises:
            NotReachedError: It did not within half a minute: the link is cut, or a server does not run.
        """
        streaming = [self._standby.label, "streaming", "sync" if self.synchronous else "async"]
        until(
            lambda: streaming in self.primary.execute(_REPLICATION_STATE),
            f"{self.standby.name} to stream as {streaming[-1]}",
            CATCH_UP_SECONDS,
        )
        # The standby is asked itself: what the primary knows of its replay can be ten seconds old.
        [[position]] = self.primary.execute("SELECT pg_current_wal_flush_lsn()")
        caught_up = f"SELECT pg_last_wal_replay_lsn() >= '{position}'"
        until(
            lambda: self.standby.execute(caught_up) == [["t"]],
            f"{self.standby.name} to replay what {self.primary.name} has",
            CATCH_UP_SECONDS,
        )

    def cut_replication(self) -> None:
        """
        Cut the link, silently: both ends keep their connection and hear nothing more.

        An asynchronous primary goes on committing what the standby will not have; a synchronous one stops
        committing.
        """
        with self._lock:
            self._primary.open_link().blackhole()
            self._cut = True

    def heal(self) -> None:
        """
        Mend the link; returns when the standby has caught up, if both servers run.

        What was under way when a primary was killed is lost, as with the machine that it was on.
        """
        with self._lock:
            self._primary.open_link().heal()
            self._cut = False
            if self.primary.running and self.standby.running:
                self.catch_up()

    def kill_primary(self) -> None:
        """SIGKILL the primary with its backends; what a cut link held back is lost with it."""
        with self._lock:
            self.primary.kill()
            self._primary.open_link().reset_all()

    def promote(self) -> None:
        """
        Make the standby the primary and swap the roles; returns when it accepts writes.

        A primary that still runs is not touched: two primaries take writes then, as in a split brain. The new
        primary commits alone, in a synchronous pair too, until `rewind()` gives it a standby.
        """
        with self._lock:
            old = self._primary.open_link()
            old.blackhole()  # nothing more comes from the old primary, nor from the line between
            old.reset_all()
            rows = self.standby.execute(f"SELECT pg_promote(true, {CATCH_UP_SECONDS:.0f})")
            if rows != [["t"]]:
                raise ServerError(f"{self.standby.name} was not promoted in time:\n{self.standby.log}")
            self._primary, self._standby = self._standby, self._primary
            self._cut = False

    def rewind(self) -> None:
        """
        Bring the old primary back as the standby of the new one: stop it, pg_rewind, start, catch up.

        What it had committed and the new primary does not have is thrown away.

        Raises:
            ServerError: There was no `promote()`, so that the standby streams already.
            StatementError: pg_rewind failed; the text is its own.
        """
        with self._lock:
            if self.standby.running and self._is_standby():
                raise ServerError(f"{self.standby.name} follows the primary already: rewind() comes after promote().")
            self.standby.stop()
            # The checkpoint of the promotion takes its time, two seconds and more, and a rewound server is not
            # consistent before its end has reached it.
            self.primary.execute("CHECKPOINT")
            data = self.standby.data
            data.install.run(
                data.account,
                "pg_rewind",
                f"--target-pgdata={data.path}",
                f"--source-server={self.primary.url(driver='postgresql')}",
                "--no-sync",
            )
            data.write_file("standby.signal", "")
            self._primary.open_link().heal()
            self._follow()
            self.standby.start()
            self._join()

    def url(self, database: str | None = None, driver: str = DEFAULT_DRIVER, target: str = "read-write") -> str:
        """
        A URL that names both servers, in the dialect of its driver.

        Args:
            database: Database name; None for `postgres`.
            driver: `postgresql` for asyncpg and libpq themselves, `postgresql+…` for SQLAlchemy.
            target: `target_session_attrs`: which of the two a client settles on.
        """
        first, second = sorted((self.primary.port, self.standby.port))
        name = database or "postgres"
        if "+" in driver:
            hosts = f"host={LOOPBACK}:{first}&host={LOOPBACK}:{second}"
            return f"{driver}://postgres@/{name}?{hosts}&target_session_attrs={target}"
        return f"{driver}://postgres@{LOOPBACK}:{first},{LOOPBACK}:{second}/{name}?target_session_attrs={target}"

    def _back_up(self, data: DataDirectory) -> None:
        # Not through the link: it may be cut, and it is a matter of the standby alone.
        source = self.primary.url(driver="postgresql")
        arguments = [f"--pgdata={data.path}", f"--dbname={source}", "--checkpoint=fast", "--no-sync"]
        data.install.run(data.account, "pg_basebackup", *arguments)
        data.write_file("standby.signal", "")

    def _follow(self) -> None:
        """Write down whom the standby follows, and that it waits for nobody itself."""
        link = self._primary.open_link()
        conninfo = f"host={LOOPBACK} port={link.port} user=postgres application_name={self._standby.label}"
        self.standby.configure(primary_conninfo=conninfo, synchronous_standby_names="")

    def _join(self) -> None:
        if self.synchronous:
            self.primary.configure(synchronous_standby_names=self._standby.label)
        self.catch_up()

    def _is_standby(self) -> bool:
        try:
            return self.standby.execute("SELECT pg_is_in_recovery()") == [["t"]]
        except StatementError:
            return False
