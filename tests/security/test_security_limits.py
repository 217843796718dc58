"""What a stranger may make a service hold or count, and the same rules of keys in every store."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from tenure import ConfigurationError, InMemoryLockStore, Locks
from tenure.ext.asgi import IdempotencyMiddleware
from tenure.idempotency import Idempotency, InMemoryIdempotencyStore
from tenure.instrumentation import PrometheusHook
from tenure_postgres import PostgresIdempotencyStore, PostgresLockStore
from tenure_valkey import RedisRunner, ValkeyIdempotencyStore, ValkeyLockStore, create_redis_client

Receive = Callable[[], Awaitable[Any]]


async def test_a_body_that_does_not_come_holds_no_record() -> None:
    """Somebody who sends slowly would otherwise hold a lock for as long as he likes, under any key that he knows."""
    store, runs, asked, rest = InMemoryIdempotencyStore(), 0, asyncio.Event(), asyncio.Event()

    async def handler(_: Any, receive: Receive, send: Any) -> None:
        nonlocal runs
        runs += 1
        await receive()
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})

    async def post(receive: Receive) -> int:
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        headers = [(b"idempotency-key", b"k")]
        await app({"type": "http", "method": "POST", "path": "/orders", "headers": headers}, receive, send)
        return int(sent[0]["status"])

    chunks = [{"type": "http.request", "body": b"{", "more_body": True}]

    async def slowly() -> Any:
        if chunks:
            return chunks.pop()
        asked.set()
        await rest.wait()
        return {"type": "http.request", "body": b"}", "more_body": False}

    async def at_once() -> Any:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async with Idempotency(store, hooks=[], drain=0) as idempotency:
        app = IdempotencyMiddleware(handler, idempotency=idempotency, principal=lambda _: "anna")
        slow = asyncio.create_task(post(slowly))
        await asked.wait()
        assert (len(store._records), runs) == (0, 0)
        assert await post(at_once) == 201
        rest.set()
        assert await slow == 201
    assert runs == 1


async def test_the_number_of_series_does_not_grow_with_keys_instances_or_clients() -> None:
    def series(registry: CollectorRegistry) -> int:
        return len([line for line in generate_latest(registry).splitlines() if not line.startswith(b"#")])

    async def work(count: int, hook: PrometheusHook) -> None:
        for number in range(count):
            store = InMemoryLockStore()
            locks = Locks(store, hooks=[hook], instance=f"shop-{number}", drain=0)
            async with locks, locks.hold(f"key-{number}"):
                pass
            async with Idempotency(InMemoryIdempotencyStore(), hooks=[hook], instance=f"shop-{number}") as idempotency:
                for _ in range(2):
                    await idempotency.run(f"request-{number}", "fingerprint", _nothing)

    few, many = CollectorRegistry(), CollectorRegistry()
    await work(1, PrometheusHook(few))
    await work(100, PrometheusHook(many))
    assert series(few) == series(many) > 10


async def _nothing() -> None:
    pass


# ------------------------------------------------------------------------------------------------ keys


Ask = Callable[[str], Awaitable[Any]]

NOBODY = "127.0.0.1:1"
"""Nothing listens there: a call that is sent fails with another error than one that is refused."""


@pytest.fixture(scope="module")
def asks() -> list[Ask]:
    """The calls of each store that take a key, on servers that are not there."""
    engine = create_async_engine(f"postgresql+asyncpg://nobody@{NOBODY}/none", poolclass=NullPool)
    runner = RedisRunner(create_redis_client(f"redis://{NOBODY}"), warn=False)
    # A store in memory belongs to one event loop, so each call has its own.
    return [
        *_of_locks(InMemoryLockStore),
        *_of_locks(lambda: PostgresLockStore(engine)),
        *_of_locks(lambda: ValkeyLockStore(runner)),
        *_of_records(InMemoryIdempotencyStore),
        *_of_records(lambda: PostgresIdempotencyStore(engine)),
        *_of_records(lambda: ValkeyIdempotencyStore(runner)),
    ]


def _of_locks(make: Callable[[], Any]) -> list[Ask]:
    return [
        lambda key: make().acquire(key, "owner", 1000),
        lambda key: make().renew(key, "owner", 1000),
        lambda key: make().release(key, "owner"),
    ]


def _of_records(make: Callable[[], Any]) -> list[Ask]:
    return [
        lambda key: make().acquire(key, "owner", "fingerprint", 1000, 1000),
        lambda key: make().extend(key, "owner", 1000),
        lambda key: make().complete(key, "owner", b"response", 1000),
        lambda key: make().release(key, "owner"),
    ]


ANY_KEY = st.text(st.characters(exclude_categories=[]), max_size=6) | st.sampled_from(["", "\0", "\ud800", "a\0b"])
LONG_KEY = st.tuples(st.sampled_from("aß€\U0001f408"), st.integers(498, 503)).map(lambda pair: pair[0] * pair[1])


@settings(max_examples=40, deadline=None, database=None)
@given(key=ANY_KEY | LONG_KEY)
@example(key="\U0001f408" * 500)
@example(key="\U0001f408" * 501)
@example(key="\udfff")
def test_every_store_refuses_the_same_keys_before_it_asks_anybody(asks: list[Ask], key: str) -> None:
    async def refused(ask: Ask) -> bool:
        try:
            await ask(key)
        except ConfigurationError:
            return True
        except Exception:  # noqa: BLE001 -- it was sent, and nobody is there: the driver's own
            return False
        return False

    async def all_refused() -> list[bool]:
        return [await refused(ask) for ask in asks]

    fit = 1 <= len(key) <= 500 and "\0" not in key and not any("\ud800" <= one <= "\udfff" for one in key)
    assert set(asyncio.run(all_refused())) == {not fit}
