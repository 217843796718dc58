"""What others wrote under a record's key, what a client made of a reply, and arguments that cannot be."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tenure.errors import ConfigurationError, LeaseStateError
from tenure.idempotency_store import Acquired
from tenure_valkey import (
    ForeignValueError,
    RedisRunner,
    Script,
    UnreadableReplyError,
    ValkeyIdempotencyStore,
    create_redis_client,
)

Person = Callable[..., Any]
Ask = Callable[[ValkeyIdempotencyStore, str], Awaitable[object]]

RECORD = "idem:order"
PRINT = "v1:cats"
HOUR_MS = 3_600_000


async def begin(store: ValkeyIdempotencyStore, owner: str, **options: Any) -> Any:
    """Acquire, with a lock of a minute and a grace of an hour."""
    settings = {"fingerprint": PRINT, "lock_ttl_ms": 60_000, "grace_ms": HOUR_MS} | options
    return await store.acquire("order", owner, **settings)


CALLS: list[Ask] = [
    begin,
    lambda store, owner: store.extend("order", owner, 60_000),
    lambda store, owner: store.complete("order", owner, b"made", HOUR_MS),
    lambda store, owner: store.release("order", owner),
]


@pytest.mark.parametrize(
    "fields",
    [
        {"field": "value"},
        {"owner": "o", "attempt": "1", "grace": "5"},
        {"owner": "o", "fingerprint": "f", "attempt": "0", "grace": "5"},
        {"owner": "o", "fingerprint": "f", "attempt": "one", "grace": "5"},
        {"owner": "o", "fingerprint": "f", "attempt": "1", "grace": "-5"},
        {"owner": "o", "fingerprint": "f", "attempt": "1"},
    ],
)
async def test_a_hash_that_something_else_wrote_is_refused_and_nothing_is_written(
    valkey_url: str, open_records: Any, client: str, person: Person, fields: dict[str, str]
) -> None:
    store = open_records(valkey_url, client=client)
    person("HSET", RECORD, *(word for pair in fields.items() for word in pair))
    for call in CALLS:
        with pytest.raises(ForeignValueError, match="key of a record") as caught:
            await call(store, "o")
        assert caught.value.place == "record"
    found = person("HGETALL", RECORD)
    assert dict(zip(found[::2], found[1::2], strict=True)) == fields
    assert person("PTTL", RECORD) == -1


@pytest.mark.parametrize("command", [("SET", RECORD, "x"), ("RPUSH", RECORD, "x")])
async def test_another_type_under_a_key_is_the_server_s_own_error(
    valkey_url: str, open_records: Any, client: str, person: Person, command: Any
) -> None:
    store = open_records(valkey_url, client=client)
    person(*command)
    for call in CALLS:
        with pytest.raises(Exception, match="WRONGTYPE"):
            await call(store, "o")
    assert person("TYPE", RECORD) in ("string", "list")


@pytest.mark.parametrize("owner_field", [None, b"\xff"])
async def test_a_completed_record_whose_owner_is_none_is_refused(owner_field: bytes | None) -> None:
    store = ValkeyIdempotencyStore(Answers([5, b"response", owner_field]))
    with pytest.raises(ForeignValueError) as caught:
        await begin(store, "owner")
    assert caught.value.__context__ is None or caught.value.__suppress_context__


async def test_a_lock_store_and_records_of_one_prefix_do_not_harm_each_other(
    valkey_url: str, open_store: Any, open_records: Any
) -> None:
    locks, store = open_store(valkey_url, client="redis", prefix="shop:"), open_records(valkey_url, prefix="shop:")
    await locks.acquire("job", "holder", 60_000)
    for call in (store.acquire("{job}", "o", PRINT, 1000, 1000), store.release("{job}", "o")):
        with pytest.raises(Exception, match="WRONGTYPE"):
            await call
    assert await store.acquire("job", "o", PRINT, 1000, 1000) == Acquired(1)
    assert await locks.renew("job", "holder", 60_000)


class Answers:
    """A runner that gives what it was told to, as a client that meddles with replies would; or raises it."""

    def __init__(self, reply: Any) -> None:
        self.reply = reply

    async def run(self, script: Script, keys: Any, args: Any) -> Any:
        if isinstance(self.reply, type):
            raise self.reply
        return self.reply


@pytest.mark.parametrize(
    "reply",
    [None, [], b"OK", 1, [1], [1, 0], [1, "1"], [2, 0], [2, -1], [3, 0], [4, 0], [4, 4], [5, "text", b"o"], [6, 1]],
)
async def test_a_reply_of_acquire_that_cannot_be_read_begins_nothing(reply: Any) -> None:
    with pytest.raises(UnreadableReplyError, match="script record_acquire"):
        await begin(ValkeyIdempotencyStore(Answers(reply)), "owner")


@pytest.mark.parametrize("reply", [None, 3, -2, True, b"1", [1], "1", 1.0])
async def test_another_reply_that_cannot_be_read_is_no_answer(reply: Any) -> None:
    store = ValkeyIdempotencyStore(Answers(reply))
    for call in CALLS[1:]:
        with pytest.raises(UnreadableReplyError):
            await call(store, "owner")


async def test_a_client_that_decodes_its_replies_is_refused() -> None:
    async with create_redis_client("redis://localhost", decode_responses=True) as client:
        with pytest.raises(ConfigurationError, match="decode_responses"):
            ValkeyIdempotencyStore(RedisRunner(client))
    with pytest.raises(ConfigurationError, match="no runner"):
        ValkeyIdempotencyStore(object())  # type: ignore[arg-type]  # that is the point


async def test_a_closed_store_says_so(valkey_url: str, open_records: Any, client: str) -> None:
    store = open_records(valkey_url, client=client)
    await begin(store, "owner")
    await store.aclose()
    for call in (begin(store, "owner"), store.check(), store.purge(), store.release("order", "owner")):
        with pytest.raises(LeaseStateError, match="closed"):
            await call


async def test_arguments_outside_the_rules_are_refused_before_anything_is_sent() -> None:
    store = ValkeyIdempotencyStore(Answers(AssertionError))
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: store.acquire("", "o", "f", 1, 1),
        lambda: store.acquire("k", "", "f", 1, 1),
        lambda: store.acquire("k", "o", "", 1, 1),
        lambda: store.acquire("k", "o", "f", 0, 1),
        lambda: store.acquire("k", "o", "f", 1, True),
        lambda: store.extend("k\0", "o", 1),
        lambda: store.extend("k", "o", 1.5),  # type: ignore[arg-type]  # that is the point
        lambda: store.complete("k", "o", "text", 1),  # type: ignore[arg-type]  # that is the point
        lambda: store.complete("k", "o", bytearray(b"x"), 1),  # type: ignore[arg-type]  # that is the point
        lambda: store.complete("k", "o", b"", -1),
        lambda: store.release("\ud800", "o"),
        lambda: store.purge(0),
    ]
    for call in calls:
        with pytest.raises(ConfigurationError):
            await call()
