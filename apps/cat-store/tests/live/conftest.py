"""The live page on a real port, on a real database; replicas that tell of themselves, and a supervisor that records."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx
import pytest
from litestar import Litestar, Request, post

from cat_store.database.engine import create_engine
from cat_store.demo.control import DemoControl, SupervisorError
from cat_store.demo.shop import Shop
from cat_store.live.controller import LiveController
from cat_store.live.heartbeat import Heartbeat
from cat_store.live.log import LiveLog
from cat_store.live.part import Live, LiveOptions, live_dependencies, open_live
from cat_store.web.problems import exception_handlers, problem, problem_details
from cat_store.web.server import Listener, serving

PATIENCE_S = 15.0
# A few times faster than in a shop, so that a test waits for looks and not for seconds.
EVERY_S = 0.1
ADMIN_TOKEN = "s3cret-administrator"


@dataclass
class RecordingSupervisor:
    """Does nothing to anybody, and remembers what it was asked to do."""

    replicas: dict[str, Literal["up", "paused", "gone"]] = field(
        default_factory=lambda: {"cat-store-1": "up", "cat-store-2": "up", "cat-store-3": "up"}
    )
    locks: bool = True
    count_delay_s: float = 0.0
    asked: list[tuple[Any, ...]] = field(default_factory=list)
    refuses: bool = False

    def states(self) -> Mapping[str, Literal["up", "paused", "gone"]]:
        return self.replicas

    async def pause(self, name: str) -> str:
        return self._do("pause", name, "paused")

    async def resume(self, name: str) -> str:
        return self._do("resume", name, "up")

    async def kill(self, name: str) -> str:
        return self._do("kill", name, "gone")

    async def stop(self, name: str) -> str:
        return self._do("stop", name, "gone")

    async def start(self, name: str) -> str:
        return self._do("start", name, "up")

    async def restart(self, *, locks: bool) -> str:
        self.asked.append(("restart", locks))
        if self.refuses:
            raise SupervisorError("cat-store-2 did not come up.")
        self.locks = locks
        return f"Every replica runs {'with' if locks else 'without'} locks."

    async def slow(self, seconds: float) -> str:
        self.asked.append(("slow", seconds))
        self.count_delay_s = seconds
        return f"The warehouse takes {seconds:g} s for each page of a count."

    def _do(self, verb: str, name: str, state: Literal["up", "paused", "gone"]) -> str:
        self.asked.append((verb, name))
        if self.refuses:
            raise SupervisorError(f"{name} is {self.replicas[name]}.")
        self.replicas[name] = state
        return f"{verb} {name}: done."


@dataclass
class Api:
    """The part of a replica's API that the buttons use, and what came to it."""

    orders: list[Any] = field(default_factory=list)
    exports: int = 0
    exported: int = 3
    conflict: bool = False

    def handlers(self) -> list[Any]:
        @post("/orders")
        async def order(request: Request[Any, Any, Any]) -> dict[str, Any]:
            self.orders.append(await request.json())
            return {"id": "01a22d5e-3ec5-72ee-ae47-7b22aede2b5f", "total_cents": 4250}

        @post("/admin/invoice-export", status_code=200)
        async def export(request: Request[Any, Any, Any]) -> dict[str, Any]:
            if request.headers.get("x-admin-token") != ADMIN_TOKEN:
                raise problem(403, "administrators-only", "Send the administrators' token.")
            if self.conflict:
                raise problem(409, "export-under-way", "An invoice export is under way.")
            self.exports += 1
            # The first one takes what is due, and the other finds nothing left.
            exported, self.exported = self.exported, 0
            return {"exported": exported, "batches": ["acc_1234abcd"] if exported else []}

        return [order, export]


@dataclass
class Served:
    """A page that is served: where, and what is behind it."""

    live: Live
    log: LiveLog
    http: httpx.AsyncClient
    address: str
    api: Api
    stop: Callable[[], Awaitable[None]]


ServePage = Callable[..., Awaitable[Served]]


@contextlib.asynccontextmanager
async def served_page(url: str, instance: str, **options: Any) -> AsyncIterator[Served]:
    store, transport = options.pop("store", None), options.pop("partners", None)
    heartbeat, api = options.pop("heartbeat", True), options.pop("api", None) or Api()
    port = options.pop("port", 0)
    async with contextlib.AsyncExitStack() as left:
        listener = left.enter_context(Listener("127.0.0.1", port))
        engine = create_engine(url)
        left.push_async_callback(engine.dispose)
        log = LiveLog()
        if heartbeat:
            await left.enter_async_context(
                Heartbeat(
                    url, log, instance=instance, address=listener.url, locks=options.pop("locks", True), every_s=EVERY_S
                )
            )
        told = LiveOptions(
            **{
                "instance": instance,
                "address": listener.url,
                "accounting_url": "http://127.0.0.1:1/accounting",
                "warehouse_url": "http://127.0.0.1:1/warehouse",
                "lock_ttl_s": 3,
                "admin_token": ADMIN_TOKEN,
                **options,
            }
        )
        live = await left.enter_async_context(open_live(told, engine, store, partners=transport, every_s=EVERY_S))
        app = Litestar(
            [LiveController, *api.handlers()],
            dependencies=live_dependencies(live),
            plugins=[problem_details()],
            exception_handlers=exception_handlers(),
            logging_config=None,
        )
        server = contextlib.AsyncExitStack()
        await server.enter_async_context(serving(app, listener, drain_s=10))
        left.push_async_callback(server.aclose)
        left.callback(live.end_streams)
        http = await left.enter_async_context(httpx.AsyncClient(base_url=listener.url, timeout=PATIENCE_S))

        async def stop() -> None:
            live.end_streams()
            await server.aclose()

        yield Served(live, log, http, listener.url, api, stop)


@pytest.fixture
async def serve_page(postgres_url: str, shop: Shop) -> AsyncIterator[ServePage]:
    """Serve one more page: `await serve_page("cat-store-2", demo_url=…)`."""
    del shop  # its database has to be migrated first
    async with contextlib.AsyncExitStack() as left:

        async def serve_one(instance: str = "cat-store-1", **options: Any) -> Served:
            return await left.enter_async_context(served_page(postgres_url, instance, **options))

        yield serve_one


@pytest.fixture
def serve_page_at() -> Callable[..., Any]:
    """Serve a page on another database: `async with serve_page_at(url, "cat-store-1") as served`."""
    return served_page


@pytest.fixture
def supervisor() -> RecordingSupervisor:
    return RecordingSupervisor()


@pytest.fixture
async def control(supervisor: RecordingSupervisor) -> AsyncIterator[DemoControl]:
    async with DemoControl(supervisor) as opened:
        yield opened


@pytest.fixture
def eventually() -> Callable[[Callable[[], Awaitable[object]]], Awaitable[None]]:
    """Ask until the answer is yes."""

    async def poll(asked: Callable[[], Awaitable[object]]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not await asked():
                await asyncio.sleep(0.02)

    return poll
