"""The contract of a lock store, on Valkey and Redis: one server, a cluster, Sentinel; glide, redis-py, valkey-py."""

import asyncio
from collections.abc import Callable
from typing import Any

import glide
import pytest
import valkey.asyncio

from tenure.store import ChecksServer, ListsLocks, QueuesWaiters, RenewsMany
from tenure.testing import Case, lock_store_contract, run_all
from tenure_testbed import RedisServer, ValkeyCluster, ValkeySentinel, ValkeyServer
from tenure_valkey import (
    GlideRunner,
    RedisRunner,
    ScriptRunner,
    ValkeyLockStore,
    create_redis_client,
    open_valkey_store,
)

CAPABILITIES = (RenewsMany, ListsLocks, ChecksServer, QueuesWaiters)
CLIENTS = ["glide", "redis"]

Granted = Callable[[str], list[str]]

FEWER_ROUNDS = 6
"""Rounds of each race where the suite runs again by another way."""


def contract(make_store: Any, *, ttl_ms: int = 1000, **options: Any) -> list[Case]:
    # A second: a round trip on loopback takes a few milliseconds, and on a busy machine ten times that.
    return lock_store_contract(make_store, concurrent=32, capabilities=CAPABILITIES, ttl_ms=ttl_ms, **options)


async def holds(url: str) -> None:
    """The contract on the store of *url*, whose client all cases share: on a cluster each would look around first."""
    async with open_valkey_store(url) as opened:
        await holds_through(opened._runner)


async def holds_through(runner: ScriptRunner) -> None:
    await run_all(contract(lambda: ValkeyLockStore(runner), rounds=FEWER_ROUNDS))


NAMES = [case.name for case in contract(lambda: None)]


@pytest.mark.parametrize("name", NAMES)
async def test_plain(name: str, valkey_server: ValkeyServer) -> None:
    """Each fact as a test of its own, so that a failure has its name."""
    store = open_valkey_store(valkey_server.url(scheme="valkey"))
    # One case at a time: a round trip takes less than where eighty run side by side.
    [case] = [one for one in contract(lambda: store, ttl_ms=600) if one.name == name]
    await case.run()


@pytest.mark.parametrize("client", CLIENTS)
async def test_on_one_server(client: str, valkey_server: ValkeyServer) -> None:
    await holds(f"{valkey_server.url(scheme='valkey')}?client={client}")


@pytest.mark.matrix
@pytest.mark.parametrize("client", CLIENTS)
async def test_on_redis(client: str, redis_server: RedisServer) -> None:
    await holds(f"{redis_server.url()}?client={client}")


@pytest.mark.parametrize("client", CLIENTS)
async def test_on_a_cluster(client: str, valkey_cluster: ValkeyCluster) -> None:
    await holds(f"{valkey_cluster.url()}?client={client}")


@pytest.mark.matrix
async def test_behind_sentinel(valkey_sentinel: ValkeySentinel) -> None:
    await holds(valkey_sentinel.url())


@pytest.mark.matrix
async def test_behind_sentinel_through_a_glide_client_at_the_primary(valkey_sentinel: ValkeySentinel) -> None:
    """Sentinel is redis-py's; a glide client has to be made anew after a failover, at the primary's address."""
    await holds(f"{valkey_sentinel.primary.url(scheme='valkey')}?client=glide")


@pytest.mark.matrix
async def test_through_valkey_py(valkey_server: ValkeyServer) -> None:
    pool = valkey.asyncio.BlockingConnectionPool.from_url(valkey_server.url(), max_connections=40, socket_timeout=5)
    async with valkey.asyncio.Valkey.from_pool(pool) as client:
        await holds_through(RedisRunner(client))


@pytest.mark.matrix
async def test_through_valkey_py_on_a_cluster(valkey_cluster: ValkeyCluster) -> None:
    host, port = valkey_cluster.startup_nodes[0]
    settings: dict[str, Any] = {"socket_timeout": 5, "cluster_error_retry_attempts": 1, "reinitialize_steps": 0}
    async with valkey.asyncio.ValkeyCluster(host=host, port=port, **settings) as client:
        await holds_through(RedisRunner(client))


@pytest.mark.matrix
async def test_through_a_client_that_decodes_its_replies(valkey_server: ValkeyServer) -> None:
    async with create_redis_client(valkey_server.url(), decode_responses=True, protocol=2) as client:
        await holds_through(RedisRunner(client))


async def test_across_restarts_of_the_server(own_valkey: ValkeyServer) -> None:
    """Nothing is on disk: every lock and every fence is gone, and tokens grow all the same."""
    cases = contract(
        lambda: open_valkey_store(own_valkey.url(scheme="valkey")),
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
    one.add_user("shop", "secret", *granted(title))
    async with open_valkey_store(f"{one.url(user='shop')}?client={client}") as store:
        assert not await store.check()
    await holds(f"{one.url(user='shop')}?client={client}")


@pytest.mark.matrix
@pytest.mark.parametrize(("client", "title"), [("glide", "glide: cluster"), ("redis", "redis-py: cluster")])
async def test_as_the_user_of_the_readme_on_a_cluster(
    client: str, title: str, valkey_cluster: ValkeyCluster, granted: Granted
) -> None:
    valkey_cluster.add_user("shop", "secret", *granted(title))
    url = valkey_cluster.url().replace("://", "://shop:secret@")
    async with open_valkey_store(f"{url}?client={client}") as store:
        assert not await store.check()
    await holds(f"{url}?client={client}")


@pytest.mark.matrix
async def test_as_the_user_of_the_readme_behind_sentinel(valkey_sentinel: ValkeySentinel, granted: Granted) -> None:
    valkey_sentinel.add_user("shop", "secret", *granted("redis-py: one server, Sentinel"))
    url = valkey_sentinel.url().replace("://", "://shop:secret@")
    await holds(url)


@pytest.mark.matrix
async def test_through_glide_clients_of_the_applications_own(valkey_server: ValkeyServer) -> None:
    address = glide.NodeAddress("127.0.0.1", valkey_server.port)
    client = await glide.GlideClient.create(glide.GlideClientConfiguration([address], request_timeout=2000))
    await holds_through(GlideRunner(client))
    await client.close()
