"""Calls that travel together, on every topology and under its faults."""

import asyncio
import contextlib
import gc
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest
import redis.asyncio
import valkey.asyncio

from tenure.store import Acquired, Claim
from tenure_testbed import (
    Blackhole,
    FaultProxy,
    Pass,
    Slice,
    ValkeyCluster,
    ValkeySentinel,
    ValkeyServer,
)
from tenure_valkey import (
    RedisRunner,
    ValkeyLockStore,
    create_redis_client,
    glide_cluster,
    open_valkey_store,
    redis_cluster,
)
from tenure_valkey.glide_cluster import slot_of
from tenure_valkey.group import Line, Pending
from tenure_valkey.runner import read_script

Owner = Callable[[], str]

MANY = 100


async def take_all(store: ValkeyLockStore, count: int = MANY, owner: str = "holder", prefix: str = "job") -> list[Any]:
    answers = await asyncio.gather(*(store.acquire(f"{prefix}-{number}", owner, 60_000) for number in range(count)))
    assert all(isinstance(answer, Acquired) for answer in answers), answers
    return answers


async def give_all(store: ValkeyLockStore, count: int = MANY, owner: str = "holder", prefix: str = "job") -> None:
    answers = await asyncio.gather(*(store.release(f"{prefix}-{number}", owner) for number in range(count)))
    assert answers == [True] * count


async def attempt(call: Any) -> Any:
    try:
        return await call
    except Exception as error:  # noqa: BLE001 -- whatever a client raises is what is looked at
        return error


# ------------------------------------------------------------------------------------------ one server


async def test_calls_that_come_together_travel_together(
    valkey_server: ValkeyServer, open_store: Any, client: str, valkey_url: str
) -> None:
    store = open_store(valkey_url, client=client)
    await take_all(store)
    reads = int(valkey_server.info("stats")["total_reads_processed"])
    await give_all(store)
    reads = int(valkey_server.info("stats")["total_reads_processed"]) - reads
    assert reads < MANY / 2, "the server was given one at a time"


@pytest.mark.parametrize("connections", [1, 2, 5])
async def test_hundreds_of_callers_get_along_with_few_connections(
    valkey_server: ValkeyServer, valkey_url: str, owner: Owner, connections: int
) -> None:
    async with create_redis_client(valkey_url, max_connections=connections) as client:
        store = ValkeyLockStore(RedisRunner(client, warn=False))

        async def work(key: str) -> None:
            for _ in range(3):
                holder = owner()
                assert isinstance(await store.acquire(key, holder, 60_000), Acquired)
                assert await store.renew_many([Claim(key, holder, 60_000)]) == [True]
                assert await store.release(key, holder)

        await asyncio.gather(*(work(f"job-{number}") for number in range(256)), store.list_locks(), store.check())
        pool = client.connection_pool
        assert len(pool._available_connections) + len(pool._in_use_connections) == 1


async def test_a_full_server_refuses_what_grows_and_nothing_else_of_the_group(
    own_valkey: ValkeyServer, open_store: Any, client: str
) -> None:
    store = open_store(own_valkey.url(), client=client)
    await take_all(store, 20, prefix="old")
    own_valkey.set_maxmemory(1)
    acquired, released = await asyncio.gather(
        asyncio.gather(*(attempt(store.acquire(f"new-{number}", "holder", 1000)) for number in range(20))),
        asyncio.gather(*(attempt(store.release(f"old-{number}", "holder")) for number in range(20))),
    )
    assert all("OOM" in str(answer) or "OutOfMemory" in type(answer).__name__ for answer in acquired), acquired
    assert released == [True] * 20


async def test_answers_that_come_in_pieces_are_put_together(
    valkey_server: ValkeyServer, open_store: Any, client: str, valkey_url: str
) -> None:
    async with FaultProxy(("127.0.0.1", valkey_server.port)) as proxy:
        store = open_store(f"redis://127.0.0.1:{proxy.port}", client=client, timeout="5s")
        await take_all(store, 2, prefix="warm")
        proxy.set(to_client=Slice(3), to_server=Slice(97))
        answers = await take_all(store, 30)
        assert len({answer.token for answer in answers}) > 1
        await give_all(store, 30)


