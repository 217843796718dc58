"""An order that is posted to a Starlette application, with and without the idempotency middleware around it."""

import asyncio
import contextlib
import itertools
import os
import time
from collections.abc import Mapping, MutableMapping
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from tenure import open_idempotency_store
from tenure.ext.asgi import UNSCOPED, IdempotencyMiddleware
from tenure.idempotency import Idempotency
from tenure_loadtests.contenders.contract import RunsCycles
from tenure_loadtests.contenders.tenure_locks import store_url
from tenure_loadtests.figures import quantile

__all__ = ["PostedOrders"]

_POOL_SIZE = 16
_BODY = b'{"article": "salmon pate", "tins": 12, "address": "Cat Street 1"}'
_WARM_S = 0.2


class PostedOrders(RunsCycles):
    """
    Requests to an application in this process: its handler writes one row of PostgreSQL and commits.

    Its options are `store` (none: no middleware) and `repeat` (every request a second time, of which only the repeats
    are measured).
    """

    distributions = ("tenure", "starlette", "asyncpg", "redis", "valkey-glide")

    async def open(self, tasks: int) -> None:
        """Build the application, and enter the engine of idempotency."""
        del tasks
        import asyncpg  # type: ignore[import-untyped]  # it ships no types

        self._exits = contextlib.AsyncExitStack()
        pool = await self._exits.enter_async_context(
            asyncpg.create_pool(self.address.postgres, min_size=_POOL_SIZE, max_size=_POOL_SIZE)
        )

        async def create(request: Request) -> JSONResponse:
            body = (await request.body()).decode()
            number = await pool.fetchval("INSERT INTO bench_orders (body) VALUES ($1) RETURNING id", body)
            return JSONResponse({"order": number}, status_code=201)

        self._app: Any = Starlette(routes=[Route("/orders", create, methods=["POST"])])
        store = self.options.get("store")
        if store:
            opened = open_idempotency_store(store_url(self.address, store))
            if hasattr(opened, "aclose"):
                self._exits.push_async_callback(opened.aclose)
            idempotency = await self._exits.enter_async_context(Idempotency(opened, instance="bench-1"))
            self._app = IdempotencyMiddleware(self._app, idempotency=idempotency, principal=UNSCOPED)
        self._numbers = itertools.count()

    async def close(self) -> None:
        """Leave everything."""
        await self._exits.aclose()

    async def run_cycles(self, tasks: int, seconds: float) -> Mapping[str, float]:
        """A cycle is a request."""
        await self._load(tasks, _WARM_S)
        samples = await self._load(tasks, seconds)
        samples.sort()
        return {
            "cycles": len(samples),
            "p50_us": quantile(samples, 0.5) * 1e6,
            "p99_us": quantile(samples, 0.99) * 1e6,
        }

    async def _load(self, tasks: int, seconds: float) -> list[float]:
        now = time.perf_counter
        until = now() + seconds
        samples: list[float] = []

        async def client() -> None:
            while now() < until:
                key = f'"{os.getpid()}-{next(self._numbers):012}"'.encode()
                if self.options.get("repeat"):
                    await self._post(key)
                begun = now()
                await self._post(key)
                samples.append(now() - begun)

        async with asyncio.TaskGroup() as group:
            for _ in range(tasks):
                group.create_task(client())
        return samples

    async def _post(self, key: bytes) -> None:
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": "/orders",
            "raw_path": b"/orders",
            "query_string": b"",
            "root_path": "",
            "headers": [
                (b"host", b"shop"),
                (b"content-type", b"application/json"),
                (b"content-length", b"%d" % len(_BODY)),
                (b"idempotency-key", key),
            ],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
            "state": {},
        }
        status = 0
        pending = [{"type": "http.request", "body": _BODY, "more_body": False}]

        async def receive() -> MutableMapping[str, Any]:
            # A second question is whether the client has gone: it has not, for as long as the request takes.
            return pending.pop() if pending else await asyncio.get_running_loop().create_future()

        async def send(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            status = message.get("status", status)

        await self._app(scope, receive, send)
        if status != 201:
            raise RuntimeError(f"The order was answered with {status}.")
