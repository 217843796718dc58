"""The plugin for Starlette and FastAPI, on the real libraries: from the start of an application to its end."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any

import httpx
import pytest
from fastapi import BackgroundTasks, Depends, FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route
from starlette.websockets import WebSocket

from tenure import ConfigurationError, Lease, LeaseStateError, Locks, current_lease, locked
from tenure.config import TenureConfig
from tenure.ext.starlette import (
    UNSCOPED,
    IdempotencyOptions,
    TenurePlugin,
    exception_handlers,
    get_idempotency,
    get_idempotency_context,
    get_locks,
    holding,
    in_order,
)
from tenure.idempotency import Idempotency, IdempotencyContext
from tenure.memory import InMemoryIdempotencyStore, InMemoryLockStore
from tenure.testing import FaultyStore

HeldLocks = Annotated[Locks, Depends(get_locks)]


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(InMemoryLockStore())


@contextlib.asynccontextmanager
async def served(app: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client of *app*, inside of its lifespan and on the test's own loop."""
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
            yield client


def key_of(order_id: int) -> str:
    return f"order:{order_id}"


def shop(store: FaultyStore, **options: Any) -> tuple[FastAPI, TenurePlugin]:
    plugin = TenurePlugin(locks=lambda: Locks(store, hooks=[], ttl=1), **options)
    app = FastAPI(lifespan=plugin.lifespan)
    plugin.install(app)

    @app.post("/orders/{order_id}/ship")
    async def ship(order_id: int, lease: Annotated[Lease, Depends(holding(key_of))]) -> dict[str, Any]:
        return {"key": lease.key, "token": lease.token, "current": current_lease() is lease}

    @app.get("/locks")
    async def count(locks: HeldLocks) -> int:
        return locks.statistics().held

    return app, plugin


async def test_a_handler_holds_the_key_for_its_request_and_gives_it_back(store: FaultyStore) -> None:
    app, _ = shop(store)
    async with served(app) as client:
        first = (await client.post("/orders/7/ship")).json()
        assert (first["key"], first["current"]) == ("order:7", True)
        assert (await client.post("/orders/7/ship")).json()["token"] > first["token"]
        assert (await client.get("/locks")).json() == 0


async def test_two_spellings_of_a_number_are_one_key_and_what_is_none_is_a_422(store: FaultyStore) -> None:
    app, _ = shop(store)
    async with served(app) as client:
        assert (await client.post("/orders/07/ship")).json()["key"] == "order:7"
        assert (await client.post("/orders/seven/ship")).status_code == 422


async def test_who_cannot_have_the_key_is_answered_409_as_problem_details(store: FaultyStore) -> None:
    app, _ = shop(store)
    async with served(app) as client:
        async with Locks(store, hooks=[]) as other, other.hold("order:7"):
            refused = await client.post("/orders/7/ship")
        assert refused.status_code == 409
        assert refused.headers["content-type"] == "application/problem+json"
        assert refused.headers["retry-after"] == "1"
        assert refused.json()["type"] == "urn:tenure:lock-not-acquired"
        assert "order:7" not in refused.text


async def test_a_store_that_fails_is_answered_503_and_the_handler_did_not_run(store: FaultyStore) -> None:
    app, _ = shop(store)
    async with served(app) as client:
        store.down()
        refused = await client.post("/orders/7/ship")
        assert (refused.status_code, refused.json()["type"]) == (503, "urn:tenure:store-unavailable")
        store.heal()
        assert (await client.post("/orders/8/ship")).status_code == 200


async def test_a_handler_whose_lease_is_lost_is_cancelled_and_503_is_answered(store: FaultyStore) -> None:
    app, _ = shop(store)
    running, cancelled = asyncio.Event(), asyncio.Event()

    @app.post("/slow")
    async def slow(_: Annotated[Lease, Depends(holding("slow"))]) -> None:
        running.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async with served(app) as client:
        call = asyncio.create_task(client.post("/slow"))
        await running.wait()
        [owner] = [record.owner for record in await store.inner.list_locks("slow")]
        await store.inner.release("slow", owner)
        answer = await call
    assert cancelled.is_set()
    assert (answer.status_code, answer.json()["type"]) == (503, "urn:tenure:lease-lost")


async def test_background_tasks_and_functions_find_the_locks_by_themselves(store: FaultyStore) -> None:
    app, _ = shop(store)
    told: list[int] = []

    @locked("background")
    async def work() -> None:
        lease = current_lease()
        assert lease is not None
        told.append(lease.token)

    @app.post("/later")
    async def later(tasks: BackgroundTasks) -> None:
        await work()
        tasks.add_task(work)

    async with served(app) as client:
        await client.post("/later")
    assert len(told) == 2