async def test_whoever_waits_at_a_server_that_does_not_answer_gets_an_error_of_its_own_and_the_next_call_works(
    valkey_server: ValkeyServer, open_store: Any, client: str, valkey_url: str
) -> None:
    async with FaultProxy(("127.0.0.1", valkey_server.port)) as proxy:
        store = open_store(f"redis://127.0.0.1:{proxy.port}", client=client, timeout="400ms")
        await take_all(store, 2, prefix="warm")
        proxy.set(to_server=Blackhole(), to_client=Blackhole())
        errors = await asyncio.gather(*(attempt(store.renew(f"job-{number}", "holder", 1000)) for number in range(30)))
        assert {type(error).__name__ for error in errors} == {"TimeoutError"}
        assert len({id(error) for error in errors}) == 30
        assert {type(error).__module__.partition(".")[0] for error in errors} == {
            {"redis": "redis", "glide": "glide_shared"}[client]
        }
        proxy.set(to_server=Pass(), to_client=Pass())
        for _ in range(20):  # glide takes a moment to connect anew
            answers = await asyncio.gather(*(attempt(store.renew(f"job-{number}", "no", 1000)) for number in range(30)))
            if answers == [False] * 30:
                break
        assert answers == [False] * 30
        await take_all(store, 30)


async def test_an_answer_that_comes_too_late_is_nobody_elses(
    own_valkey: ValkeyServer, open_store: Any, client: str
) -> None:
    store = open_store(own_valkey.url(), client=client, timeout="300ms")
    await take_all(store, 2, prefix="warm")
    own_valkey.execute("CLIENT", "PAUSE", "60000", "WRITE")
    late = await asyncio.gather(*(attempt(store.acquire(f"late-{number}", "holder", 60_000)) for number in range(20)))
    assert all(isinstance(answer, Exception) for answer in late)
    own_valkey.execute("CLIENT", "UNPAUSE")
    for number in range(20):
        assert await store.release(f"none-{number}", "holder") is False
    await take_all(store, 20)


async def test_replies_that_the_client_decodes_are_read_in_groups(valkey_url: str) -> None:
    async with create_redis_client(valkey_url, decode_responses=True) as client:
        store = ValkeyLockStore(RedisRunner(client))
        await take_all(store)
        assert len(await store.list_locks("job-1")) == 11
        await give_all(store)


