"""Tokens, the fence that keeps the last one, and what a clock that steps back can and cannot do to them."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tenure.store import Acquired
from tenure_testbed import ValkeyServer
from tenure_valkey import ValkeyLockStore

Owner = Callable[[], str]
Person = Callable[..., Any]

LOCK, FENCE = "locks:{job}", "locks:{job}:fence"
HOUR_US = 3_600_000_000


async def take(store: ValkeyLockStore, key: str, owner: str, ttl_ms: int = 60_000) -> Acquired:
    reply = await store.acquire(key, owner, ttl_ms)
    assert isinstance(reply, Acquired)
    return reply


def clock_us(person: Person) -> int:
    seconds, microseconds = person("TIME")
    return int(seconds) * 1_000_000 + int(microseconds)


async def test_a_token_is_the_server_s_clock_in_microseconds(
    store: ValkeyLockStore, person: Person, owner: Owner
) -> None:
    before = clock_us(person)
    token = (await take(store, "job", owner())).token
    assert before <= token <= clock_us(person)
    assert person("GET", FENCE) == str(token)


async def test_a_clock_that_lags_behind_the_last_token_still_gives_a_greater_one(
    store: ValkeyLockStore, person: Person, owner: Owner
) -> None:
    """To a server whose clock stepped back by an hour, its own fences are an hour ahead."""
    ahead = clock_us(person) + HOUR_US
    person("SET", FENCE, ahead, "PX", 60_000)
    holder = owner()
    first = await take(store, "job", holder)
    assert first.token == ahead + 1
    await store.release("job", holder)
    assert (await take(store, "job", owner())).token == ahead + 2


async def test_a_token_ahead_of_the_clock_is_kept_until_the_clock_has_caught_up_and_a_retention_more(
    store: ValkeyLockStore, person: Person, owner: Owner
) -> None:
    """Or the key would be acquired, after the fence has gone, with a smaller token than before."""
    person("SET", FENCE, clock_us(person) + HOUR_US, "PX", 60_000)
    holder = owner()
    await take(store, "job", holder)
    assert 3_655_000 < person("PTTL", FENCE) <= 3_660_001
    await take(store, "job", holder, 1000)  # asked again, for less
    assert 3_655_000 < person("PTTL", FENCE) <= 3_660_001
    assert await store.renew("job", holder, 500)
    assert 3_655_000 < person("PTTL", FENCE) <= 3_660_001
    await store.release("job", holder)
    assert 3_655_000 < person("PTTL", LOCK) <= 3_660_002
    assert person("PTTL", LOCK) >= person("PTTL", FENCE)


async def test_the_last_of_the_two_places_counts(store: ValkeyLockStore, person: Person, owner: Owner) -> None:
    """A release leaves the token in the lock's key: a fence that an operator deleted is not missed."""
    ahead = clock_us(person) + HOUR_US
    for lock, fence in ((ahead, 5), (5, ahead), (ahead, None)):
        person("FLUSHALL")
        person("SET", LOCK, lock)
        if fence is not None:
            person("SET", FENCE, fence)
        assert (await take(store, "job", owner())).token == ahead + 1


async def test_tokens_grow_when_everything_is_deleted(store: ValkeyLockStore, person: Person, owner: Owner) -> None:
    last = 0
    for _ in range(20):
        token = (await take(store, "job", owner())).token
        assert token > last
        last = token
        person("FLUSHALL")


async def test_tokens_grow_across_a_restart_that_lost_everything(
    own_valkey: ValkeyServer, open_store: Any, owner: Owner, client: str
) -> None:
    store = open_store(own_valkey.url(), client=client)
    last = (await take(store, "job", owner())).token
    await store.aclose()
    await asyncio.to_thread(own_valkey.restart)
    assert own_valkey.execute("DBSIZE") == 0
    again = await take(open_store(own_valkey.url(), client=client), "job", owner())
    assert again.token > last
    assert again.after is None


async def test_two_grants_in_one_microsecond_differ(store: ValkeyLockStore, person: Person, owner: Owner) -> None:
    """TIME stands still within a script: here twenty acquisitions within one."""
    from tenure_valkey.runner import read_script

    source = read_script("acquire").source
    script = (
        "local tokens = {} "
        f"local function acquire(KEYS, ARGV) {source} end "
        "for i = 1, 20 do "
        "  tokens[i] = string.format('%.0f', acquire(KEYS, {'owner' .. i, ARGV[1], ARGV[2]})[2]) "
        "  redis.call('DEL', KEYS[1]) "
        "end "
        "return tokens"
    )
    tokens = [int(token) for token in person("EVAL", script, 2, LOCK, FENCE, 1000, 60_000)]
    assert tokens == list(range(tokens[0], tokens[0] + 20))


