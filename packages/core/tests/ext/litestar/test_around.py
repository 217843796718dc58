"""What Litestar does around a handler, and what of it must not be stored, shown to others, or left out."""

import asyncio
import gzip
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from litestar import MediaType, Request, Response, Router, get, post
from litestar.config.allowed_hosts import AllowedHostsConfig
from litestar.config.compression import CompressionConfig
from litestar.config.cors import CORSConfig
from litestar.config.csrf import CSRFConfig
from litestar.connection import ASGIConnection
from litestar.datastructures import Cookie
from litestar.exceptions import NotAuthorizedException, PermissionDeniedException
from litestar.middleware import ASGIMiddleware
from litestar.middleware.authentication import AbstractAuthenticationMiddleware, AuthenticationResult
from litestar.middleware.session.client_side import CookieBackendConfig
from litestar.params import JSONBody
from litestar.response import File, Redirect, ServerSentEvent, Stream, Template
from litestar.response.base import ASGIResponse
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from tenure.idempotency import InMemoryIdempotencyStore

Serve = Any
AppOf = Any

PROTECTED = {"idempotency": True}


def key(value: str = "k-1", **headers: str) -> dict[str, str]:
    return {"Idempotency-Key": value, **{name.replace("_", "-"): text for name, text in headers.items()}}


def is_replay(answer: httpx.Response) -> bool:
    return answer.headers.get("idempotent-replayed") == "true"


class Runs:
    def __init__(self) -> None:
        self.count = 0

    def add(self) -> int:
        self.count += 1
        return self.count


@pytest.fixture
def runs() -> Runs:
    return Runs()


# ----------------------------------------------------------------------------------- authorization


class ByHeader(AbstractAuthenticationMiddleware):
    async def authenticate_request(self, connection: ASGIConnection[Any, Any, Any, Any]) -> AuthenticationResult:
        user = connection.headers.get("x-user")
        if not user:
            raise NotAuthorizedException
        return AuthenticationResult(user=user, auth=None)


def user_of(scope: Any) -> str | None:
    return scope.get("user")


def router_under_authentication(*handlers: Any, **options: Any) -> Router:
    """Authentication stands on the router: inside of whatever stands on the application."""
    return Router("/", route_handlers=list(handlers), middleware=[ByHeader], **options)


async def test_rights_that_were_taken_away_in_between_are_asked_before_a_replay(
    serve: Serve, app_of: AppOf, runs: Runs
) -> None:
    banned: set[str] = set()

    async def may_order(connection: ASGIConnection[Any, Any, Any, Any], _: Any) -> None:
        if connection.user in banned:
            raise PermissionDeniedException

    @post("/orders", opt=PROTECTED, guards=[may_order])
    async def order() -> str:
        return f"secret of the order {runs.add()}"

    async with serve(app_of(router_under_authentication(order), principal=user_of)) as client:
        first = await client.post("/orders", headers=key(x_user="ann"))
        assert (first.status_code, first.text) == (201, "secret of the order 1")
        banned.add("ann")
        refused = await client.post("/orders", headers=key(x_user="ann"))
        assert (refused.status_code, is_replay(refused)) == (403, False)
        assert "secret" not in refused.text
        # Another payload under the key is 403 too: who may not order learns nothing of keys.
        assert (await client.post("/orders", headers=key(x_user="ann"), json=1)).status_code == 403
        banned.clear()
        again = await client.post("/orders", headers=key(x_user="ann"))
        assert (again.text, is_replay(again)) == ("secret of the order 1", True)


async def test_a_refusal_of_a_guard_is_not_stored_and_not_even_begun(
    serve: Serve, app_of: AppOf, runs: Runs, records: InMemoryIdempotencyStore
) -> None:
    allowed: list[bool] = []

    def may_order(_: ASGIConnection[Any, Any, Any, Any], __: Any) -> None:
        if not allowed:
            raise NotAuthorizedException

    @post("/orders", opt=PROTECTED, guards=[may_order])
    async def order() -> int:
        return runs.add()

    async with serve(app_of(order, records=records)) as client:
        assert (await client.post("/orders", headers=key())).status_code == 401
        assert not records._records
        allowed.append(True)
        assert (await client.post("/orders", headers=key())).status_code == 201
    assert runs.count == 1


