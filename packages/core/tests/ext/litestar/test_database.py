"""With advanced-alchemy on a real PostgreSQL: commits at the start of the response, and effects exactly once."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import asyncpg
import httpx
import pytest
from advanced_alchemy.extensions.litestar import SQLAlchemyAsyncConfig, SQLAlchemyPlugin
from litestar import Litestar, post
from litestar.di import NamedDependency
from litestar.params import JSONBody
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine

from tenure import Locks
from tenure.ext.litestar import UNSCOPED, TenurePlugin
from tenure.idempotency import Idempotency, IdempotencyContext
from tenure_postgres import (
    PostgresIdempotencyStore,
    PostgresLockStore,
    create_idempotency_schema_sql,
    create_schema_sql,
)
from tenure_testbed.postgres_access import PostgresAccess, database_of

Serve = Any

TABLES = """
DROP TABLE IF EXISTS orders, tenure_locks, tenure_idempotency CASCADE;
CREATE TABLE orders (id serial PRIMARY KEY, cat text, CONSTRAINT one_each UNIQUE (cat) DEFERRABLE INITIALLY DEFERRED)
"""


def key(value: str = "k-1") -> dict[str, str]:
    return {"Idempotency-Key": value}


def is_replay(answer: httpx.Response) -> bool:
    return answer.headers.get("idempotent-replayed") == "true"


@pytest.fixture(scope="module")
def database(postgres_server: PostgresAccess) -> Iterator[str]:
    url = postgres_server.create_database()
    yield url
    postgres_server.drop_database(database_of(url))


@pytest.fixture
async def person(database: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(database.replace("+asyncpg", ""), timeout=10)
    await connection.execute(TABLES)
    await connection.execute(create_schema_sql())
    await connection.execute(create_idempotency_schema_sql())
    yield connection
    connection.terminate()


@pytest.fixture
async def engine(database: str, person: Any) -> AsyncIterator[AsyncEngine]:
    engine = create_async_engine(database)
    yield engine
    await engine.dispose()


INSERT = text("INSERT INTO orders (cat) VALUES (:cat)")


def app_on(engine: AsyncEngine, *handlers: Any, before_send: Any = "autocommit") -> Litestar:
    alchemy = SQLAlchemyAsyncConfig(engine_instance=engine, before_send_handler=before_send)
    # A config that is not the process's first one is given other keys in the application's state by its maker.
    return Litestar(
        list(handlers),
        plugins=[
            SQLAlchemyPlugin(config=alchemy),
            TenurePlugin(
                locks=lambda: Locks(PostgresLockStore(alchemy.get_engine())),
                idempotency=lambda: Idempotency(PostgresIdempotencyStore(alchemy.get_engine()), lock_ttl=5),
                principal=UNSCOPED,
                health_path="/health",
            ),
        ],
    )


async def test_what_the_handler_did_is_committed_and_its_response_is_replayed(
    serve: Serve, engine: AsyncEngine, person: Any
) -> None:
    @post("/orders", opt={"idempotency": True})
    async def order(db_session: NamedDependency[AsyncSession], data: JSONBody[dict[str, str]]) -> dict[str, str]:
        await db_session.execute(INSERT, data)
        return data

    async with serve(app_on(engine, order)) as client:
        for _ in range(3):
            answer = await client.post("/orders", json={"cat": "Miau"}, headers=key())
            assert (answer.status_code, answer.json()) == (201, {"cat": "Miau"})
        assert is_replay(answer)
        assert (await client.get("/health")).json()["idempotency"]["store"] == {
            "type": "PostgresIdempotencyStore",
            "server": "ok",
        }
    assert await person.fetchval("SELECT count(*) FROM orders") == 1


async def test_a_commit_that_fails_and_is_swallowed_is_neither_shown_nor_stored(
    serve: Serve, engine: AsyncEngine, person: Any
) -> None:
    @post("/orders", opt={"idempotency": True})
    async def order(db_session: NamedDependency[AsyncSession], data: JSONBody[dict[str, str]]) -> dict[str, str]:
        await db_session.execute(INSERT, data)  # the constraint is looked at by the commit
        return data

    await person.execute("INSERT INTO orders (cat) VALUES ('Miau')")
    async with serve(app_on(engine, order)) as client:
        failed = await client.post("/orders", json={"cat": "Miau"}, headers=key())
        assert (failed.status_code, is_replay(failed)) == (500, False)
        await person.execute("DELETE FROM orders")
        again = await client.post("/orders", json={"cat": "Miau"}, headers=key())
        assert (again.status_code, is_replay(again)) == (201, False)
        assert is_replay(await client.post("/orders", json={"cat": "Miau"}, headers=key()))
    assert await person.fetchval("SELECT count(*) FROM orders") == 1


async def test_a_route_that_is_not_protected_is_left_as_it_was(serve: Serve, engine: AsyncEngine, person: Any) -> None:
    # advanced-alchemy says 201 to it. Whether that is right is between the two of them.
    @post("/orders")
    async def order(db_session: NamedDependency[AsyncSession], data: JSONBody[dict[str, str]]) -> dict[str, str]:
        await db_session.execute(INSERT, data)
        return data

    await person.execute("INSERT INTO orders (cat) VALUES ('Miau')")
    async with serve(app_on(engine, order)) as client:
        assert (await client.post("/orders", json={"cat": "Miau"}, headers=key())).status_code == 201


async def test_a_rollback_by_status_is_no_failed_commit(serve: Serve, engine: AsyncEngine, person: Any) -> None:
    @post("/orders", opt={"idempotency": True}, status_code=404)
    async def order(db_session: NamedDependency[AsyncSession]) -> str:
        await db_session.execute(INSERT, {"cat": "Miau"})
        return "no such cat"

    async with serve(app_on(engine, order)) as client:
        assert (await client.post("/orders", headers=key())).status_code == 404
        assert is_replay(await client.post("/orders", headers=key()))
    assert await person.fetchval("SELECT count(*) FROM orders") == 0


async def test_an_asserted_effect_commits_with_its_proof_or_not_at_all(
    serve: Serve, engine: AsyncEngine, person: Any
) -> None:
    @post("/orders", opt={"idempotency": {"required": True}})
    async def order(
        db_session: NamedDependency[AsyncSession],
        idempotency_context: NamedDependency[IdempotencyContext],
        data: JSONBody[dict[str, str]],
    ) -> dict[str, str]:
        await idempotency_context.assert_owner(db_session)
        await db_session.execute(INSERT, data)
        await db_session.commit()
        if data["cat"] == "Sphinx":
            raise ValueError("behind the commit")
        return data

    async with serve(app_on(engine, order, before_send=None)) as client:
        for _ in range(2):
            answer = await client.post("/orders", json={"cat": "Miau"}, headers=key())
            assert answer.status_code == 201
        # The effect is there although the handler failed: nobody has it a second time.
        for status in (500, 409):
            answer = await client.post("/orders", json={"cat": "Sphinx"}, headers=key("k-2"))
            assert answer.status_code == status
    assert await person.fetchval("SELECT count(*) FROM orders") == 2


async def test_leases_are_handed_back_before_the_engine_is_disposed(
    serve: Serve, engine: AsyncEngine, person: Any
) -> None:
    @post("/hold")
    async def hold(locks: NamedDependency[Locks]) -> None:
        await locks.acquire("feed")

    held = "SELECT count(*) FROM tenure_locks WHERE owner IS NOT NULL"
    async with serve(app_on(engine, hold)) as client:
        await client.post("/hold")
        assert await person.fetchval(held) == 1
    assert await person.fetchval(held) == 0
