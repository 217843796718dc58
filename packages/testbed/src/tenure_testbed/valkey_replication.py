"""Replication between two Valkey servers: following, and having caught up."""

from tenure_testbed.errors import StatementError
from tenure_testbed.ports import LOOPBACK
from tenure_testbed.process import until
from tenure_testbed.resp import post
from tenure_testbed.valkey import ValkeyServer

# A full copy of a few keys takes a tenth of a second; a link that is made anew is tried once a second.
CATCH_UP_SECONDS = 30.0
_MORE_REPLICAS = 1000

# Settings of servers that replicate: a new replica is served at once and takes its copy from the socket, for which
# Valkey takes a second by way of the disk; and one that was away for a while needs what it missed and no whole copy.
REPLICATION = {"repl-diskless-sync-delay": "0", "repl-diskless-load": "swapdb", "repl-backlog-size": "64mb"}


def is_primary(server: ValkeyServer) -> bool:
    """Whether the server says that it is a primary."""
    return server.info("replication")["role"] == "master"


def is_linked(replica: ValkeyServer) -> bool:
    """Whether the server follows another and its link is up, with no copy under way."""
    fields = replica.info("replication")
    return fields.get("master_link_status") == "up" and fields.get("master_sync_in_progress") == "0"


def await_caught_up(primary: ValkeyServer, replica: ValkeyServer, timeout: float = CATCH_UP_SECONDS) -> None:
    """
    Wait until a replica has what its primary has written so far.

    Args:
        primary: The server that is followed.
        replica: The server that follows.
        timeout: Seconds.

    Raises:
        NotReachedError: It had not within `timeout`.
    """
    until(lambda: _linked_to(primary, replica), f"{replica.name} to follow {primary.name}", timeout)
    # A link that is up may carry nothing yet: after a whole copy the primary holds the stream back until it hears
    # of the replica again, up to a second. So something is sent down the stream: a wait for more replicas than
    # there are has the primary ask them all how far they are.
    before = _written(primary)
    post(LOOPBACK, primary.port, "WAIT", _MORE_REPLICAS, 1)
    until(lambda: _written(primary) > before, f"{primary.name} to ask its replicas how far they are", timeout)
    written = _written(primary)
    until(
        lambda: int(replica.info("replication").get("slave_repl_offset", "-1")) >= written,
        f"{replica.name} to have what {primary.name} has",
        timeout,
    )


def _written(primary: ValkeyServer) -> int:
    return int(primary.info("replication")["master_repl_offset"])


def _linked_to(primary: ValkeyServer, replica: ValkeyServer) -> bool:
    try:
        ours, theirs = primary.info("replication"), replica.info("replication")
    except (OSError, StatementError):
        return False
    # The offsets of two histories cannot be compared: after a promotion the old primary has another one.
    return is_linked(replica) and ours["master_replid"] == theirs["master_replid"]


def follow(replica: ValkeyServer, host: str, port: int) -> None:
    """
    Have a server follow what answers at an address, now if it runs, and from every later start on.

    Args:
        replica: The server.
        host: Address of the primary, or of a proxy in front of it.
        port: Port.
    """
    replica.configure_start({"replicaof": f"{host} {port}"})
    if replica.running:
        replica.execute("REPLICAOF", host, port)


def lead(server: ValkeyServer) -> None:
    """Have a server follow nobody, now if it runs, and from every later start on."""
    replica_of_nobody = {"replicaof": "no one"}
    server.configure_start(replica_of_nobody)
    if server.running:
        server.execute("REPLICAOF", "NO", "ONE")
