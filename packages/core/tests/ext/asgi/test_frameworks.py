"""The middleware in Starlette and FastAPI applications, through httpx, among the layers that applications have."""

import asyncio
import gzip
import pathlib
from collections.abc import AsyncIterator
from typing import Annotated, Any

import fastapi
import httpx
import pytest
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import (
    FileResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Mount, Route

from tenure.ext.asgi import IdempotencyMiddleware, IdempotencyOptions

KEY = {"Idempotency-Key": '"k-1"', "x-account": "anna"}
LONG = "x" * 5000


class Shop:
    """Endpoints of every shape, each counted."""

    def __init__(self) -> None:
        self.runs = 0
        self.mailed = 0
        self.file = pathlib.Path(__file__)

    async def order(self, request: Request) -> Response:
        self.runs += 1
        content = {
            "run": self.runs,
            "attempt": request.state.idempotency.attempt,
            "body": (await request.body()).decode(),
        }
        return JSONResponse(content, status_code=201, headers={"location": "/orders/1"})

    async def long(self, _: Request) -> Response:
        self.runs += 1
        return PlainTextResponse(f"{self.runs}{LONG}")

    async def stream(self, _: Request) -> Response:
        self.runs += 1

        async def parts() -> AsyncIterator[str]:
            for part in ("a", "b", "c"):
                await asyncio.sleep(0)
                yield part

        return StreamingResponse(parts(), media_type="text/plain")

    async def sent_file(self, _: Request) -> Response:
        self.runs += 1
        return FileResponse(self.file)

    async def redirect(self, _: Request) -> Response:
        self.runs += 1
        return RedirectResponse("/orders/1", status_code=303)

    async def empty(self, _: Request) -> Response:
        self.runs += 1
        return Response(status_code=204)

    async def refused(self, _: Request) -> Response:
        self.runs += 1
        raise HTTPException(422, "no stock", headers={"X-Reason": "stock", "Link": "<a>"})

    async def cookie(self, _: Request) -> Response:
        self.runs += 1
        response = PlainTextResponse("in")
        response.set_cookie("session", "of-anna")
        return response

    async def broken(self, _: Request) -> Response:
        self.runs += 1
        raise RuntimeError("boom")

    async def mailing(self, _: Request) -> Response:
        self.runs += 1

        async def mail() -> None:
            self.mailed += 1

        return PlainTextResponse("sent", background=BackgroundTask(mail))

    def app(self, bench: Any, *, outside: Any = (), inside: Any = (), **options: Any) -> Starlette:
        names = ("order", "long", "stream", "sent_file", "redirect", "empty", "refused", "cookie", "broken", "mailing")
        routes = [Route(f"/{name}", getattr(self, name), methods=["POST", "GET"]) for name in names]
        app = Starlette(routes=[*routes, Mount("/v1", routes=routes)])
        for layer, arguments in inside:
            app.add_middleware(layer, **arguments)
        app.add_middleware(
            IdempotencyMiddleware,
            idempotency=bench.idempotency,
            principal=lambda scope: dict(scope["headers"])[b"x-account"].decode(),
            options=IdempotencyOptions(**options),
        )
        for layer, arguments in outside:
            app.add_middleware(layer, **arguments)
        return app


def client_of(app: Any) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://shop", headers=KEY)


@pytest.fixture
def shop() -> Shop:
    return Shop()


async def twice(client: httpx.AsyncClient, path: str, **request: Any) -> tuple[httpx.Response, httpx.Response]:
    return await client.post(path, **request), await client.post(path, **request)


@pytest.mark.parametrize("base", [None, "inside", "outside"])
@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/order", 201),
        ("/v1/order", 201),
        ("/long", 200),
        ("/stream", 200),
        ("/sent_file", 200),
        ("/redirect", 303),
        ("/empty", 204),
        ("/refused", 422),
    ],
)
async def test_every_shape_of_response_is_replayed_byte_for_byte(
    bench: Any, shop: Shop, path: str, status: int, base: str | None
) -> None:
    async def layer(request: Request, call_next: Any) -> Response:
        assert await request.body() == b"{}"
        response: Response = await call_next(request)
        return response

    layers = {base: [(BaseHTTPMiddleware, {"dispatch": layer})]} if base else {}
    app = shop.app(bench, **layers, headers={"x-reason"})
    async with client_of(app) as client:
        first, second = await twice(client, path, content=b"{}")
    assert (first.status_code, second.status_code) == (status, status)
    assert second.content == first.content
    assert "idempotent-replayed" not in first.headers
    assert second.headers["idempotent-replayed"] == "true"
    for name in ("location", "content-type", "etag", "last-modified", "link", "x-reason"):
        assert second.headers.get(name) == first.headers.get(name)
    assert shop.runs == 1


async def test_cookies_are_sent_once_and_never_replayed(bench: Any, shop: Shop) -> None:
    async with client_of(shop.app(bench)) as client:
        first, second = await twice(client, "/cookie")
    assert "session" in first.headers["set-cookie"]
    assert "set-cookie" not in second.headers
    assert second.text == "in"


async def test_a_handler_that_raises_is_answered_500_and_may_be_repeated(bench: Any, shop: Shop) -> None:
    async with client_of(shop.app(bench)) as client:
        first, second = await twice(client, "/broken")
    assert (first.status_code, second.status_code, shop.runs) == (500, 500, 2)
    assert bench.outcomes == ["acquired", "released"] * 2


async def test_a_background_task_runs_once_and_not_on_a_replay(bench: Any, shop: Shop) -> None:
    async with client_of(shop.app(bench)) as client:
        await twice(client, "/mailing")
    assert (shop.runs, shop.mailed) == (1, 1)