async def test_applications_that_are_mounted_inside_find_the_same_locks(store: FaultyStore) -> None:
    async def count(request: Request) -> JSONResponse:
        return JSONResponse({"instance": (await get_locks(request)).instance})

    plugin = TenurePlugin(locks=lambda: Locks(store, instance="shop-1", hooks=[]))
    inner = Starlette(routes=[Route("/count", count)])
    app = Starlette(routes=[Mount("/v2", inner)], lifespan=plugin.lifespan)
    plugin.install(app)
    async with served(app) as client:
        assert (await client.get("/v2/count")).json() == {"instance": "shop-1"}


async def test_a_websocket_that_needs_a_held_key_is_closed_with_try_again_later(store: FaultyStore) -> None:
    app, _ = shop(store)

    async def live(websocket: WebSocket) -> None:
        await websocket.accept()
        async with (await get_locks(websocket)).hold("live"):
            pass

    app.router.add_websocket_route("/live", live)
    came, sent = iter([{"type": "websocket.connect"}, {"type": "websocket.disconnect", "code": 1000}]), []

    async def receive() -> Any:
        return next(came)

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "websocket", "path": "/live", "headers": [], "query_string": b"", "subprotocols": []}
    async with served(app), Locks(store, hooks=[]) as other, other.hold("live"):
        await app(scope, receive, send)
    assert [message["type"] for message in sent] == ["websocket.accept", "websocket.close"]
    assert sent[1]["code"] == 1013


async def test_requests_under_a_key_run_once_and_handlers_have_their_context(store: FaultyStore) -> None:
    records = InMemoryIdempotencyStore()
    plugin = TenurePlugin(idempotency=lambda app: Idempotency(records), principal=UNSCOPED)
    app = FastAPI(lifespan=plugin.lifespan)
    plugin.install(app)
    runs: list[int] = []

    @app.post("/orders")
    async def place(
        context: Annotated[IdempotencyContext | None, Depends(get_idempotency_context)],
        idempotency: Annotated[Idempotency, Depends(get_idempotency)],
    ) -> dict[str, int | None]:
        runs.append(1)
        assert isinstance(idempotency, Idempotency)
        return {"attempt": None if context is None else context.attempt}

    async with served(app) as client:
        headers = {"Idempotency-Key": '"a-key-of-the-client"'}
        answers = [await client.post("/orders", headers=headers) for _ in range(3)]
        assert [answer.json() for answer in answers] == [{"attempt": 1}] * 3
        assert answers[2].headers["idempotent-replayed"] == "true"
        assert (await client.post("/orders")).json() == {"attempt": None}
    assert len(runs) == 2


async def test_the_rules_may_differ_by_the_request(store: FaultyStore) -> None:
    def rules(scope: Any) -> IdempotencyOptions | None:
        return IdempotencyOptions(required=True) if scope["path"] == "/must" else None

    plugin = TenurePlugin(
        idempotency=lambda: Idempotency(InMemoryIdempotencyStore()), principal=UNSCOPED, options=rules
    )
    app = FastAPI(lifespan=plugin.lifespan)
    plugin.install(app)
    app.post("/must")(lambda: None)
    app.post("/may")(lambda: None)
    async with served(app) as client:
        assert (await client.post("/must")).status_code == 400
        assert (await client.post("/may")).status_code == 200


async def test_a_request_of_an_application_that_was_not_started_is_not_run_unprotected() -> None:
    plugin = TenurePlugin(idempotency=lambda: Idempotency(InMemoryIdempotencyStore()), principal=UNSCOPED)
    app = FastAPI()
    plugin.install(app)
    runs: list[int] = []
    app.post("/orders")(lambda: runs.append(1))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://shop") as client:
        with pytest.raises(LeaseStateError, match=r"lifespan=plugin\.lifespan"):
            await client.post("/orders")
    assert runs == []


