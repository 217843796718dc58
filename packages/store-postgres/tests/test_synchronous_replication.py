"""A wait for the synchronous standby that somebody cancels ends in a mere warning: such a write is no grant."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from tenure import idempotency_store
from tenure.store import Acquired, Claim
from tenure_postgres import (
    PostgresIdempotencyStore,
    PostgresLockStore,
    UnreplicatedWriteError,
    create_idempotency_schema_sql,
    create_schema_sql,
)
from tenure_postgres.connection import Session
from tenure_testbed.postgres_pair import PostgresPair
from tenure_testbed.pytest_plugin import or_skip

Owner = Callable[[], str]

_AS_A_WAITER_DOES = "SELECT pg_advisory_lock_shared('tenure_locks'::regclass::oid::int, hashtext('job'))"


@pytest.fixture(scope="module")
def pair() -> Iterator[PostgresPair]:
    with or_skip(), PostgresPair(synchronous=True) as pair:
        yield pair


@pytest.fixture
async def onlooker(pair: PostgresPair, connect: Any) -> AsyncIterator[Any]:
    async with connect(pair.primary.url()) as connection:
        await connection.execute(create_schema_sql())
        await connection.execute(create_idempotency_schema_sql())
        await connection.execute("TRUNCATE tenure_locks, tenure_idempotency")
        yield connection
    await asyncio.to_thread(pair.heal)


@pytest.fixture
def store(pair: PostgresPair, make_engine: Callable[..., AsyncEngine]) -> PostgresLockStore:
    return PostgresLockStore(make_engine(pair.primary.url(), pool_size=1, max_overflow=0))


@pytest.fixture
def cancelled_in_the_wait(
    pair: PostgresPair, onlooker: Any, until: Callable[..., Awaitable[None]]
) -> Callable[[Coroutine[Any, Any, Any]], Awaitable[Any]]:
    """Run a call while the standby is cut off, and cancel its wait as an operator would; then mend the link."""

    async def run(call: Coroutine[Any, Any, Any]) -> Any:
        await asyncio.to_thread(pair.cut_replication)
        task = asyncio.create_task(call)
        waiting = "FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
        await until(lambda: onlooker.fetchval(f"SELECT count(*) {waiting}"), "the call to wait for the standby")
        await onlooker.execute(f"SELECT pg_cancel_backend(pid) {waiting}")
        try:
            return await task
        finally:
            await asyncio.to_thread(pair.heal)

    return run


async def test_an_acquire_whose_wait_was_cancelled_is_unknown_and_no_grant(
    store: PostgresLockStore, owner: Owner, cancelled_in_the_wait: Any
) -> None:
    holder = owner()
    with pytest.raises(UnreplicatedWriteError) as caught:
        await cancelled_in_the_wait(store.acquire("job", holder, 60_000))
    assert "standby" in str(caught.value)
    assert holder not in f"{caught.value}{caught.value!r}"
    # As the engine does behind an unknown outcome: an owner-checked release, and the key is free.
    assert await store.release("job", holder)
    assert isinstance(await store.acquire("job", owner(), 60_000), Acquired), "the warning was that call's alone"


async def test_a_renewal_whose_wait_was_cancelled_is_unknown(
    store: PostgresLockStore, owner: Owner, cancelled_in_the_wait: Any
) -> None:
    holder = owner()
    await store.acquire("job", holder, 60_000)
    with pytest.raises(UnreplicatedWriteError):
        await cancelled_in_the_wait(store.renew("job", holder, 60_000))
    with pytest.raises(UnreplicatedWriteError):
        await cancelled_in_the_wait(store.renew_many([Claim("job", holder, 60_000)]))
    assert await store.renew("job", holder, 60_000)


@pytest.mark.parametrize("planted", [False, True], ids=["sound", "planted"])
async def test_a_release_waits_for_no_standby_where_somebody_waits_for_the_key(  # noqa: PLR0917 -- fixtures
    pair: PostgresPair,
    onlooker: Any,
    store: PostgresLockStore,
    owner: Owner,
    monkeypatch: pytest.MonkeyPatch,
    planted: bool,
) -> None:
    """Nor for a disk: the next holder's own commit, which has the release in it, waits for both."""
    if planted:
        waits = store._sql.release.replace("'synchronous_commit', 'off'", "'synchronous_commit', 'on'")
        monkeypatch.setattr(store._lanes._releases, "_sql", replace(store._sql, release=waits))
    holder = owner()
    assert isinstance(await store.acquire("job", holder, 60_000), Acquired)
    await onlooker.execute(_AS_A_WAITER_DOES)
    await asyncio.to_thread(pair.cut_replication)
    releasing = asyncio.create_task(store.release("job", holder))
    await asyncio.wait([releasing], timeout=1 if planted else 20)
    returned = releasing.done()
    await asyncio.to_thread(pair.heal)
    assert await releasing
    assert returned == (not planted)


