"""
What somebody who installed the packages runs first. It is run in a fresh environment, which has no more than that.

    python consumer.py imports MODULE...      every public module is there, with all that it names
    python consumer.py script URL             a lock, a job, a request that comes twice, on the store of a URL
    python consumer.py litestar URL           an application with a guarded and an idempotent route
    python consumer.py fastapi URL            the same
"""

import asyncio
import importlib
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from tenure import Lease, Locks, current_lease, on_one_instance, open_idempotency_store, open_store, without_overlapping
from tenure.idempotency import Idempotency

KEY = "a-key-of-the-client"
IN_MEMORY = {"allow_in_memory": True}
RUNS: list[str] = []


def imports(*modules: str) -> None:
    for name in modules:
        module = importlib.import_module(name)
        missing = [member for member in module.__all__ if not hasattr(module, member)]
        assert not missing, (name, missing)


@on_one_instance("consumer:export")
@without_overlapping()
async def export() -> int:
    lease = current_lease()
    assert lease is not None
    return lease.token


async def script(url: str) -> None:
    async with open_store(url, **IN_MEMORY) as store, Locks(store, ttl=30, instance="one") as one:
        first = await one.acquire("consumer:job")
        assert await one.try_acquire("consumer:other") is not None
        assert await first.release()
        async with one.hold("consumer:job", wait=2) as lease:
            assert lease.token > first.token
        assert await export() is not None
    async with open_idempotency_store(url, **IN_MEMORY) as records, Idempotency(records) as idempotency:
        outcomes = [await idempotency.run("consumer:charge", "digest", charge) for _ in range(2)]
        assert outcomes[0] == outcomes[1], outcomes
    assert RUNS == ["charged"]


async def charge() -> dict[str, str]:
    RUNS.append("charged")
    return {"receipt": "R-1"}


def opened(url: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """What makes the locks and the records of an application, at its start."""
    from contextlib import asynccontextmanager

    @asynccontextmanager
    async def locks() -> Any:
        async with open_store(url, **IN_MEMORY) as store, Locks(store) as entered:
            yield entered

    @asynccontextmanager
    async def records() -> Any:
        async with open_idempotency_store(url, **IN_MEMORY) as store, Idempotency(store) as entered:
            yield entered

    return locks, records


async def asked(app: Any, path: str) -> tuple[int, bytes]:
    """Ask an ASGI application for a POST under an idempotency key, without any client's library."""
    sent: list[Any] = []
    came = iter([{"type": "http.request", "body": b"{}", "more_body": False}])

    async def receive() -> Any:
        # A client that stays: whoever listens for a disconnect is not told of one.
        return next(came, None) or await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [
        (b"idempotency-key", f'"{KEY}{path}"'.encode()),
        (b"content-type", b"application/json"),
        (b"host", b"shop"),
    ]
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
        "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "", "headers": headers,
        "client": ("127.0.0.1", 1), "server": ("shop", 80), "state": {},
    }  # fmt: skip
    await app(scope, receive, send)
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])


async def served(app: Any, ask: Callable[[], Awaitable[None]]) -> None:
    """Start an application, ask it, and stop it."""
    word: asyncio.Queue[Any] = asyncio.Queue()
    started, stopped = asyncio.Event(), asyncio.Event()

    async def send(message: Any) -> None:
        assert message["type"] in ("lifespan.startup.complete", "lifespan.shutdown.complete"), message
        (started if "startup" in message["type"] else stopped).set()

    word.put_nowait({"type": "lifespan.startup"})
    scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}
    loop = asyncio.get_running_loop()
    living, waiting = loop.create_task(app(scope, word.get, send)), loop.create_task(started.wait())
    await asyncio.wait([living, waiting], return_when=asyncio.FIRST_COMPLETED)
    if living.done():
        living.result()
    await ask()
    word.put_nowait({"type": "lifespan.shutdown"})
    await living


async def ask_twice(app: Any) -> None:
    async def ask() -> None:
        first, again = await asked(app, "/orders"), await asked(app, "/orders")
        assert first[0] in (200, 201), first
        assert first == again
        assert RUNS == ["ordered"]
        assert (await asked(app, "/ship"))[0] in (200, 201)

    await served(app, ask)


async def litestar(url: str) -> None:
    from litestar import Litestar, post

    from tenure.ext.litestar import UNSCOPED, TenurePlugin

    @post("/orders", opt={"idempotency": True})
    async def orders() -> dict[str, str]:
        RUNS.append("ordered")
        return {"order": "1"}

    @post("/ship")
    async def ship(locks: Locks) -> dict[str, bool]:
        async with locks.hold("consumer:ship") as lease:
            return {"held": lease.held}

    locks, records = opened(url)
    await ask_twice(
        Litestar([orders, ship], plugins=[TenurePlugin(locks=locks, idempotency=records, principal=UNSCOPED)])
    )


async def fastapi(url: str) -> None:
    from typing import Annotated

    from fastapi import Depends, FastAPI

    from tenure.ext.starlette import UNSCOPED, TenurePlugin, holding

    locks, records = opened(url)
    plugin = TenurePlugin(locks=locks, idempotency=records, principal=UNSCOPED)
    app = FastAPI(lifespan=plugin.lifespan)
    plugin.install(app)

    @app.post("/orders")
    async def orders() -> dict[str, str]:
        RUNS.append("ordered")
        return {"order": "1"}

    @app.post("/ship")
    async def ship(lease: Annotated[Lease, Depends(holding("consumer:ship"))]) -> dict[str, bool]:
        return {"held": lease.held}

    await ask_twice(app)


if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    if what == "imports":
        imports(*rest)
    else:
        asyncio.run({"script": script, "litestar": litestar, "fastapi": fastapi}[what](*rest))
