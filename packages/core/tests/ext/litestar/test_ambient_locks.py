"""Jobs and locked functions that a request calls: which Locks they find, with several applications in a process."""

from typing import Any

from litestar import Litestar, Response, get, websocket
from litestar.background_tasks import BackgroundTask
from litestar.connection import WebSocket
from litestar.di import NamedDependency

from tenure import InMemoryLockStore, Locks, locked, on_one_instance
from tenure.ext.litestar import TenurePlugin
from tenure.locks import ambient_locks

Serve = Any


@locked("tests:report")
async def report() -> str:
    assert ambient_locks().statistics().held
    return ambient_locks().instance


@on_one_instance("tests:nightly")
async def nightly() -> str:
    return ambient_locks().instance


@get("/report")
async def call_report() -> str:
    return await report()


@get("/nightly")
async def call_nightly() -> str:
    return await nightly() or "elsewhere"


def app_called(name: str, *handlers: Any) -> Litestar:
    return Litestar(
        [call_report, call_nightly, *handlers],
        plugins=[TenurePlugin(locks=lambda: Locks(InMemoryLockStore(), instance=name))],
    )


async def test_with_two_applications_each_finds_its_own(serve: Serve) -> None:
    async with serve(app_called("one")) as one, serve(app_called("two")) as two:
        for _ in range(2):
            assert (await one.get("/report")).text == "one"
            assert (await two.get("/report")).text == "two"
            assert (await two.get("/nightly")).text == "two"
            assert (await one.get("/nightly")).text == "one"


async def test_a_background_task_finds_the_locks_of_the_application_that_was_asked(serve: Serve) -> None:
    found: list[str] = []

    async def later() -> None:
        found.append(await report())

    @get("/later")
    async def call_later() -> Response[None]:
        return Response(None, background=BackgroundTask(later))

    async with serve(app_called("one", call_later)) as one, serve(app_called("two", call_later)) as two:
        await two.get("/later")
        await one.get("/later")
    assert found == ["two", "one"]


async def test_a_websocket_finds_them_too() -> None:
    from litestar.testing import TestClient

    @websocket("/ws")
    async def call_ws(socket: WebSocket[Any, Any, Any]) -> None:
        await socket.accept()
        await socket.send_text(await report())
        await socket.close()

    with TestClient(app_called("one", call_ws)) as one, TestClient(app_called("two", call_ws)) as two:
        for client, name in ((two, "two"), (one, "one")):
            with client.websocket_connect("/ws") as socket:
                assert socket.receive_text() == name


async def test_the_caller_of_an_application_keeps_its_own_ambient_locks() -> None:
    # An ASGI client in the same task as the application: what the request set must not stay behind.
    app = app_called("served")

    async def send(_: Any) -> None: ...

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    scope = {
        "type": "http", "method": "GET", "path": "/report", "raw_path": b"/report", "query_string": b"",
        "headers": [], "http_version": "1.1", "scheme": "http", "root_path": "", "asgi": {"version": "3.0"},
    }  # fmt: skip
    async with app.lifespan(), Locks(InMemoryLockStore(), instance="mine"):
        await app(scope, receive, send)  # type: ignore[arg-type]
        assert ambient_locks().instance == "mine"


async def test_the_given_locks_and_the_ambient_one_are_the_same(serve: Serve) -> None:
    @get("/same")
    async def same(locks: NamedDependency[Locks]) -> bool:
        return locks is ambient_locks()

    async with serve(app_called("one", same)) as one, serve(app_called("two")):
        assert (await one.get("/same")).json() is True