@pytest.mark.parametrize("protocol", [2, 3])
async def test_both_protocols_and_valkey_py_carry_groups(
    valkey_server: ValkeyServer, valkey_url: str, protocol: int
) -> None:
    for make in (redis.asyncio.Redis, valkey.asyncio.Valkey):
        client: Any = make(port=valkey_server.port, socket_timeout=2, protocol=protocol, max_connections=10)
        store = ValkeyLockStore(RedisRunner(client, warn=False))
        await take_all(store)
        await give_all(store)
        valkey_server.execute("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        await asyncio.sleep(0.05)  # for the end of the stream to arrive, which tells nobody
        await take_all(store, 3)
        await give_all(store, 3)
        await client.aclose()


async def test_a_user_of_glides_that_may_not_send_texts_has_its_scripts_loaded(own_valkey: ValkeyServer) -> None:
    own_valkey.add_user("shop", "secret", "~*", "&*", "+@all", "-eval")
    url = f"valkey://shop:secret@127.0.0.1:{own_valkey.port}?client=glide"
    async with open_valkey_store(url) as store:
        await take_all(store)
        own_valkey.execute("SCRIPT", "FLUSH")
        await take_all(store, prefix="next")
        await give_all(store)


# ------------------------------------------------------------------------ whose connection it is, and when


async def test_a_client_that_its_application_closes_takes_the_connection_along(
    own_valkey: ValkeyServer, owner: Owner
) -> None:
    client = create_redis_client(own_valkey.url())
    store = ValkeyLockStore(RedisRunner(client))
    await take_all(store, 10)
    await client.aclose()
    for _ in range(500):
        if int(own_valkey.info("clients")["connected_clients"]) <= 1:
            break
        await asyncio.sleep(0.005)
    assert int(own_valkey.info("clients")["connected_clients"]) <= 1, "one is who asks"
    # As redis-py's own calls do, the next one connects again; whoever closes it again has closed it.
    await give_all(store, 10)
    await client.aclose()
    del client, store
    gc.collect()  # what is left open would warn, and fail this test


def test_a_client_that_was_closed_works_in_the_next_event_loop(valkey_server: ValkeyServer, valkey_url: str) -> None:
    client = create_redis_client(valkey_url)
    store = ValkeyLockStore(RedisRunner(client))

    async def use() -> None:
        await take_all(store, 10)
        await give_all(store, 10)
        await client.aclose()

    for _ in range(3):
        asyncio.run(use())


async def test_a_program_that_cancels_all_its_tasks_leaves_nobody_waiting(
    own_valkey: ValkeyServer, open_store: Any
) -> None:
    store = open_store(own_valkey.url(), client="redis", timeout="10s")
    await take_all(store, 2, prefix="warm")
    own_valkey.execute("CLIENT", "PAUSE", "60000", "WRITE")
    calls = [asyncio.create_task(store.acquire(f"job-{number}", "holder", 1000)) for number in range(30)]
    for _ in range(20):
        await asyncio.sleep(0)
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    assert {type(error) for error in await asyncio.gather(*calls, return_exceptions=True)} == {asyncio.CancelledError}
    own_valkey.execute("CLIENT", "UNPAUSE")
    await take_all(store, 30, prefix="next")


# ------------------------------------------------------------------------------------------ Sentinel


@pytest.mark.matrix
async def test_groups_find_the_primary_that_sentinel_promoted(
    valkey_sentinel: ValkeySentinel, valkey_sentinel_url: str
) -> None:
    async with open_valkey_store(f"{valkey_sentinel_url}?timeout=1s") as store:
        await take_all(store, 30)
        await asyncio.to_thread(valkey_sentinel.catch_up)
        old = valkey_sentinel.primary
        await asyncio.to_thread(valkey_sentinel.failover)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + 30
        answers: Sequence[Any] = ()
        while list(answers) != [True] * 30:
            assert loop.time() < deadline, answers
            calls = (attempt(store.renew(f"job-{number}", "holder", 60_000)) for number in range(30))
            answers = await asyncio.gather(*calls)
        assert valkey_sentinel.primary is not old


# ------------------------------------------------------------------------------------------- a cluster


def keys_by_shard(cluster: ValkeyCluster, count: int) -> dict[int, list[str]]:
    """So many keys for each shard."""
    keys: dict[int, list[str]] = {shard: [] for shard in range(3)}
    while min(map(len, keys.values())) < count:
        key = f"job-{secrets.token_hex(6)}"
        keys[cluster.shard_of(cluster.slot_of(f"locks:{{{key}}}"))].append(key)
    return {shard: names[:count] for shard, names in keys.items()}


@contextlib.asynccontextmanager
async def halted(node: Any) -> AsyncIterator[None]:
    """A node that does not answer, for less time than the others wait before they replace it."""
    await asyncio.to_thread(node.pause)
    try:
        yield
    finally:
        await asyncio.to_thread(node.resume)


@pytest.mark.parametrize(
    "key", [b"job", b"locks:{job}:fence", b"{}job", b"a{b}{c}", b"{job", b"job}", b"", "zażółć".encode()]
)
def test_a_slot_is_the_servers(key: bytes) -> None:
    assert slot_of(key) == ValkeyCluster.slot_of(key)


async def test_a_node_that_does_not_answer_fails_its_own_calls_alone(
    valkey_cluster: ValkeyCluster, valkey_cluster_url: str, open_store: Any, client: str
) -> None:
    await check_a_halted_node(valkey_cluster, open_store(valkey_cluster_url, client=client, timeout="700ms"))


ALL_NODES_AT_ONCE: dict[str, tuple[Any, str, Any]] = {
    "glide": (glide_cluster, "slot_of", lambda key: 0),
    "redis": (redis_cluster.Cluster, "_node_of", lambda self, keys: ""),
}


async def test_groups_that_go_to_all_nodes_at_once_are_found_out(
    valkey_cluster: ValkeyCluster, open_store: Any, client: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planted bug: glide and redis-py both wait for the slowest node."""
    monkeypatch.setattr(*ALL_NODES_AT_ONCE[client])
    with pytest.raises(AssertionError):
        await check_a_halted_node(valkey_cluster, open_store(valkey_cluster.url(), client=client, timeout="700ms"))


async def check_a_halted_node(cluster: ValkeyCluster, store: ValkeyLockStore) -> None:
    """Have one node stand still, and look at the calls to the others, in groups, one after the other."""
    keys = keys_by_shard(cluster, 20)
    holders = [(shard, key) for shard, names in keys.items() for key in names]
    for key in [names[0] for names in keys.values()]:
        assert isinstance(await store.acquire(key, "holder", 60_000), Acquired)
    await asyncio.gather(*(store.acquire(key, "holder", 60_000) for _, key in holders))

    async def renew_twice(key: str) -> list[Any]:
        return [await attempt(store.renew(key, "holder", 60_000)) for _ in range(2)]

    async with halted(cluster.primary_of(0)):
        renewing = [(shard, asyncio.create_task(renew_twice(key))) for shard, key in holders]
        await asyncio.wait([task for _, task in renewing], return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait([task for shard, task in renewing if shard != 0])
        assert not any(task.done() for shard, task in renewing if shard == 0), "the others waited for them"
        answers = [(shard, await task) for shard, task in renewing]
    for shard, twice in answers:
        assert all(isinstance(answer, Exception) for answer in twice) if shard == 0 else twice == [True, True]


async def test_groups_go_on_while_slots_move_and_primaries_change_places(
    valkey_cluster: ValkeyCluster, valkey_cluster_url: str, open_store: Any, client: str
) -> None:
    store = open_store(valkey_cluster_url, client=client, timeout="5s")
    keys = [key for names in keys_by_shard(valkey_cluster, 15).values() for key in names]
    await asyncio.gather(*(store.acquire(key, "holder", 600_000) for key in keys))
    done = asyncio.Event()

    async def renew() -> int:
        rounds = 0
        while not done.is_set() or rounds < 5:
            assert await asyncio.gather(*(store.renew(key, "holder", 600_000) for key in keys)) == [True] * len(keys)
            rounds += 1
        return rounds

    renewing = asyncio.create_task(renew())
    slot = valkey_cluster.slot_of(f"locks:{{{keys[0]}}}")
    home = valkey_cluster.shard_of(slot)
    await asyncio.to_thread(valkey_cluster.migrate_slot, slot, (home + 1) % 3)
    await asyncio.to_thread(valkey_cluster.migrate_slot, slot, home)
    await asyncio.to_thread(valkey_cluster.failover, 1)
    done.set()
    assert await renewing >= 5


@pytest.mark.matrix
async def test_groups_find_the_replica_that_took_the_place_of_a_dead_primary(
    own_valkey_cluster: ValkeyCluster, open_store: Any
) -> None:
    store = open_store(own_valkey_cluster.url(), client="redis", timeout="1s")
    keys = [key for names in keys_by_shard(own_valkey_cluster, 10).values() for key in names]
    claims = [Claim(key, "holder", 600_000) for key in keys]
    await asyncio.gather(*(store.acquire(key, "holder", 600_000) for key in keys))
    await asyncio.to_thread(own_valkey_cluster.catch_up)
    await asyncio.to_thread(own_valkey_cluster.kill, 0)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + 60
    # By nothing but groups: redis-py looks around after a call that failed alone, and not after a pipeline. glide
    # looks around by itself.
    while (answers := await attempt(store.renew_many(claims))) != [True] * len(keys):
        assert loop.time() < deadline, answers
        await asyncio.sleep(0.02)


# --------------------------------------------------------------------------------------- a line, by itself


class Counts:
    """Carries groups nowhere, and tells how large they were."""

    def __init__(self) -> None:
        self.groups: list[int] = []

    async def ready(self) -> None:
        await asyncio.sleep(0)

    async def carry(self, calls: Sequence[Pending]) -> None:
        self.groups.append(len(calls))
        await asyncio.sleep(0)
        for call in calls:
            call.reply(call.size)

    async def rest(self) -> None:
        await asyncio.sleep(0)

    def forget(self) -> None: ...


async def test_a_group_ends_with_the_call_that_makes_it_large() -> None:
    counts = Counts()
    line, script = Line(counts), read_script("release")
    large = [Pending(script, (), (b"x" * 600_000,)) for _ in range(5)]
    small = [Pending(script, (), (b"x",)) for _ in range(1500)]
    assert await asyncio.gather(*(line.ask(call) for call in large + small)) == [600_000] * 5 + [1] * 1500
    assert counts.groups == [2, 2, 512, 512, 477], "two of the large ones, and 512 of the small ones"
