import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tenure import ConfigurationError, Locks
from tenure.store import Finding
from tenure_testbed import ValkeyCluster, ValkeyServer
from tenure_testbed.pytest_plugin import or_skip
from tenure_testbed.valkey_pair import ValkeyPair
from tenure_valkey import Script, UnreadableReplyError, ValkeyLockStore

COMMANDS = ("get", "set", "pttl", "pexpire", "pexpireat", "time", "info", "pubsub|numsub", "publish", "subscribe")
RIGHTS = ("~locks:*", "&locks:*", "+evalsha", "+eval", "+script|load", *(f"+{command}" for command in COMMANDS))
OpenStore = Callable[..., ValkeyLockStore]


async def findings(store: ValkeyLockStore) -> dict[str, Finding]:
    found = list(await store.check())
    assert len({finding.code for finding in found}) == len(found)
    return {finding.code: finding for finding in found}


@pytest.fixture
def as_user(valkey_server: ValkeyServer, valkey_url: str, open_store: OpenStore) -> Callable[..., ValkeyLockStore]:
    """Open a store as a user without some of the rights."""

    def opened(*without: str, client: str = "redis") -> ValkeyLockStore:
        valkey_server.add_user("shop", "secret", *(rule for rule in RIGHTS if rule not in without))
        return open_store(valkey_server.url(user="shop"), client=client)

    return opened


async def test_a_sound_server_is_found_sound(valkey_url: str, open_store: OpenStore, client: str) -> None:
    assert await findings(open_store(valkey_url, client=client)) == {}


async def test_a_user_with_every_right_is_found_sound(as_user: Any) -> None:
    assert await findings(as_user()) == {}


async def test_a_user_who_may_not_run_time_is_fatal(as_user: Any) -> None:
    store = as_user("+time")
    found = await findings(store)
    assert list(found) == ["time-refused"]
    assert found["time-refused"].fatal
    assert "ACL SETUSER" in found["time-refused"].remedy
    with pytest.raises(Exception, match="ACL failure in script"):
        await store.acquire("job", "owner", 1000)


async def test_the_start_fails_where_time_is_refused_and_does_not_where_it_is_not_asked_for(as_user: Any) -> None:
    store = as_user("+time")
    with pytest.raises(ConfigurationError, match="time-refused"):
        async with Locks(store, ttl=30):
            pass
    async with Locks(store, ttl=30, startup_check=False):
        pass


@pytest.mark.parametrize("right", ["get", "set", "pttl", "pexpire", "pexpireat"])
async def test_each_other_right_that_is_missing_is_named(as_user: Any, right: str) -> None:
    found = await findings(as_user(f"+{right}"))
    assert list(found) == ["rights"]
    assert found["rights"].fatal
    assert right.upper() in found["rights"].message


@pytest.mark.parametrize("right", ["publish", "subscribe", "pubsub|numsub", "&locks:*"])
async def test_channels_that_are_refused_are_found_and_not_fatal(as_user: Any, right: str) -> None:
    store = as_user(right if right.startswith("&") else f"+{right}")
    found = await findings(store)
    assert list(found) == ["channels-refused"]
    assert not found["channels-refused"].fatal
    assert ("PUBLISH" in found["channels-refused"].message) == (right in ("publish", "&locks:*"))
    assert "&locks:* " in found["channels-refused"].remedy
    assert " +pubsub|numsub " in found["channels-refused"].remedy
    async with Locks(store, ttl=30):
        pass


async def test_sharded_channels_that_are_refused_are_found(
    valkey_cluster: ValkeyCluster, open_store: OpenStore, client: str
) -> None:
    enough = ("+cluster|slots", "+command", "+ping", "+client|setname")
    for given, codes in (
        (("+publish", "+subscribe"), ["channels-refused"]),
        (("+spublish", "+ssubscribe", "+sunsubscribe", "+pubsub|shardnumsub"), []),
    ):
        valkey_cluster.add_user("shop", "secret", *RIGHTS[:-2], *enough, *given)
        store = open_store(valkey_cluster.url().replace("://", "://shop:secret@"), client=client)
        assert list(await findings(store)) == codes


