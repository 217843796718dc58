"""An application for a real server: run by its path, with the URL of a database in the environment."""

import os

from litestar import Litestar, get, post
from litestar.di import NamedDependency
from sqlalchemy.ext.asyncio import create_async_engine

from tenure import Locks
from tenure.ext.litestar import UNSCOPED, TenurePlugin
from tenure.idempotency import Idempotency
from tenure_postgres import PostgresIdempotencyStore, PostgresLockStore

engine = create_async_engine(os.environ["SHOP_DATABASE"])


@get("/hold")
async def hold(locks: NamedDependency[Locks]) -> int:
    return (await locks.acquire("feed")).token


@post("/orders", opt={"idempotency": True})
async def order() -> dict[str, str]:
    return {"run": os.urandom(8).hex()}


app = Litestar(
    [hold, order],
    plugins=[
        TenurePlugin(
            locks=lambda: Locks(PostgresLockStore(engine), instance="served-shop", ttl=600),
            idempotency=lambda: Idempotency(PostgresIdempotencyStore(engine)),
            principal=UNSCOPED,
            health_path="/health",
        )
    ],
    on_shutdown=[engine.dispose],
)