async def test_a_guard_may_read_the_body_and_the_handler_still_gets_it(serve: Serve, app_of: AppOf, runs: Runs) -> None:
    seen: list[Any] = []

    async def may_order(connection: ASGIConnection[Any, Any, Any, Any], _: Any) -> None:
        assert isinstance(connection, Request)
        seen.append(await connection.json())

    @post("/orders", opt=PROTECTED, guards=[may_order])
    async def order(data: JSONBody[dict[str, int]]) -> dict[str, int]:
        runs.add()
        return data

    async with serve(app_of(order)) as client:
        async with asyncio.timeout(10):  # a guard that waits for a body which was read would wait for ever
            for _ in range(2):
                assert (await client.post("/orders", json={"n": 1}, headers=key())).json() == {"n": 1}
    assert runs.count == 1
    assert seen == [{"n": 1}] * len(seen)


async def test_one_clients_key_is_nothing_to_another_client(serve: Serve, app_of: AppOf, runs: Runs) -> None:
    @post("/orders", opt=PROTECTED)
    async def order(request: Request[str, Any, Any]) -> str:
        return f"{request.user} {runs.add()}"

    async with serve(app_of(router_under_authentication(order), principal=user_of)) as client:
        texts = [(await client.post("/orders", headers=key(x_user=user))).text for user in ("ann", "bob", "ann")]
    assert texts == ["ann 1", "bob 2", "ann 1"]


@pytest.mark.parametrize("layer", ["application", "router", "handler"])
async def test_authentication_has_run_on_whatever_layer_it_stands(
    serve: Serve, app_of: AppOf, runs: Runs, layer: str
) -> None:
    def at(one: str) -> dict[str, Any]:
        return {"middleware": [ByHeader]} if one == layer else {}

    @post("/orders", opt=PROTECTED, **at("handler"))
    async def order() -> int:
        return runs.add()

    router = Router("/", route_handlers=[order], **at("router"))
    async with serve(app_of(router, principal=user_of, **at("application"))) as client:
        assert [(await client.post("/orders", headers=key(x_user="ann"))).text for _ in range(2)] == ["1", "1"]
    assert runs.count == 1


async def test_without_authentication_nothing_is_asked_of_the_store(
    serve: Serve, app_of: AppOf, runs: Runs, records: InMemoryIdempotencyStore
) -> None:
    @post("/orders", opt=PROTECTED)
    async def order() -> int:
        return runs.add()

    app = app_of(router_under_authentication(order), principal=user_of, records=records)
    async with serve(app) as client:
        assert (await client.post("/orders", headers=key())).status_code == 401
    assert not records._records
    assert runs.count == 0


async def test_a_principal_that_names_nobody_runs_nothing(serve: Serve, app_of: AppOf, runs: Runs) -> None:
    @post("/orders", opt=PROTECTED)
    async def order() -> int:
        return runs.add()

    async with serve(app_of(order, principal=user_of)) as client:
        assert (await client.post("/orders", headers=key())).status_code == 500
    assert runs.count == 0


# ------------------------------------------------------------------------- Litestar's own middleware


async def test_a_refusal_of_csrf_protection_is_not_stored(serve: Serve, app_of: AppOf, runs: Runs) -> None:
    @get("/")
    async def form() -> None: ...

    @post("/orders", opt=PROTECTED)
    async def order() -> int:
        return runs.add()

    async with serve(app_of(form, order, csrf_config=CSRFConfig(secret="s" * 32))) as client:
        refused = await client.post("/orders", headers=key())
        assert (refused.status_code, runs.count) == (403, 0)
        token = (await client.get("/")).cookies["csrftoken"]
        assert (await client.post("/orders", headers=key(x_csrftoken=token))).status_code == 201
        assert is_replay(await client.post("/orders", headers=key(x_csrftoken=token)))
    assert runs.count == 1


