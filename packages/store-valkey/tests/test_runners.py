"""Runners: what they refuse and warn of, what they send again, and a client of one's own."""

import asyncio
import secrets
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import glide
import pytest
import redis
import redis.asyncio
import valkey.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.maint_notifications import MaintNotificationsConfig

from tenure.errors import ConfigurationError, LeaseStateError
from tenure.store import Acquired, Claim
from tenure.testing import lock_store_contract, run_all
from tenure_testbed import Blackhole, DropReply, FaultProxy, ValkeyCluster, ValkeyServer
from tenure_valkey import (
    ClientSettingsWarning,
    GlideRunner,
    RedisRunner,
    Script,
    ValkeyLockStore,
    create_redis_client,
)
from tenure_valkey.group import _Trip

ONCE = Retry(NoBackoff(), 0)
QUIET = MaintNotificationsConfig(enabled=False)
Owner = Callable[[], str]


def warned(client: Any, runner: type = RedisRunner) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        runner(client)
    assert all(one.category is ClientSettingsWarning for one in caught)
    assert all(one.filename == __file__ for one in caught), "a warning points at who made the runner"
    return [str(one.message) for one in caught]


# ---------------------------------------------------------------------------------------- redis-py


@pytest.mark.parametrize("url", ["redis://db", "rediss://db", "redis+cluster://db", "redis+sentinel://db/shop"])
def test_the_client_that_is_made_for_locks_has_nothing_to_warn_of(url: str) -> None:
    assert warned(create_redis_client(url)) == []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"socket_timeout": None, "retry": ONCE, "maint_notifications_config": QUIET}, ["no socket_timeout"]),
        ({}, ["to connect up to 10 times"]),
        ({"retry": Retry(NoBackoff(), 1)}, ["to connect up to 1 times"]),
        ({"retry": ONCE}, []),
        ({"retry": ONCE, "protocol": 2}, []),
        ({"retry": ONCE, "max_connections": 3}, ["3 connections"]),
        ({"retry": ONCE, "max_connections": 4}, []),
        ({"socket_timeout": None}, ["to connect up to 10 times", "no socket_timeout"]),
    ],
)
def test_dangerous_settings_of_redis_py_are_warned_of(options: dict[str, Any], says: list[str]) -> None:
    found = warned(redis.asyncio.Redis(**options))
    assert len(found) == len(says), found
    assert all(text in message for text, message in zip(says, found, strict=True))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"retry": ONCE, "reinitialize_steps": 0}, []),
        ({"retry": ONCE}, ["every 5th MOVED"]),
        ({}, ["up to 10 times"]),
        ({"retry": ONCE, "reinitialize_steps": 0, "socket_timeout": None}, ["no socket_timeout"]),
    ],
)
def test_dangerous_settings_of_a_cluster_client_are_warned_of(options: dict[str, Any], says: list[str]) -> None:
    found = warned(redis.asyncio.RedisCluster(host="127.0.0.1", **options))
    assert len(found) == len(says), found
    assert all(text in message for text, message in zip(says, found, strict=True))


def test_valkey_py_fits_and_is_read_the_same_way() -> None:
    assert warned(valkey.asyncio.Valkey(socket_timeout=2)) == []
    assert "no socket_timeout" in warned(valkey.asyncio.Valkey(socket_timeout=None))[0]
    retrying = valkey.asyncio.Valkey(socket_timeout=2, retry_on_timeout=True)
    assert "up to 1 times" in warned(retrying)[0]


@pytest.mark.parametrize(("attempts", "says"), [(3, "up to 3 times"), (1, None), (0, "its pipelines")])
def test_a_cluster_client_of_valkey_py_sends_a_call_again_once_at_least(attempts: int, says: str | None) -> None:
    options = {"socket_timeout": 2, "reinitialize_steps": 0, "cluster_error_retry_attempts": attempts}
    found = warned(valkey.asyncio.ValkeyCluster(host="127.0.0.1", **options))
    assert [says in message for message in found] == ([] if says is None else [True])  # type: ignore[operator]


