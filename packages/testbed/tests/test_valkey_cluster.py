"""ValkeyCluster: who serves what through failovers, kills and moves of slots, on real servers."""

import re
from collections.abc import Iterator

import pytest

from tenure_testbed import (
    NotReachedError,
    OpenSlot,
    ServerError,
    StatementError,
    ValkeyCluster,
    ValkeyNode,
    free_port,
)
from tenure_testbed.process import until
from tenure_testbed.pytest_plugin import or_skip

pytestmark = pytest.mark.matrix

# Suspicions come early, so that a killed primary is replaced in a second and a half.
NODE_TIMEOUT_MS = 1000
# A stream brings a write over at once, a busy machine allowed for; one that is held back may take a second.
NO_TIME_SECONDS = 0.4
TWO_KEYS = "return redis.call('MGET', KEYS[1], KEYS[2])"


@pytest.fixture(scope="module")
def shared() -> Iterator[ValkeyCluster]:
    with or_skip(), ValkeyCluster(node_timeout_ms=NODE_TIMEOUT_MS) as started:
        yield started


@pytest.fixture
def cluster(shared: ValkeyCluster) -> ValkeyCluster:
    """One cluster for the file, whole again and empty, whatever the test before did to it."""
    shared.restart()
    shared.flush_all()
    return shared


def set_key(cluster: ValkeyCluster, key: str, value: str) -> None:
    cluster.owner_of(cluster.slot_of(key)).execute("SET", key, value)


def get_key(cluster: ValkeyCluster, key: str) -> object:
    return cluster.owner_of(cluster.slot_of(key)).execute("GET", key)


def key_of(cluster: ValkeyCluster, shard: int) -> str:
    """A key that the shard has."""
    return next(f"k{n}" for n in range(100) if cluster.shard_of(cluster.slot_of(f"k{n}")) == shard)


def addressed(cluster: ValkeyCluster, key: str) -> set[int]:
    """The port that each live node sends a client to that wants to write the key."""
    return {_addressed_by(node, key) for node in cluster.live_nodes}


def _addressed_by(node: ValkeyNode, key: str) -> int:
    try:
        node.execute("SET", key, "here")
    except StatementError as error:
        moved = re.search(r"MOVED \d+ 127.0.0.1:(\d+)$", str(error))
        if moved is None:
            raise
        return int(moved[1])
    return node.port


# ------------------------------------------------------------------------------------------- who is who


def test_every_node_is_one_that_was_started_here(cluster: ValkeyCluster) -> None:
    for node in cluster.nodes:
        assert node.info("server")["process_id"] == str(node.pid)
    ports = [node.port for node in cluster.nodes] + [node.bus_port for node in cluster.nodes]
    assert len(set(ports)) == 12


def test_three_primaries_share_the_slots_and_each_has_a_replica(cluster: ValkeyCluster) -> None:
    assert len(set(cluster.primaries)) == 3
    for shard, primary in enumerate(cluster.primaries):
        replica = cluster.replica_of(shard)
        assert {primary, replica} == set(cluster.members(shard))
        assert replica.view_of_itself().follows == primary.id
    assert [cluster.shard_of(slot) for slot in (0, 5460, 5462, 10921, 10923, 16383)] == [0, 0, 1, 1, 2, 2]


def test_every_node_sends_a_client_to_the_owner_of_the_slot(cluster: ValkeyCluster) -> None:
    for key in ("a", "b", "{tag}1", "c{}d", "k{{x}}"):
        slot = cluster.slot_of(key)
        assert cluster.nodes[0].execute("CLUSTER", "KEYSLOT", key) == slot
        assert addressed(cluster, key) == {cluster.owner_of(slot).port}


def test_its_addresses_are_those_of_its_nodes(cluster: ValkeyCluster) -> None:
    ports = [node.port for node in cluster.nodes]
    assert cluster.startup_nodes == [("127.0.0.1", port) for port in ports]
    assert cluster.url() == "valkey+cluster://" + ",".join(f"127.0.0.1:{port}" for port in ports)
    assert cluster.url("redis", seeds=1) == f"redis://127.0.0.1:{ports[0]}"


def test_a_shard_that_does_not_exist_is_an_error(cluster: ValkeyCluster) -> None:
    for shard in (-1, 3):
        with pytest.raises(ValueError, match=f"Shard {shard} is not one of the 3"):
            cluster.primary_of(shard)


