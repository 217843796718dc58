import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tenure.errors import ConfigurationError, LeaseStateError
from tenure.store import MAX_TOKEN, Acquired, ChecksServer, Claim, Held, ListsLocks, RenewsMany
from tenure_testbed import RedisServer, ValkeyServer
from tenure_valkey import (
    ForeignValueError,
    Script,
    TokensExhaustedError,
    UnreadableReplyError,
    ValkeyLockStore,
    ValkeyStoreError,
)

Owner = Callable[[], str]
Until = Callable[..., Any]
Person = Callable[..., Any]

LOCK, FENCE = "locks:{job}", "locks:{job}:fence"


async def take(store: ValkeyLockStore, key: str, owner: str, ttl_ms: int = 60_000) -> Acquired:
    reply = await store.acquire(key, owner, ttl_ms)
    assert isinstance(reply, Acquired)
    return reply


def test_the_store_has_the_capabilities_that_it_says(store: ValkeyLockStore) -> None:
    assert isinstance(store, RenewsMany)
    assert isinstance(store, ListsLocks)
    assert isinstance(store, ChecksServer)
    assert store.reach == "cluster"


async def test_a_lock_says_how_the_one_before_it_ended(store: ValkeyLockStore, owner: Owner, person: Person) -> None:
    first, second, third = owner(), owner(), owner()
    assert (await take(store, "job", first)).after is None
    await store.release("job", first)
    assert (await take(store, "job", second)).after == "released"
    person("DEL", LOCK)  # as an expiry leaves it
    assert (await take(store, "job", third)).after == "expired"
    assert (await take(store, "job", third)).after == "expired"  # asked again: the same acquisition
    await store.release("job", third)
    assert (await take(store, "job", owner())).after == "released"


async def test_a_release_leaves_the_token_and_no_owner(store: ValkeyLockStore, owner: Owner, person: Person) -> None:
    holder = owner()
    token = (await take(store, "job", holder)).token
    assert person("GET", LOCK) == f"{token}:0:{holder}"
    await store.release("job", holder)
    assert person("GET", LOCK) == person("GET", FENCE) == str(token)
    # The lock would have lived a minute, and what is left of it lives a minute more: as long as the fence.
    assert 119_000 < person("PTTL", LOCK) <= 120_001
    assert abs(person("PTTL", LOCK) - person("PTTL", FENCE)) < 50


async def test_who_is_told_that_a_key_is_held_writes_nothing(
    store: ValkeyLockStore, owner: Owner, person: Person, valkey_server: ValkeyServer
) -> None:
    await take(store, "job", owner())

    def written() -> tuple[str, str, str]:
        return (
            person("GET", LOCK),
            person("GET", FENCE),
            valkey_server.info("persistence")["rdb_changes_since_last_save"],
        )

    before = written()
    reply = await store.acquire("job", owner(), 1000)
    assert isinstance(reply, Held)
    assert 59_000 < (reply.expires_in_ms or 0) <= 60_001
    assert written() == before


async def test_a_lock_that_a_person_made_permanent_is_held_without_an_end(
    store: ValkeyLockStore, owner: Owner, person: Person
) -> None:
    await take(store, "job", owner())
    person("PERSIST", LOCK)
    assert await store.acquire("job", owner(), 1000) == Held(None)


async def test_ttls_of_weeks_are_kept_to_the_millisecond(store: ValkeyLockStore, owner: Owner, person: Person) -> None:
    weeks_ms = 10 * 7 * 24 * 3_600_000
    assert weeks_ms > 2**32
    holder = owner()
    await take(store, "job", holder, weeks_ms)
    assert weeks_ms - 5000 < person("PTTL", LOCK) <= weeks_ms
    assert weeks_ms + 55_000 < person("PTTL", FENCE) <= weeks_ms + 60_000
    assert await store.renew("job", holder, 2 * weeks_ms)
    assert 2 * weeks_ms - 5000 < person("PTTL", LOCK) <= 2 * weeks_ms
    assert await store.release("job", holder)
    assert 2 * weeks_ms < person("PTTL", LOCK)


