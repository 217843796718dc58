"""How servers in cluster mode become a cluster, without the tool of its makers."""

from collections.abc import Sequence

from tenure_testbed.cluster_view import SLOTS
from tenure_testbed.ports import LOOPBACK
from tenure_testbed.process import until
from tenure_testbed.valkey_node import ValkeyNode

# Nodes meet within half a second; a busy CI machine takes its time.
_MEET_SECONDS = 60.0


def form(shards: Sequence[Sequence[ValkeyNode]]) -> None:
    """
    Share the slots, introduce the nodes to each other, and give each replica its primary.

    Args:
        shards: The nodes of each shard, its primary first; all run, and none was in a cluster before.

    Raises:
        NotReachedError: The nodes have not met within a minute.
    """
    nodes = [node for shard in shards for node in shard]
    bounds = [SLOTS * index // len(shards) for index in range(len(shards) + 1)]
    for index, (primary, *_) in enumerate(shards):
        primary.execute("CLUSTER", "ADDSLOTSRANGE", bounds[index], bounds[index + 1] - 1)
    for epoch, node in enumerate(nodes, start=1):
        # Distinct from the start: two nodes with one epoch settle it between them, which takes its time.
        node.execute("CLUSTER", "SET-CONFIG-EPOCH", epoch)
    first, *others = nodes
    for node in others:
        first.execute("CLUSTER", "MEET", LOOPBACK, node.port, node.bus_port)
    until(lambda: _have_met(nodes), "the nodes of the cluster to meet", _MEET_SECONDS)
    for primary, *replicas in shards:
        for replica in replicas:
            replica.execute("CLUSTER", "REPLICATE", primary.id)


def _have_met(nodes: Sequence[ValkeyNode]) -> bool:
    views = [[view for view in node.view() if not view.is_doubted] for node in nodes]
    return all(len(view) == len(nodes) for view in views)