@pytest.mark.parametrize(
    ("client", "says"),
    [
        (redis.Redis(), "synchronous"),
        (object(), "given a object"),
        ("redis://db", "given a str"),
        (redis.asyncio.RedisCluster(host="h", load_balancing_strategy="round"), "reads from replicas"),
        (valkey.asyncio.ValkeyCluster(host="h", read_from_replicas=True), "reads from replicas"),
        (redis.asyncio.Sentinel([("h", 1)]).slave_for("shop"), "leads to a replica"),
        (redis.asyncio.Redis(decode_responses=True, encoding="latin-1"), "decodes replies as latin-1"),
        (redis.asyncio.Redis().pipeline(), "synchronous"),
    ],
)
def test_a_client_that_cannot_work_is_refused(client: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        RedisRunner(client)


@pytest.mark.parametrize("encoding", ["utf-8", "UTF8", "utf_8"])
def test_replies_decoded_as_utf_8_are_read(encoding: str) -> None:
    RedisRunner(create_redis_client("redis://db", decode_responses=True, encoding=encoding))


async def test_more_calls_than_connections_wait_in_line(valkey_url: str, owner: Owner) -> None:
    async with create_redis_client(valkey_url, max_connections=8) as client:
        store = ValkeyLockStore(RedisRunner(client))
        replies = await asyncio.gather(*(store.acquire(f"job-{number}", owner(), 1000) for number in range(300)))
        assert all(isinstance(reply, Acquired) for reply in replies)
        assert len(client.connection_pool._available_connections) <= 8


async def test_the_first_calls_of_a_cluster_client_may_come_all_at_once(
    valkey_cluster: ValkeyCluster, owner: Owner
) -> None:
    """redis-py looks around within its first call, and sends the calls beside that one to any node."""
    for _ in range(3):
        async with create_redis_client(valkey_cluster.url(), max_connections=40) as client:
            store = ValkeyLockStore(RedisRunner(client))
            await asyncio.gather(*(store.acquire(f"job-{number}", owner(), 1000) for number in range(64)))


# ------------------------------------------------------------------------------------------- glide


async def glide_client(server: ValkeyServer, **options: Any) -> glide.GlideClient:
    address = glide.NodeAddress("127.0.0.1", server.port)
    return await glide.GlideClient.create(glide.GlideClientConfiguration([address], **options))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"request_timeout": 2000}, []),
        ({}, ["250 ms"]),
        ({"request_timeout": 0}, ["250 ms"]),
        ({"request_timeout": 499}, ["499 ms"]),
        ({"request_timeout": 2000, "inflight_requests_limit": 19}, ["limit is 19"]),
        ({"request_timeout": 2000, "inflight_requests_limit": 20}, []),
    ],
)
async def test_dangerous_settings_of_glide_are_warned_of(
    valkey_server: ValkeyServer, options: dict[str, Any], says: list[str]
) -> None:
    client = await glide_client(valkey_server, **options)
    found = warned(client, GlideRunner)
    await client.close()
    assert len(found) == len(says), found
    assert all(text in message for text, message in zip(says, found, strict=True))


@pytest.mark.parametrize(
    "mode",
    [
        "PREFER_REPLICA",
        "AZ_AFFINITY",
        "AZ_AFFINITY_REPLICAS_AND_PRIMARY",
        "ALL_NODES",
        "AZ_AFFINITY_ALL_NODES",
    ],
)
async def test_a_glide_client_that_reads_from_replicas_is_refused(valkey_cluster: ValkeyCluster, mode: str) -> None:
    reading = glide.ReadFrom[mode]
    addresses = [glide.NodeAddress(*address) for address in valkey_cluster.startup_nodes]
    config = glide.GlideClusterClientConfiguration(addresses, read_from=reading, client_az="a", lazy_connect=True)
    client = await glide.GlideClusterClient.create(config)
    with pytest.raises(ConfigurationError, match="reads from replicas"):
        GlideRunner(client)
    await client.close()


@pytest.mark.parametrize("client", [object(), None, redis.asyncio.Redis()])
def test_what_is_no_glide_client_is_refused(client: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"given a {type(client).__name__}"):
        GlideRunner(client)