def test_a_bus_port_that_is_taken_is_left_for_another(cluster: ValkeyCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    ports = [cluster.nodes[0].bus_port]
    monkeypatch.setattr("tenure_testbed.valkey_node.free_port", lambda: ports.pop() if ports else free_port())
    other = ValkeyCluster(shards=1, replicas=0).nodes[0]
    with other:
        assert other.bus_port != cluster.nodes[0].bus_port
        bus_port = other.bus_port
        other.restart()
        assert other.bus_port == bus_port, "the others look for it where it was"


# ------------------------------------------------------------------------------------- failovers and kills


@pytest.mark.parametrize("shard", [0, 1, 2])
def test_a_planned_failover_swaps_a_shard_and_loses_nothing(cluster: ValkeyCluster, shard: int) -> None:
    old, replica = cluster.primary_of(shard), cluster.replica_of(shard)
    key = key_of(cluster, shard)
    set_key(cluster, key, "v")
    assert cluster.failover(shard) is replica
    assert cluster.primary_of(shard) is replica
    assert cluster.replica_of(shard) is old
    assert get_key(cluster, key) == "v"
    assert addressed(cluster, key) == {replica.port}, "every node knows it"


def test_failovers_may_follow_each_other_at_once(cluster: ValkeyCluster) -> None:
    before = cluster.primaries
    for _ in range(2):
        for shard in range(3):
            cluster.failover(shard)
    assert cluster.primaries == before


def test_a_killed_primary_is_replaced_and_comes_back_as_a_replica(cluster: ValkeyCluster) -> None:
    slot = cluster.slot_of("k")
    shard = cluster.shard_of(slot)
    successor = cluster.replica_of(shard)
    set_key(cluster, "k", "v")
    cluster.catch_up()
    killed = cluster.kill(shard)
    assert not killed.running
    with pytest.raises(ServerError, match=f"Shard {shard} has no live primary now"):
        cluster.primary_of(shard)
    with pytest.raises(NotReachedError):
        cluster.wait_until_ok(timeout=0.1)
    cluster.wait_until_ok()
    assert cluster.primary_of(shard) is successor
    assert get_key(cluster, "k") == "v"
    with pytest.raises(ServerError, match="no live replica"):
        cluster.replica_of(shard)
    cluster.restart()
    assert cluster.replica_of(shard) is killed
    assert int(str(killed.execute("DBSIZE"))) == 1, "it was empty, and has a copy"


def test_nothing_written_after_a_restart_is_held_back(cluster: ValkeyCluster) -> None:
    # A replica that has just taken a whole copy has its link, and its primary may still hold the stream back.
    for shard in range(3):
        cluster.replica_of(shard).kill()
    cluster.restart()
    for shard in range(3):
        set_key(cluster, key_of(cluster, shard), "v")
    copies = [cluster.replica_of(shard) for shard in range(3)]
    until(lambda: [copy.execute("DBSIZE") for copy in copies] == [1] * 3, "three writes to arrive", NO_TIME_SECONDS)


def test_a_paused_primary_is_replaced_and_learns_of_it(cluster: ValkeyCluster) -> None:
    old = cluster.primary_of(1)
    old.pause()
    cluster.wait_until_ok()
    assert cluster.primary_of(1) is not old
    assert old not in cluster.live_nodes
    cluster.restart()
    assert cluster.replica_of(1) is old


# ------------------------------------------------------------------------------------------ slots that move


def test_an_open_slot_is_served_from_both_ends(cluster: ValkeyCluster) -> None:
    slot = cluster.slot_of("{t}")
    shard = cluster.shard_of(slot)
    for key in ("{t}1", "{t}2", "{t}3"):
        set_key(cluster, key, "v")
    source, target = cluster.owner_of(slot), cluster.primary_of((shard + 1) % 3)
    with cluster.open_slot(slot, (shard + 1) % 3) as opened:
        assert (opened.source, opened.target) == (source, target)
        assert opened.move("{t}2", "{t}none") == 1
        assert sorted(opened.keys()) == ["{t}1", "{t}3"]
        assert source.execute("GET", "{t}1") == "v"
        with pytest.raises(StatementError, match=f"ASK {slot} 127.0.0.1:{target.port}"):
            source.execute("GET", "{t}2")
        with pytest.raises(StatementError, match="TRYAGAIN"):
            source.execute("EVAL", TWO_KEYS, 2, "{t}1", "{t}2")
        assert cluster.owner_of(slot) is source
    assert cluster.owner_of(slot) is target
    assert [target.execute("GET", key) for key in ("{t}1", "{t}2", "{t}3")] == ["v"] * 3
    assert addressed(cluster, "{t}1") == {target.port}


def test_a_slot_is_closed_whatever_happens_while_it_is_open(cluster: ValkeyCluster) -> None:
    slot = cluster.slot_of("k")
    to = (cluster.shard_of(slot) + 1) % 3
    set_key(cluster, "k", "v")
    with pytest.raises(RuntimeError, match="in the middle"), cluster.open_slot(slot, to):
        raise RuntimeError("in the middle")
    assert cluster.shard_of(slot) == to
    assert get_key(cluster, "k") == "v"


def test_keys_are_moved_in_the_order_that_is_asked_for(cluster: ValkeyCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    slot = cluster.slot_of("{t}")
    for n in range(5):
        set_key(cluster, f"{{t}}{n}", str(n))
    seen: list[str] = []
    move = OpenSlot.move

    def recording(opened: OpenSlot, *keys: str) -> int:
        seen.extend(keys)
        return move(opened, *keys)

    monkeypatch.setattr(OpenSlot, "move", recording)
    to = (cluster.shard_of(slot) + 1) % 3
    cluster.migrate_slot(slot, to, keys_first=["{t}4", "{t}2"])
    assert seen[:2] == ["{t}4", "{t}2"]
    assert sorted(seen) == [f"{{t}}{n}" for n in range(5)]
    assert [get_key(cluster, f"{{t}}{n}") for n in range(5)] == list("01234")


def test_a_slot_moves_as_a_whole_and_back(cluster: ValkeyCluster) -> None:
    slot = cluster.slot_of("k")
    home = cluster.shard_of(slot)
    set_key(cluster, "k", "v")
    for to in ((home + 1) % 3, home):
        cluster.migrate_slot_atomically(slot, to)
        assert cluster.shard_of(slot) == to
        assert get_key(cluster, "k") == "v"
        assert addressed(cluster, "k") == {cluster.primary_of(to).port}
        set_key(cluster, "k", "v")


def test_a_slot_that_is_there_already_is_not_moved(cluster: ValkeyCluster) -> None:
    for move in (cluster.migrate_slot, cluster.migrate_slot_atomically):
        with pytest.raises(ValueError, match="served by shard 0 already"):
            move(0, 0)


def test_a_moved_slot_survives_a_failover_of_its_new_shard(cluster: ValkeyCluster) -> None:
    slot = cluster.slot_of("k")
    to = (cluster.shard_of(slot) + 1) % 3
    set_key(cluster, "k", "v")
    cluster.migrate_slot(slot, to)
    cluster.failover(to)
    assert cluster.shard_of(slot) == to
    assert get_key(cluster, "k") == "v"


# --------------------------------------------------------------------------------------------- every node


def test_scripts_are_forgotten_everywhere(cluster: ValkeyCluster) -> None:
    digests = {node: str(node.execute("SCRIPT", "LOAD", TWO_KEYS)) for node in cluster.nodes}
    cluster.script_flush()
    assert [node.execute("SCRIPT", "EXISTS", digest) for node, digest in digests.items()] == [[0]] * 6


def test_keys_are_removed_everywhere(cluster: ValkeyCluster) -> None:
    for n in range(20):
        set_key(cluster, f"k{n}", "v")
    cluster.flush_all()
    assert [node.execute("DBSIZE") for node in cluster.nodes] == [0] * 6


def test_users_and_bounds_hold_on_every_node(cluster: ValkeyCluster) -> None:
    cluster.add_user("guest", "secret", "~a*", "+get")
    assert [node.execute("ACL", "WHOAMI") for node in cluster.nodes] == ["default"] * 6
    assert all("guest" in str(node.execute("ACL", "LIST")) for node in cluster.nodes)
    cluster.set_maxmemory(1)
    try:
        for shard in range(3):
            with pytest.raises(StatementError, match="OOM"):
                set_key(cluster, key_of(cluster, shard), "v")
    finally:
        cluster.set_maxmemory(0)
    set_key(cluster, "k", "v")


def test_a_cluster_of_redis_does_the_same_and_ends_with_everything_it_wrote() -> None:
    with or_skip(), ValkeyCluster(binary="redis-server", node_timeout_ms=NODE_TIMEOUT_MS) as cluster:
        assert cluster.nodes[0].info("server")["redis_version"].startswith("7.")
        cluster.failover(0)
        slot = cluster.slot_of("k")
        set_key(cluster, "k", "v")
        to = (cluster.shard_of(slot) + 1) % 3
        cluster.migrate_slot(slot, to)
        assert get_key(cluster, "k") == "v"
        with pytest.raises(StatementError):
            cluster.migrate_slot_atomically(slot, (to + 1) % 3)
        paths = [node._scratch.path for node in cluster.nodes if node._scratch is not None]
        assert len(paths) == 6
        cluster.nodes[0].pause()
        cluster.close()
        assert not any(path.exists() for path in paths)
        assert not any(node.running for node in cluster.nodes)
