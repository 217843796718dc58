"""A failover: the pool follows it by itself, and tokens go on growing where the last commits were lost."""

import asyncio
import secrets
from typing import Any

import asyncpg
import pytest
from sqlalchemy.exc import SQLAlchemyError

from tenure.store import Acquired
from tenure_postgres import PostgresLockStore, create_lock_engine, create_schema_sql, open_postgres_store
from tenure_testbed.postgres_pair import PostgresPair
from tenure_testbed.pytest_plugin import or_skip

GRANTS = 100
"""More than the 32 values that a sequence writes to the log ahead of its use: fewer lost ones would not show."""


async def grant(store: PostgresLockStore, key: str) -> int:
    holder = secrets.token_hex(16)
    reply = await store.acquire(key, holder, 60_000)
    assert isinstance(reply, Acquired)
    await store.release(key, holder)
    return reply.token


class SequenceTokens:
    """
    The control: tokens from a sequence with the row's last one as their floor, which repeat themselves.

    It shows that a run lost its tail: without a duplicate here, none in the store's own tokens proves nothing.
    """

    DDL = """
        CREATE SEQUENCE control_tokens;
        CREATE TABLE control (key text PRIMARY KEY, token bigint NOT NULL);
        INSERT INTO control VALUES ('job', 0);
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def grant(self) -> int:
        token = await self._connection.fetchval(
            "UPDATE control SET token = greatest(nextval('control_tokens'), token + 1) RETURNING token"
        )
        assert isinstance(token, int)
        return token


async def lose_the_tail(connect: Any) -> tuple[list[int], list[int]]:
    """
    Cut the replication, go on granting, kill the primary, promote the standby, grant again.

    Returns:
        All tokens of one key, and all tokens of the control, in the order in which they were given.
    """
    with or_skip():
        pair = await asyncio.to_thread(PostgresPair().__enter__)
    try:
        async with connect(pair.primary.url()) as person:
            await person.execute(create_schema_sql())
            await person.execute(SequenceTokens.DDL)
            async with open_postgres_store(pair.url(driver="postgresql")) as store:
                tokens, control = [], []
                for step in ("replicated", "lost"):
                    for _ in range(GRANTS):
                        tokens.append(await grant(store, "job"))
                        control.append(await SequenceTokens(person).grant())
                    if step == "replicated":
                        await asyncio.to_thread(pair.catch_up)
                        await asyncio.to_thread(pair.cut_replication)
                await asyncio.to_thread(pair.kill_primary)
                await asyncio.to_thread(pair.promote)
                async with connect(pair.primary.url()) as promoted:
                    control += [await SequenceTokens(promoted).grant() for _ in range(GRANTS)]
                tokens += [await grant(store, "job") for _ in range(GRANTS)]
        return tokens, control
    finally:
        await asyncio.to_thread(pair.close)


async def check_a_lost_tail(connect: Any) -> None:
    tokens, control = await lose_the_tail(connect)
    assert len(set(control)) < len(control), "the run lost nothing: it proves nothing"
    assert tokens == sorted(set(tokens)), "a token came back"


async def test_tokens_grow_across_a_failover_that_lost_the_last_commits(connect: Any) -> None:
    await check_a_lost_tail(connect)


async def test_the_pool_follows_a_failover_without_a_restart_of_the_application(connect: Any) -> None:
    with or_skip():
        pair = await asyncio.to_thread(PostgresPair().__enter__)
    try:
        async with connect(pair.primary.url()) as person:
            await person.execute(create_schema_sql())
        engine = create_lock_engine(pair.url(driver="postgresql"), pool_size=4)
        store, holder = PostgresLockStore(engine), secrets.token_hex(16)
        first = await store.acquire("job", holder, 600_000)
        await asyncio.gather(*(store.renew("job", holder, 600_000) for _ in range(16)))  # every connection is open
        await asyncio.to_thread(pair.catch_up)
        await asyncio.to_thread(pair.kill_primary)
        with pytest.raises((OSError, asyncpg.PostgresError, asyncpg.InterfaceError, SQLAlchemyError)):
            await store.renew("job", holder, 600_000)
        await asyncio.to_thread(pair.promote)
        for _ in range(8):
            assert await store.renew("job", holder, 600_000)
        assert await store.acquire("job", holder, 600_000) == first, "the lock came along, with its token"
        await engine.dispose()
    finally:
        await asyncio.to_thread(pair.close)
