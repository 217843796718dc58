"""A Litestar application: locks by dependency injection, orders that are placed once."""

from litestar import Litestar, post
from litestar.di import NamedDependency
from litestar.params import FromPath
from litestar.testing import TestClient

from tenure import InMemoryLockStore, Locks
from tenure.ext.litestar import UNSCOPED, TenurePlugin
from tenure.idempotency import Idempotency
from tenure.memory import InMemoryIdempotencyStore


@post("/orders", opt={"idempotency": True})
async def place() -> dict[str, int]:
    return {"order": 4711}


@post("/orders/{order_id:int}/ship")
async def ship(order_id: FromPath[int], locks: NamedDependency[Locks]) -> dict[str, int]:
    async with locks.hold(f"order:{order_id}", wait=2) as lease:
        return {"order": order_id, "token": lease.token}


app = Litestar(
    [place, ship],
    plugins=[
        TenurePlugin(
            locks=lambda: Locks(InMemoryLockStore()),  # or a store that instances share
            idempotency=lambda: Idempotency(InMemoryIdempotencyStore()),
            principal=UNSCOPED,  # in earnest: whom the request belongs to
        )
    ],
)

if __name__ == "__main__":
    with TestClient(app) as client:
        key = {"Idempotency-Key": '"8e03978e-40d5-43dd-bc93-6894a57f9324"'}
        first, again = [client.post("/orders", headers=key) for _ in range(2)]
        assert first.json() == again.json() == {"order": 4711}
        assert client.post("/orders/7/ship").json()["token"] > 0