async def test_what_an_application_has_opened_is_entered_in_order_and_left_in_the_other(store: FaultyStore) -> None:
    told: list[str] = []

    @contextlib.asynccontextmanager
    async def engine(app: Any) -> AsyncIterator[dict[str, str]]:
        told.append("engine")
        yield {"engine": "e"}
        told.append("engine left")

    @contextlib.asynccontextmanager
    async def scheduler(app: Any) -> AsyncIterator[None]:
        told.append(f"scheduler on {app.title}, locks {plugin.locks.phase.value}")
        yield
        told.append(f"scheduler left, locks {plugin.locks.phase.value}")

    plugin = TenurePlugin(locks=lambda app: Locks(store, instance=app.title, hooks=[]))
    app = FastAPI(title="shop", lifespan=in_order(engine, plugin.lifespan, scheduler))
    plugin.install(app)
    for _ in range(2):  # an application may be started again
        async with served(app) as client:
            assert (await client.get("/nothing")).status_code == 404
            assert plugin.locks.instance == "shop"
    once = ["engine", "scheduler on shop, locks open", "scheduler left, locks open", "engine left"]
    assert told == once * 2


async def test_an_instance_serves_one_start(store: FaultyStore) -> None:
    plugin = TenurePlugin(locks=Locks(store, hooks=[]))
    app = FastAPI(lifespan=plugin.lifespan)
    plugin.install(app)
    async with served(app):
        pass
    with pytest.raises(LeaseStateError, match="passes a callable"):
        async with served(app):
            pass


@pytest.mark.parametrize("source", ["memory://", TenureConfig(store="memory://", allow_in_memory=True)])
async def test_a_url_or_settings_make_the_locks(source: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = TenurePlugin(locks=source)
    app = FastAPI(lifespan=plugin.lifespan)
    plugin.install(app)
    async with served(app), plugin.locks.hold("job"):
        pass


def _async_source() -> Any:
    async def make() -> None: ...

    return make


@pytest.mark.parametrize(
    ("source", "told"),
    [(lambda: 7, "returned a int"), (_async_source(), "It is not awaited")],
)
async def test_a_callable_that_makes_something_else_fails_the_start(source: Any, told: str) -> None:
    app = FastAPI(lifespan=TenurePlugin(locks=source).lifespan)
    with pytest.raises(ConfigurationError, match=told):
        async with served(app):
            pass


def test_a_plugin_that_cannot_work_is_refused_where_it_is_made() -> None:
    with pytest.raises(ConfigurationError, match="nothing to run with"):
        TenurePlugin()
    with pytest.raises(ConfigurationError, match="principal="):
        TenurePlugin(idempotency="memory://")
    with pytest.raises(ConfigurationError, match="makes no Locks"):
        TenurePlugin(locks=7)  # type: ignore[arg-type]


async def test_it_is_installed_before_the_start(store: FaultyStore) -> None:
    app, _ = shop(store)
    async with served(app) as client:
        await client.get("/locks")
        with pytest.raises(LeaseStateError, match="has been started"):
            TenurePlugin(locks=lambda: Locks(store)).install(app)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: holding("order:{order_id}"), "looks like a template"),
        (lambda: holding(lambda *args: "a"), "which FastAPI cannot give"),
        (lambda: holding(lambda **given: "a"), "which FastAPI cannot give"),
        (lambda: holding("a", wait=-1), "wait"),
        (lambda: holding("a", ttl=0), "ttl"),
    ],
)
def test_a_dependency_that_cannot_be_is_refused_where_it_is_written(make: Callable[[], Any], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        make()


async def test_an_applications_own_answer_to_an_error_stays(store: FaultyStore) -> None:
    plugin = TenurePlugin(locks=lambda: Locks(store, hooks=[]))
    app = FastAPI(lifespan=plugin.lifespan)

    async def own(request: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"own": True}, 418)

    [first, *_] = exception_handlers()
    app.add_exception_handler(first, own)
    plugin.install(app)
    app.post("/ship")(_ship)
    async with served(app) as client, Locks(store, hooks=[]) as other, other.hold("ship"):
        assert (await client.post("/ship")).status_code == 418


async def _ship(_: Annotated[Lease, Depends(holding("ship"))]) -> None: ...


# -------------------------------------------------------------------------------------------------- planted bugs


async def test_a_dependency_that_forgets_to_give_back_is_found(
    store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard = Locks.guard
    monkeypatch.setattr(Locks, "guard", lambda self, leases, **options: guard(self, leases, give_back=[]))
    with pytest.raises((AssertionError, ValueError)):
        await test_a_handler_holds_the_key_for_its_request_and_gives_it_back(store)


async def test_a_middleware_that_lets_an_unprotected_request_through_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from tenure.ext.starlette import _plugin

    async def through(self: Any, scope: Any, receive: Any, send: Any) -> None:
        await self._app(scope, receive, send)

    monkeypatch.setattr(_plugin._Innermost, "__call__", through)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        await test_a_request_of_an_application_that_was_not_started_is_not_run_unprotected()
