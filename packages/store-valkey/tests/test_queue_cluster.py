"""The queue in a cluster: a channel in the lock's slot, a connection a node, slots that move, primaries that change."""

import asyncio
import itertools
import secrets
from collections.abc import Awaitable, Callable

import pytest
from redis.asyncio import Connection

from tenure.store import Acquired, Held
from tenure_testbed import ValkeyCluster
from tenure_valkey import Script, ValkeyLockStore, lock_store
from tenure_valkey.channels import Channels

OpenStore = Callable[..., ValkeyLockStore]
Until = Callable[..., Awaitable[None]]

SLOW_BY_GLIDE = pytest.mark.parametrize("client", [pytest.param("glide", marks=pytest.mark.matrix), "redis"])
"""glide takes up to three seconds to subscribe again."""


@pytest.fixture
async def store(valkey_cluster_url: str, open_store: OpenStore, client: str) -> ValkeyLockStore:
    return open_store(valkey_cluster_url, client=client, timeout="5s")


def key_on(cluster: ValkeyCluster, shard: int) -> str:
    """A key whose lock lives on *shard*."""
    for number in itertools.count():
        key = f"job-{secrets.token_hex(4)}-{number}"
        if cluster.shard_of(cluster.slot_of(f"locks:{{{key}}}")) == shard:
            return key
    raise AssertionError


async def wait_for(store: ValkeyLockStore, key: str) -> None:
    """Stand in the queue of *key*, which "holder" has."""
    assert isinstance(await store.acquire(key, "holder", 60_000), Acquired)
    assert isinstance(await store.acquire_queued(key, "waiter", 60_000, 60_000), Held)


async def is_told(store: ValkeyLockStore, key: str) -> bool:
    """Whether a release is heard of by who waits."""
    assert await store.release(key, "holder")
    heard = asyncio.create_task(store.granted(key, "waiter"))
    await asyncio.wait([heard], timeout=1)
    told = heard.done()
    heard.cancel()
    return told


async def polls_until_it_has_the_key(store: ValkeyLockStore, key: str, until_s: float = 5.0) -> Acquired:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + until_s
    while isinstance(reply := await store.acquire_queued(key, "waiter", 60_000, 60_000), Held):
        assert loop.time() < deadline
        await asyncio.sleep(0.02)
    return reply


async def test_waiters_on_every_shard_are_told_on_one_connection_a_node(
    store: ValkeyLockStore, valkey_cluster: ValkeyCluster, until: Until
) -> None:
    def listeners() -> list[int]:
        return [
            str(primary.execute("CLIENT", "LIST", "TYPE", "pubsub")).count("id=")
            for primary in valkey_cluster.primaries
        ]

    # Whoever listened in a test before has closed its store, and a node hears of that a moment later.
    await until(lambda: listeners() == [0, 0, 0], "earlier tests to be over")
    keys = [key_on(valkey_cluster, shard) for shard in (0, 1, 2) * 4]
    for key in keys:
        await wait_for(store, key)
    assert listeners() == [1, 1, 1]
    assert await asyncio.gather(*(is_told(store, key) for key in keys)) == [True] * 12


async def test_a_lock_that_is_waited_for_is_released_at_every_stage_of_its_slot_s_migration(
    store: ValkeyLockStore, valkey_cluster: ValkeyCluster
) -> None:
    """It goes to the waiter or to nobody: it is free then, and the waiter's poll finds it."""
    for moved in (0, 1, 2):
        key = key_on(valkey_cluster, 0)
        lock = f"locks:{{{key}}}"
        await wait_for(store, key)
        first = await store.acquire(key, "holder", 60_000)
        assert isinstance(first, Acquired)
        with valkey_cluster.open_slot(valkey_cluster.slot_of(lock), 1) as slot:
            for name in (f"{lock}:fence", lock)[:moved]:
                assert slot.move(name) == 1
            assert await store.renew(key, "holder", 60_000)
            assert await store.release(key, "holder")
        granted = await polls_until_it_has_the_key(store, key)
        assert granted.token > first.token
        assert granted.after == "released"
        assert await store.release(key, "waiter")


@SLOW_BY_GLIDE
async def test_after_a_slot_has_moved_a_waiter_is_told_again_from_its_next_poll_on(
    store: ValkeyLockStore, valkey_cluster: ValkeyCluster
) -> None:
    key = key_on(valkey_cluster, 1)
    slot = valkey_cluster.slot_of(f"locks:{{{key}}}")
    await wait_for(store, key)
    await asyncio.to_thread(valkey_cluster.migrate_slot_atomically, slot, 2)
    await _is_told_in_the_end(store, key)