async def test_a_refusal_of_a_host_is_not_stored(serve: Serve, app_of: AppOf, runs: Runs) -> None:
    @post("/orders", opt=PROTECTED)
    async def order() -> int:
        return runs.add()

    async with serve(app_of(order, allowed_hosts=AllowedHostsConfig(allowed_hosts=["shop.local"]))) as client:
        assert (await client.post("/orders", headers=key(host="evil.local"))).status_code == 400
        assert (await client.post("/orders", headers=key())).status_code == 201
    assert runs.count == 1


@pytest.mark.parametrize(("first", "then"), [("gzip", "identity"), ("identity", "gzip"), ("gzip", "gzip")])
@pytest.mark.parametrize("exclude", [None, "not_compressed"])
async def test_a_compressed_first_response_is_read_by_a_client_that_takes_none_and_the_reverse(
    serve: Serve, app_of: AppOf, first: str, then: str, exclude: str | None
) -> None:
    text = "cat " * 1000

    @post("/orders", opt=PROTECTED)
    async def order() -> str:
        return text

    class ReadsHeaders(ASGIMiddleware):
        """Litestar keeps the headers that were read first, for everybody who reads them later."""

        async def handle(self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp) -> None:
            assert Request(scope).headers["accept-encoding"]
            await next_app(scope, receive, send)

    compression = CompressionConfig(backend="gzip", minimum_size=1, exclude_opt_key=exclude)
    app = app_of(order, compression_config=compression, middleware=[ReadsHeaders()])
    async with serve(app) as client:
        for coding in (first, then):
            answer = await client.post("/orders", headers=key(accept_encoding=coding))
            assert (answer.status_code, answer.text) == (201, text)
            assert answer.headers.get("content-encoding", "identity") in {coding, "identity"}
    assert compression.exclude_opt_key == exclude


async def test_other_routes_are_compressed_as_before(serve: Serve, app_of: AppOf) -> None:
    @get("/")
    async def text() -> str:
        return "cat " * 1000

    async with serve(app_of(text, compression_config=CompressionConfig(backend="gzip", minimum_size=1))) as client:
        assert (await client.get("/")).headers["content-encoding"] == "gzip"


async def test_what_a_handler_compressed_itself_is_not_shown_to_who_cannot_read_it(
    serve: Serve, app_of: AppOf, runs: Runs
) -> None:
    @post("/orders", opt=PROTECTED, media_type=MediaType.TEXT)
    async def order() -> Response[bytes]:
        runs.add()
        return Response(gzip.compress(b"cat"), headers={"Content-Encoding": "gzip"}, media_type="text/plain")

    async with serve(app_of(order)) as client:
        assert (await client.post("/orders", headers=key(accept_encoding="gzip"))).text == "cat"
        assert (await client.post("/orders", headers=key(accept_encoding="gzip"))).text == "cat"
        assert (await client.post("/orders", headers=key(accept_encoding="identity"))).status_code == 406
    assert runs.count == 1


async def test_an_answer_from_the_response_cache_ran_nothing_and_frees_its_key(
    serve: Serve, app_of: AppOf, runs: Runs
) -> None:
    @post("/quotes", opt=PROTECTED, cache=60)
    async def quote() -> int:
        return runs.add()

    async with serve(app_of(quote)) as client:
        assert (await client.post("/quotes", headers=key("k-1"))).text == "1"
        assert is_replay(await client.post("/quotes", headers=key("k-1")))
        for _ in range(2):
            cached = await client.post("/quotes", headers=key("k-2"))
            assert (cached.text, is_replay(cached)) == ("1", False)
    assert runs.count == 1


async def test_cors_headers_are_those_of_the_origin_that_asks(serve: Serve, app_of: AppOf) -> None:
    @post("/orders", opt=PROTECTED)
    async def order() -> None: ...

    cors = CORSConfig(allow_origins=["https://a.example", "https://b.example"], allow_credentials=True)
    async with serve(app_of(order, cors_config=cors)) as client:
        for origin in ("https://a.example", "https://b.example"):
            answer = await client.post("/orders", headers=key(origin=origin))
            assert answer.headers.get_list("access-control-allow-origin") == [origin]