# ------------------------------------------------------------------------------------- how long a fence is kept


async def test_a_fence_outlives_its_lock_by_the_retention(
    valkey_url: str, open_store: Any, person: Person, owner: Owner
) -> None:
    store = open_store(valkey_url, client="redis", fence_retention="5s")
    await take(store, "job", owner(), 30_000)
    assert 34_000 < person("PTTL", FENCE) <= 35_000


async def test_a_lease_that_is_renewed_for_long_keeps_its_fence(
    valkey_url: str, open_store: Any, person: Person, owner: Owner, until: Any
) -> None:
    """So that who takes over after a crash is told of it, however long the lease has lived."""
    store, holder = open_store(valkey_url, client="redis", fence_retention="200ms"), owner()
    await take(store, "job", holder, 300)
    for _ in range(12):  # longer than ttl and retention together
        await asyncio.sleep(0.06)
        assert await store.renew("job", holder, 300)
        # At most half a retention behind, and the time between two renewals.
        assert person("PTTL", FENCE) > person("PTTL", LOCK) + 10
    await until(lambda: not person("EXISTS", LOCK), "the lock to expire")
    assert (await take(store, "job", owner())).after == "expired"


async def test_many_renewals_keep_their_fences_too(
    valkey_url: str, open_store: Any, person: Person, owner: Owner, client: str
) -> None:
    from tenure.store import Claim

    store = open_store(valkey_url, client=client, fence_retention="100ms")
    claims = [Claim(f"job-{number}", owner(), 300) for number in range(5)]
    for claim in claims:
        await take(store, claim.key, claim.owner, 300)
    for _ in range(10):
        await asyncio.sleep(0.06)
        assert await store.renew_many(claims) == [True] * 5
    assert all(person("EXISTS", f"locks:{{{claim.key}}}:fence") for claim in claims)


async def test_renewals_seldom_write_to_the_fence(
    valkey_url: str, open_store: Any, owner: Owner, valkey_server: ValkeyServer
) -> None:
    """Once in half a retention: a renewal is one script."""
    store, holder = open_store(valkey_url, client="redis"), owner()
    await take(store, "job", holder)
    before = valkey_server.info("commandstats").get("cmdstat_pexpireat", "calls=0")
    for _ in range(50):
        assert await store.renew("job", holder, 60_000)
    assert valkey_server.info("commandstats").get("cmdstat_pexpireat", "calls=0") == before


async def test_a_renewal_for_a_shorter_ttl_shortens_the_fence_with_it(
    store: ValkeyLockStore, person: Person, owner: Owner
) -> None:
    """Or the fence would outlive what a release leaves, and the next holder be told of a crash."""
    holder = owner()
    await take(store, "job", holder, 3_600_000)
    assert await store.renew("job", holder, 1000)
    assert person("PTTL", FENCE) <= 61_000
    assert await store.release("job", holder)
    assert person("PTTL", LOCK) >= person("PTTL", FENCE)


async def test_a_late_word_of_an_old_holder_does_not_touch_the_next_one_s_fence(
    store: ValkeyLockStore, person: Person, owner: Owner
) -> None:
    """The renewal was confirmed, and what keeps its fence is late: by then the fence is another's."""
    token = (await take(store, "job", owner())).token
    person("DEL", LOCK)
    await take(store, "job", owner())
    left = person("PTTL", FENCE)
    await store._keep_fences([("job", [token, 1])])
    assert left - 1000 < person("PTTL", FENCE) <= left


async def test_a_renewal_counts_although_its_fence_could_not_be_kept(
    store: ValkeyLockStore, person: Person, owner: Owner
) -> None:
    holder = owner()
    await take(store, "job", holder, 3_600_000)
    person("DEL", FENCE)
    person("RPUSH", FENCE, "x")
    assert await store.renew("job", holder, 1000), "it was confirmed before"


@pytest.mark.parametrize("released", [False, True])
async def test_a_key_whose_memory_has_gone_says_nothing_of_the_lock_before(
    valkey_url: str, open_store: Any, person: Person, owner: Owner, released: bool
) -> None:
    """After a release: what it left and the fence go together, or the key would look expired in between."""
    store, holder = open_store(valkey_url, client="redis", fence_retention="60ms"), owner()
    await take(store, "job", holder, 60)
    if released:
        await store.release("job", holder)
    seen = set()
    while person("EXISTS", LOCK, FENCE):
        seen.add((person("EXISTS", LOCK), person("EXISTS", FENCE)))
        await asyncio.sleep(0.001)
    assert not (released and (0, 1) in seen), "the fence outlived what the release left"
    assert (await take(store, "job", owner())).after is None
