"""The queue of a lock: what is under its key, grants, places that end, a full server, and who hears of what."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tenure.errors import ConfigurationError
from tenure.store import Acquired, Held, QueuesWaiters
from tenure_testbed import RedisServer, ValkeyServer
from tenure_valkey import Script, ValkeyLockStore, create_redis_client
from tenure_valkey.redis import RedisRunner

OpenStore = Callable[..., ValkeyLockStore]
Person = Callable[..., Any]
Until = Callable[..., Awaitable[None]]

LOCK, FENCE = "locks:{job}", "locks:{job}:fence"
HOUR_US = 3_600_000_000
MINUTE_MS = 60_000


async def take(store: ValkeyLockStore, owner: str, ttl_ms: int = MINUTE_MS) -> Acquired:
    reply = await store.acquire("job", owner, ttl_ms)
    assert isinstance(reply, Acquired)
    return reply


async def stand(store: ValkeyLockStore, owner: str, *, ttl_ms: int = MINUTE_MS, place_ms: int = MINUTE_MS) -> Held:
    reply = await store.acquire_queued("job", owner, ttl_ms, place_ms)
    assert isinstance(reply, Held)
    return reply


async def hear(store: ValkeyLockStore, owner: str) -> Acquired:
    """What the owner is told; a message takes a fraction of a millisecond."""
    heard = asyncio.create_task(store.granted("job", owner))
    await asyncio.wait([heard], timeout=5)
    assert heard.done(), "nothing was heard"
    return heard.result()


async def hears_nothing(store: ValkeyLockStore, owner: str) -> bool:
    heard = asyncio.create_task(store.granted("job", owner))
    await asyncio.wait([heard], timeout=0.05)
    heard.cancel()
    return not heard.done()


def queue(person: Person) -> list[str]:
    """Who stands in the queue."""
    return [entry.split("\0")[0] for entry in person("GET", LOCK).split("\0\0")[1:]]


def test_the_store_says_that_it_queues_waiters(store: ValkeyLockStore) -> None:
    assert isinstance(store, QueuesWaiters)


async def test_a_release_grants_the_lock_and_its_waiter_is_told(
    valkey_url: str, open_store: OpenStore, client: str, person: Person
) -> None:
    one, other = open_store(valkey_url, client=client), open_store(valkey_url, client=client)
    first = await take(one, "holder")
    assert 59_000 < ((await stand(other, "waiter")).expires_in_ms or 0) <= MINUTE_MS
    assert await one.release("job", "holder")
    granted = await hear(other, "waiter")
    assert granted.after == "released"
    assert granted.token > first.token
    assert await other.acquire("job", "waiter", MINUTE_MS) == granted
    assert person("GET", LOCK) == f"{granted.token}:1:waiter"


async def test_so_it_does_on_redis(redis_server: RedisServer, open_store: OpenStore, client: str) -> None:
    one, other = open_store(redis_server.url(), client=client), open_store(redis_server.url(), client=client)
    await take(one, "holder")
    await stand(other, "waiter")
    assert await one.release("job", "holder")
    granted = await hear(other, "waiter")
    assert redis_server.execute("GET", FENCE) == str(granted.token)


async def test_the_queue_is_part_of_the_lock_and_goes_with_it(store: ValkeyLockStore, person: Person) -> None:
    token = (await take(store, "holder")).token
    await stand(store, "one")
    await stand(store, "two")
    assert person("GET", LOCK).startswith(f"{token}:0:holder\0\0one\0{MINUTE_MS}\0")
    assert queue(person) == ["one", "two"]
    assert person("KEYS", "*:queue*") == []
    assert await store.renew("job", "holder", 30_000)
    assert queue(person) == ["one", "two"]
    person("DEL", LOCK)  # as an expiry leaves it
    assert isinstance(await store.acquire("job", "three", 1000), Acquired)
    assert queue(person) == []


async def test_a_grant_lives_for_the_ttl_that_its_owner_asked_for_last(store: ValkeyLockStore, person: Person) -> None:
    await take(store, "holder")
    await stand(store, "waiter", ttl_ms=5000)
    await stand(store, "other")
    await stand(store, "waiter", ttl_ms=7000)
    assert queue(person) == ["waiter", "other"], "asked again, it kept its place"
    await store.release("job", "holder")
    assert 6000 < person("PTTL", LOCK) <= 7000
    assert 66_000 < person("PTTL", FENCE) <= 67_000


async def test_a_listing_names_the_holder_alone(store: ValkeyLockStore) -> None:
    await take(store, "cat-store-1:aa")
    await stand(store, "cat-store-2:bb")
    [record] = await store.list_locks()
    assert (record.owner, record.instance) == ("cat-store-1:aa", "cat-store-1")


async def test_owners_that_look_like_other_parts_of_the_queue_are_told_apart(
    store: ValkeyLockStore, person: Person
) -> None:
    await take(store, "1:0:x")
    channel = store._channels._name(b"")
    odd = [str(MINUTE_MS), "waiter", channel.decode(), "%z^$.", "ü", "holder:1"]
    for owner in odd:
        await stand(store, owner)
    assert queue(person) == odd
    for owner in ("wait", "er", "holder"):
        assert not await store.release("job", owner)
    assert not await store.release("job", "waiter")
    assert queue(person) == [owner for owner in odd if owner != "waiter"]
    assert await store.release("job", "1:0:x")
    assert (await hear(store, odd[0])).token


async def test_a_process_that_has_gone_is_passed_over(
    valkey_url: str, open_store: OpenStore, client: str, person: Person, until: Until
) -> None:
    store, gone = open_store(valkey_url, client=client), open_store(valkey_url, client=client)
    await take(store, "holder")
    await stand(gone, "dead")
    await stand(store, "alive")
    channels = [store._channels._name(b"").decode(), gone._channels._name(b"").decode()]
    await gone.aclose()
    await until(lambda: person("PUBSUB", "NUMSUB", *channels)[1::2] == [1, 0], "the server to notice")
    assert await store.release("job", "holder")
    assert (await hear(store, "alive")).token
    await stand(store, "dead")
    assert await store.release("job", "alive")
    assert (await hear(store, "dead")).token


async def test_where_everybody_has_gone_the_lock_is_free(
    valkey_url: str, open_store: OpenStore, person: Person, until: Until
) -> None:
    store, gone = open_store(valkey_url, client="redis"), open_store(valkey_url, client="redis")
    token = (await take(store, "holder")).token
    await stand(gone, "dead", ttl_ms=1000)
    await stand(gone, "dead too", ttl_ms=1000)
    channel = gone._channels._name(b"").decode()
    await gone.aclose()
    await until(lambda: person("PUBSUB", "NUMSUB", channel)[1] == 0, "the server to notice")
    assert await store.release("job", "holder")
    assert person("GET", LOCK) == str(token)
    assert 119_000 < person("PTTL", LOCK) <= 120_001, "as long as without a queue, not by the ttl of a waiter"
    assert (await store.acquire("job", "next", 1000)).after == "released"  # type: ignore[union-attr]


async def test_two_prefixes_in_one_process_hear_their_own(valkey_url: str, open_store: OpenStore) -> None:
    one = open_store(valkey_url, client="redis", prefix="one:")
    two = open_store(valkey_url, client="redis", prefix="two:")
    for store in (one, two):
        await take(store, "holder")
        await stand(store, "waiter")
    assert await one.release("job", "holder")
    assert (await hear(one, "waiter")).token
    assert await hears_nothing(two, "waiter")
    assert isinstance(await two.acquire("job", "waiter", 1000), Held)


# ------------------------------------------------------------------------------------------- tokens


async def test_tokens_grow_across_grants_and_the_fence_keeps_the_last(store: ValkeyLockStore, person: Person) -> None:
    tokens = [(await take(store, "0")).token]
    for number in range(1, 20):
        await stand(store, str(number))
        assert await store.release("job", str(number - 1))
        tokens.append((await hear(store, str(number))).token)
        assert person("GET", FENCE) == str(tokens[-1])
    assert tokens == sorted(set(tokens))


async def test_a_granted_lock_that_expires_is_told_to_the_next_holder_and_leaves_its_token(
    store: ValkeyLockStore, person: Person
) -> None:
    """Also where the server's clock has stepped back since: to it, its own fences are an hour ahead."""
    await take(store, "holder")
    person("SET", LOCK, f"{person('TIME')[0]}000000:0:holder", "PX", MINUTE_MS)
    value = person("GET", LOCK)
    ahead = int(value.split(":")[0]) + HOUR_US
    person("SET", LOCK, f"{ahead}:0:holder", "PX", MINUTE_MS)
    await stand(store, "waiter", ttl_ms=1000)
    assert await store.release("job", "holder")
    assert (await hear(store, "waiter")).token == ahead + 1
    assert 3_650_000 < person("PTTL", FENCE) <= 3_660_001, "until the clock has caught up, and the retention more"
    person("DEL", LOCK)  # as an expiry leaves it
    reply = await store.acquire("job", "next", 1000)
    assert reply == Acquired(ahead + 2, "expired")