# --------------------------------------------------------------------------------- what others wrote


@pytest.mark.parametrize("value", ["", "abc", "12x", "007", "-5", "1.5", "1:2", " 1", "1:3:owner", "1:0:"])
async def test_a_lock_key_that_something_else_wrote_is_refused_and_nothing_is_written(
    store: ValkeyLockStore, owner: Owner, person: Person, value: str
) -> None:
    person("SET", LOCK, value)
    with pytest.raises(ForeignValueError, match="key of a lock") as caught:
        await store.acquire("job", owner(), 1000)
    assert caught.value.place == "lock"
    assert person("KEYS", "*") == [LOCK]
    assert person("GET", LOCK) == value
    assert not await store.renew("job", owner(), 1000)
    assert not await store.release("job", owner())
    assert await store.list_locks() == []


@pytest.mark.parametrize("value", ["", "abc", "007", "-5", "1.5", "9e3", "1 "])
async def test_a_fence_that_something_else_wrote_is_refused_and_nothing_is_written(
    store: ValkeyLockStore, owner: Owner, person: Person, value: str
) -> None:
    person("SET", FENCE, value)
    with pytest.raises(ForeignValueError, match="key of a fence"):
        await store.acquire("job", owner(), 1000)
    assert person("KEYS", "*") == [FENCE]
    assert person("GET", FENCE) == value


@pytest.mark.parametrize("place", [LOCK, FENCE])
async def test_another_type_under_a_key_is_the_server_s_own_error_and_nothing_is_written(
    store: ValkeyLockStore, owner: Owner, person: Person, place: str
) -> None:
    person("RPUSH", place, "x")
    with pytest.raises(Exception, match="WRONGTYPE"):
        await store.acquire("job", owner(), 1000)
    assert person("KEYS", "*") == [place]


@pytest.mark.parametrize("last", [2**53 - 2, 2**53 - 1, 2**53, 10**30])
async def test_a_key_whose_tokens_are_used_up_is_refused_and_nothing_is_written(
    store: ValkeyLockStore, owner: Owner, person: Person, last: int
) -> None:
    person("SET", FENCE, last)
    with pytest.raises(TokensExhaustedError, match="end of the range"):
        await store.acquire("job", owner(), 1000)
    assert person("KEYS", "*") == [FENCE]


async def test_the_last_token_but_one_is_still_given(store: ValkeyLockStore, owner: Owner, person: Person) -> None:
    person("SET", FENCE, 2**53 - 3)
    holder = owner()
    assert (await take(store, "job", holder)).token == MAX_TOKEN - 1
    assert (await take(store, "job", holder)).token == MAX_TOKEN - 1
    assert await store.renew("job", holder, 1000)
    assert await store.release("job", holder)
    with pytest.raises(TokensExhaustedError):
        await store.acquire("job", owner(), 1000)


# ----------------------------------------------------------------------------------------- replies


class Answers:
    """A runner that gives what it was told to, as a client that meddles with replies would."""

    def __init__(self, reply: Any) -> None:
        self.reply = reply

    async def run(self, script: Script, keys: Any, args: Any) -> Any:
        return self.reply


@pytest.mark.parametrize(
    "reply", [None, [], b"OK", [1], [1, "5", 0], [1, 0, 0], [1, 2**53, 0], [1, 5, 3], [2, 5], {1: 2}, "[1, 5, 0]", 1]
)
async def test_a_reply_of_acquire_that_cannot_be_read_is_no_grant(owner: Owner, reply: Any) -> None:
    with pytest.raises(UnreadableReplyError, match="script acquire") as caught:
        await ValkeyLockStore(Answers(reply)).acquire("job", owner(), 1000)
    assert isinstance(caught.value, ValkeyStoreError)