def test_a_glide_client_of_another_loop_is_refused_instead_of_hanging(valkey_server: ValkeyServer) -> None:
    async def use(client: glide.GlideClient) -> None:
        store = ValkeyLockStore(GlideRunner(client))
        for call in (store.acquire("job", "owner", 1000), store.check(), store.list_locks()):
            with pytest.raises(LeaseStateError, match="another event loop"):
                await call

    loop = asyncio.new_event_loop()
    client = loop.run_until_complete(glide_client(valkey_server, request_timeout=2000))
    asyncio.run(use(client))
    loop.run_until_complete(client.close())
    loop.close()


async def test_renewals_leave_room_for_others_in_a_small_glide_client(
    valkey_server: ValkeyServer, owner: Owner
) -> None:
    client = await glide_client(valkey_server, request_timeout=2000, inflight_requests_limit=100)
    store = ValkeyLockStore(GlideRunner(client), prefix=f"{secrets.token_hex(4)}:")
    claims = [Claim(f"job-{number}", owner(), 60_000) for number in range(400)]
    for claim in claims:
        await store.acquire(claim.key, claim.owner, 60_000)
    valkey_server.execute("SCRIPT", "FLUSH")
    renewals = asyncio.create_task(store.renew_many(claims))  # type: ignore[arg-type]  # a coroutine, as it is written
    await asyncio.gather(*(store.acquire(f"other-{number}", owner(), 1000) for number in range(20)))
    assert await renewals == [True] * 400
    await client.close()


async def test_more_calls_than_glide_takes_wait_in_line(valkey_server: ValkeyServer, owner: Owner) -> None:
    client = await glide_client(valkey_server, request_timeout=5000, inflight_requests_limit=100)
    store = ValkeyLockStore(GlideRunner(client), prefix=f"{secrets.token_hex(4)}:")
    valkey_server.execute("SCRIPT", "FLUSH")
    replies = await asyncio.gather(*(store.acquire(f"job-{number}", owner(), 1000) for number in range(1000)))
    assert all(isinstance(reply, Acquired) for reply in replies)
    await client.close()


async def test_scripts_that_are_flushed_again_and_again_fail_no_call(
    own_valkey: ValkeyServer, open_store: Any, owner: Owner, client: str
) -> None:
    """glide loads a script once and asks again; a flush in between failed a quarter of the calls."""
    store = open_store(own_valkey.url(), client=client)
    done = asyncio.Event()

    async def flush() -> int:
        flushes = 0
        while not done.is_set():
            await asyncio.to_thread(own_valkey.execute, "SCRIPT", "FLUSH")
            flushes += 1
        return flushes

    async def work(key: str) -> None:
        for _ in range(20):
            holder = owner()
            assert isinstance(await store.acquire(key, holder, 60_000), Acquired)
            assert await store.release(key, holder)

    flushing = asyncio.create_task(flush())
    await asyncio.gather(*(work(f"job-{number}") for number in range(16)))
    done.set()
    assert await flushing > 3, "it was not flushed again and again"


@pytest.mark.matrix
async def test_a_call_that_was_cancelled_keeps_its_place_in_line_until_glide_has_its_answer(
    own_valkey: ValkeyServer, owner: Owner
) -> None:
    client = await glide_client(own_valkey, request_timeout=10_000, inflight_requests_limit=100)
    store = ValkeyLockStore(GlideRunner(client), prefix=f"{secrets.token_hex(4)}:")
    await store.release("job", owner())  # the server has seen the script: each call counts once
    own_valkey.execute("CLIENT", "PAUSE", "3000", "ALL")
    loop = asyncio.get_running_loop()
    given_up: list[Any] = []
    for _ in range(4):
        calls = [loop.create_task(store.release("job", owner())) for _ in range(40)]
        for _ in range(2):  # who cancels once waits for the answer, which glide waits for in any case
            await asyncio.sleep(0.1)
            for call in calls:
                call.cancel()
        given_up += await asyncio.gather(*calls, return_exceptions=True)
    assert {type(answer) for answer in given_up} == {asyncio.CancelledError}
    assert isinstance(await store.acquire("job", owner(), 1000), Acquired)
    await client.close()


