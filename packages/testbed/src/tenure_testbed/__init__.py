"""
Real servers on loopback, from wheels, and faults for them.

For the tests, the demonstration and the benchmarks of tenure. It knows nothing of tenure and is not published.
"""

from tenure_testbed.errors import (
    NotReachedError,
    PortTakenError,
    ServerError,
    ServerStartError,
    ServerUnavailableError,
    StatementError,
)
from tenure_testbed.faultproxy import FaultProxy, ThreadedFaultProxy
from tenure_testbed.faults import (
    Blackhole,
    Counters,
    Delay,
    DropReply,
    Faults,
    Limit,
    Mode,
    Pass,
    Reset,
    Slice,
)
from tenure_testbed.lifecycle import Lifecycle
from tenure_testbed.output import Line, Output
from tenure_testbed.pgbouncer import PgBouncer
from tenure_testbed.ports import free_port
from tenure_testbed.postgres import PostgresServer
from tenure_testbed.postgres_access import PostgresAccess
from tenure_testbed.postgres_pair import PostgresPair
from tenure_testbed.replicas import Replica, ReplicaGroup
from tenure_testbed.sentinel import Sentinel
from tenure_testbed.server import Server
from tenure_testbed.slot_migration import OpenSlot
from tenure_testbed.valkey import RedisServer, ValkeyServer
from tenure_testbed.valkey_cluster import ValkeyCluster
from tenure_testbed.valkey_node import ValkeyNode
from tenure_testbed.valkey_pair import ValkeyPair
from tenure_testbed.valkey_sentinel import ValkeySentinel

__all__ = [
    "Blackhole",
    "Counters",
    "Delay",
    "DropReply",
    "FaultProxy",
    "Faults",
    "Lifecycle",
    "Limit",
    "Line",
    "Mode",
    "NotReachedError",
    "OpenSlot",
    "Output",
    "Pass",
    "PgBouncer",
    "PortTakenError",
    "PostgresAccess",
    "PostgresPair",
    "PostgresServer",
    "RedisServer",
    "Replica",
    "ReplicaGroup",
    "Reset",
    "Sentinel",
    "Server",
    "ServerError",
    "ServerStartError",
    "ServerUnavailableError",
    "Slice",
    "StatementError",
    "ThreadedFaultProxy",
    "ValkeyCluster",
    "ValkeyNode",
    "ValkeyPair",
    "ValkeySentinel",
    "ValkeyServer",
    "free_port",
]