@pytest.mark.parametrize("reply", [None, 2, True, b"1", [1], [1, "2"], "1", 0.0])
async def test_a_reply_of_renew_or_release_that_cannot_be_read_is_no_answer(owner: Owner, reply: Any) -> None:
    store = ValkeyLockStore(Answers(reply))
    with pytest.raises(UnreadableReplyError):
        await store.renew("job", owner(), 1000)
    with pytest.raises(UnreadableReplyError):
        await store.release("job", owner())
    with pytest.raises(UnreadableReplyError):
        await store.renew_many([Claim("job", owner(), 1000)])


async def test_bad_durations_are_refused_at_construction() -> None:
    for bad in (0, -1, True, 0.0001, "soon", float("nan"), None):
        with pytest.raises(ConfigurationError, match="fence_retention"):
            ValkeyLockStore(Answers(None), fence_retention=bad)  # type: ignore[arg-type]  # that is the point
    with pytest.raises(ConfigurationError, match="no runner"):
        ValkeyLockStore(object())  # type: ignore[arg-type]  # that is the point


async def test_a_closed_store_says_so(valkey_url: str, open_store: Any, owner: Owner, client: str) -> None:
    store = open_store(valkey_url, client=client)
    await take(store, "job", owner())
    await store.aclose()
    for call in (store.acquire("job", owner(), 1000), store.check(), store.list_locks(), store.renew_many([])):
        with pytest.raises(LeaseStateError, match="closed"):
            await call


# -------------------------------------------------------------------------------------- out of memory


@pytest.mark.parametrize("kind", [ValkeyServer, RedisServer])
async def test_a_full_server_refuses_acquire_before_anything_is_written_and_runs_the_rest(
    kind: type[ValkeyServer], own_server: Any, open_store: Any, owner: Owner, client: str
) -> None:
    server = own_server(kind)
    store = open_store(server.url(), client=client)
    holder, other = owner(), owner()
    first = await take(store, "job", holder)
    await take(store, "second", other)
    await store.release("second", other)
    server.set_maxmemory(1)
    keys = sorted(server.execute("KEYS", "*"))
    for key in ("new", "second"):
        with pytest.raises(Exception, match=r"OOM|maxmemory"):
            await store.acquire(key, owner(), 1000)
    assert sorted(server.execute("KEYS", "*")) == keys
    assert isinstance(await store.acquire("job", owner(), 1000), Held)
    assert (await take(store, "job", holder)).token == first.token, "a repeat grows nothing"
    assert await store.renew("job", holder, 60_000)
    assert await store.renew_many([Claim("job", holder, 60_000)]) == [True]
    assert [record.key for record in await store.list_locks()] == ["job"]
    assert await store.release("job", holder)
    server.set_maxmemory(0)
    assert (await take(store, "job", owner())).after == "released"


# ---------------------------------------------------------------------------------------- many at once


async def test_many_renewals_are_answered_in_the_order_of_their_claims(
    valkey_url: str, open_store: Any, owner: Owner, client: str
) -> None:
    store = open_store(valkey_url, client=client)
    held, expired = owner(), owner()
    await take(store, "b-held", held)
    await take(store, "a-expired", expired, 1)
    await take(store, "c-strange", owner())
    await asyncio.sleep(0.01)
    claims = [("c-strange", owner()), ("d-none", owner()), ("b-held", held), ("a-expired", expired)]
    answers = await store.renew_many([Claim(key, name, 1000) for key, name in claims])
    assert answers == [False, False, True, False]


async def test_five_thousand_renewals_are_one_call(valkey_url: str, open_store: Any, owner: Owner, client: str) -> None:
    store = open_store(valkey_url, client=client, timeout="10s")
    claims = [Claim(f"job-{number}", owner(), 60_000) for number in range(5000)]
    for start in range(0, 5000, 500):
        await asyncio.gather(*(take(store, claim.key, claim.owner) for claim in claims[start : start + 500]))
    assert await store.renew_many(claims) == [True] * 5000