async def test_a_prefix_outside_the_user_s_keys_is_found(
    valkey_server: ValkeyServer, valkey_url: str, open_store: OpenStore
) -> None:
    valkey_server.add_user("shop", "secret", *RIGHTS)
    found = await findings(open_store(valkey_server.url(user="shop"), client="redis", prefix="other:"))
    assert "GET, PEXPIRE, PEXPIREAT, PTTL, SET on keys that begin with 'other:'" in found["rights"].message
    assert list(found) == ["rights", "channels-refused"]


async def test_what_info_would_tell_is_unknown_without_the_right_to_it(as_user: Any) -> None:
    found = await findings(as_user("+info"))
    assert list(found) == ["info-refused"]
    assert not found["info-refused"].fatal


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl", "volatile-lru"])
async def test_a_server_that_evicts_is_found(own_valkey: ValkeyServer, open_store: OpenStore, policy: str) -> None:
    own_valkey.configure({"maxmemory-policy": policy})
    found = await findings(open_store(own_valkey.url(), client="redis"))
    assert list(found) == ["eviction"]
    assert policy in found["eviction"].message
    assert not found["eviction"].fatal


async def test_a_replica_is_found_and_strict_refuses_it(open_store: OpenStore, client: str) -> None:
    with or_skip():
        pair = await asyncio.to_thread(ValkeyPair().__enter__)
    try:
        store = open_store(pair.replica.url(), client="redis")
        found = await findings(store)
        assert list(found) == ["replica"]
        assert not found["replica"].fatal
        with pytest.raises(ConfigurationError, match="replica"):
            async with Locks(store, ttl=30, startup_check="strict"):
                pass
        with pytest.raises(Exception, match=r"read only|READONLY"):
            await store.acquire("job", "owner", 1000)
    finally:
        await asyncio.to_thread(pair.close)


async def test_every_primary_of_a_cluster_is_looked_at(
    own_valkey_cluster: ValkeyCluster, open_store: OpenStore, client: str
) -> None:
    store = open_store(own_valkey_cluster.url(), client=client)
    assert await findings(store) == {}
    odd = own_valkey_cluster.primary_of(1)
    odd.configure({"maxmemory-policy": "allkeys-lru"})
    found = await findings(store)
    assert list(found) == ["eviction"]
    assert f"(On 127.0.0.1:{odd.port}; 2 other primaries are well.)" in found["eviction"].message
    for node in own_valkey_cluster.primaries:
        node.configure({"maxmemory-policy": "allkeys-lru"})
    assert "On 127" not in (await findings(store))["eviction"].message, "it is the same everywhere"


async def test_a_client_of_one_server_at_a_cluster_is_found(
    valkey_cluster: ValkeyCluster, open_store: OpenStore, client: str
) -> None:
    found = await findings(open_store(valkey_cluster.primary_of(0).url(), client=client))
    assert list(found) == ["cluster-mode"]


class Tells:
    """A runner whose server tells what no server at hand does."""

    def __init__(self, info: str | None, missing: list[str] | None = None) -> None:
        self._reply = [missing or [], info]

    async def run(self, script: Script, keys: Any, args: Any) -> Any:
        return self._reply


@pytest.mark.parametrize(
    ("info", "fatal"),
    [
        ("redis_version:6.2.14", True),
        ("redis_version:7.0.0", None),
        ("redis_version:8.2.1", None),
        ("redis_version:7.2.4\r\nvalkey_version:7.1.9", True),
        ("redis_version:7.2.4\r\nvalkey_version:7.2.0", None),
        ("redis_version:7.2.4\r\nvalkey_version:9.1.2", None),
        ("redis_version:unknown", False),
    ],
)
async def test_versions(info: str, fatal: bool | None) -> None:
    lines = f"# Server\r\n{info}\r\nrole:master\r\nmaxmemory_policy:noeviction\r\n"
    found = await findings(ValkeyLockStore(Tells(lines)))
    assert [finding.fatal for finding in found.values()] == ([] if fatal is None else [fatal])


async def test_a_server_that_hides_its_policy_is_found() -> None:
    found = await findings(ValkeyLockStore(Tells("redis_version:7.4.0\r\nrole:master\r\n")))
    assert list(found) == ["eviction-unknown"]


async def test_a_reply_that_cannot_be_read_is_an_error() -> None:
    store = ValkeyLockStore(Tells(None))
    store._runner._reply = 7  # type: ignore[attr-defined]  # that is the point
    with pytest.raises(UnreadableReplyError):
        await store.check()
