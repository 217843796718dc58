"""Bugs planted in the scripts of the queue: each is found by the fact that it breaks, or it would prove nothing."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tenure.store import Acquired, Held
from tenure_testbed import ValkeyServer
from tenure_valkey import Script, ValkeyLockStore, lock_store

LOCK, FENCE = "locks:{job}", "locks:{job}:fence"
HOUR_US = 3_600_000_000
MINUTE_MS = 60_000

Fact = Callable[[ValkeyLockStore, ValkeyServer], Awaitable[None]]


async def take(store: ValkeyLockStore, owner: str = "holder") -> int:
    reply = await store.acquire("job", owner, MINUTE_MS)
    assert isinstance(reply, Acquired), reply
    return reply.token


async def stand(store: ValkeyLockStore, *owners: str, ttl_ms: int = MINUTE_MS, place_ms: int = MINUTE_MS) -> None:
    for owner in owners:
        assert isinstance(await store.acquire_queued("job", owner, ttl_ms, place_ms), Held)


async def is_granted(store: ValkeyLockStore, *owners: str) -> None:
    """Release after release, the lock is granted to *owners* in this order."""
    before = "holder"
    for owner in owners:
        assert await store.release("job", before)
        assert await store.renew("job", owner, MINUTE_MS), f"it was not granted to {owner}"
        before = owner


async def tokens_grow_with_grants(store: ValkeyLockStore, server: ValkeyServer) -> None:
    first = await take(store)
    await stand(store, "one")
    await is_granted(store, "one")
    assert await take(store, "one") > first


async def tokens_grow_where_the_clock_stepped_back(store: ValkeyLockStore, server: ValkeyServer) -> None:
    time: Any = server.execute("TIME")
    ahead = int(time[0]) * 1_000_000 + HOUR_US
    server.execute("SET", LOCK, f"{ahead}:0:holder", "PX", MINUTE_MS)
    await stand(store, "one")
    await is_granted(store, "one")
    assert await take(store, "one") > ahead


async def a_place_that_ran_out_is_skipped(store: ValkeyLockStore, server: ValkeyServer) -> None:
    await take(store)
    await stand(store, "late", place_ms=1)
    await stand(store, "one")
    await asyncio.sleep(0.01)
    await is_granted(store, "one")


async def who_left_is_skipped(store: ValkeyLockStore, server: ValkeyServer) -> None:
    await take(store)
    await stand(store, "left", "one")
    assert not await store.release("job", "left")
    await is_granted(store, "one")


async def who_left_leaves_the_others(store: ValkeyLockStore, server: ValkeyServer) -> None:
    await take(store)
    await stand(store, "one", "left", "two")
    assert not await store.release("job", "left")
    await is_granted(store, "one", "two")


async def first_come_first_served(store: ValkeyLockStore, server: ValkeyServer) -> None:
    await take(store)
    await stand(store, "one", "two", "three")
    await is_granted(store, "one", "two", "three")


async def who_asks_again_keeps_its_place(store: ValkeyLockStore, server: ValkeyServer) -> None:
    await take(store)
    await stand(store, "one", "two", "one")
    await is_granted(store, "one", "two")


async def a_waiter_does_not_move_the_end_of_the_lock(store: ValkeyLockStore, server: ValkeyServer) -> None:
    await take(store)
    await stand(store, "one", ttl_ms=1000)
    assert int(str(server.execute("PTTL", LOCK))) > MINUTE_MS / 2


async def who_does_not_listen_is_passed_over(store: ValkeyLockStore, server: ValkeyServer) -> None:
    await take(store)
    await stand(store, "gone")
    await store._channels.aclose()
    [channel] = (line for line in str(server.execute("GET", LOCK)).split("\0") if line.startswith("locks:queue"))
    for _ in range(1000):
        listening: Any = server.execute("PUBSUB", "NUMSUB", channel)
        if listening[1] == 0:
            break
        await asyncio.sleep(0.005)
    await store.release("job", "holder")
    assert await take(store, "next")


async def who_is_told_of_a_grant_has_it(store: ValkeyLockStore, server: ValkeyServer) -> None:
    """Also where the server refuses to write it."""
    await take(store)
    await stand(store, "one")
    heard = asyncio.create_task(store.granted("job", "one"))
    server.set_maxmemory(1)
    with contextlib.suppress(Exception):
        await store.release("job", "holder")
    await asyncio.wait([heard], timeout=0.2)
    told = heard.done()
    heard.cancel()
    assert not told or await store.renew("job", "one", MINUTE_MS)


async def a_full_server_grants(store: ValkeyLockStore, server: ValkeyServer) -> None:
    await take(store)
    await stand(store, "left", "one")
    server.set_maxmemory(1)
    assert not await store.release("job", "left")
    await is_granted(store, "one")


async def a_full_server_raises_the_fence(store: ValkeyLockStore, server: ValkeyServer) -> None:
    await take(store)
    await stand(store, "one")
    server.set_maxmemory(1)
    await is_granted(store, "one")
    assert server.execute("GET", FENCE) == str(await take(store, "one"))


async def a_token_that_was_granted_outlives_its_lock(store: ValkeyLockStore, server: ValkeyServer) -> None:
    await take(store)
    await stand(store, "one")
    await store.release("job", "holder")
    token = str(server.execute("GET", LOCK)).split(":", maxsplit=1)[0]
    assert server.execute("GET", FENCE) == token


async def a_late_word_does_not_lower_the_fence(store: ValkeyLockStore, server: ValkeyServer) -> None:
    token = await take(store)
    await store._keep_fences([("job", [token - 1, (token // 1000) + MINUTE_MS])])
    assert server.execute("GET", FENCE) == str(token)


async def who_asks_again_raises_the_fence(store: ValkeyLockStore, server: ValkeyServer) -> None:
    token = await take(store)
    server.execute("SET", FENCE, token - 1)
    await take(store)
    assert server.execute("GET", FENCE) == str(token)


async def a_renewal_by_the_holder_bears_a_queue(store: ValkeyLockStore, server: ValkeyServer) -> None:
    await take(store)
    await stand(store, "one")
    assert await store.renew("job", "holder", MINUTE_MS)
    assert [record.owner for record in await store.list_locks()] == ["holder"]
    await is_granted(store, "one")


async def a_queue_that_is_too_long_takes_nobody(store: ValkeyLockStore, server: ValkeyServer) -> None:
    await take(store)
    await stand(store, "one")
    server.execute("SET", LOCK, str(server.execute("GET", LOCK)) + "x" * 131_072, "KEEPTTL")
    await stand(store, "two")
    assert "\0\0two\0" not in str(server.execute("GET", LOCK))


_GRANT_SET = "redis.call('SET', KEYS[1], text .. ':1:' .. owner .. string.sub(queue, begin), 'PX', ttl)"
_GRANT_EXPIRE = "redis.call('PEXPIRE', KEYS[1], ttl)"
_PUBLISH = "redis.call('PUBLISH', channel, text .. '\\0' .. owner .. '\\0' .. KEYS[1])"
_REST = "(next_one and string.sub(queue, next_one) or '')"

PLANTED = [
    ("release", "math.max(clock, token + 1)", "tonumber(token)", tokens_grow_with_grants),
    ("release", "math.max(clock, token + 1)", "clock", tokens_grow_where_the_clock_stepped_back),
    ("release", "if until_ms * 1000 > clock then", "if true then", a_place_that_ran_out_is_skipped),
    ("release", "  if from then", "  if false then", who_left_is_skipped),
    ("release", _REST, "''", who_left_leaves_the_others),
    (
        "acquire",
        "value = value .. entry",
        "value = string.sub(value, 1, #value - #queue) .. entry .. queue",
        first_come_first_served,
    ),
    ("release", "string.sub(queue, begin), 'PX'", "'', 'PX'", first_come_first_served),
    ("acquire", f"entry .. {_REST}", f"{_REST} .. entry", who_asks_again_keeps_its_place),
    ("acquire", "value, 'KEEPTTL'", "value, 'PX', ARGV[2]", a_waiter_does_not_move_the_end_of_the_lock),
    ("release", "if listeners[2] > 0 then", "if true then", who_does_not_listen_is_passed_over),
    ("release", _GRANT_EXPIRE, _PUBLISH, who_is_told_of_a_grant_has_it),
    ("release", _GRANT_EXPIRE, "", a_full_server_grants),
    ("release", "redis.call('PEXPIRE', KEYS[1], left)", "", a_full_server_grants),
    ("keep_fence", "redis.call('PEXPIREAT', KEYS[1], ARGV[2])\nredis", "redis", a_full_server_raises_the_fence),
    (
        "keep_fence",
        "redis.call('SET', KEYS[1], ARGV[1], 'PXAT', ARGV[2])",
        "",
        a_token_that_was_granted_outlives_its_lock,
    ),
    ("keep_fence", "tonumber(fence) > tonumber(ARGV[1])", "false", a_late_word_does_not_lower_the_fence),
    ("acquire", "tonumber(fence) < tonumber(token)", "false", who_asks_again_raises_the_fence),
    ("renew", "([^%z]+)", "(.+)", a_renewal_by_the_holder_bears_a_queue),
    ("look", "[^%z]+", ".+", a_renewal_by_the_holder_bears_a_queue),
    ("acquire", "#value <= 131072 and", "", a_queue_that_is_too_long_takes_nobody),
]


@pytest.mark.parametrize("planted", [False, True], ids=["sound", "planted"])
@pytest.mark.parametrize("bug", PLANTED, ids=[f"{name}-{fact.__name__}" for name, *_, fact in PLANTED])
async def test_a_planted_bug_is_found(
    bug: tuple[str, str, str, Fact],
    planted: bool,
    store: ValkeyLockStore,
    valkey_server: ValkeyServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name, sound, broken, fact = bug
    script: Any = getattr(lock_store, f"_{name.upper()}")
    assert script.source.count(sound) == 1, "the script was changed: plant the bug anew"
    if planted:
        monkeypatch.setattr(lock_store, f"_{name.upper()}", Script(name, script.source.replace(sound, broken)))
    try:
        if planted:
            # An assertion, or what the broken script made the store raise.
            with pytest.raises(Exception):  # noqa: B017 -- see above
                await fact(store, valkey_server)
        else:
            await fact(store, valkey_server)
    finally:
        valkey_server.set_maxmemory(0)
