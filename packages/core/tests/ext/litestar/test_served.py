"""Under a real server, as a process that gets SIGTERM."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest

from tenure_postgres import create_idempotency_schema_sql, create_schema_sql
from tenure_testbed.ports import free_port
from tenure_testbed.postgres_access import PostgresAccess, database_of

HERE = Path(__file__).parent


@pytest.fixture
def database(postgres_server: PostgresAccess) -> Iterator[str]:
    url = postgres_server.create_database()
    yield url
    postgres_server.drop_database(database_of(url))


@pytest.fixture
async def person(database: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(database.replace("+asyncpg", ""), timeout=10)
    await connection.execute(create_schema_sql())
    await connection.execute(create_idempotency_schema_sql())
    yield connection
    connection.terminate()


async def answers(client: httpx.AsyncClient, process: asyncio.subprocess.Process) -> httpx.Response:
    """Ask until the server is up; it has half a minute on a busy machine."""
    async with asyncio.timeout(30):
        while True:
            assert process.returncode is None
            try:
                return await client.get("/health")
            except httpx.TransportError:
                await asyncio.sleep(0.1)


async def test_at_sigterm_the_leases_are_handed_back_and_the_process_ends(database: str, person: Any) -> None:
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "uvicorn", "served_shop:app", "--port", str(port), "--app-dir", str(HERE)),
        env={**os.environ, "SHOP_DATABASE": database},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    held = "SELECT count(*) FROM tenure_locks WHERE owner IS NOT NULL"
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
            health = await answers(client, process)
            assert (health.status_code, health.json()["locks"]["store"]["server"]) == (200, "ok")
            assert (await client.get("/hold")).status_code == 200
            assert await person.fetchval(held) == 1
            repeats = [await client.post("/orders", headers={"Idempotency-Key": "k-1"}) for _ in range(2)]
            assert repeats[0].content == repeats[1].content
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(30):
            await process.wait()
        # Its ttl is ten minutes: nothing but handing it back frees the lease by now.
        assert await person.fetchval(held) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