@pytest.mark.parametrize("planted", [False, True], ids=["sound", "planted"])
async def test_a_call_that_was_cancelled_ends_no_sooner_than_glide_is_done_with_it(
    own_valkey: ValkeyServer, owner: Owner, monkeypatch: pytest.MonkeyPatch, planted: bool
) -> None:
    """A release that is sent behind a cancelled acquire comes after it, and frees what it took."""
    if planted:
        monkeypatch.setattr(_Trip, "can_give_up", property(lambda _: True, lambda *_: None), raising=False)
    client = await glide_client(own_valkey, request_timeout=10_000)
    store = ValkeyLockStore(GlideRunner(client), prefix=f"{secrets.token_hex(4)}:")
    await store.acquire("warm", owner(), 1000)  # who gave up is not sent again, where the script was not known
    own_valkey.execute("CLIENT", "PAUSE", "1000", "WRITE")
    holder = owner()
    acquiring = asyncio.create_task(store.acquire("job", holder, 60_000))
    await asyncio.sleep(0.2)
    acquiring.cancel()
    await asyncio.wait([acquiring], timeout=0.5)
    assert acquiring.done() == planted
    with pytest.raises(asyncio.CancelledError):
        await acquiring
    if not planted:
        assert await store.release("job", holder), "it had been carried out by the time that it ended"
    await client.close()


# ---------------------------------------------------------------------------------- what is sent again


async def test_a_server_that_forgot_its_scripts_is_sent_them_again(
    valkey_url: str, valkey_server: ValkeyServer, open_store: Any, owner: Owner, client: str
) -> None:
    store, holder = open_store(valkey_url, client=client), owner()

    def forget() -> None:
        valkey_server.execute("SCRIPT", "FLUSH")

    forget()
    await store.acquire("job", holder, 60_000)
    forget()
    assert await store.renew("job", holder, 60_000)
    forget()
    claims = [Claim("job", holder, 60_000), Claim("none", holder, 60_000)]
    assert await store.renew_many(claims) == [True, False]
    forget()
    assert len(await store.list_locks()) == 1
    forget()
    assert await store.check() == []
    forget()
    assert await store.release("job", holder)


async def test_a_call_whose_reply_was_lost_is_not_sent_again(
    valkey_server: ValkeyServer, valkey_url: str, open_store: Any, owner: Owner, client: str
) -> None:
    async with FaultProxy(("127.0.0.1", valkey_server.port)) as proxy:
        store = open_store(f"redis://127.0.0.1:{proxy.port}", client=client, timeout="500ms")
        await store.acquire("warm", owner(), 1000)
        before = valkey_server.info("commandstats")["cmdstat_evalsha"].partition(",")[0]
        proxy.set(to_client=DropReply())
        with pytest.raises(Exception):  # noqa: B017 -- the client's own, of whatever kind
            await store.acquire("job", owner(), 60_000)
        after = valkey_server.info("commandstats")["cmdstat_evalsha"].partition(",")[0]
        assert int(after.removeprefix("calls=")) - int(before.removeprefix("calls=")) == 1
        assert valkey_server.execute("EXISTS", "locks:{job}") == 1, "it ran: its outcome was unknown"
        # And the store has not released it: that is the engine's.


async def test_a_server_that_does_not_answer_is_given_up_after_the_timeout(
    valkey_server: ValkeyServer, valkey_url: str, open_store: Any, owner: Owner, client: str
) -> None:
    async with FaultProxy(("127.0.0.1", valkey_server.port)) as proxy:
        store = open_store(f"redis://127.0.0.1:{proxy.port}", client=client, timeout="300ms")
        await store.acquire("warm", owner(), 1000)
        proxy.set(to_server=Blackhole(), to_client=Blackhole())
        loop = asyncio.get_running_loop()
        started = loop.time()
        with pytest.raises(Exception):  # noqa: B017 -- the client's own, of whatever kind
            await store.renew("job", owner(), 1000)
        assert loop.time() - started < 3, "300 ms, on a machine that may be busy"