async def test_a_fence_that_a_release_could_not_raise_is_raised_by_who_was_granted_the_lock(
    store: ValkeyLockStore, person: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that released died between the two calls."""

    async def dies(_: Any) -> None:
        pass

    for raises in ("acquire", "renew"):
        person("FLUSHALL")
        first = await take(store, "holder")
        await stand(store, "waiter")
        with monkeypatch.context() as patched:
            patched.setattr(store, "_keep_fences", dies)
            assert await store.release("job", "holder")
        granted = await hear(store, "waiter")
        assert person("GET", FENCE) == str(first.token)
        if raises == "acquire":
            assert await store.acquire("job", "waiter", MINUTE_MS) == granted
        else:
            assert await store.renew("job", "waiter", 500)  # for a shorter ttl, which a fence follows at once
        assert person("GET", FENCE) == str(granted.token)


async def test_a_late_word_about_a_grant_does_not_lower_the_fence(store: ValkeyLockStore, person: Person) -> None:
    token = (await take(store, "holder")).token
    await store._keep_fences([("job", [token - 1, 1])])
    assert person("GET", FENCE) == str(token)
    person("SET", FENCE, "12 o'clock")
    await store._keep_fences([("job", [token, 1])])
    assert person("GET", FENCE) == "12 o'clock"
    person("DEL", FENCE)
    await store._keep_fences([("job", [token, 1])])
    assert person("EXISTS", FENCE) == 0, "its time was over"


async def test_at_the_end_of_the_tokens_a_release_grants_nothing(store: ValkeyLockStore, person: Person) -> None:
    last = 2**53 - 2
    await take(store, "holder")
    await stand(store, "waiter")
    _, colon, rest = person("GET", LOCK).partition(":")
    person("SET", LOCK, f"{last}{colon}{rest}", "PX", MINUTE_MS)
    assert await store.release("job", "holder")
    assert person("GET", LOCK) == str(last)


# ------------------------------------------------------------------------------------------- a full server


async def test_a_full_server_queues_nobody_grants_the_lock_and_lets_a_waiter_leave(
    own_valkey: ValkeyServer, open_store: OpenStore
) -> None:
    store = open_store(own_valkey.url(), client="redis")
    await take(store, "holder")
    for owner in ("one", "two", "three"):
        await stand(store, owner)
    own_valkey.set_maxmemory(1)
    await stand(store, "late")
    assert queue(own_valkey.execute) == ["one", "two", "three"]
    assert not await store.release("job", "one")
    assert queue(own_valkey.execute) == ["two", "three"]
    assert await store.release("job", "holder")
    granted = await hear(store, "two")
    assert own_valkey.execute("GET", FENCE) == str(granted.token)
    assert await store.acquire("job", "two", MINUTE_MS) == granted
    assert await store.renew("job", "two", MINUTE_MS)
    assert await store.release("job", "two")
    assert (await hear(store, "three")).token > granted.token
    assert await store.release("job", "three")
    assert own_valkey.execute("EXISTS", LOCK) == 1


async def test_a_lock_that_a_person_made_permanent_is_waited_for_as_well(
    store: ValkeyLockStore, person: Person
) -> None:
    await take(store, "holder")
    person("PERSIST", LOCK)
    assert await stand(store, "waiter") == Held(None)
    await stand(store, "other")
    assert not await store.release("job", "other")
    assert person("PTTL", LOCK) == -1
    assert await store.release("job", "holder")
    assert (await hear(store, "waiter")).token
    assert person("PTTL", LOCK) > 0


async def test_a_queue_has_an_end(store: ValkeyLockStore, person: Person) -> None:
    """Every renewal reads it; who comes later polls, and gets the key when its turn comes by chance."""
    await take(store, "holder")
    await stand(store, "waiter")
    value = person("GET", LOCK)
    one = value[value.index("\0\0") :]
    many = "".join(one.replace("waiter", f"w{number}") for number in range((2**17 - len(value)) // (len(one) + 2)))
    person("SET", LOCK, value + many, "KEEPTTL")
    for number in itertools.count():
        await stand(store, f"late-{number}")
        if f"late-{number}" not in queue(person):
            break
    assert len(person("GET", LOCK)) <= 2**17
    assert len(queue(person)) > 1000
    assert await store.release("job", "holder")
    assert (await hear(store, "waiter")).token


# ------------------------------------------------------------------------------------------- rights, rules


async def test_a_user_without_channels_polls(
    valkey_server: ValkeyServer, valkey_url: str, open_store: OpenStore, client: str
) -> None:
    rights = "~locks:* +evalsha +eval +script|load +get +set +pttl +pexpire +pexpireat +time +info"
    valkey_server.add_user("shop", "secret", *rights.split())
    store = open_store(valkey_server.url(user="shop"), client=client)
    await take(store, "holder")
    await stand(store, "waiter")
    assert queue(valkey_server.execute) == []
    assert await store.release("job", "holder")
    assert isinstance(await store.acquire_queued("job", "waiter", 1000, 1000), Acquired)


@pytest.mark.parametrize("given", ["", "+pubsub|numsub", "&locks:* +publish"])
async def test_who_may_not_publish_or_ask_who_listens_frees_the_lock(
    valkey_server: ValkeyServer, valkey_url: str, open_store: OpenStore, given: str
) -> None:
    rights = f"~locks:* +evalsha +eval +get +set +pttl +pexpire +pexpireat +time {given}"
    valkey_server.add_user("shop", "secret", *rights.split())
    releases = open_store(valkey_server.url(user="shop"), client="redis")
    token = (await take(releases, "holder")).token
    await stand(open_store(valkey_url, client="redis"), "waiter")
    assert queue(valkey_server.execute) == ["waiter"]
    assert await releases.release("job", "holder")
    assert valkey_server.execute("GET", LOCK) == str(token)


@pytest.mark.parametrize(
    "call", [("", "owner", 1, 1), ("job", "", 1, 1), ("job", "owner", 0, 1), ("job", "owner", 1, True)]
)
async def test_what_is_outside_the_rules_is_refused_before_anything_is_sent(
    valkey_server: ValkeyServer, store: ValkeyLockStore, call: Any
) -> None:
    clients = ("CLIENT", "LIST", "TYPE", "normal")
    before = str(valkey_server.execute(*clients)).count("\n")
    with pytest.raises(ConfigurationError):
        await store.acquire_queued(*call)
    assert str(valkey_server.execute(*clients)).count("\n") == before


async def test_through_a_runner_of_one_method_waiters_poll(valkey_url: str, person: Person) -> None:
    class One:
        def __init__(self, runner: RedisRunner) -> None:
            self._runner = runner

        async def run(self, script: Script, keys: Any, args: Any) -> Any:
            return await self._runner.run(script, keys, args)

    async with create_redis_client(valkey_url) as client:
        store = ValkeyLockStore(One(RedisRunner(client)))
        await take(store, "holder")
        await stand(store, "waiter")
        assert queue(person) == []
        assert await hears_nothing(store, "waiter")
        assert await store.release("job", "holder")
        assert isinstance(await store.acquire_queued("job", "waiter", 1000, 1000), Acquired)
