"""Bugs planted in the scripts: each is found by the fact that it breaks, or that fact would prove nothing."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tenure.store import Acquired, Held
from tenure_testbed import ValkeyServer
from tenure_valkey import Script, ValkeyLockStore, lock_store

LOCK, FENCE = "locks:{job}", "locks:{job}:fence"
HOUR_US = 3_600_000_000

Fact = Callable[[ValkeyLockStore, ValkeyServer], Awaitable[None]]


async def take(store: ValkeyLockStore, owner: str, ttl_ms: int = 60_000) -> int:
    reply = await store.acquire("job", owner, ttl_ms)
    assert isinstance(reply, Acquired), reply
    return reply.token


async def a_stranger_does_not_renew(store: ValkeyLockStore, server: ValkeyServer) -> None:
    await take(store, "holder")
    assert not await store.renew("job", "stranger", 1000)


async def a_stranger_does_not_release(store: ValkeyLockStore, server: ValkeyServer) -> None:
    await take(store, "holder")
    assert not await store.release("job", "stranger")


async def a_released_lock_is_not_renewed(store: ValkeyLockStore, server: ValkeyServer) -> None:
    await take(store, "holder")
    await store.release("job", "holder")
    assert not await store.renew("job", "holder", 1000)


async def a_held_key_is_refused(store: ValkeyLockStore, server: ValkeyServer) -> None:
    await take(store, "holder")
    assert isinstance(await store.acquire("job", "waiter", 1000), Held)


async def a_repeat_gets_the_same_token(store: ValkeyLockStore, server: ValkeyServer) -> None:
    assert await take(store, "holder") == await take(store, "holder")


async def tokens_grow_when_everything_is_lost(store: ValkeyLockStore, server: ValkeyServer) -> None:
    first = await take(store, "holder")
    server.execute("FLUSHALL")
    assert await take(store, "next") > first


async def tokens_grow_when_the_clock_steps_back(store: ValkeyLockStore, server: ValkeyServer) -> None:
    seconds, _ = server.execute("TIME")  # type: ignore[misc, union-attr]  # a list of two
    ahead = int(str(seconds)) * 1_000_000 + HOUR_US
    server.execute("SET", FENCE, ahead)
    assert await take(store, "holder") > ahead


async def a_fence_lives_until_the_clock_has_caught_up(store: ValkeyLockStore, server: ValkeyServer) -> None:
    await tokens_grow_when_the_clock_steps_back(store, server)
    assert int(str(server.execute("PTTL", FENCE))) > HOUR_US / 1000


async def a_foreign_fence_is_refused(store: ValkeyLockStore, server: ValkeyServer) -> None:
    server.execute("SET", FENCE, "12 o'clock")
    with pytest.raises(lock_store.ForeignValueError):
        await store.acquire("job", "holder", 1000)


async def a_full_server_grants_nothing(store: ValkeyLockStore, server: ValkeyServer) -> None:
    await store.acquire("warm", "holder", 1)
    server.set_maxmemory(1)
    with pytest.raises(Exception, match="maxmemory"):
        await store.acquire("job", "holder", 1000)
    assert server.execute("EXISTS", LOCK, FENCE) == 0


async def a_full_server_renews(store: ValkeyLockStore, server: ValkeyServer) -> None:
    await take(store, "holder")
    server.set_maxmemory(1)
    assert await store.renew("job", "holder", 60_000)


async def a_full_server_releases(store: ValkeyLockStore, server: ValkeyServer) -> None:
    await take(store, "holder")
    server.set_maxmemory(1)
    assert await store.release("job", "holder")


async def a_clean_release_is_told(store: ValkeyLockStore, server: ValkeyServer) -> None:
    await take(store, "holder")
    await store.release("job", "holder")
    reply = await store.acquire("job", "next", 1000)
    assert isinstance(reply, Acquired)
    assert reply.after == "released"


async def a_crash_is_told(store: ValkeyLockStore, server: ValkeyServer) -> None:
    await take(store, "holder")
    server.execute("DEL", LOCK)
    reply = await store.acquire("job", "next", 1000)
    assert isinstance(reply, Acquired)
    assert reply.after == "expired"


_OWN = "if holder ~= ARGV[1] then"
_TOKEN = "math.max(clock, last + 1)"
_FIRST_WRITE = "redis.call('SET', KEYS[2], text"

PLANTED = [
    ("renew", _OWN, "if false then", a_stranger_does_not_renew),
    ("release", _OWN, "if false then", a_stranger_does_not_release),
    ("renew", _OWN, "if holder and holder ~= ARGV[1] then", a_released_lock_is_not_renewed),
    ("acquire", "if holder then", "if false then", a_held_key_is_refused),
    ("acquire", "if holder == owner then", "if false then", a_repeat_gets_the_same_token),
    ("acquire", _TOKEN, "last + 1", tokens_grow_when_everything_is_lost),
    ("acquire", _TOKEN, "clock", tokens_grow_when_the_clock_steps_back),
    ("acquire", "math.max(ttl, math.ceil((token - clock) / 1000))", "ttl", a_fence_lives_until_the_clock_has_caught_up),
    ("acquire", "'^[1-9]%d*$') then\n    return {-2}", "'^%d+') then\n    return {-2}", a_foreign_fence_is_refused),
    ("acquire", _FIRST_WRITE, f"redis.call('DEL', KEYS[2]) {_FIRST_WRITE}", a_full_server_grants_nothing),
    ("renew", "-- Prevents", "#!lua\n-- Prevents", a_full_server_renews),
    ("release", "redis.call('PEXPIRE', KEYS[1], life)", "", a_full_server_releases),
    ("release", "redis.call('SET', KEYS[1], token, 'PX', life)", "redis.call('DEL', KEYS[1])", a_clean_release_is_told),
    ("acquire", "redis.call('SET', KEYS[2], text, 'PX', fence_life(token))", "", a_crash_is_told),
]


@pytest.mark.parametrize("planted", [False, True], ids=["sound", "planted"])
@pytest.mark.parametrize("bug", PLANTED, ids=[fact.__name__ for *_, fact in PLANTED])
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
            # An assertion, what the broken script made the store raise, or an error that did not come.
            with pytest.raises((Exception, pytest.fail.Exception)):
                await fact(store, valkey_server)
        else:
            await fact(store, valkey_server)
    finally:
        valkey_server.set_maxmemory(0)
