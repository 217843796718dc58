"""A default of REPEATABLE READ or SERIALIZABLE, wherever it comes from, makes no call fail."""

import asyncio
from collections.abc import Callable
from typing import Any

import asyncpg
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from tenure.store import Acquired
from tenure_postgres import PostgresLockStore
from tenure_postgres.connection import Session

Owner = Callable[[], str]
MakeEngine = Callable[..., AsyncEngine]

STRICTER = ["repeatable read", "serializable"]


def with_default(isolation: str) -> dict[str, Any]:
    return {"connect_args": {"server_settings": {"default_transaction_isolation": isolation}}}


async def race(engine: AsyncEngine, owner: Owner, rounds: int) -> list[Any]:
    """
    Twenty callers race for a key that is free, and then for one that was released; returns what they got.

    Of one store's callers for one key, one speaks to the server at a time: each has a store of its own here.
    """
    stores, replies = [PostgresLockStore(engine) for _ in range(20)], list[Any]()
    for number in range(rounds):
        key = f"job-{number}"
        for _ in ("insert", "take over"):
            owners = [owner() for _ in range(20)]
            calls = (store.acquire(key, one, 60_000) for store, one in zip(stores, owners, strict=True))
            got = await asyncio.gather(*calls, return_exceptions=True)
            winners = [one for one, reply in zip(owners, got, strict=True) if isinstance(reply, Acquired)]
            assert len(winners) <= 1
            for winner in winners:
                await stores[0].release(key, winner)
            replies += got
    for store in stores:
        await store.aclose()
    return replies


@pytest.mark.parametrize("isolation", STRICTER)
async def test_racing_callers_are_told_who_won_under_a_stricter_default(
    make_engine: MakeEngine, owner: Owner, isolation: str
) -> None:
    replies = await race(make_engine(pool_size=20, **with_default(isolation)), owner, rounds=20)
    assert [reply for reply in replies if isinstance(reply, Exception)] == []
    assert sum(isinstance(reply, Acquired) for reply in replies) == 40


@pytest.mark.parametrize("isolation", STRICTER)
async def test_planted_at_the_servers_default_racing_callers_fail(
    make_engine: MakeEngine, owner: Owner, isolation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that takes the default for READ COMMITTED: without it, the test above would prove nothing."""
    fetch = Session.fetch

    async def trusting(self: Session, statement: str, *arguments: Any) -> Any:
        self._read_committed = True
        return await fetch(self, statement, *arguments)

    monkeypatch.setattr(Session, "fetch", trusting)
    engine, replies = make_engine(pool_size=20, **with_default(isolation)), list[Any]()
    for _ in range(10):  # until the first failure: a few in a thousand calls
        replies += await race(engine, owner, rounds=10)
        if any(isinstance(reply, asyncpg.SerializationError) for reply in replies):
            return
    pytest.fail("no caller failed")


@pytest.mark.parametrize("level", ["SERIALIZABLE", "REPEATABLE READ", "READ COMMITTED", "AUTOCOMMIT"])
async def test_the_engines_own_isolation_level_does_not_matter(
    make_engine: MakeEngine, owner: Owner, level: str
) -> None:
    replies = await race(make_engine(isolation_level=level), owner, rounds=3)
    assert [reply for reply in replies if isinstance(reply, Exception)] == []


async def test_a_call_at_a_stricter_default_is_a_transaction_of_its_own(
    make_engine: MakeEngine, owner: Owner, person: Any, locked_row: Any
) -> None:
    engine = make_engine(pool_size=1, max_overflow=0, **with_default("serializable"))
    store = PostgresLockStore(engine, lock_timeout="50ms")
    holder = owner()
    await store.acquire("job", holder, 60_000)
    assert await person.fetchval("SELECT owner FROM tenure_locks") == holder, "it is committed"
    async with locked_row("job"):
        with pytest.raises(asyncpg.LockNotAvailableError):
            await store.renew("job", holder, 60_000)
    # The failed transaction was rolled back: the pool's one connection is as good as before.
    assert await store.renew("job", holder, 60_000)
    async with engine.connect() as connection:
        assert (await connection.exec_driver_sql("SHOW transaction_isolation")).scalar() == "serializable"


async def test_after_a_serialization_failure_the_default_is_asked_for_again(
    make_engine: MakeEngine, owner: Owner, database_url: str, connect: Any, waits_in_the_pool: Any
) -> None:
    """Behind a pooler a connection may get another server, with another default, at any time."""
    engine = make_engine(pool_size=1, max_overflow=0)
    store, holder = PostgresLockStore(engine), owner()
    await store.acquire("job", holder, 60_000)
    await store.list_locks()  # on the pool's connection, where calls wait for rows
    async with engine.connect() as connection:
        await connection.exec_driver_sql("SET default_transaction_isolation = 'repeatable read'")
        await connection.commit()
    async with connect(database_url) as other, other.transaction():
        await other.execute("UPDATE tenure_locks SET after = after")
        call = asyncio.create_task(store.renew("job", holder, 60_000))
        await waits_in_the_pool(engine)
    with pytest.raises(asyncpg.SerializationError):
        await call
    assert [record.key for record in await store.list_locks()] == ["job"]
    async with engine.connect() as connection:
        session = (await connection.get_raw_connection()).info["tenure_postgres"]
    assert session._read_committed is False
