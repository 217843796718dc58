"""A cluster whose slots move and whose primaries change places, under load, on both clients."""

import asyncio
import itertools
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tenure.store import Acquired, Claim
from tenure_testbed import ValkeyCluster
from tenure_valkey import ValkeyLockStore

Owner = Callable[[], str]
OpenStore = Callable[..., ValkeyLockStore]


@pytest.fixture
async def store(valkey_cluster_url: str, open_store: OpenStore, client: str) -> ValkeyLockStore:
    return open_store(valkey_cluster_url, client=client, timeout="5s")


async def take(store: ValkeyLockStore, key: str, owner: str, ttl_ms: int = 60_000) -> Acquired:
    reply = await store.acquire(key, owner, ttl_ms)
    assert isinstance(reply, Acquired)
    return reply


def key_on(cluster: ValkeyCluster, shard: int) -> str:
    """A key whose lock lives on *shard*."""
    for number in itertools.count():
        key = f"job-{secrets.token_hex(4)}-{number}"
        if cluster.shard_of(cluster.slot_of(f"locks:{{{key}}}")) == shard:
            return key
    raise AssertionError


async def test_locks_spread_over_the_shards(
    store: ValkeyLockStore, valkey_cluster: ValkeyCluster, owner: Owner
) -> None:
    keys = [f"{{billing}}:job-{number}" for number in range(60)]
    await asyncio.gather(*(store.acquire(key, owner(), 60_000) for key in keys))
    sizes = [primary.execute("DBSIZE") for primary in valkey_cluster.primaries]
    assert sum(sizes) == 120  # each with its fence
    assert all(size >= 12 for size in sizes), "braces in a key choose no slot"
    assert [record.key for record in await store.list_locks("{billing}")] == sorted(keys)


async def test_many_renewals_go_to_every_node(store: ValkeyLockStore, owner: Owner) -> None:
    claims = [Claim(f"job-{number}", owner(), 60_000) for number in range(1500)]
    for start in range(0, 1500, 250):
        await asyncio.gather(*(take(store, claim.key, claim.owner) for claim in claims[start : start + 250]))
    assert await store.renew_many(claims) == [True] * 1500


async def test_nodes_that_forgot_their_scripts_are_sent_them_again(
    store: ValkeyLockStore, valkey_cluster: ValkeyCluster, owner: Owner
) -> None:
    holder = owner()
    for key in (key_on(valkey_cluster, shard) for shard in range(3)):
        await asyncio.to_thread(valkey_cluster.script_flush)
        await take(store, key, holder)
        await asyncio.to_thread(valkey_cluster.script_flush)
        assert await store.renew_many([Claim(key, holder, 60_000)]) == [True]
        assert await store.release(key, holder)


# ------------------------------------------------------------------------------------------ slots


async def test_while_a_slot_moves_key_by_key_its_locks_are_renewed_and_released(
    store: ValkeyLockStore, valkey_cluster: ValkeyCluster, owner: Owner
) -> None:
    holder, key = owner(), key_on(valkey_cluster, 0)
    lock = f"locks:{{{key}}}"
    first = await take(store, key, holder)

    async def is_kept() -> None:
        assert await store.renew(key, holder, 60_000)
        assert await store.renew_many([Claim(key, holder, 60_000)]) == [True]

    with valkey_cluster.open_slot(valkey_cluster.slot_of(lock), 1) as slot:
        await is_kept()  # both keys at the old primary
        assert await take(store, key, holder) == first
        assert slot.move(f"{lock}:fence") == 1
        await is_kept()  # one here, one there
        assert slot.move(lock) == 1
        await is_kept()  # both at the new primary
        assert await take(store, key, holder) == first
        assert await store.release(key, holder)
    assert (await take(store, key, owner())).token > first.token
    assert (await take(store, key_on(valkey_cluster, 0), owner())).after is None


async def test_a_lock_whose_keys_are_here_and_there_is_released(
    store: ValkeyLockStore, valkey_cluster: ValkeyCluster, owner: Owner
) -> None:
    holder, key = owner(), key_on(valkey_cluster, 1)
    lock = f"locks:{{{key}}}"
    first = await take(store, key, holder)
    with valkey_cluster.open_slot(valkey_cluster.slot_of(lock), 2) as slot:
        assert slot.move(lock) == 1
        assert await store.release(key, holder)
    again = await take(store, key, owner())
    assert again.token > first.token
    assert again.after == "released"


