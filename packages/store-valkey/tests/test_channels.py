"""The connections on which grants are heard of: opened when somebody waits, found dead, closed, never in the way."""

import asyncio
import gc
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import glide
import pytest
import redis.asyncio
import valkey.asyncio

from tenure.store import Acquired, Held
from tenure_testbed import ValkeyServer
from tenure_testbed.faultproxy import FaultProxy
from tenure_valkey import GlideRunner, RedisRunner, ScriptRunner, ValkeyLockStore, channels, redis_subscriber

OpenStore = Callable[..., ValkeyLockStore]
Until = Callable[..., Awaitable[None]]


def sharded_channels(server: ValkeyServer) -> int:
    found: Any = server.execute("PUBSUB", "SHARDCHANNELS")
    return len(found)


def subscribers(server: ValkeyServer, channel: bytes) -> int:
    found: Any = server.execute("PUBSUB", "NUMSUB", channel.decode())
    return int(found[1])


def listeners(server: ValkeyServer) -> int:
    return str(server.execute("CLIENT", "LIST", "TYPE", "pubsub")).count("id=")


async def wait_for(store: ValkeyLockStore, key: str = "job", owner: str = "waiter") -> None:
    """Stand in the queue of *key*, which "holder" has."""
    assert isinstance(await store.acquire(key, "holder", 60_000), Acquired)
    assert isinstance(await store.acquire_queued(key, owner, 60_000, 60_000), Held)


async def is_told(store: ValkeyLockStore, key: str = "job", owner: str = "waiter") -> bool:
    """Whether a release is heard of by who waits."""
    assert await store.release(key, "holder")
    heard = asyncio.create_task(store.granted(key, owner))
    await asyncio.wait([heard], timeout=2)
    told = heard.done()
    heard.cancel()
    await store.release(key, owner)
    return told


async def test_nobody_listens_until_somebody_waits(
    own_valkey: ValkeyServer, open_store: OpenStore, client: str
) -> None:
    store = open_store(own_valkey.url(), client=client)
    await store.acquire("job", "holder", 60_000)
    await store.acquire("job", "waiter", 60_000)
    assert listeners(own_valkey) == 0
    for number in range(20):
        await wait_for(store, f"job-{number}")
    assert listeners(own_valkey) == 1
    assert await is_told(store, "job-7")


async def test_a_store_that_is_closed_listens_no_more(
    own_valkey: ValkeyServer, open_store: OpenStore, client: str, until: Until
) -> None:
    store = open_store(own_valkey.url(), client=client)
    await wait_for(store)
    tasks = asyncio.all_tasks()
    await store.aclose()
    await until(lambda: listeners(own_valkey) == 0, "the server to notice")
    assert asyncio.all_tasks() <= tasks
    assert not [task for task in asyncio.all_tasks() if "_read" in repr(task.get_coro())]
    await store.aclose()


