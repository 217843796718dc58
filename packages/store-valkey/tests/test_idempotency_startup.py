"""The start-up check of an idempotency store: what is its own, besides what it shares with the lock store's."""

from collections.abc import Callable
from typing import Any

import pytest

from tenure.store import Finding
from tenure_testbed import ValkeyCluster, ValkeyServer
from tenure_valkey import ValkeyIdempotencyStore

COMMANDS = ("hmget", "hget", "hexists", "hset", "hsetnx", "hdel", "del", "pttl", "pexpire")
RIGHTS = ("~idem:*", "+evalsha", "+eval", "+script|load", "+info", *(f"+{command}" for command in COMMANDS))

OpenRecords = Callable[..., ValkeyIdempotencyStore]


async def findings(store: ValkeyIdempotencyStore) -> dict[str, Finding]:
    return {finding.code: finding for finding in await store.check()}


@pytest.fixture
def as_user(valkey_server: ValkeyServer, valkey_url: str, open_records: OpenRecords) -> OpenRecords:
    """Open a store as a user without some of the rights."""

    def opened(*without: str, **options: Any) -> ValkeyIdempotencyStore:
        valkey_server.add_user("shop", "secret", *(rule for rule in RIGHTS if rule not in without))
        return open_records(valkey_server.url(user="shop"), client="redis", **options)

    return opened


async def test_a_sound_server_is_found_sound_and_nothing_is_written(
    valkey_server: ValkeyServer, valkey_url: str, open_records: OpenRecords, client: str
) -> None:
    assert await findings(open_records(valkey_url, client=client)) == {}
    assert valkey_server.execute("DBSIZE") == 0


async def test_a_user_who_may_not_run_time_is_found_sound(as_user: OpenRecords) -> None:
    """No script of the records asks what time it is."""
    assert await findings(as_user()) == {}


@pytest.mark.parametrize("right", COMMANDS)
async def test_each_right_that_is_missing_is_named_and_fatal(as_user: OpenRecords, right: str) -> None:
    found = await findings(as_user(f"+{right}"))
    assert list(found) == ["rights"]
    assert found["rights"].fatal
    assert f" {right.upper()} on keys" in found["rights"].message
    assert f"ACL SETUSER <user> ~idem:* +evalsha +eval +script|load +{' +'.join(COMMANDS)} +info" in (
        found["rights"].remedy
    )


async def test_a_prefix_outside_the_user_s_keys_is_found(as_user: OpenRecords) -> None:
    found = await findings(as_user(prefix="other:"))
    assert "HMGET" in found["rights"].message
    assert "keys that begin with 'other:'" in found["rights"].message


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
async def test_a_server_that_evicts_is_found(own_valkey: ValkeyServer, open_records: OpenRecords, policy: str) -> None:
    own_valkey.configure({"maxmemory-policy": policy})
    found = await findings(open_records(own_valkey.url(), client="redis"))
    assert list(found) == ["eviction"]
    assert f"{policy}: a record that is evicted lets its request run a second time." in found["eviction"].message
    assert not found["eviction"].fatal


async def test_an_evicted_record_lets_its_request_run_again(own_valkey: ValkeyServer, open_records: Any) -> None:
    """What the finding warns of, seen: a server that is full throws a completed record away."""
    store = open_records(own_valkey.url(), client="redis")
    await store.acquire("order", "first", "cats", 60_000, 60_000)
    await store.complete("order", "first", b"made", 3_600_000)
    own_valkey.set_maxmemory(1, policy="allkeys-lru")
    with pytest.raises(Exception, match=r"OOM|maxmemory"):
        await store.acquire("filler", "x", "cats", 1000, 1000)
    own_valkey.set_maxmemory(0)
    reply = await store.acquire("order", "second", "cats", 60_000, 60_000)
    assert type(reply).__name__ == "Acquired"


async def test_every_primary_of_a_cluster_is_looked_at(
    own_valkey_cluster: ValkeyCluster, open_records: OpenRecords, client: str
) -> None:
    store = open_records(own_valkey_cluster.url(), client=client)
    assert await findings(store) == {}
    odd = own_valkey_cluster.primary_of(1)
    odd.configure({"maxmemory-policy": "allkeys-lru"})
    assert f"(On 127.0.0.1:{odd.port}; 2 other primaries are well.)" in (await findings(store))["eviction"].message
