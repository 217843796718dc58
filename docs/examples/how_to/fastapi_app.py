"""A FastAPI application whose handlers hold keys, and whose orders are placed once."""

import asyncio
from typing import Annotated

import httpx
from fastapi import Depends, FastAPI

from tenure import Lease
from tenure.config import TenureConfig
from tenure.ext.starlette import UNSCOPED, TenurePlugin, holding
from tenure.idempotency import Idempotency
from tenure.memory import InMemoryIdempotencyStore

plugin = TenurePlugin(
    locks=TenureConfig(store="memory://", allow_in_memory=True),  # or "postgresql+asyncpg://…", "valkey://…"
    idempotency=lambda: Idempotency(InMemoryIdempotencyStore()),
    principal=UNSCOPED,  # in earnest: whom the request belongs to, lambda scope: scope["user"].id
)
app = FastAPI(lifespan=plugin.lifespan)
plugin.install(app)


def key_of(order_id: int) -> str:
    return f"order:{order_id}"


@app.post("/orders", status_code=201)
async def place() -> dict[str, int]:
    return {"order": 4711}


@app.post("/orders/{order_id}/ship")
async def ship(order_id: int, lease: Annotated[Lease, Depends(holding(key_of, wait=2))]) -> dict[str, int]:
    return {"order": order_id, "token": lease.token}


async def main() -> None:
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://shop") as client,
    ):
        key = {"Idempotency-Key": '"8e03978e-40d5-43dd-bc93-6894a57f9324"'}
        first, again = [await client.post("/orders", headers=key) for _ in range(2)]
        assert first.json() == again.json() == {"order": 4711}
        assert again.headers["idempotent-replayed"] == "true"
        assert (await client.post("/orders/7/ship")).json()["token"] > 0


if __name__ == "__main__":
    asyncio.run(main())
