"""Out of memory, measured call by call: what is refused, what runs, and what is stored all the same."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tenure.idempotency_store import Abandoned, Acquired, Completed, Completion, InFlight, Mismatch, RecordState
from tenure_testbed import RedisServer, ValkeyCluster, ValkeyServer

Owner = Callable[[], str]

MINUTE_MS, HOUR_MS = 60_000, 3_600_000
REFUSED = r"OOM|maxmemory"


@pytest.fixture(params=[ValkeyServer, RedisServer])
def server(request: pytest.FixtureRequest, own_server: Any) -> ValkeyServer:
    started: ValkeyServer = own_server(request.param)
    return started


def contents(server: Any) -> list[tuple[str, Any, Any]]:
    return [
        (key, server.execute("HGETALL", key), server.execute("PEXPIRETIME", key))
        for key in sorted(server.execute("KEYS", "*"))
    ]


async def begin(store: Any, key: str, owner: str, payload: str = "cats", **options: Any) -> Any:
    return await store.acquire(key, owner, payload, MINUTE_MS, HOUR_MS, **options)


async def test_a_full_server_begins_nothing_and_lets_what_has_begun_end(
    server: ValkeyServer, open_records: Any, owner: Owner, client: str
) -> None:
    store = open_records(server.url(), client=client)
    first, second = owner(), owner()
    for key in ("flight", "abandoned", "released", "done"):
        assert await begin(store, key, first) == Acquired(1)
    server.execute("PEXPIRE", "idem:abandoned", HOUR_MS)
    await store.complete("done", first, b"before", HOUR_MS)
    await begin(store, "second", first)
    server.execute("PEXPIRE", "idem:second", HOUR_MS)
    assert await begin(store, "second", second) == Acquired(2)
    # Also the scripts that the server has not seen have to get through.
    server.execute("SCRIPT", "FLUSH")
    server.set_maxmemory(1)

    before = contents(server)
    for key in ("new", "abandoned"):
        with pytest.raises(Exception, match=REFUSED):
            await begin(store, key, owner())
    assert isinstance(await begin(store, "flight", owner()), InFlight)
    assert await begin(store, "flight", owner(), "dogs") == Mismatch(RecordState.IN_FLIGHT)
    assert await begin(store, "abandoned", owner(), takeover=False) == Abandoned(1)
    assert await begin(store, "done", owner()) == Completed(b"before", first)
    assert contents(server) == before, "nothing was written"

    assert await begin(store, "flight", first) == Acquired(1), "a repeat grows nothing"
    assert await store.extend("flight", first, 10 * MINUTE_MS)
    assert await store.extend("abandoned", first, MINUTE_MS)
    assert await store.release("released", first)
    assert await store.release("second", second)
    assert await store.complete("flight", first, b"r" * 100_000, HOUR_MS) is Completion.STORED
    assert await store.complete("flight", first, b"again", HOUR_MS) is Completion.STORED
    assert await begin(store, "flight", owner()) == Completed(b"r" * 100_000, first)
    assert await store.complete("released", first, b"", HOUR_MS) is Completion.GONE
    assert await store.complete("second", second, b"", HOUR_MS) is Completion.STALE

    server.set_maxmemory(0)
    assert await begin(store, "released", owner()) == Acquired(1)
    assert await begin(store, "second", owner()) == Acquired(3)


async def test_every_request_that_is_in_flight_when_the_server_fills_up_completes_and_is_replayed(
    server: ValkeyServer, open_records: Any, owner: Owner, client: str
) -> None:
    """What they store beyond the limit is their responses, and no more: nothing begins beside them."""
    store = open_records(server.url(), client=client)
    requests = {f"order-{number}": owner() for number in range(50)}
    assert set(await asyncio.gather(*(begin(store, *request) for request in requests.items()))) == {Acquired(1)}

    async def serve(key: str, holder: str) -> Completion:
        assert await store.extend(key, holder, MINUTE_MS)
        with pytest.raises(Exception, match=REFUSED):
            await begin(store, f"{key}-new", owner())
        done: Completion = await store.complete(key, holder, key.encode() * 1000, HOUR_MS)
        return done

    server.set_maxmemory(1)
    assert set(await asyncio.gather(*(serve(*request) for request in requests.items()))) == {Completion.STORED}
    replies = await asyncio.gather(*(begin(store, key, owner()) for key in requests))
    assert replies == [Completed(key.encode() * 1000, holder) for key, holder in requests.items()]
    assert server.execute("DBSIZE") == 50


async def test_a_full_cluster_does_the_same(own_valkey_cluster: ValkeyCluster, open_records: Any, client: str) -> None:
    store = open_records(own_valkey_cluster.url(), client=client, timeout="5s")
    keys = [f"order-{number}" for number in range(30)]
    assert set(await asyncio.gather(*(begin(store, key, "first") for key in keys))) == {Acquired(1)}
    own_valkey_cluster.set_maxmemory(1)
    for key in keys:
        with pytest.raises(Exception, match=REFUSED):
            await begin(store, f"{key}-new", "second")
        assert await store.extend(key, "first", MINUTE_MS)
    half = len(keys) // 2
    assert [await store.complete(key, "first", b"made", HOUR_MS) for key in keys[:half]] == [Completion.STORED] * half
    assert [await store.release(key, "first") for key in keys[half:]] == [True] * half
    assert [await begin(store, key, "second") for key in keys[:half]] == [Completed(b"made", "first")] * half
