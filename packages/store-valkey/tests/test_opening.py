import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from tenure import ConfigurationError, open_store
from tenure_testbed import ValkeySentinel, ValkeyServer
from tenure_valkey import create_redis_client, open_valkey_idempotency_store, open_valkey_store
from tenure_valkey.address import parse_address

CANARY = "hunter2"


@pytest.mark.parametrize(
    ("url", "mode", "hosts", "database", "tls"),
    [
        ("valkey://db", "standalone", (("db", 6379),), 0, False),
        ("redis://db:7000/3", "standalone", (("db", 7000),), 3, False),
        ("valkeys://db/", "standalone", (("db", 6379),), 0, True),
        ("rediss://[::1]:7000/0", "standalone", (("::1", 7000),), 0, True),
        ("valkey+cluster://one,two:7001/0", "cluster", (("one", 6379), ("two", 7001)), 0, False),
        ("rediss+cluster://one", "cluster", (("one", 6379),), 0, True),
        ("redis+sentinel://one,two:7000/shop", "sentinel", (("one", 26379), ("two", 7000)), 0, False),
        ("valkey+sentinel://one/shop/4", "sentinel", (("one", 26379),), 4, False),
    ],
)
def test_urls(url: str, mode: str, hosts: object, database: int, tls: bool) -> None:
    address = parse_address(url)
    assert (address.mode, address.hosts, address.database, address.tls) == (mode, hosts, database, tls)
    assert address.product == ("valkey" if url.startswith("valkey") else "redis")
    assert address.service == ("shop" if mode == "sentinel" else None)


def test_credentials_are_decoded_and_stay_out_of_the_repr() -> None:
    address = parse_address(f"valkey://sh%40p:{CANARY}%2F%3A@db:6379/1")
    assert (address.username, address.password) == ("sh@p", f"{CANARY}/:")
    assert parse_address(f"valkey://:{CANARY}@db").username is None
    assert parse_address("valkey://shop@db").password is None
    assert CANARY not in repr(address)