async def test_a_path_without_a_route_is_answered_404(bench: Any, shop: Shop) -> None:
    async with client_of(shop.app(bench)) as client:
        first, second = await twice(client, "/nothing")
    assert (first.status_code, second.status_code) == (404, 404)


async def test_a_client_that_is_sent_on_by_a_slash_keeps_its_key(bench: Any, shop: Shop) -> None:
    async with client_of(shop.app(bench)) as client:
        first, second = await twice(client, "/order/", content=b"{}", follow_redirects=True)
    # The retry at the first address is the same request; it needs no sending on.
    assert [[one.status_code for one in response.history] for response in (first, second)] == [[307], []]
    assert (first.status_code, second.content, shop.runs) == (201, first.content, 1)
    assert second.headers["idempotent-replayed"] == "true"


async def test_get_and_head_are_untouched(bench: Any, shop: Shop) -> None:
    async with client_of(shop.app(bench)) as client:
        for _ in range(2):
            assert (await client.get("/long")).status_code == 200
            assert (await client.head("/long")).status_code == 200
    assert (shop.runs, bench.outcomes) == (4, [])


# -------------------------------------------------------------------------------------- compression


@pytest.mark.parametrize(("first_accepts", "then_accepts"), [("gzip", "identity"), ("identity", "gzip")])
@pytest.mark.parametrize("where", ["inside", "outside"])
async def test_a_response_can_be_read_by_whoever_repeats_it_wherever_it_is_compressed(
    bench: Any, shop: Shop, first_accepts: str, then_accepts: str, where: str
) -> None:
    app = shop.app(bench, **{where: [(GZipMiddleware, {"minimum_size": 10})]})
    async with client_of(app) as client:
        first = await client.post("/long", headers={"accept-encoding": first_accepts})
        again = await client.post("/long", headers={"accept-encoding": then_accepts})
    assert first.text == again.text == f"1{LONG}"
    assert again.headers["idempotent-replayed"] == "true"
    codings = [response.headers.get("content-encoding", "identity") for response in (first, again)]
    assert codings == ([first_accepts, then_accepts] if where == "outside" else ["identity", "identity"])


async def test_what_a_layer_outside_compresses_is_stored_uncompressed(bench: Any, shop: Shop) -> None:
    app = shop.app(bench, outside=[(GZipMiddleware, {"minimum_size": 10})])
    async with client_of(app) as client:
        await client.post("/long", headers={"accept-encoding": "gzip"})
    (record,) = bench.memory._records.values()
    assert record.response is not None
    assert LONG.encode() in record.response
    assert gzip.compress(b"")[:2] not in record.response


# --------------------------------------------------------------------------------------------- CORS


async def test_the_cors_layer_outside_decides_for_each_origin_and_shows_the_mark(bench: Any, shop: Shop) -> None:
    cors = {
        "allow_origins": ["https://a.example", "https://b.example"],
        "allow_methods": ["POST"],
        "expose_headers": ["Idempotent-Replayed"],
    }
    async with client_of(shop.app(bench, outside=[(CORSMiddleware, cors)])) as client:
        first = await client.post("/order", headers={"origin": "https://a.example"})
        again = await client.post("/order", headers={"origin": "https://b.example"})
        problem = await client.post("/order", headers={"origin": "https://b.example"}, content=b"other")
    assert first.headers["access-control-allow-origin"] == "https://a.example"
    for response in (again, problem):
        assert response.headers.get_list("access-control-allow-origin") == ["https://b.example"]
        assert response.headers.get_list("access-control-expose-headers") == ["Idempotent-Replayed"]
    assert again.headers["idempotent-replayed"] == "true"
    assert problem.status_code == 422


async def test_the_headers_of_a_cors_layer_inside_are_not_replayed_to_another_origin(bench: Any, shop: Shop) -> None:
    cors = {"allow_origins": ["https://a.example", "https://b.example"]}
    async with client_of(shop.app(bench, inside=[(CORSMiddleware, cors)])) as client:
        await client.post("/order", headers={"origin": "https://a.example"})
        again = await client.post("/order", headers={"origin": "https://b.example"})
    assert not [name for name in again.headers if name.startswith("access-control")]


# ------------------------------------------------------------------------------------------ FastAPI


async def test_a_fastapi_application(bench: Any) -> None:
    app = fastapi.FastAPI()
    charged: list[int] = []

    @app.post("/charges", status_code=201)
    async def charge(amount: Annotated[int, fastapi.Body(embed=True)], request: Request) -> dict[str, Any]:
        charged.append(amount)
        return {"amount": amount, "downstream": request.state.idempotency.downstream_key("charge")}

    app.add_middleware(
        IdempotencyMiddleware,
        idempotency=bench.idempotency,
        principal=lambda scope: dict(scope["headers"])[b"x-account"].decode(),
        options=IdempotencyOptions(required=True),
    )
    async with client_of(app) as client:
        first, second = await twice(client, "/charges", json={"amount": 5})
        assert (second.json(), second.headers["idempotent-replayed"]) == (first.json(), "true")
        assert len(first.json()["downstream"]) == 32
        assert (await client.post("/charges", json={"amount": 6})).status_code == 422
        invalid = [await client.post("/charges", json={}, headers={"Idempotency-Key": "k-2"}) for _ in range(2)]
        assert [response.status_code for response in invalid] == [422, 422]
        assert invalid[1].json() == invalid[0].json()
        missing = await client.post("/charges", json={"amount": 5}, headers={"Idempotency-Key": ""})
        assert missing.status_code == 400
    assert charged == [5]
