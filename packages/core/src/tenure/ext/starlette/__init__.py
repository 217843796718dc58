"""
tenure in a Starlette or FastAPI application: locks and idempotency from its start to its end.

    pip install "tenure[starlette]"

    plugin = TenurePlugin(locks="valkey://cache:6379")
    app = FastAPI(lifespan=plugin.lifespan)
    plugin.install(app)

    def key_of(order_id: int) -> str:
        return f"order:{order_id}"

    @app.post("/orders/{order_id}/ship")
    async def ship(order_id: int, lease: Annotated[Lease, Depends(holding(key_of, wait=2))]) -> None: ...

    @app.get("/locks")
    async def count(locks: Annotated[Locks, Depends(get_locks)]) -> int:
        return locks.statistics().held
"""

from tenure.ext.asgi import UNSCOPED, ClientQuota, IdempotencyMiddleware, IdempotencyOptions
from tenure.ext.starlette._dependencies import get_idempotency, get_idempotency_context, get_locks, holding
from tenure.ext.starlette._plugin import TenurePlugin, in_order
from tenure.ext.starlette._problems import exception_handlers

__all__ = [
    "UNSCOPED",
    "ClientQuota",
    "IdempotencyMiddleware",
    "IdempotencyOptions",
    "TenurePlugin",
    "exception_handlers",
    "get_idempotency",
    "get_idempotency_context",
    "get_locks",
    "holding",
    "in_order",
]