async def test_no_error_tells_a_key_or_an_owner(own_valkey: ValkeyServer, open_store: Any, client: str) -> None:
    key, owner = "canary-key", "canary-owner"
    store = open_store(own_valkey.url(), client=client, timeout="500ms")
    lock = "locks:{canary-key}"
    errors: list[BaseException] = []

    async def fails(*calls: Any) -> None:
        for call in calls:
            with pytest.raises(Exception) as caught:
                await call
            errors.append(caught.value)

    def everything() -> list[Any]:
        claims = [Claim(key, owner, 1000)]
        return [
            store.acquire(key, owner, 1000),
            store.renew(key, owner, 1000),
            store.release(key, owner),
            store.renew_many(claims),
        ]

    own_valkey.execute("RPUSH", lock, "x")
    await fails(*everything())
    own_valkey.execute("DEL", lock)
    own_valkey.execute("SET", lock, "canary-value")
    await fails(store.acquire(key, owner, 1000))
    own_valkey.execute("DEL", lock)
    own_valkey.set_maxmemory(1)
    await fails(store.acquire(key, owner, 1000))
    await fails(store.acquire(key, owner, 0), store.acquire(f"{key}\0", owner, 1), store.acquire(key, f"{owner}\0", 1))
    own_valkey.kill()
    await fails(*everything())
    for error in errors:
        seen: BaseException | None = error
        while seen is not None:
            text = f"{seen} {seen!r} {getattr(seen, '__notes__', '')} {getattr(seen, 'args', '')}"
            assert "canary" not in text, text
            seen = seen.__cause__ or seen.__context__
    assert len(errors) == 13


def test_a_runner_and_its_store_show_no_password() -> None:
    store = ValkeyLockStore(RedisRunner(create_redis_client("redis://shop:hunter2@db")))
    assert repr(store) == "ValkeyLockStore(RedisRunner(Redis), prefix='locks:')"


def test_a_script_shows_its_name_and_not_its_text() -> None:
    script = Script("acquire", "return 1")
    assert script.sha1 == "e0e1f9fabfc9d4800c877a703b823ac0578ff8db"
    assert "return" not in repr(script)


# ------------------------------------------------------------------------------- a client of one's own


class OwnRunner:
    """Ten lines over a connection of asyncio, which is all that a runner has to be."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.line = asyncio.Lock()
        self.streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def run(self, script: Script, keys: Sequence[bytes], args: Sequence[bytes]) -> Any:
        async with self.line:
            reply = await self.ask(b"EVALSHA", script.sha1.encode(), b"%d" % len(keys), *keys, *args)
            if isinstance(reply, RuntimeError) and str(reply).startswith("NOSCRIPT"):
                reply = await self.ask(b"EVAL", script.source.encode(), b"%d" % len(keys), *keys, *args)
        if isinstance(reply, RuntimeError):
            raise reply
        return reply

    async def ask(self, *words: bytes) -> Any:
        if self.streams is None:
            self.streams = await asyncio.open_connection("127.0.0.1", self.port)
        reader, writer = self.streams
        try:
            writer.write(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words))
            return await self.read(reader)
        except BaseException:
            self.close()  # an answer may still be on its way
            raise

    async def read(self, reader: asyncio.StreamReader) -> Any:
        line = (await reader.readuntil(b"\r\n"))[:-2]
        kind, rest = line[:1], line[1:]
        match kind:
            case b"-":
                return RuntimeError(rest.decode())
            case b":":
                return int(rest)
            case b"$":
                return None if rest == b"-1" else (await reader.readexactly(int(rest) + 2))[:-2]
            case b"*":
                return [await self.read(reader) for _ in range(int(rest))]
            case _:
                return rest

    def close(self) -> None:
        if self.streams is not None:
            self.streams[1].transport.abort()
            self.streams = None


async def test_a_runner_of_one_method_bears_the_contract(valkey_server: ValkeyServer) -> None:
    runner = OwnRunner(valkey_server.port)
    cases = [
        case
        for case in lock_store_contract(lambda: ValkeyLockStore(runner), concurrent=16, rounds=3, ttl_ms=1000)
        # It neither looks for keys nor listens.
        if case.capability is None or case.capability.__name__ in ("RenewsMany", "Checks")
    ]
    assert len(cases) > 60
    try:
        await run_all(cases)
    finally:
        runner.close()
