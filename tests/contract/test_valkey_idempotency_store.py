"""The contract of an idempotency store, on Valkey and Redis: one server, a cluster, Sentinel; glide and two others."""

import asyncio
from collections.abc import Callable
from typing import Any

import glide
import pytest
import valkey.asyncio

from tenure.idempotency_store import Acquired
from tenure.testing import Case, idempotency_store_contract, run_all
from tenure_testbed import RedisServer, ValkeyCluster, ValkeySentinel, ValkeyServer
from tenure_valkey import (
    GlideRunner,
    RedisRunner,
    ScriptRunner,
    ValkeyIdempotencyStore,
    open_valkey_idempotency_store,
)

CLIENTS = ["glide", "redis"]

Granted = Callable[[str], list[str]]

FEWER_ROUNDS = 6
"""Rounds of each race where the suite runs again by another way."""


def contract(make_store: Any, *, ttl_ms: int = 1000, **options: Any) -> list[Case]:
    # A second: a round trip on loopback takes a few milliseconds, and on a busy machine ten times that.
    return idempotency_store_contract(make_store, concurrent=32, purges=False, ttl_ms=ttl_ms, **options)


async def holds(url: str) -> None:
    """The contract on the store of *url*, whose client all cases share: on a cluster each would look around first."""
    async with open_valkey_idempotency_store(url) as opened:
        await holds_through(opened._runner)


async def holds_through(runner: ScriptRunner) -> None:
    await run_all(contract(lambda: ValkeyIdempotencyStore(runner), rounds=FEWER_ROUNDS))


NAMES = [case.name for case in contract(lambda: None)]


@pytest.mark.parametrize("name", NAMES)
async def test_plain(name: str, valkey_server: ValkeyServer) -> None:
    """Each fact as a test of its own, so that a failure has its name."""
    # One case at a time: a round trip takes less than where ninety run side by side.
    cases = contract(lambda: open_valkey_idempotency_store(valkey_server.url(scheme="valkey")), ttl_ms=600)
    [case] = [one for one in cases if one.name == name]
    await case.run()


@pytest.mark.matrix
@pytest.mark.parametrize("client", CLIENTS)
async def test_on_one_server(client: str, valkey_server: ValkeyServer) -> None:
    await holds(f"{valkey_server.url(scheme='valkey')}?client={client}")


@pytest.mark.matrix
@pytest.mark.parametrize("client", CLIENTS)
async def test_on_redis(client: str, redis_server: RedisServer) -> None:
    await holds(f"{redis_server.url()}?client={client}")


@pytest.mark.matrix
@pytest.mark.parametrize("client", CLIENTS)
async def test_on_a_cluster(client: str, valkey_cluster: ValkeyCluster) -> None:
    await holds(f"{valkey_cluster.url()}?client={client}")


@pytest.mark.matrix
async def test_behind_sentinel(valkey_sentinel: ValkeySentinel) -> None:
    await holds(valkey_sentinel.url())


@pytest.mark.matrix
async def test_through_valkey_py(valkey_server: ValkeyServer) -> None:
    pool = valkey.asyncio.BlockingConnectionPool.from_url(valkey_server.url(), max_connections=40, socket_timeout=5)
    async with valkey.asyncio.Valkey.from_pool(pool) as client:
        await holds_through(RedisRunner(client))


@pytest.mark.matrix
async def test_through_valkey_py_on_redis(redis_server: RedisServer) -> None:
    pool = valkey.asyncio.BlockingConnectionPool.from_url(redis_server.url(), max_connections=40, socket_timeout=5)
    async with valkey.asyncio.Valkey.from_pool(pool) as client:
        await holds_through(RedisRunner(client))


@pytest.mark.matrix
async def test_through_valkey_py_on_a_cluster(valkey_cluster: ValkeyCluster) -> None:
    host, port = valkey_cluster.startup_nodes[0]
    settings: dict[str, Any] = {"socket_timeout": 5, "cluster_error_retry_attempts": 1, "reinitialize_steps": 0}
    async with valkey.asyncio.ValkeyCluster(host=host, port=port, **settings) as client:
        await holds_through(RedisRunner(client))