@SLOW_BY_GLIDE
async def test_after_a_planned_failover_a_waiter_is_told_again_from_a_later_poll_on(
    store: ValkeyLockStore, valkey_cluster: ValkeyCluster
) -> None:
    key = key_on(valkey_cluster, 2)
    await wait_for(store, key)
    await asyncio.to_thread(valkey_cluster.failover, 2)
    await _is_told_in_the_end(store, key)


_PUBLISHED_FIRST = (
    "if listeners[2] > 0 then",
    "if redis.call('SPUBLISH', channel, granted .. '\\0' .. owner .. '\\0' .. KEYS[1]) > 0 then",
)


@pytest.mark.parametrize("planted", [False, True], ids=["sound", "planted"])
async def test_who_listens_at_a_replica_hears_of_no_grant_that_went_on_to_the_next(  # noqa: PLR0917 -- fixtures
    valkey_cluster: ValkeyCluster,
    valkey_cluster_url: str,
    open_store: OpenStore,
    until: Until,
    planted: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As of who waited when its primary became a replica: it is not counted where a release publishes, and hears."""
    key = key_on(valkey_cluster, 1)
    lock = f"locks:{{{key}}}".encode()
    first, second = (open_store(valkey_cluster_url, client="redis") for _ in range(2))
    await wait_for(first, key)
    primary, replica = valkey_cluster.primary_of(1), valkey_cluster.replica_of(1)
    while not all(f"\0{who}\0" in str(primary.execute("GET", lock.decode())) for who in ("waiter", "second")):
        # On a slow machine a channel is opened too late for the first call that wants one.
        for store, who in ((first, "waiter"), (second, "second")):
            assert isinstance(await store.acquire_queued(key, who, 60_000, 60_000), Held)
    channel = first._channels._name(lock).decode()
    await first.aclose()
    await until(lambda: not primary.execute("PUBSUB", "SHARDNUMSUB", channel)[1], "the server to notice")
    sound, broken = _PUBLISHED_FIRST
    source = lock_store._RELEASE.source
    assert source.count(sound) == 1, "the script was changed: plant the bug anew"
    if planted:
        monkeypatch.setattr(lock_store, "_RELEASE", Script("release", source.replace(sound, broken)))
    at_replica = Connection(port=replica.port, socket_timeout=10, protocol=2)
    await at_replica.send_command("SSUBSCRIBE", channel)
    assert (await at_replica.read_response())[0] == b"ssubscribe"
    assert await second.release(key, "holder")
    assert await second.renew(key, "second", 60_000)
    primary.execute("SPUBLISH", channel, "the next word")
    heard = (await at_replica.read_response())[-1]
    await at_replica.disconnect()
    assert (heard == b"the next word") != planted


@pytest.mark.matrix
async def test_planted_a_store_that_counts_no_listeners_is_passed_over_from_a_planned_failover_on(
    valkey_cluster: ValkeyCluster, valkey_cluster_url: str, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """glide stays subscribed at what is a replica now."""
    monkeypatch.setattr(Channels, "counted", lambda *_: None)
    store = open_store(valkey_cluster_url, client="glide", timeout="5s")
    key = key_on(valkey_cluster, 0)
    await wait_for(store, key)
    await asyncio.to_thread(valkey_cluster.failover, 0)
    with pytest.raises(AssertionError, match="no release was heard of"):
        await _is_told_in_the_end(store, key, within_s=5.0)


async def _is_told_in_the_end(store: ValkeyLockStore, key: str, within_s: float = 10.0) -> None:
    """Every release frees the key or grants it; within some polls (glide connects anew) it grants it again."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within_s
    while True:
        # A poll, which teaches the client where the slot is.
        assert isinstance(await store.acquire_queued(key, "waiter", 60_000, 60_000), Held)
        told = await is_told(store, key)
        await polls_until_it_has_the_key(store, key)
        await store.release(key, "waiter")
        if told:
            return
        assert loop.time() < deadline, "no release was heard of"
        assert isinstance(await store.acquire(key, "holder", 60_000), Acquired)


@pytest.mark.matrix
async def test_a_primary_that_is_killed_takes_nobody_s_turn_for_longer_than_a_poll_after_it_is_back(
    own_valkey_cluster: ValkeyCluster, open_store: OpenStore, client: str, until: Until
) -> None:
    """What is lost with it is asked for again; then releases are heard of on the new primary."""
    store = open_store(own_valkey_cluster.url(), client=client, timeout="1s")
    key = key_on(own_valkey_cluster, 0)
    await wait_for(store, key)
    own_valkey_cluster.primary_of(0).kill()
    loop = asyncio.get_running_loop()
    deadline = loop.time() + 30
    while True:
        try:
            await store.acquire(key, "holder", 60_000)
            break
        except Exception:  # noqa: BLE001 -- whatever the client raises until the replica is promoted
            assert loop.time() < deadline
            await asyncio.sleep(0.1)
    await _is_told_in_the_end(store, key)