async def test_a_session_is_kept_by_the_first_response_and_not_replayed(serve: Serve, app_of: AppOf) -> None:
    @post("/login", opt=PROTECTED)
    async def login(request: Request[Any, Any, Any]) -> str:
        request.set_session({"user": "ann"})
        return "welcome"

    session = CookieBackendConfig(secret=b"s" * 16)
    async with serve(app_of(login, middleware=[session.middleware])) as client:
        first = await client.post("/login", headers=key())
        assert "session" in first.headers.get("set-cookie", "")
        client.cookies.clear()
        again = await client.post("/login", headers=key())
    assert (again.text, is_replay(again)) == ("welcome", True)
    assert "set-cookie" not in again.headers


# ----------------------------------------------------------------------------------- before_send hooks


async def test_a_commit_that_fails_before_the_response_leaves_no_stored_success(
    serve: Serve, app_of: AppOf, runs: Runs
) -> None:
    failing = [True]

    async def commit(message: Message, _: Scope) -> None:
        if failing and message["type"] == "http.response.start" and message["status"] == 201:
            raise ValueError("could not commit")

    @post("/orders", opt=PROTECTED)
    async def order() -> int:
        return runs.add()

    async with serve(app_of(order, before_send=[commit])) as client:
        assert (await client.post("/orders", headers=key())).status_code == 500
        failing.clear()
        again = await client.post("/orders", headers=key())
        assert (again.status_code, again.text, is_replay(again)) == (201, "2", False)


async def test_hooks_see_the_scope_that_the_handler_changed(serve: Serve, app_of: AppOf) -> None:
    seen: list[Any] = []

    async def look(message: Message, scope: Scope) -> None:
        if message["type"] == "http.response.start":
            seen.append((scope.get("of_the_handler"), scope["state"].get("in_state")))

    @post("/orders", opt=PROTECTED)
    async def order(request: Request[Any, Any, Any]) -> None:
        request.scope["of_the_handler"] = 1  # type: ignore[typeddict-unknown-key]
        request.state.in_state = 2

    async with serve(app_of(order, before_send=[look])) as client:
        await client.post("/orders", headers=key())
    assert seen == [(1, 2)]


# ------------------------------------------------------------------------------------------ responses


async def test_a_cookie_and_headers_of_one_moment_are_not_replayed(serve: Serve, app_of: AppOf) -> None:
    @post(
        "/orders",
        opt=PROTECTED,
        response_cookies=[Cookie(key="token", value="of-the-first-client")],
        response_headers={"X-Request-Id": "1", "ETag": '"1"'},
    )
    async def order() -> str:
        return "ok"

    async with serve(app_of(order)) as client:
        first = await client.post("/orders", headers=key())
        client.cookies.clear()
        again = await client.post("/orders", headers=key())
    assert first.headers["set-cookie"].startswith("token=")
    assert (again.headers["etag"], again.headers["content-type"]) == ('"1"', first.headers["content-type"])
    assert not {"set-cookie", "x-request-id"} & set(again.headers)


async def test_two_link_headers_stay_two(serve: Serve, app_of: AppOf) -> None:
    links = ['</1>; rel="next"', '</2>; rel="prev"']

    @post("/linked", opt=PROTECTED)
    async def linked() -> ASGIResponse:
        return ASGIResponse(body=b"ok", headers=[("link", link) for link in links])

    async with serve(app_of(linked)) as client:
        answers = [await client.post("/linked", headers=key()) for _ in range(2)]
    assert [answer.headers.get_list("link") for answer in answers] == [links, links]
    assert is_replay(answers[1])


async def parts(count: int = 3) -> AsyncIterator[str]:
    for number in range(count):
        yield f"part {number}\n"


async def test_a_short_stream_is_replayed_and_runs_once(serve: Serve, app_of: AppOf, runs: Runs) -> None:
    @post("/export", opt=PROTECTED)
    async def export() -> Stream:
        runs.add()
        return Stream(parts())

    async with serve(app_of(export)) as client:
        first = await client.post("/export", headers=key())
        again = await client.post("/export", headers=key())
    assert first.text == again.text == "part 0\npart 1\npart 2\n"
    assert runs.count == 1


