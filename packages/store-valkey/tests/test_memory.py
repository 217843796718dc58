"""What a key costs the server: the figures of the README, measured again, with room for other allocators."""

import asyncio
import hashlib
import logging
import uuid
from typing import Any

import pytest

from tenure_testbed import RedisServer, ValkeyServer
from tenure_testbed.pytest_plugin import or_skip

_LOG = logging.getLogger(__name__)

KEYS = 20_000
AT_ONCE = 200


@pytest.mark.matrix
@pytest.mark.parametrize(("kind", "held_bytes", "released_bytes"), [(ValkeyServer, 300, 250), (RedisServer, 410, 330)])
async def test_memory_for_each_key(
    kind: type[ValkeyServer], held_bytes: int, released_bytes: int, open_store: Any
) -> None:
    """Over keys of 36 characters, as `used_memory` grows: the server's own tables are in it."""
    with or_skip(), kind() as server:
        store, owner = open_store(server.url(), client="glide", timeout="10s"), f"cat-store-1:{'a' * 32}"
        keys = [str(uuid.uuid4()) for _ in range(KEYS)]
        await store.acquire("warm", owner, 1)  # scripts and connections are not counted

        def used() -> int:
            return int(server.info("memory")["used_memory"])

        async def on_all(call: Any) -> None:
            for start in range(0, KEYS, AT_ONCE):
                await asyncio.gather(*(call(key) for key in keys[start : start + AT_ONCE]))

        empty = used()
        await on_all(lambda key: store.acquire(key, owner, 600_000))
        held = (used() - empty) / KEYS
        await on_all(lambda key: store.release(key, owner))
        released = (used() - empty) / KEYS
        _LOG.info("%s: %.0f bytes a key while it is held, %.0f after its release", kind.__name__, held, released)
        assert held < held_bytes * 1.25
        assert released < released_bytes * 1.25
        assert released < held, "a release gives memory back"
        await store.aclose()


@pytest.mark.matrix
@pytest.mark.parametrize(("kind", "flight_bytes", "done_bytes"), [(ValkeyServer, 400, 1000), (RedisServer, 400, 1000)])
async def test_memory_for_each_record(
    kind: type[ValkeyServer], flight_bytes: int, done_bytes: int, open_records: Any
) -> None:
    """Over keys and fingerprints of 64 characters, as digests are, and responses of 500 bytes."""
    with or_skip(), kind() as server:
        store, owner = open_records(server.url(), client="glide", timeout="10s"), f"cat-store-1:{'a' * 32}"
        keys = [hashlib.sha256(b"%d" % number).hexdigest() for number in range(KEYS)]
        await store.acquire("warm", owner, "cats", 1, 1)  # scripts and connections are not counted

        def used() -> int:
            return int(server.info("memory")["used_memory"])

        async def on_all(call: Any) -> None:
            for start in range(0, KEYS, AT_ONCE):
                await asyncio.gather(*(call(key) for key in keys[start : start + AT_ONCE]))

        empty = used()
        await on_all(lambda key: store.acquire(key, owner, key, 600_000, 600_000))
        flight = (used() - empty) / KEYS
        await on_all(lambda key: store.complete(key, owner, bytes(500), 600_000))
        done = (used() - empty) / KEYS
        _LOG.info("%s: %.0f bytes a record in flight, %.0f completed", kind.__name__, flight, done)
        assert flight < flight_bytes * 1.25
        assert done < done_bytes * 1.25
        await store.aclose()
