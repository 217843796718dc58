"""A Valkey cluster on loopback: shards with replicas, failovers, and slots that move."""

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

from tenure_testbed import cluster_view
from tenure_testbed.cluster_formation import form
from tenure_testbed.errors import NotReachedError, ServerError, StatementError
from tenure_testbed.lifecycle import Lifecycle
from tenure_testbed.ports import LOOPBACK
from tenure_testbed.process import until
from tenure_testbed.slot_migration import OpenSlot, migrate_atomically
from tenure_testbed.valkey_node import ValkeyNode
from tenure_testbed.valkey_program import Binary, reason_unavailable
from tenure_testbed.valkey_replication import await_caught_up, is_primary

# A cluster forms in two seconds and fails over within a few node time-outs; a busy CI machine takes its time.
OK_SECONDS = 60.0
# The server gives a failover that was asked for up after five seconds; then it is asked for again.
_FAILOVER_SECONDS = 6.0
_FAILOVER_ATTEMPTS = 3


class ValkeyCluster(Lifecycle):
    """
    A Valkey cluster of this process's own: primaries with their replicas, up in about two seconds.

    Shards are numbered from 0. The nodes of a shard stay the same, which of them is the primary changes. Nothing
    is written to disk but what the nodes know of each other: a node that comes back is empty until it has a copy
    of its primary's keys.

    Args:
        shards: How many primaries share the slots, in equal parts; three at least, or none can fail over.
        replicas: How many replicas each primary has.
        node_timeout_ms: Milliseconds of silence after which a node is suspected. A killed primary is replaced
            after about one to one and a half of it, and half a second more.
        settings: Settings of every node beside those of the test bed, such as `{"appendonly": "yes"}`.
        binary: As in `ValkeyServer`.
    """

    def __init__(
        self,
        *,
        shards: int = 3,
        replicas: int = 1,
        node_timeout_ms: int = 2000,
        settings: Mapping[str, str] | None = None,
        binary: Binary = "valkey-server",
    ) -> None:
        self.shards = shards
        self.nodes = tuple(
            ValkeyNode(
                name=f"Valkey node {index}, of shard {index % shards}",
                settings=settings,
                binary=binary,
                node_timeout_ms=node_timeout_ms,
            )
            for index in range(shards * (1 + replicas))
        )
        self._lock = threading.RLock()

    @staticmethod
    def unavailable() -> str | None:
        """Why no cluster can be started on this machine, or None when one can."""
        return reason_unavailable("valkey-server")

    @staticmethod
    def slot_of(key: str | bytes) -> int:
        """The slot of a key; see `tenure_testbed.cluster_view.slot_of`."""
        return cluster_view.slot_of(key)

    def start(self) -> None:
        """
        Start it; nothing happens when it runs. Returns when every node serves and all agree.

        Raises:
            ServerUnavailableError: The program is not on this machine.
            ServerStartError: A node ended instead of serving.
            NotReachedError: The nodes have not become a cluster within a minute.
        """
        with self._lock:
            if any(node.running for node in self.nodes):
                return
            self._on_all(ValkeyNode.start)
            form([self.members(shard) for shard in range(self.shards)])
            self.wait_until_ok()

    def close(self) -> None:
        """End every node and remove what they wrote; may be called again."""
        with self._lock:
            for node in self.nodes:
                node.close()

    # ------------------------------------------------------------------------------------ who is who

    def members(self, shard: int) -> tuple[ValkeyNode, ...]:
        """The nodes of a shard, whatever they are at the moment."""
        if not 0 <= shard < self.shards:
            raise ValueError(f"Shard {shard} is not one of the {self.shards} shards, which count from 0.")
        return self.nodes[shard :: self.shards]

    def primary_of(self, shard: int) -> ValkeyNode:
        """
        The node that serves the shard, of those that run and do not stand still.

        Raises:
            ServerError: There is none at the moment: it was killed, and its replica is not promoted yet.
        """
        primary = cluster_view.foremost(node.view_of_itself() for node in self.members(shard) if node.is_live)
        if primary is None:
            raise ServerError(f"Shard {shard} has no live primary now: wait_until_ok() waits for its replica.")
        return next(node for node in self.members(shard) if node.port == primary.port)

    def replicas_of(self, shard: int) -> tuple[ValkeyNode, ...]:
        """The live nodes of the shard that are not its primary."""
        primary = self.primary_of(shard)
        return tuple(node for node in self.members(shard) if node is not primary and node.is_live)

    def replica_of(self, shard: int) -> ValkeyNode:
        """
        The first live replica of the shard.

        Raises:
            ServerError: It has none at the moment.
        """
        for node in self.replicas_of(shard):
            return node
        raise ServerError(f"Shard {shard} has no live replica now: restart() brings back what was killed.")

    @property
    def primaries(self) -> tuple[ValkeyNode, ...]:
        """The primary of each shard, in the order of the shards; see `primary_of()`."""
        return tuple(self.primary_of(shard) for shard in range(self.shards))

    @property
    def live_nodes(self) -> tuple[ValkeyNode, ...]:
        """The nodes that run and do not stand still."""
        return tuple(node for node in self.nodes if node.is_live)

    def shard_of(self, slot: int) -> int:
        """
        The shard that serves a slot now.

        Raises:
            ServerError: None of the live primaries does.
        """
        for shard, primary in enumerate(self.primaries):
            if primary.view_of_itself().serves(slot):
                return shard
        raise ServerError(f"Slot {slot} is served by no live primary now: wait_until_ok() waits for one.")

    def owner_of(self, slot: int) -> ValkeyNode:
        """The primary that serves a slot now; see `shard_of()`."""
        return self.primary_of(self.shard_of(slot))

    def url(self, scheme: str = "valkey+cluster", *, seeds: int | None = None) -> str:
        """
        A connection URL.

        Args:
            scheme: What stands before `://`.
            seeds: How many nodes it names; None for all. Most parsers of URLs know one host only: 1 is for them.
        """
        hosts = ",".join(f"{host}:{port}" for host, port in self.startup_nodes[:seeds])
        return f"{scheme}://{hosts}"

    @property
    def startup_nodes(self) -> list[tuple[str, int]]:
        """Host and port of every node, for a client to begin with."""
        return [(LOOPBACK, node.port) for node in self.nodes]

    # ---------------------------------------------------------------------------------------- waiting

    def wait_until_ok(self, timeout: float = OK_SECONDS) -> None:
        """
        Wait until the live nodes serve every slot and agree on who does, and their replicas have caught up.

        Nodes that were killed or stand still are left out: after `kill()` this waits for the promotion.

        Args:
            timeout: Seconds.

        Raises:
            NotReachedError: It was not so within `timeout`.
        """
        until(self._is_ok, "the live nodes of the cluster to agree and to serve every slot", timeout)
        self.catch_up()

    def catch_up(self) -> None:
        """Wait until every live replica has what its primary has written so far."""
        for shard in range(self.shards):
            for replica in self.replicas_of(shard):
                await_caught_up(self.primary_of(shard), replica)

    def _is_ok(self) -> bool:
        live = self.live_nodes
        try:
            return cluster_view.agree({node.port: node.view() for node in live}) and all(
                node.is_ready() for node in live
            )
        except (OSError, StatementError):
            return False

    # ------------------------------------------------------------------------------------- what happens

    def failover(self, shard: int) -> ValkeyNode:
        """
        Swap the primary of a shard with its replica, as planned (`CLUSTER FAILOVER`): no write is lost.

        Args:
            shard: Which.

        Returns:
            The new primary, when every live node knows it and the old one follows it.

        Raises:
            NotReachedError: The servers gave up several times.
        """
        with self._lock:
            replica = self.replica_of(shard)
            self._promote(replica)
            self.wait_until_ok()
            return replica

    def kill(self, shard: int) -> ValkeyNode:
        """
        SIGKILL the primary of a shard; `wait_until_ok()` waits for its successor.

        Writes that its replica had not seen are lost, as in any failover of a cluster.

        Args:
            shard: Which.

        Returns:
            The node that was killed.
        """
        with self._lock:
            victim = self.primary_of(shard)
            victim.kill()
            return victim

    def restart(self) -> None:
        """Start the nodes that do not run and continue those that stand still; returns when all agree."""
        with self._lock:
            for node in self.nodes:
                if node.paused:
                    node.resume()
            self._on_all(ValkeyNode.start)
            self.wait_until_ok()

    # ------------------------------------------------------------------------------------- slots that move

    @contextlib.contextmanager
    def open_slot(self, slot: int, to: int) -> Iterator[OpenSlot]:
        """
        Begin to move a slot key by key, and leave it open for the body of the `with` statement.

        A key that is still there is served by its old primary, a key that is not is asked for at the new one
        (`ASK`), and a script whose keys are here and there is told to try again (`TRYAGAIN`). At the end the
        remaining keys follow and the slot changes hands, whatever happened in the body: it could not go back.

        Args:
            slot: Which.
            to: The shard that gets it.

        Yields:
            The slot: its keys can be moved one by one.

        Raises:
            ValueError: The shard has the slot already.
        """
        with self._lock:
            open_slot = OpenSlot(slot, *self._ends(slot, to))
            open_slot.begin()
        try:
            yield open_slot
        finally:
            with self._lock:
                open_slot.finish(self.primaries)
                self.wait_until_ok()

    def migrate_slot(self, slot: int, to: int, keys_first: Iterable[str] = ()) -> None:
        """
        Move a slot key by key (`SETSLOT`, `MIGRATE`), as every version of the servers can.

        Args:
            slot: Which.
            to: The shard that gets it.
            keys_first: Keys to be moved before the others, in this order.

        Raises:
            ValueError: The shard has the slot already.
        """
        with self.open_slot(slot, to) as open_slot:
            for key in keys_first:
                open_slot.move(key)

    def migrate_slot_atomically(self, slot: int, to: int) -> None:
        """
        Move a slot as a whole (`CLUSTER MIGRATESLOTS`, Valkey 9 and later).

        Args:
            slot: Which.
            to: The shard that gets it.

        Returns:
            When every live node knows it.

        Raises:
            ValueError: The shard has the slot already.
            StatementError: The servers do not know how, or gave the migration up.
        """
        with self._lock:
            migrate_atomically(slot, *self._ends(slot, to))
            self.wait_until_ok()

    def _ends(self, slot: int, to: int) -> tuple[ValkeyNode, ValkeyNode]:
        source, target = self.owner_of(slot), self.primary_of(to)
        if source is target:
            raise ValueError(f"Slot {slot} is served by shard {to} already: name another shard to move it to.")
        return source, target

    @staticmethod
    def _promote(replica: ValkeyNode) -> None:
        for _ in range(_FAILOVER_ATTEMPTS):
            replica.execute("CLUSTER", "FAILOVER")
            with contextlib.suppress(NotReachedError):
                return until(lambda: is_primary(replica), "a failover", _FAILOVER_SECONDS)
        raise NotReachedError(f"{replica.name} was not promoted in {_FAILOVER_ATTEMPTS} failovers:\n{replica.log}")

    # ---------------------------------------------------------------------------------- on every node

    def script_flush(self) -> None:
        """Let every live node forget its scripts, as a promoted replica or a restarted server has."""
        for node in self.live_nodes:
            node.execute("SCRIPT", "FLUSH", "SYNC")

    def flush_all(self) -> None:
        """Remove every key of every shard; the replicas have caught up when it returns."""
        for primary in self.primaries:
            primary.flush_all()
        self.catch_up()

    def add_user(self, name: str, password: str, *rules: str) -> None:
        """Make a user on every node; see `ValkeyServer.add_user`."""
        for node in self.nodes:
            node.add_user(name, password, *rules)

    def configure(self, settings: Mapping[str, str]) -> None:
        """Change settings of every node; see `ValkeyServer.configure`."""
        for node in self.nodes:
            node.configure(settings)

    def set_maxmemory(self, limit: int, policy: str = "noeviction") -> None:
        """Bound the memory of every node; see `ValkeyServer.set_maxmemory`."""
        for node in self.nodes:
            node.set_maxmemory(limit, policy)

    # --------------------------------------------------------------------------------- how it begins

    def _on_all(self, step: Callable[[ValkeyNode], None]) -> None:
        # In parallel: each start waits for its process, and six waits in a row are the half of a second.
        with ThreadPoolExecutor(len(self.nodes)) as pool:
            for done in [pool.submit(step, node) for node in self.nodes]:
                done.result()
