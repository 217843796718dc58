"""A request that comes twice."""

import asyncio

from tenure import open_idempotency_store
from tenure.idempotency import Idempotency

placed: list[str] = []


async def place() -> dict[str, int]:
    placed.append("an order")
    return {"order": 4711}


async def main() -> None:
    store = open_idempotency_store("memory://", allow_in_memory=True)
    async with store, Idempotency(store, lock_ttl=30, retention="24h") as idempotency:
        answers = [await idempotency.run("client-7:order", "digest of the payload", place) for _ in range(3)]
        assert answers == [{"order": 4711}] * 3


asyncio.run(main())
assert placed == ["an order"]