@pytest.mark.matrix
async def test_through_glide_clients_of_the_applications_own(valkey_server: ValkeyServer) -> None:
    address = glide.NodeAddress("127.0.0.1", valkey_server.port)
    client = await glide.GlideClient.create(glide.GlideClientConfiguration([address], request_timeout=2000))
    try:
        await holds_through(GlideRunner(client))
    finally:
        await client.close()


async def test_across_restarts_of_a_server_that_keeps_its_data(own_valkey: ValkeyServer) -> None:
    own_valkey.configure_start({"appendonly": "yes", "appendfsync": "always"})
    await asyncio.to_thread(own_valkey.restart)
    cases = contract(
        lambda: open_valkey_idempotency_store(own_valkey.url(scheme="valkey")),
        restart=lambda: asyncio.to_thread(own_valkey.restart),
    )
    restarts = [case for case in cases if "restart" in case.name]
    assert restarts
    await run_all(restarts)


# --------------------------------------------------------------------- as a user with what the README grants


@pytest.mark.matrix
@pytest.mark.parametrize("server", ["valkey", "redis"])
@pytest.mark.parametrize(
    ("client", "title"), [("glide", "glide: one server"), ("redis", "redis-py: one server, Sentinel")]
)
async def test_as_the_user_of_the_readme(
    server: str, client: str, title: str, request: pytest.FixtureRequest, granted: Granted
) -> None:
    one: ValkeyServer = request.getfixturevalue(f"{server}_server")
    one.add_user("shop", "secret", *granted(f"records, {title}"))
    async with open_valkey_idempotency_store(f"{one.url(user='shop')}?client={client}") as store:
        assert not await store.check()
    await holds(f"{one.url(user='shop')}?client={client}")


@pytest.mark.matrix
@pytest.mark.parametrize(("client", "title"), [("glide", "glide: cluster"), ("redis", "redis-py: cluster")])
async def test_as_the_user_of_the_readme_on_a_cluster(
    client: str, title: str, valkey_cluster: ValkeyCluster, granted: Granted
) -> None:
    valkey_cluster.add_user("shop", "secret", *granted(f"records, {title}"))
    url = valkey_cluster.url().replace("://", "://shop:secret@")
    async with open_valkey_idempotency_store(f"{url}?client={client}") as store:
        assert not await store.check()
    await holds(f"{url}?client={client}")


@pytest.mark.matrix
async def test_as_the_user_of_the_readme_behind_sentinel(valkey_sentinel: ValkeySentinel, granted: Granted) -> None:
    valkey_sentinel.add_user("shop", "secret", *granted("records, redis-py: one server, Sentinel"))
    await holds(valkey_sentinel.url().replace("://", "://shop:secret@"))


@pytest.mark.parametrize("right", ["hmget", "hget", "hexists", "hset", "hsetnx", "hdel", "del", "pttl", "pexpire"])
async def test_no_right_of_the_readme_is_too_many(right: str, valkey_server: ValkeyServer, granted: Granted) -> None:
    rules = [rule for rule in granted("records, redis-py: one server, Sentinel") if rule != f"+{right}"]
    valkey_server.add_user("shop", "secret", *rules)
    async with open_valkey_idempotency_store(f"{valkey_server.url(user='shop')}?client=redis") as store:
        [finding] = await store.check()
        assert (finding.code, finding.fatal) == ("rights", True)
        with pytest.raises(Exception, match="ACL failure in script"):
            await everything(store)


async def everything(store: ValkeyIdempotencyStore) -> None:
    """Go through every line of the scripts but that of a record in its last millisecond."""
    await store.acquire("first", "one", "cats", 60_000, 60_000)
    await store.complete("first", "one", b"made", 60_000)
    await store.acquire("first", "two", "cats", 60_000, 60_000)
    await store.acquire("second", "one", "cats", 60_000, 60_000)
    await store.extend("second", "one", 60_000)
    await store.release("second", "one")
    await store.acquire("third", "one", "cats", 1, 60_000)
    while not isinstance(await store.acquire("third", "two", "cats", 60_000, 60_000), Acquired):
        pass
    await store.release("third", "two")