async def test_who_has_not_waited_for_a_while_listens_no_more_and_does_when_it_waits_again(
    own_valkey: ValkeyServer, open_store: OpenStore, client: str, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store on the application's own client need not be closed."""
    monkeypatch.setattr(channels, "_IDLE_S", 0.1)
    store = open_store(own_valkey.url(), client=client)
    await wait_for(store)
    assert listeners(own_valkey) == 1
    await until(lambda: listeners(own_valkey) == 0, "the connection to be closed")
    await store.acquire_queued("job", "waiter", 60_000, 60_000)
    assert await is_told(store)


async def test_channels_that_nobody_waits_on_are_given_up(
    valkey_server: ValkeyServer, valkey_url: str, open_store: OpenStore, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a cluster each key that is waited for has one; here as if this server were one."""
    store = open_store(valkey_url, client="redis")
    monkeypatch.setattr(channels, "_MOST_IDLE", 4)
    monkeypatch.setattr(store._channels, "_one", None)
    for number in range(6):
        await wait_for(store, f"first-{number}")
    assert sharded_channels(valkey_server) == 6, "all of them may be waited on"
    for channel in store._channels._channels.values():
        channel.used_at -= 3600
    await wait_for(store, "last")
    await until(lambda: sharded_channels(valkey_server) == 1, "the others to be given up")
    assert await is_told(store, "last")


async def test_a_connection_that_the_server_closed_is_opened_again_by_the_next_poll(
    own_valkey: ValkeyServer, open_store: OpenStore, until: Until
) -> None:
    store = open_store(own_valkey.url(), client="redis")
    await wait_for(store)
    own_valkey.execute("CLIENT", "KILL", "TYPE", "pubsub")
    await until(lambda: store._channels.ready(b"locks:{job}") is None, "the end of the connection to be noticed")
    assert isinstance(await store.acquire_queued("job", "waiter", 60_000, 60_000), Held)
    assert await is_told(store)


@pytest.mark.matrix  # three seconds, which are glide's
async def test_glide_opens_a_connection_that_the_server_closed_by_itself(
    own_valkey: ValkeyServer, open_store: OpenStore, until: Until
) -> None:
    store = open_store(own_valkey.url(), client="glide")
    await wait_for(store)
    own_valkey.execute("CLIENT", "KILL", "TYPE", "pubsub")
    [name] = store._channels._channels
    await until(lambda: subscribers(own_valkey, name) == 1, "glide", within_s=10)
    assert await is_told(store)


async def test_a_connection_on_which_nothing_comes_is_given_up(
    own_valkey: ValkeyServer, open_store: OpenStore, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The way to the server is cut without a word: the server still counts it as somebody who listens."""
    monkeypatch.setattr(redis_subscriber, "_QUIET_S", 0.05)
    monkeypatch.setattr(redis_subscriber, "_ANSWER_S", 0.1)
    async with FaultProxy(("127.0.0.1", own_valkey.port)) as proxy:
        store = open_store(f"redis://127.0.0.1:{proxy.port}", client="redis", timeout="500ms")
        await wait_for(store)
        proxy.blackhole()
        await until(lambda: store._channels.ready(b"locks:{job}") is None, "its silence to be noticed")
        proxy.heal()
        await until(lambda: store._channels._retry_at < asyncio.get_running_loop().time(), "a moment to pass")
        await store.acquire_queued("job", "waiter", 60_000, 60_000)
        assert await is_told(store)


# ------------------------------------------------------------------------------- clients of the application's own


async def of_redis_py(server: ValkeyServer, **options: Any) -> tuple[ScriptRunner, Any]:
    client = redis.asyncio.Redis(port=server.port, socket_timeout=0.2, **options)
    return RedisRunner(client, warn=False), client.aclose


async def of_valkey_py(server: ValkeyServer, **options: Any) -> tuple[ScriptRunner, Any]:
    client = valkey.asyncio.Valkey(port=server.port, socket_timeout=0.2, **options)
    return RedisRunner(client, warn=False), client.aclose


async def of_glide(server: ValkeyServer, **_: Any) -> tuple[ScriptRunner, Any]:
    nodes = [glide.NodeAddress("127.0.0.1", server.port)]
    client = await glide.GlideClient.create(glide.GlideClientConfiguration(nodes, request_timeout=2000))
    return GlideRunner(client), client.close


OPTIONS: list[dict[str, Any]] = [{}, {"decode_responses": True}, {"protocol": 3}, {"max_connections": 1}]


@pytest.mark.parametrize(
    ("made", "options"),
    [*itertools.product([of_redis_py, of_valkey_py], OPTIONS), (of_glide, {})],
    ids=lambda one: getattr(one, "__name__", str(one)),
)
async def test_a_client_that_was_handed_over_serves_too(valkey_server: ValkeyServer, made: Any, options: Any) -> None:
    valkey_server.flush_all()
    runner, close = await made(valkey_server, **options)
    store = ValkeyLockStore(runner)
    await wait_for(store)
    # Longer than its socket_timeout, with which a connection that waits for an answer is given up.
    await asyncio.sleep(0.3)
    assert await is_told(store)
    await store.aclose()
    await close()


@pytest.mark.parametrize("made", [of_redis_py, of_valkey_py, of_glide])
async def test_an_application_may_close_its_client_first_and_forget_the_store(
    own_valkey: ValkeyServer, made: Any, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "_IDLE_S", 0.1)
    runner, close = await made(own_valkey)
    store = ValkeyLockStore(runner)
    await wait_for(store)
    await close()
    del store, runner
    gc.collect()
    await until(lambda: listeners(own_valkey) == 0, "what listened to end")


def test_a_loop_that_ends_takes_the_connections_with_it(own_valkey: ValkeyServer) -> None:
    """Nothing was closed; warnings are errors here. The store lives on, and opens what it needs in the next loop."""

    async def wait_and_leave(key: str) -> None:
        async with redis.asyncio.Redis(port=own_valkey.port) as client:
            runner: Any = RedisRunner(client, warn=False)
            store._runner = store._channels._asks = store._channels._runner = runner
            await wait_for(store, key)
            assert listeners(own_valkey) == 1

    store = ValkeyLockStore(RedisRunner(redis.asyncio.Redis(port=own_valkey.port), warn=False))
    asyncio.run(wait_and_leave("one"))
    gc.collect()
    asyncio.run(wait_and_leave("two"))
    gc.collect()


def test_a_loop_that_ends_takes_the_client_of_glide_with_it(own_valkey: ValkeyServer) -> None:
    async def wait_and_leave() -> None:
        runner, close = await of_glide(own_valkey)
        await wait_for(ValkeyLockStore(runner))
        await close()

    asyncio.run(wait_and_leave())
    gc.collect()


async def test_a_connection_that_hangs_holds_up_no_waiter_for_longer_than_a_moment(
    own_valkey: ValkeyServer, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call is bounded by the engine, and has to leave time for the question itself."""
    hung = asyncio.Event()

    async def hangs(*_: object) -> None:
        await hung.wait()

    monkeypatch.setattr(redis_subscriber.RedisSubscriber, "add", hangs)
    store = open_store(own_valkey.url(), client="redis")
    await store.acquire("job", "holder", 60_000)
    asked = asyncio.create_task(store.acquire_queued("job", "waiter", 1000, 60_000))
    await asyncio.wait([asked], timeout=5)
    assert isinstance(asked.result(), Held)
    assert "waiter" not in str(own_valkey.execute("GET", "locks:{job}"))
    [channel] = store._channels._channels.values()
    assert channel.opening is not None
    hung.set()
