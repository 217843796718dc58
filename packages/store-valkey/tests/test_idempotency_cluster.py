"""Records on a cluster: any braces, slots that move, primaries that change places, on both clients."""

import asyncio
import itertools
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tenure.idempotency_store import Acquired, Completed, Completion
from tenure_testbed import ValkeyCluster
from tenure_valkey import ValkeyIdempotencyStore

MINUTE_MS, HOUR_MS = 60_000, 3_600_000

Owner = Callable[[], str]


@pytest.fixture
async def store(valkey_cluster_url: str, open_records: Any, client: str) -> ValkeyIdempotencyStore:
    opened: ValkeyIdempotencyStore = open_records(valkey_cluster_url, client=client, timeout="5s")
    return opened


async def begin(store: ValkeyIdempotencyStore, key: str, owner: str) -> Any:
    return await store.acquire(key, owner, "cats", MINUTE_MS, HOUR_MS)


def key_on(cluster: ValkeyCluster, shard: int) -> str:
    """A key whose record lives on *shard*."""
    for number in itertools.count():
        key = f"order-{secrets.token_hex(4)}-{number}"
        if cluster.shard_of(cluster.slot_of(f"idem:{key}")) == shard:
            return key
    raise AssertionError


async def test_a_record_is_one_key_whatever_braces_it_holds(
    store: ValkeyIdempotencyStore, valkey_cluster: ValkeyCluster, owner: Owner
) -> None:
    """Every script declares its key, by which the client finds the node: else a node would answer MOVED or refuse."""
    keys = [*(f"order-{number}" for number in range(60)), "{}", "{a}b", "a{b", "}{", "{{x}}", "%7B"]
    holder = owner()
    replies = await asyncio.gather(*(begin(store, key, holder) for key in keys))
    assert set(replies) == {Acquired(1)}
    assert all([await store.extend(key, holder, MINUTE_MS) for key in keys])
    done = [await store.complete(key, holder, key.encode(), HOUR_MS) for key in keys[::2]]
    assert set(done) == {Completion.STORED}
    assert [await begin(store, key, owner()) for key in keys[::2]] == [
        Completed(key.encode(), holder) for key in keys[::2]
    ]
    sizes = [primary.execute("DBSIZE") for primary in valkey_cluster.primaries]
    assert sum(sizes) == len(keys)
    assert all(size >= 6 for size in sizes)
    assert all([await store.release(key, holder) for key in keys[1::2]])


async def test_a_record_lives_through_the_move_of_its_slot_at_each_stage(
    store: ValkeyIdempotencyStore, valkey_cluster: ValkeyCluster, owner: Owner
) -> None:
    """One key: here or there, and never a script whose keys are on both sides."""
    holder, key = owner(), key_on(valkey_cluster, 0)
    assert await begin(store, key, holder) == Acquired(1)
    with valkey_cluster.open_slot(valkey_cluster.slot_of(f"idem:{key}"), 1) as slot:
        assert await store.extend(key, holder, MINUTE_MS)
        assert await begin(store, key, holder) == Acquired(1)
        assert slot.move(f"idem:{key}") == 1
        assert await begin(store, key, holder) == Acquired(1)
        assert await store.extend(key, holder, MINUTE_MS)
        assert await store.complete(key, holder, b"made", HOUR_MS) is Completion.STORED
        assert await begin(store, key, owner()) == Completed(b"made", holder)
    assert await begin(store, key, owner()) == Completed(b"made", holder)


async def test_nodes_that_forgot_their_scripts_are_sent_them_again(
    store: ValkeyIdempotencyStore, valkey_cluster: ValkeyCluster, owner: Owner
) -> None:
    holder = owner()
    for key in (key_on(valkey_cluster, shard) for shard in range(3)):
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda key=key: begin(store, key, holder),  # type: ignore[misc]  # bound in the loop
            lambda key=key: store.extend(key, holder, MINUTE_MS),  # type: ignore[misc]  # bound in the loop
            lambda key=key: store.complete(key, holder, b"", HOUR_MS),  # type: ignore[misc]  # bound in the loop
            lambda key=key: begin(store, key, holder),  # type: ignore[misc]  # bound in the loop
        ]
        for call in calls:
            await asyncio.to_thread(valkey_cluster.script_flush)
            assert await call()
        await asyncio.to_thread(valkey_cluster.script_flush)
        assert not await store.release(key, holder)


class Requests:
    """Requests all over the cluster, each begun, extended, completed and repeated; what they saw is kept."""

    def __init__(self, store: ValkeyIdempotencyStore, owner: Owner) -> None:
        self.store = store
        self.owner = owner
        self.errors: list[Exception] = []
        self.wrong: list[object] = []
        self.done = 0
        self._stopped = False

    async def around(self, fault: Callable[[], Awaitable[Any]]) -> None:
        tasks = [asyncio.create_task(self._client(number)) for number in range(12)]
        await asyncio.sleep(0.1)
        await fault()
        await asyncio.sleep(0.1)
        self._stopped = True
        await asyncio.gather(*tasks)

    async def _client(self, number: int) -> None:
        for turn in itertools.count():
            if self._stopped:
                return
            await self._request(f"load-{secrets.token_hex(4)}-{number}-{turn}", self.owner())
            self.done += 1

    async def _request(self, key: str, holder: str) -> None:
        await self._expect(Acquired(1), lambda: begin(self.store, key, holder))
        await self._expect(True, lambda: self.store.extend(key, holder, MINUTE_MS))
        await self._expect(Completion.STORED, lambda: self.store.complete(key, holder, key.encode(), HOUR_MS))
        await self._expect(Completed(key.encode(), holder), lambda: begin(self.store, key, self.owner()))

    async def _expect(self, expected: object, call: Callable[[], Awaitable[object]]) -> None:
        """Repeat the call until it is answered: every one of them may be repeated by its owner."""
        while True:
            try:
                reply = await call()
            except Exception as error:  # noqa: BLE001 -- counted, whatever the client raises
                self.errors.append(error)
                await asyncio.sleep(0.01)
                continue
            if reply != expected:
                self.wrong.append(reply)
            return


async def test_a_planned_failover_of_each_shard_fails_no_call_and_forgets_no_record(
    store: ValkeyIdempotencyStore, valkey_cluster: ValkeyCluster, owner: Owner
) -> None:
    requests = Requests(store, owner)

    async def fail_over() -> None:
        for shard in range(3):
            await asyncio.to_thread(valkey_cluster.failover, shard)

    await requests.around(fail_over)
    assert requests.wrong == []
    assert requests.errors == []
    assert requests.done > 12


async def test_a_slot_that_moves_as_a_whole_fails_no_call(
    store: ValkeyIdempotencyStore, valkey_cluster: ValkeyCluster, owner: Owner
) -> None:
    keys = [f"moving-{secrets.token_hex(4)}-{number}" for number in range(4)]
    holder = owner()
    for key in keys:
        assert await begin(store, key, holder) == Acquired(1)
    requests = Requests(store, owner)

    async def move() -> None:
        for key in keys:
            slot = valkey_cluster.slot_of(f"idem:{key}")
            target = (valkey_cluster.shard_of(slot) + 1) % 3
            await asyncio.to_thread(valkey_cluster.migrate_slot_atomically, slot, target)

    await requests.around(move)
    assert requests.wrong == []
    assert requests.errors == []
    for key in keys:
        assert await store.complete(key, holder, b"made", HOUR_MS) is Completion.STORED
