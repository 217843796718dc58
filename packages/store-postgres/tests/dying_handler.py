"""
A process of its own that executes requests up to a stage, says so, and waits to be killed.

    python dying_handler.py <url> <stage> <key>...

Stages: acquired, asserted (in a transaction that is not committed), committed, completed.
"""

import asyncio
import sys
from typing import Never

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from tenure.idempotency_store import Acquired, Completion
from tenure_postgres import PostgresIdempotencyStore

LOCK_MS = 1500  # time enough to get to any stage, and not much to wait for afterwards
DAY_MS = 86_400_000


async def execute(engine: AsyncEngine, key: str, stage: str, reached: asyncio.Queue[str]) -> None:
    async def stop_here() -> Never:
        reached.put_nowait(key)
        await asyncio.Event().wait()
        raise AssertionError

    store, owner = PostgresIdempotencyStore(engine), f"dying-1:{key}"
    reply = await store.acquire(key, owner, "f", LOCK_MS, DAY_MS)
    assert reply == Acquired(1), reply
    if stage == "acquired":
        await stop_here()
    async with engine.begin() as connection:
        await store.assert_owner(connection, key, owner)
        await connection.execute(text("INSERT INTO orders VALUES (:key, 'dying-1')"), {"key": key})
        if stage == "asserted":
            await stop_here()
    if stage == "committed":
        await stop_here()
    assert await store.complete(key, owner, b"201", DAY_MS) is Completion.STORED
    await stop_here()


async def main(url: str, stage: str, *keys: str) -> None:
    engine = create_async_engine(url, pool_size=len(keys) + 1)
    reached: asyncio.Queue[str] = asyncio.Queue()
    tasks = [asyncio.create_task(execute(engine, key, stage, reached)) for key in keys]
    for _ in keys:
        await reached.get()
    sys.stdout.write("reached\n")
    sys.stdout.flush()
    await asyncio.gather(*tasks)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
