"""What a server refuses comes as the client raised it, and holds no key, owner, fingerprint or response."""

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from tenure.idempotency_store import Acquired, Completed, Completion
from tenure_testbed import Blackhole, DropReply, FaultProxy, ValkeyServer
from tenure_testbed.pytest_plugin import or_skip
from tenure_testbed.valkey_pair import ValkeyPair
from tenure_valkey import ValkeyIdempotencyStore, ValkeyStoreError

MINUTE_MS, HOUR_MS = 60_000, 3_600_000
KEY, OWNER, PAYLOAD, RESPONSE = "canary-key", "canary-owner", "canary-fingerprint", b"canary-response"
RECORD = f"idem:{KEY}"

Call = Callable[[ValkeyIdempotencyStore], Awaitable[object]]

CALLS: dict[str, Call] = {
    "acquire": lambda store: store.acquire(KEY, OWNER, PAYLOAD, MINUTE_MS, HOUR_MS),
    "extend": lambda store: store.extend(KEY, OWNER, MINUTE_MS),
    "complete": lambda store: store.complete(KEY, OWNER, RESPONSE, HOUR_MS),
    "release": lambda store: store.release(KEY, OWNER),
}


async def refusal(store: ValkeyIdempotencyStore, call: Call, says: str | None, *, of_the_client: bool = True) -> None:
    with pytest.raises(Exception, match=says) as caught:
        await call(store)
    assert isinstance(caught.value, ValkeyStoreError) is not of_the_client
    told = "".join(traceback.format_exception(caught.value))
    told += "".join(f"{error!r}{error.args}{vars(error)}" for error in chain(caught.value))
    assert "canary" not in told


def chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
async def test_no_replicas(own_valkey: ValkeyServer, open_records: Any, client: str, call: Call) -> None:
    store = open_records(own_valkey.url(), client=client)
    await CALLS["acquire"](store)
    own_valkey.configure({"min-replicas-to-write": "1"})
    before = own_valkey.execute("HGETALL", RECORD)
    await refusal(store, call, "NOREPLICAS|[Nn]ot enough good replicas")
    assert own_valkey.execute("HGETALL", RECORD) == before
    own_valkey.configure({"min-replicas-to-write": "0"})
    assert await call(store)


async def test_a_replica(client: str, open_records: Any) -> None:
    with or_skip():
        pair = await asyncio.to_thread(ValkeyPair().__enter__)
    try:
        primary = open_records(pair.primary.url(), client=client)
        await CALLS["acquire"](primary)
        await asyncio.to_thread(pair.catch_up)
        replica = open_records(pair.replica.url(), client="redis")
        for call in CALLS.values():
            await refusal(replica, call, "READONLY|read only|ReadOnly")
        found = await replica.check()
        assert [finding.code for finding in found] == ["replica"]
        assert "no request can be begun" in found[0].message
    finally:
        await asyncio.to_thread(pair.close)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
async def test_a_user_without_rights(
    valkey_server: ValkeyServer, valkey_url: str, open_records: Any, client: str, call: Call
) -> None:
    valkey_server.add_user("blind", "secret", "~idem:*", "+evalsha", "+eval", "+script|load", "+info")
    store = open_records(valkey_server.url(user="blind"), client=client)
    await refusal(store, call, r"(?i)permissions|acl failure")


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
async def test_a_full_server_another_type_and_another_s_hash(
    own_valkey: ValkeyServer, open_records: Any, client: str, call: Call
) -> None:
    store = open_records(own_valkey.url(), client=client)
    if call is CALLS["acquire"]:
        own_valkey.set_maxmemory(1)
        await refusal(store, call, "OOM|maxmemory")
        own_valkey.set_maxmemory(0)
    own_valkey.execute("SET", RECORD, "canary-value")
    await refusal(store, call, "WRONGTYPE")
    own_valkey.execute("DEL", RECORD)
    own_valkey.execute("HSET", RECORD, "owner", OWNER, "canary-field", "canary-value")
    await refusal(store, call, "key of a record holds", of_the_client=False)


async def test_nothing_secret_is_in_a_repr(valkey_url: str, open_records: Any, client: str) -> None:
    store = open_records(valkey_url, client=client, prefix="billing:idem:")
    await CALLS["acquire"](store)
    await CALLS["complete"](store)
    reply = await CALLS["acquire"](store)
    assert reply == Completed(RESPONSE, OWNER)
    assert "canary" not in repr(reply)
    name = "GlideRunner(GlideClient)" if client == "glide" else "RedisRunner(Redis)"
    assert repr(store) == f"ValkeyIdempotencyStore({name}, prefix='billing:idem:')"


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
async def test_a_script_that_the_server_forgot_is_sent_again(
    valkey_server: ValkeyServer, valkey_url: str, open_records: Any, client: str, call: Call
) -> None:
    store = open_records(valkey_url, client=client)
    await CALLS["acquire"](store)
    await call(store)
    await CALLS["acquire"](store)
    valkey_server.execute("SCRIPT", "FLUSH")
    assert await call(store)


# --------------------------------------------------------------------------------------- lost replies


@pytest.mark.parametrize("call", ["acquire", "complete"])
async def test_a_call_whose_reply_was_lost_ran_once_and_is_asked_for_again(
    valkey_server: ValkeyServer, valkey_url: str, open_records: Any, client: str, call: str
) -> None:
    async with FaultProxy(("127.0.0.1", valkey_server.port)) as proxy:
        far = open_records(f"redis://127.0.0.1:{proxy.port}", client=client, timeout="500ms")
        near = open_records(valkey_url, client=client)
        if call == "complete":
            await CALLS["acquire"](near)
        await far.release("warm", OWNER)
        before = evaluated(valkey_server)
        proxy.set(to_client=DropReply())
        with pytest.raises(Exception):  # noqa: B017 -- the client's own, of whatever kind
            await CALLS[call](far)
        assert evaluated(valkey_server) == before + 1
    repeated = await CALLS[call](near)
    assert repeated == (Acquired(1) if call == "acquire" else Completion.STORED)


def evaluated(server: ValkeyServer) -> int:
    return int(server.info("commandstats")["cmdstat_evalsha"].partition(",")[0].removeprefix("calls="))


async def test_a_server_that_is_gone_holds_no_secret_in_its_error(
    own_valkey: ValkeyServer, open_records: Any, client: str
) -> None:
    store = open_records(own_valkey.url(), client=client, timeout="500ms")
    await CALLS["acquire"](store)
    own_valkey.kill()
    for call in CALLS.values():
        await refusal(store, call, None)


async def test_a_server_that_does_not_answer_holds_no_secret_in_its_error(
    valkey_server: ValkeyServer, valkey_url: str, open_records: Any, client: str
) -> None:
    async with FaultProxy(("127.0.0.1", valkey_server.port)) as proxy:
        store = open_records(f"redis://127.0.0.1:{proxy.port}", client=client, timeout="300ms")
        await CALLS["acquire"](store)
        proxy.set(to_server=Blackhole(), to_client=Blackhole())
        await refusal(store, CALLS["complete"], None)