@pytest.mark.parametrize("count", [1, 5])
async def test_a_release_that_nobody_waits_for_waits_for_the_standby(
    onlooker: Any, store: PostgresLockStore, owner: Owner, cancelled_in_the_wait: Any, count: int
) -> None:
    keys, holder = [f"job-{number}" for number in range(count)], owner()
    await asyncio.gather(*(store.acquire(key, holder, 60_000) for key in keys))

    async def release_all() -> list[Any]:
        return await asyncio.gather(*(store.release(key, holder) for key in keys), return_exceptions=True)

    assert {type(end) for end in await cancelled_in_the_wait(release_all())} == {UnreplicatedWriteError}


async def test_a_record_whose_wait_was_cancelled_is_unknown_and_can_be_asked_for_again(
    pair: PostgresPair, make_engine: Callable[..., AsyncEngine], owner: Owner, cancelled_in_the_wait: Any
) -> None:
    store, me = PostgresIdempotencyStore(make_engine(pair.primary.url(), pool_size=1, max_overflow=0)), owner()
    for _ in range(2):
        with pytest.raises(UnreplicatedWriteError):
            await cancelled_in_the_wait(store.acquire("order", me, "f", 60_000, 60_000))
    assert await store.acquire("order", me, "f", 60_000, 60_000) == idempotency_store.Acquired(1)
    with pytest.raises(UnreplicatedWriteError):
        await cancelled_in_the_wait(store.complete("order", me, b"201", 60_000))
    assert await store.complete("order", me, b"another", 60_000) is idempotency_store.Completion.STORED
    reply = await store.acquire("order", owner(), "f", 60_000, 60_000)
    assert reply == idempotency_store.Completed(b"201", me), "the first completion wins"


async def test_it_is_found_where_the_call_is_a_transaction_of_its_own_too(
    pair: PostgresPair, make_engine: Callable[..., AsyncEngine], owner: Owner, cancelled_in_the_wait: Any
) -> None:
    stricter = {"server_settings": {"default_transaction_isolation": "serializable"}}
    store = PostgresLockStore(make_engine(pair.primary.url(), pool_size=1, connect_args=stricter))
    with pytest.raises(UnreplicatedWriteError):
        await cancelled_in_the_wait(store.acquire("job", owner(), 60_000))


async def test_planted_a_store_that_hears_no_warnings_takes_it_for_a_grant(
    store: PostgresLockStore, owner: Owner, cancelled_in_the_wait: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Session, "_heard", lambda *_: None)
    assert isinstance(await cancelled_in_the_wait(store.acquire("job", owner(), 60_000)), Acquired)


async def test_a_server_that_keeps_its_warnings_to_itself_is_found_at_the_start(
    pair: PostgresPair, onlooker: Any, make_engine: Callable[..., AsyncEngine]
) -> None:
    quiet = {"server_settings": {"client_min_messages": "error"}}
    findings = await PostgresLockStore(make_engine(pair.primary.url(), connect_args=quiet)).check()
    [finding] = [one for one in findings if one.fatal]
    assert finding.code == "client-min-messages"
    assert "client_min_messages to warning" in finding.remedy
