"""Requests on their way in: what passes untouched, how a body is read, and what the handler is told."""

from typing import Any

import pytest

from tenure.ext.asgi import CONTEXT_KEY

# ------------------------------------------------------------------------------------ what passes


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "PUT", "DELETE"])
async def test_other_methods_pass_untouched_with_their_key(bench: Any, method: str) -> None:
    handler = bench.Handler(status=200)
    app = bench.protect(handler)
    for _ in range(2):
        assert not (await bench.ask(app, method=method, key="not, a key")).replayed
    assert (handler.runs, bench.outcomes) == (2, [])


@pytest.mark.parametrize("kind", ["websocket", "lifespan"])
async def test_what_is_not_http_passes_untouched(bench: Any, kind: str) -> None:
    passed = []

    async def inner(*call: Any) -> None:
        passed.append(call)

    scope = {"type": kind}
    await bench.protect(inner, rules=lambda _: pytest.fail("asked for the rules"))(scope, len, print)
    assert passed == [(scope, len, print)]
    assert scope == {"type": kind}


async def test_a_route_for_which_there_are_no_rules_passes_untouched(bench: Any) -> None:
    from tenure.ext.asgi import IdempotencyOptions

    handler = bench.Handler()
    app = bench.protect(
        handler, rules=lambda scope: IdempotencyOptions(required=True) if scope["path"] == "/pay" else None
    )
    for _ in range(2):
        await bench.ask(app, path="/notes")
    assert handler.runs == 2
    for _ in range(2):
        await bench.ask(app, path="/pay")
    assert handler.runs == 3
    assert (await bench.ask(app, path="/pay", key=None)).code == "missing-key"


# ------------------------------------------------------------------------------------ the request


@pytest.mark.parametrize("declared", [True, False])
async def test_a_body_over_the_limit_is_answered_413_and_never_passes_unprotected(bench: Any, declared: bool) -> None:
    handler = bench.Handler()
    app = bench.protect(handler, max_request_bytes=10)
    headers = [(b"content-length", b"11")] if declared else []
    answer = await bench.ask(app, body=[b"123456", b"78901"], headers=headers)
    assert (answer.status, answer.problem["type"], handler.runs) == (413, "about:blank", 0)
    assert (await bench.ask(app, body=[b"12345", b"67890"])).status == 201


async def test_a_body_that_is_declared_too_long_is_not_read(bench: Any) -> None:
    async def receive() -> Any:
        pytest.fail("read")

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = bench.scope(headers=[(b"content-length", b"9" * 30)])
    await bench.protect(bench.Handler())(scope, receive, send)
    assert bench.Answer(sent).status == 413


async def test_a_client_that_hangs_up_before_its_body_has_come_runs_nothing(bench: Any) -> None:
    inbox = [{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}]

    async def receive() -> Any:
        return inbox.pop(0)

    async def send(_: Any) -> None:
        pytest.fail("sent")

    handler = bench.Handler()
    await bench.protect(handler)(bench.scope(), receive, send)
    assert (handler.runs, bench.outcomes) == (0, [])


async def test_after_the_body_the_handler_hears_what_the_server_says(bench: Any) -> None:
    heard = []

    async def inner(_: Any, receive: Any, send: Any) -> None:
        heard.extend([await receive(), await receive(), await receive()])
        await send({"type": "http.response.start", "status": 204})
        await send({"type": "http.response.body"})

    inbox = [{"type": "http.request", "body": b"ab", "more_body": True}, {"type": "http.request", "body": b"c"}]

    async def receive() -> Any:
        return inbox.pop(0) if inbox else {"type": "http.disconnect"}

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    await bench.protect(inner)(bench.scope(), receive, send)
    assert heard == [
        {"type": "http.request", "body": b"abc", "more_body": False},
        {"type": "http.disconnect"},
        {"type": "http.disconnect"},
    ]
    # Hung up or not, its handler ran: the retry gets the response.
    assert (await bench.ask(bench.protect(inner), body=b"abc")).replayed


# -------------------------------------------------------------------------------------- the scope


async def test_the_handler_finds_its_context_and_is_not_told_what_the_client_accepts(bench: Any) -> None:
    handler = bench.Handler()
    state = {"pool": object()}
    extensions = {"http.response.pathsend": {}, "http.response.trailers": {}, "tls": {}}
    await bench.ask(
        bench.protect(handler),
        headers=[(b"Accept-Encoding", b"gzip"), (b"accept", b"*/*")],
        state=state,
        extensions=extensions,
    )
    (scope,) = handler.scopes
    assert scope["state"][CONTEXT_KEY].attempt == 1
    assert scope["state"]["pool"] is state["pool"]
    assert scope["extensions"] == {"tls": {}}
    assert (b"accept", b"*/*") in scope["headers"]
    assert all(name.lower() != b"accept-encoding" for name, _ in scope["headers"])
    # A server may share the state among the requests of a connection: no request may see another's context.
    assert CONTEXT_KEY not in state
    assert "http.response.pathsend" in extensions


async def test_layers_outside_see_what_was_put_into_the_scope_before_each_message(bench: Any) -> None:
    seen = []

    async def inner(scope: Any, _: Any, send: Any) -> None:
        scope["session"] = "open"
        scope["state"]["route"] = "orders"
        await send({"type": "http.response.start", "status": 201, "headers": []})
        scope["session"] = "committed"
        await send({"type": "http.response.body", "body": b""})

    scope = bench.scope()
    headers = scope["headers"]

    async def receive() -> Any:
        return {"type": "http.request"}

    async def send(_: Any) -> None:
        seen.append((scope.get("session"), scope["state"].get("route")))

    await bench.protect(inner)(scope, receive, send)
    assert seen == [("open", "orders"), ("committed", "orders")]
    assert scope["headers"] is headers
    assert CONTEXT_KEY not in scope["state"]


async def test_a_request_that_is_executed_under_a_guard_passes_a_second_one_untouched(bench: Any) -> None:
    handler = bench.Handler()
    app = bench.protect(bench.protect(handler))
    assert (await bench.ask(app)).status == 201
    assert (await bench.ask(app)).replayed
    assert handler.runs == 1
    assert bench.outcomes == ["acquired", "stored", "replayed"]