async def test_a_stream_over_the_limit_reaches_its_client_and_is_not_run_again(
    serve: Serve, app_of: AppOf, runs: Runs
) -> None:
    @post("/export", opt={"idempotency": {"max_response_bytes": 10}})
    async def export() -> Stream:
        runs.add()
        return Stream(parts(), headers={"Location": "/exports/1"})

    async with serve(app_of(export)) as client:
        first = await client.post("/export", headers=key())
        again = await client.post("/export", headers=key())
    assert first.text == "part 0\npart 1\npart 2\n"
    assert (again.status_code, again.json()["code"]) == (409, "response-not-stored")
    assert again.json()["location"] == "/exports/1"
    assert runs.count == 1


async def test_a_file_is_replayed_as_it_was(serve: Serve, app_of: AppOf, runs: Runs, tmp_path: Path) -> None:
    path = tmp_path / "invoice.txt"
    path.write_text("invoice 1")

    @post("/invoices", opt=PROTECTED)
    async def invoice() -> File:
        runs.add()
        return File(path, filename="invoice.txt", media_type="text/plain")

    async with serve(app_of(invoice)) as client:
        first = await client.post("/invoices", headers=key())
        path.write_text("invoice 2")
        again = await client.post("/invoices", headers=key())
    assert first.text == again.text == "invoice 1"
    assert again.headers["content-disposition"] == first.headers["content-disposition"]
    assert again.headers["content-length"] == "9"
    assert runs.count == 1


async def test_events_of_a_server_are_carried_out_once(serve: Serve, app_of: AppOf, runs: Runs) -> None:
    @post("/watch", opt=PROTECTED)
    async def watch() -> ServerSentEvent:
        runs.add()
        return ServerSentEvent(parts(2))

    async with serve(app_of(watch)) as client:
        first = await client.post("/watch", headers=key())
        again = await client.post("/watch", headers=key())
    assert first.headers["content-type"].startswith("text/event-stream")
    assert again.content == first.content
    assert runs.count == 1


async def test_an_empty_answer_and_a_redirect_are_replayed(serve: Serve, app_of: AppOf, runs: Runs) -> None:
    @post("/empty", opt=PROTECTED, status_code=204)
    async def empty() -> None:
        runs.add()

    @post("/moved", opt=PROTECTED, status_code=303)
    async def moved() -> Redirect:
        runs.add()
        return Redirect("/orders/1", status_code=303)

    async with serve(app_of(empty, moved)) as client:
        for path, status in (("/empty", 204), ("/moved", 303)):
            answers = [await client.post(path, headers=key(path)) for _ in range(2)]
            assert [answer.status_code for answer in answers] == [status, status]
            assert answers[0].headers.get("location") == answers[1].headers.get("location")
            assert is_replay(answers[1])
    assert runs.count == 2


async def test_a_template_is_rendered_once(serve: Serve, app_of: AppOf, runs: Runs) -> None:
    pytest.importorskip("jinja2")
    from litestar.plugins.jinja import JinjaTemplateEngine
    from litestar.template import TemplateConfig

    @post("/page", opt=PROTECTED)
    async def page() -> Template:
        return Template(template_str="<p>{{ run }}</p>", context={"run": runs.add()})

    async with serve(app_of(page, template_config=TemplateConfig(engine=JinjaTemplateEngine, directory="."))) as client:
        assert [(await client.post("/page", headers=key())).text for _ in range(2)] == ["<p>1</p>"] * 2


async def test_a_request_over_the_limit_is_413_and_never_runs_unprotected(
    serve: Serve, app_of: AppOf, runs: Runs
) -> None:
    @post("/orders", opt={"idempotency": {"max_request_bytes": 10}})
    async def order() -> int:
        return runs.add()

    async with serve(app_of(order)) as client:
        assert (await client.post("/orders", content=b"x" * 11, headers=key())).status_code == 413
        assert (await client.post("/orders", content=b"x" * 10, headers=key())).status_code == 201
    assert runs.count == 1