async def test_acquire_of_a_lock_whose_keys_are_here_and_there_says_try_again(
    valkey_cluster_url: str, valkey_cluster: ValkeyCluster, open_store: OpenStore, owner: Owner
) -> None:
    """The one call that a slot on its way refuses: it needs both keys. glide tries for 2.6 s by itself."""
    store = open_store(valkey_cluster_url, client="redis")
    holder, key = owner(), key_on(valkey_cluster, 2)
    lock = f"locks:{{{key}}}"
    await take(store, key, holder)
    with valkey_cluster.open_slot(valkey_cluster.slot_of(lock), 0) as slot:
        assert slot.move(lock) == 1
        with pytest.raises(Exception, match=r"TTL exhausted|TRYAGAIN"):
            await store.acquire(key, owner(), 1000)
        assert await store.renew(key, holder, 60_000)


class Load:
    """Callers all over the cluster that acquire, renew, release and acquire again, and remember what they saw."""

    def __init__(self, store: ValkeyLockStore, callers: int, owner: Owner) -> None:
        self.store = store
        self.owner = owner
        self.tokens: dict[str, list[int]] = {f"load-{secrets.token_hex(4)}-{number}": [] for number in range(callers)}
        self.errors: list[Exception] = []
        self.unexpected: list[str] = []
        self.calls = 0
        self._stopped = False

    async def around(self, fault: Callable[[], Awaitable[Any]]) -> None:
        """Run while *fault* happens, and a little before and after."""
        tasks = [asyncio.create_task(self._caller(key)) for key in self.tokens]
        await asyncio.sleep(0.1)
        await fault()
        await asyncio.sleep(0.1)
        self._stopped = True
        await asyncio.gather(*tasks)

    async def _caller(self, key: str) -> None:
        while not self._stopped:
            holder = self.owner()
            reply = await self._call(self.store.acquire(key, holder, 60_000))
            if isinstance(reply, Acquired):
                self.tokens[key].append(reply.token)
                for _ in range(3):
                    if await self._call(self.store.renew(key, holder, 60_000)) is False:
                        self.unexpected.append("a live lock was not renewed")
            elif reply is not None:
                self.unexpected.append("a key that was given back was held")
            # A release that failed may have run: nobody else is at the key, so it is sent until it is answered.
            while await self._call(self.store.release(key, holder)) is None:
                await asyncio.sleep(0.01)

    async def _call(self, call: Awaitable[Any]) -> Any:
        self.calls += 1
        try:
            return await call
        except Exception as error:  # noqa: BLE001 -- counted, whatever the client raises
            self.errors.append(error)
            await asyncio.sleep(0.01)
            return None

    def grew(self) -> bool:
        return all(tokens == sorted(set(tokens)) for tokens in self.tokens.values()) and all(self.tokens.values())


async def test_a_slot_that_moves_as_a_whole_fails_no_call(
    store: ValkeyLockStore, valkey_cluster: ValkeyCluster, owner: Owner
) -> None:
    load = Load(store, 12, owner)
    slots = {valkey_cluster.slot_of(f"locks:{{{key}}}") for key in load.tokens}

    async def move() -> None:
        for slot in sorted(slots)[:4]:
            target = (valkey_cluster.shard_of(slot) + 1) % 3
            await asyncio.to_thread(valkey_cluster.migrate_slot_atomically, slot, target)

    await load.around(move)
    assert load.errors == []
    assert load.unexpected == []
    assert load.grew()


# ------------------------------------------------------------------------------------------ failovers


async def check_failovers(store: ValkeyLockStore, cluster: ValkeyCluster, owner: Owner, rounds: int) -> None:
    async def fail_over() -> None:
        for shard in [0, 1, 2] * rounds:
            await asyncio.to_thread(cluster.failover, shard)

    load = Load(store, 12, owner)
    await load.around(fail_over)
    assert load.errors == []
    assert load.unexpected == []
    assert load.grew()
    assert load.calls > 100 * rounds


async def test_a_planned_failover_of_each_shard_fails_no_call_and_repeats_no_token(
    store: ValkeyLockStore, valkey_cluster: ValkeyCluster, owner: Owner
) -> None:
    await check_failovers(store, valkey_cluster, owner, rounds=1)