async def test_one_claim_on_a_key_of_another_type_fails_no_other(
    valkey_url: str, open_store: Any, owner: Owner, client: str, person: Person
) -> None:
    store = open_store(valkey_url, client=client)
    holder = owner()
    await take(store, "good", holder)
    person("RPUSH", LOCK, "x")
    claims = [Claim("job", holder, 1000), Claim("good", holder, 1000)]
    assert await store.renew_many(claims) == [None, True]
    with pytest.raises(Exception, match="WRONGTYPE"):
        await store.renew_many(claims[:1])


async def test_a_server_that_is_gone_is_an_error_and_not_a_list_of_unknowns(
    own_valkey: ValkeyServer, open_store: Any, owner: Owner, client: str
) -> None:
    store = open_store(own_valkey.url(), client=client, timeout="500ms")
    holder = owner()
    await take(store, "job", holder)
    own_valkey.kill()
    with pytest.raises(Exception):  # noqa: B017 -- the client's own, of whatever kind
        await store.renew_many([Claim("job", holder, 1000), Claim("other", holder, 1000)])


# ------------------------------------------------------------------------------------- what is listed


async def test_locks_are_listed_and_what_was_released_or_is_no_lock_is_not(
    valkey_url: str, open_store: Any, owner: Owner, person: Person, client: str
) -> None:
    store, holder = open_store(valkey_url, client=client), owner()
    tokens = {key: (await take(store, key, holder)).token for key in ("a{b}", "a%7Bb", "a*", "a", "b")}
    await store.release("b", holder)
    person("SET", "locks:{foreign}", "x")
    person("SET", "locks:plain", "1")
    person("RPUSH", "locks:{a list}", "x")
    records = await store.list_locks("a")
    assert [(record.key, record.token, record.instance) for record in records] == [
        (key, tokens[key], "cat-store-1") for key in sorted(tokens) if key != "b"
    ]
    assert all(59_000 < record.expires_in_ms <= 60_000 for record in records)
    assert [record.key for record in await store.list_locks("a*")] == ["a*"]
    assert await store.list_locks("b") == []


async def test_a_listing_that_is_not_permitted_is_an_error_and_not_an_empty_list(
    store: ValkeyLockStore, valkey_server: ValkeyServer, open_store: Any, owner: Owner
) -> None:
    await take(store, "job", owner())
    valkey_server.add_user("blind", "secret", "~locks:*", "+evalsha", "+eval", "+scan", "+pttl")
    with pytest.raises(Exception, match=r"(?i)permissions|acl failure"):
        await open_store(valkey_server.url(user="blind"), client="redis").list_locks()


async def test_two_prefixes_are_two_worlds(valkey_url: str, open_store: Any, owner: Owner) -> None:
    one = open_store(valkey_url, client="redis", prefix="billing:locks:")
    two = open_store(valkey_url, client="redis", prefix="shop:locks:")
    await take(one, "job", owner())
    await take(two, "job", owner())
    assert len(await one.list_locks()) == len(await two.list_locks()) == 1


async def test_a_scan_of_many_keys_finds_every_lock(
    valkey_url: str, open_store: Any, owner: Owner, person: Person, client: str
) -> None:
    """More keys than a step of the scan looks at, most of them no locks."""
    store = open_store(valkey_url, client=client, timeout="10s")
    person("EVAL", "for i = 1, 3000 do redis.call('SET', 'noise:' .. i, i) end", 0)
    await asyncio.gather(*(take(store, f"job-{number:04}", owner()) for number in range(700)))
    assert [record.key for record in await store.list_locks("job-")] == [f"job-{number:04}" for number in range(700)]


async def test_a_runner_that_cannot_look_for_keys_says_so() -> None:
    with pytest.raises(ConfigurationError, match="find_keys"):
        await ValkeyLockStore(Answers([])).list_locks()
    with pytest.raises(ConfigurationError, match="no text"):
        await ValkeyLockStore(Answers([])).list_locks("\ud800")