@pytest.mark.parametrize(
    ("rest", "says"),
    [
        ("one,two", "several hosts"),
        ("", "a host that is none"),
        ("db:port", "a host that is none"),
        ("db:70000", "a host that is none"),
        ("db/shop", "no number of a database"),
        ("db/1/2", "no number of a database"),
        ("db?prefix=a&prefix=b", "more than once"),
        ("db?color=red", "option 'color'"),
        ("db?client=jedis", "client is 'jedis'"),
        ("db?client=redis&max_connections=none", "max_connections is 'none'"),
        ("db?client=glide&max_connections=4", "glide has one connection"),
        ("db?tls_ca=/ca.pem", "no TLS"),
        ("db?prefix={a}", "a brace"),
        ("db?fence_retention=soon", "fence_retention"),
        ("db?timeout=0", "timeout"),
        ("db#fragment", "none of a Valkey"),
    ],
)
def test_a_url_that_cannot_be_is_refused_without_being_told(rest: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says) as caught:
        open_valkey_store(f"valkey://shop:{CANARY}@{rest}")
    assert CANARY not in f"{caught.value}{caught.value!r}{caught.value.__cause__}"


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("postgresql://db", "none of a Valkey"),
        ("db:6379", "none of a Valkey"),
        ("redis+cluster://db/1", "a cluster has but the first"),
        ("redis+sentinel://db", "names no service"),
        ("redis+sentinel://db/shop?client=glide", "does not ask Sentinels"),
        (b"valkey://db", "is a bytes"),
    ],
)
def test_other_urls_that_cannot_be(url: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        open_valkey_store(url)


@pytest.mark.parametrize(
    ("rest", "says"),
    [("db?fence_retention=5s", "option 'fence_retention'"), ("db?prefix={a}", "a brace"), ("one,two", "several hosts")],
)
def test_a_url_of_records_that_cannot_be_is_refused_without_being_told(rest: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says) as caught:
        open_valkey_idempotency_store(f"valkey://shop:{CANARY}@{rest}")
    assert CANARY not in f"{caught.value}{caught.value!r}{caught.value.__cause__}"


PLAIN = ["valkey", "valkeys", "redis", "rediss"]
SCHEMES = [*PLAIN, *(f"{scheme}+{mode}" for scheme in PLAIN for mode in ("cluster", "sentinel"))]


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_every_scheme_is_found_by_the_core_and_connects_to_nobody(scheme: str) -> None:
    async with open_store(f"{scheme}://nobody.invalid/{'shop' if 'sentinel' in scheme else ''}"):
        pass


def declared(group: str) -> dict[str, str]:
    """The entry points of a group, as the package declares them."""
    text = (Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    found: dict[str, str] = tomllib.loads(text)["project"]["entry-points"][group]
    return found


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_every_scheme_opens_an_idempotency_store_and_connects_to_nobody(scheme: str) -> None:
    group = "tenure.idempotency_stores"
    factory = EntryPoint(scheme, declared(group)[scheme], group).load()
    async with factory(f"{scheme}://nobody.invalid/{'shop' if 'sentinel' in scheme else ''}") as store:
        assert store.prefix == "idem:"


def test_both_stores_have_the_same_schemes() -> None:
    assert set(declared("tenure.idempotency_stores")) == set(declared("tenure.stores")) == set(SCHEMES)


async def test_the_options_reach_the_idempotency_store(
    valkey_server: ValkeyServer, valkey_url: str, client: str
) -> None:
    query = f"client={client}&prefix=billing:&timeout=1s"
    async with open_valkey_idempotency_store(f"{valkey_url}?{query}") as store:
        await store.acquire("order", "owner", "cats", 1000, 1000)
        assert valkey_server.execute("TYPE", "billing:order") == "hash"


@pytest.mark.parametrize(("scheme", "kind"), [("valkey", "GlideRunner(GlideClient)"), ("redis", "RedisRunner(Redis)")])
async def test_the_scheme_decides_which_client_is_tried_first(scheme: str, kind: str) -> None:
    async with open_valkey_store(f"{scheme}://db") as store:
        assert repr(store) == f"ValkeyLockStore({kind}, prefix='locks:')"


@pytest.mark.parametrize(
    ("missing", "url", "says"),
    [
        ({"glide"}, "valkey://db", "RedisRunner"),
        ({"redis"}, "redis://db", "GlideRunner"),
        ({"redis"}, "redis+sentinel://db/shop", r"pip install tenure-valkey\[redis\]$"),
        ({"glide"}, "valkey://db?client=glide", r"pip install tenure-valkey\[glide\]$"),
        ({"glide", "redis"}, "valkey://db", r"tenure-valkey\[glide\] or pip install tenure-valkey\[redis\]$"),
    ],
)
async def test_a_client_that_is_not_installed(
    monkeypatch: pytest.MonkeyPatch, missing: set[str], url: str, says: str
) -> None:
    from tenure_valkey import opening

    monkeypatch.setattr(opening, "find_spec", lambda name: None if name in missing else object())
    if "pip" in says:
        with pytest.raises(ConfigurationError, match=says):
            open_valkey_store(url)
    else:
        async with open_valkey_store(url) as store:
            assert says in repr(store)


def test_redis_py_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(ConfigurationError, match=r"pip install tenure-valkey\[redis\]"):
        create_redis_client("redis://db")


async def test_the_options_reach_the_store(valkey_server: ValkeyServer, valkey_url: str, client: str) -> None:
    query = f"client={client}&prefix=billing:&fence_retention=5s&timeout=1s"
    async with open_valkey_store(f"{valkey_url}?{query}") as store:
        await store.acquire("job", "owner", 1000)
        assert valkey_server.execute("PTTL", "billing:{job}:fence") <= 6000


async def test_what_a_url_says_is_not_warned_of(valkey_url: str, client: str) -> None:
    query = "client=glide&timeout=100ms" if client == "glide" else "client=redis&max_connections=1"
    async with open_valkey_store(f"{valkey_url}?{query}") as store:
        await store.release("job", "owner")


async def test_another_database_is_another_world(valkey_server: ValkeyServer, valkey_url: str, client: str) -> None:
    async with open_valkey_store(f"{valkey_server.url(3)}?client={client}") as store:
        await store.acquire("job", "owner", 60_000)
        assert [record.key for record in await store.list_locks()] == ["job"]
    assert valkey_server.execute("EXISTS", "locks:{job}") == 0


async def test_a_password_reaches_the_server(valkey_server: ValkeyServer, valkey_url: str, client: str) -> None:
    valkey_server.add_user("sh@p", "p:/%", "~*", "+@all")
    async with open_valkey_store(f"{valkey_server.url(user='sh@p')}?client={client}") as store:
        await store.acquire("job", "owner", 1000)


@pytest.mark.matrix
async def test_records_behind_sentinel_follow_a_failover(valkey_sentinel: ValkeySentinel) -> None:
    import asyncio

    valkey_sentinel.flush_all()
    async with open_valkey_idempotency_store(valkey_sentinel.url()) as store:
        first = await store.acquire("order", "owner", "cats", 600_000, 600_000)
        await asyncio.to_thread(valkey_sentinel.failover)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + 10
        while True:
            try:
                assert await store.acquire("order", "owner", "cats", 600_000, 600_000) == first
                break
            except Exception:  # noqa: BLE001 -- whatever the client raises until it has asked the Sentinels again
                assert loop.time() < deadline
                await asyncio.sleep(0.02)


@pytest.mark.matrix
async def test_a_store_behind_sentinel_follows_a_failover(valkey_sentinel: ValkeySentinel) -> None:
    import asyncio

    valkey_sentinel.flush_all()
    async with open_valkey_store(valkey_sentinel.url()) as store:
        first = await store.acquire("job", "owner", 600_000)
        await asyncio.to_thread(valkey_sentinel.failover)
        # A connection to the old primary is closed by the failover, or answers READONLY, and is thrown away with it.
        loop = asyncio.get_running_loop()
        deadline = loop.time() + 10
        while True:
            try:
                assert await store.acquire("job", "owner", 600_000) == first
                break
            except Exception:  # noqa: BLE001 -- whatever the client raises until it has asked the Sentinels again
                assert loop.time() < deadline
                await asyncio.sleep(0.02)
