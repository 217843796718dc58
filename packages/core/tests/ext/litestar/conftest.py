"""What the tests share: applications that run, and stores to look into."""

import asyncio
import contextlib
import contextvars
import warnings
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import httpx
import pytest
from sqlalchemy.exc import SADeprecationWarning

# Litestar imports advanced-alchemy where it is, and that uses what SQLAlchemy 2.1 has deprecated; imported here, once.
with warnings.catch_warnings():
    warnings.simplefilter("ignore", SADeprecationWarning)
    import advanced_alchemy.extensions.litestar  # noqa: F401

from litestar import Litestar

from tenure import InMemoryLockStore
from tenure.ext.litestar import UNSCOPED, TenurePlugin
from tenure.idempotency import Idempotency, InMemoryIdempotencyStore

Serve = Callable[[Litestar], AbstractAsyncContextManager[httpx.AsyncClient]]


@contextlib.asynccontextmanager
async def serve(app: Litestar) -> AsyncIterator[httpx.AsyncClient]:
    """
    Run an application from its start to its end, on this event loop, and speak with it.

    Its lifespan has a task and a context of its own, as a server gives it; errors come as the server's 500.
    """
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    started: asyncio.Future[None] = loop.create_future()

    async def live() -> None:
        async with app.lifespan():
            started.set_result(None)
            await stop.wait()

    life = loop.create_task(live(), context=contextvars.Context())
    await asyncio.wait([life, started], return_when=asyncio.FIRST_COMPLETED)
    if life.done():
        await life
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://shop.local") as client:
            yield client
    finally:
        stop.set()
        await life


@pytest.fixture(name="serve")
def _serve() -> Serve:
    return serve


@pytest.fixture
def lock_store() -> InMemoryLockStore:
    return InMemoryLockStore()


@pytest.fixture
def records() -> InMemoryIdempotencyStore:
    return InMemoryIdempotencyStore()


AppOf = Callable[..., Litestar]


@pytest.fixture
def app_of() -> AppOf:
    """
    Make applications under keys.

    Options of the plugin are told from those of Litestar by their names.
    """

    def make(*handlers: Any, records: InMemoryIdempotencyStore | None = None, **options: Any) -> Litestar:
        store = records or InMemoryIdempotencyStore()
        names = (
            "principal",
            "options",
            "protect",
            "namespace",
            "problem_base",
            "quota",
            "problem_details",
            "health_path",
        )
        ours = {"principal": UNSCOPED, **{name: options.pop(name) for name in names if name in options}}
        plugin = TenurePlugin(idempotency=lambda: Idempotency(store, lock_ttl=5), **ours)
        return Litestar(list(handlers), plugins=[*options.pop("plugins", []), plugin], **options)

    return make
