"""One node of a Valkey cluster."""

from collections.abc import Callable, Mapping

from tenure_testbed import cluster_view
from tenure_testbed.cluster_view import NodeView
from tenure_testbed.errors import ServerError
from tenure_testbed.ports import free_port
from tenure_testbed.valkey import ValkeyServer
from tenure_testbed.valkey_program import Binary
from tenure_testbed.valkey_replication import REPLICATION, is_linked


class ValkeyNode(ValkeyServer):
    """
    A server in cluster mode: a `ValkeyServer` with a second port for the other nodes.

    What it knows of the cluster survives a restart, what its keys hold does not (without `appendonly`).

    Args:
        name: What errors call it.
        port: A fixed port, or what names the next port to try.
        settings: Settings beside those of the test bed.
        binary: As in `ValkeyServer`.
        node_timeout_ms: Milliseconds of silence after which another node is suspected.
    """

    def __init__(
        self,
        *,
        name: str,
        port: int | Callable[[], int] = free_port,
        settings: Mapping[str, str] | None = None,
        binary: Binary = "valkey-server",
        node_timeout_ms: int,
    ) -> None:
        ours = {
            "cluster-enabled": "yes",
            "cluster-config-file": "nodes.conf",
            "cluster-node-timeout": str(node_timeout_ms),
            # A node stays in the shard that it was put in, so that shards can be told by number.
            "cluster-allow-replica-migration": "no",
        }
        super().__init__(name=name, port=port, settings=REPLICATION | ours | dict(settings or {}), binary=binary)
        self._bus_port: int | None = None

    @property
    def bus_port(self) -> int:
        """
        Its port for the other nodes.

        Raises:
            ServerError: It was not started yet.
        """
        if self._bus_port is None:
            raise ServerError(f"{self.name} has no address yet: start() it, or use it in a with statement.")
        return self._bus_port

    @property
    def id(self) -> str:
        """Its id in the cluster."""
        return str(self.execute("CLUSTER", "MYID"))

    @property
    def is_live(self) -> bool:
        """Whether it runs and does not stand still."""
        return self.running and not self.paused

    def view(self) -> list[NodeView]:
        """What it believes of every node that it knows, itself among them."""
        return cluster_view.parse(str(self.execute("CLUSTER", "NODES")))

    def view_of_itself(self) -> NodeView:
        """What it believes of itself."""
        return next(view for view in self.view() if view.is_myself)

    def is_ready(self) -> bool:
        """Whether it serves its slots, and as a replica has a link to its primary."""
        if "cluster_state:ok" not in str(self.execute("CLUSTER", "INFO")):
            return False
        return self.view_of_itself().is_primary or is_linked(self)

    def close(self) -> None:
        """Stop it and remove what it wrote; may be called again. A later `start()` begins afresh."""
        with self._lock:
            super().close()
            self._bus_port = None

    def _boot(self, port: int) -> None:
        # The default, the port and 10000, is no port at all for a high one. The others find a node that comes
        # back where it was, so that only a first start may look for another.
        bus_port = free_port() if self._bus_port is None else self._bus_port
        self._settings["cluster-port"] = str(bus_port)
        super()._boot(port)
        self._bus_port = bus_port
