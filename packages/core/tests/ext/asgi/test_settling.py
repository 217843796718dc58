"""What becomes of a record: by status, by error, by what the handler says, and by how the call ended."""

import asyncio
from typing import Any

import pytest

from tenure.ext.asgi._record import StoredResponse
from tenure.idempotency import Completed, ExecutionLostError, NoEffectError, OutcomeUnknownError

RELEASED = {307, 308, 401, 403, 407, 408, 409, 423, 425, 429}


@pytest.mark.parametrize("status", [status for status in range(200, 500) if status not in RELEASED])
async def test_every_outcome_below_500_comes_back_as_it_was(bench: Any, status: int) -> None:
    handler = bench.Handler(status=status, headers=[(b"location", b"/orders/1"), (b"x-other", b"1")])
    app = bench.protect(handler)
    first, second = await bench.ask(app), await bench.ask(app)
    assert (second.status, second.body, second.replayed) == (first.status, first.body, True)
    assert second.lines("location") == ["/orders/1"]
    assert handler.runs == 1
    assert bool(second.lines("content-length")) is (status not in (204, 304))


@pytest.mark.parametrize("status", sorted(RELEASED))
async def test_an_answer_about_the_moment_the_caller_or_the_address_frees_the_key(bench: Any, status: int) -> None:
    handler = bench.Handler(status=status)
    app = bench.protect(handler)
    await bench.ask(app)
    assert not (await bench.ask(app)).replayed
    assert handler.attempts == [1, 1]
    assert bench.outcomes == ["acquired", "released"] * 2


async def test_a_failure_frees_the_key_so_that_a_later_success_is_the_outcome(bench: Any) -> None:
    handler = bench.Handler(status=503)
    app = bench.protect(handler)
    for _ in range(100):
        assert (await bench.ask(app)).status == 503
    handler.status = 200
    assert (await bench.ask(app)).status == 200
    assert (await bench.ask(app)).replayed
    assert handler.attempts == [1] * 101
    assert bench.outcomes.count("released") == 100  # a client that storms a failing handler can be seen


async def test_a_failure_is_replayed_where_the_route_stores_failures(bench: Any) -> None:
    handler = bench.Handler(status=500)
    app = bench.protect(handler, on_failure="store")
    first, second = await bench.ask(app), await bench.ask(app)
    assert (second.status, second.body, second.replayed, handler.runs) == (500, first.body, True, 1)


async def test_a_failure_is_unknown_where_the_route_says_so(bench: Any) -> None:
    handler = bench.Handler(status=500)
    app = bench.protect(handler, on_failure="abandon")
    await bench.ask(app)
    assert (await bench.ask(app)).code == "in-flight"
    await bench.abandoned()
    await bench.ask(app)
    assert handler.attempts == [1, 2]


async def test_an_exception_goes_out_as_it_is_and_frees_the_key(bench: Any) -> None:
    handler = bench.Handler(error=RuntimeError("boom"))
    app = bench.protect(handler)
    with pytest.raises(RuntimeError, match="boom"):
        await bench.ask(app)
    handler.error = None
    assert (await bench.ask(app)).status == 201
    assert handler.attempts == [1, 1]


async def test_an_exception_is_replayed_as_a_plain_500_where_the_route_stores_failures(bench: Any) -> None:
    handler = bench.Handler(error=RuntimeError("secret boom"))
    app = bench.protect(handler, on_failure="store")
    with pytest.raises(RuntimeError):
        await bench.ask(app)
    again = await bench.ask(app)
    assert (again.status, again.replayed, handler.runs) == (500, True, 1)
    assert b"boom" not in again.body


async def test_after_an_exception_of_unknown_outcome_a_repeat_is_the_second_attempt_or_refused(bench: Any) -> None:
    handler = bench.Handler(error=RuntimeError("boom"))
    refusing = bench.protect(handler, on_failure="abandon", on_abandoned="refuse")
    with pytest.raises(RuntimeError):
        await bench.ask(refusing)
    await bench.abandoned()
    answer = await bench.ask(refusing)
    assert (answer.status, answer.code, answer.lines("retry-after")) == (409, "outcome-unknown", [])
    handler.error = None
    await bench.ask(bench.protect(handler))
    assert handler.attempts == [1, 2]


async def test_no_effect_frees_the_key_whatever_the_policy(bench: Any) -> None:
    handler = bench.Handler(error=NoEffectError("nothing was called"))
    app = bench.protect(handler, on_failure="abandon")
    for _ in range(2):
        with pytest.raises(NoEffectError):
            await bench.ask(app)
    assert handler.attempts == [1, 1]


async def test_a_handler_that_does_not_know_leaves_its_record_abandoned_and_the_client_is_told(bench: Any) -> None:
    handler = bench.Handler(error=OutcomeUnknownError())
    app = bench.protect(handler, on_failure="release")
    answer = await bench.ask(app)
    assert (answer.status, answer.code) == (409, "outcome-unknown")
    assert bench.outcomes == ["acquired", "abandoned"]


async def test_a_handler_that_was_replaced_tells_its_client_to_come_again(bench: Any) -> None:
    handler = bench.Handler(error=ExecutionLostError())
    answer = await bench.ask(bench.protect(handler))
    assert (answer.status, answer.code, answer.lines("retry-after")) == (409, "in-flight", ["1"])
    assert bench.outcomes == ["acquired", "abandoned"]


@pytest.mark.parametrize(
    ("status", "settlement", "outcomes"),
    [
        (201, "release", ["acquired", "released"]),
        (201, "abandon", ["acquired", "abandoned"]),
        (409, "store", ["acquired", "stored"]),
        (500, "store", ["acquired", "stored"]),
        (201, "a misspelt word", ["acquired", "abandoned"]),
    ],
)
async def test_the_handler_can_overrule_its_route(bench: Any, status: int, settlement: str, outcomes: Any) -> None:
    handler = bench.Handler(status=status, settlement=settlement)
    await bench.ask(bench.protect(handler))
    assert bench.outcomes == outcomes


async def test_the_handler_can_overrule_its_route_before_it_raises(bench: Any) -> None:
    handler = bench.Handler(error=RuntimeError("timed out"), settlement="abandon")
    with pytest.raises(RuntimeError):
        await bench.ask(bench.protect(handler))
    assert bench.outcomes == ["acquired", "abandoned"]


@pytest.mark.parametrize("policy", ["release", "store", "abandon"])
async def test_a_cancellation_leaves_the_outcome_unknown_whatever_the_policy(bench: Any, policy: str) -> None:
    handler = bench.Handler()
    handler.pause()
    app = bench.protect(handler, on_failure=policy)
    first = asyncio.create_task(bench.ask(app))
    await handler.reached.wait()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert bench.outcomes == ["acquired", "abandoned"]
    assert (await bench.ask(app)).code == "in-flight"
    await bench.abandoned()
    handler.proceed.set()
    assert (await bench.ask(app)).status == 201
    assert handler.attempts == [1, 2]


@pytest.mark.parametrize("error", [SystemExit(), KeyboardInterrupt(), GeneratorExit()])
async def test_the_end_of_the_process_leaves_the_outcome_unknown(bench: Any, error: BaseException) -> None:
    async def inner(*_: Any) -> None:
        raise error

    calling = bench.ask(bench.protect(inner))
    with pytest.raises(type(error)):
        calling.send(None)  # without the event loop, which such an error would end
        while True:
            calling.throw(error)


@pytest.mark.parametrize(
    ("policy", "outcome"), [("release", "released"), ("abandon", "abandoned"), ("store", "stored")]
)
async def test_a_handler_that_returns_without_a_response_is_settled_as_a_failure(
    bench: Any, policy: str, outcome: str
) -> None:
    async def inner(*_: Any) -> None:
        return

    answer = await bench.ask(bench.protect(inner, on_failure=policy))
    assert answer.messages == []  # the server says what it says to that
    assert bench.outcomes == ["acquired", outcome]


async def test_a_background_task_runs_after_the_record_is_settled_once_and_its_error_takes_nothing_back(
    bench: Any,
) -> None:
    during = []

    async def after() -> None:
        during.append([*bench.outcomes])
        raise RuntimeError("mail server")

    handler = bench.Handler(after=after)
    app = bench.protect(handler)
    with pytest.raises(RuntimeError, match="mail server"):
        await bench.ask(app)
    assert during == [["acquired", "stored"]]
    assert (await bench.ask(app)).replayed
    assert len(during) == 1


async def test_a_cancelled_background_task_takes_nothing_back(bench: Any) -> None:
    handler = bench.Handler(after=asyncio.Event().wait)
    app = bench.protect(handler)
    first = asyncio.create_task(bench.ask(app))
    await bench.store.executed("complete", times=1)
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert (await bench.ask(app)).replayed


# ----------------------------------------------------------------------------------------- headers


async def test_headers_that_belong_to_the_outcome_are_replayed_in_order_with_repeats(bench: Any) -> None:
    headers = [
        (b"Content-Type", b"application/json"),
        (b"link", b"<a>; rel=next"),
        (b"set-cookie", b"session=1"),
        (b"ETag", b'"1"'),
        (b"link", b"<b>; rel=prev"),
        (b"date", b"today"),
        (b"server", b"me"),
        (b"connection", b"close"),
        (b"transfer-encoding", b"chunked"),
        (b"access-control-allow-origin", b"https://a.example"),
        (b"x-ratelimit-remaining", b"1"),
        (b"x-order", b"\xe4"),
        (b"x-other", b"1"),
        (b"content-length", b"999"),
    ]
    handler = bench.Handler(headers=headers)
    app = bench.protect(handler, headers={"X-Order"})
    first, second = await bench.ask(app), await bench.ask(app)
    assert first.headers == headers
    assert second.headers == [
        (b"content-type", b"application/json"),
        (b"link", b"<a>; rel=next"),
        (b"etag", b'"1"'),
        (b"link", b"<b>; rel=prev"),
        (b"x-order", b"\xe4"),
        (b"content-length", b"5"),
        (b"idempotent-replayed", b"true"),
    ]


async def test_a_header_that_would_split_the_response_is_not_replayed(bench: Any) -> None:
    split = [(b"Location", b"/1\r\nset-cookie: a=b"), (b"etag", b"a\0b"), (b"link", b"<a>\n"), (b"link", b"<b>")]
    handler = bench.Handler(headers=split)
    app = bench.protect(handler)
    assert (await bench.ask(app)).headers == split
    again = await bench.ask(app)
    assert (again.status, again.headers[:-2], handler.runs) == (201, [(b"link", b"<b>")], 1)


async def test_a_header_that_is_never_stored_is_not_replayed_whoever_stored_it(bench: Any) -> None:
    lines = [
        (b"set-cookie", b"a=b"),
        (b"content-length", b"999"),
        (b"transfer-encoding", b"chunked"),
        (b"link", b"<a>"),
    ]
    stored = StoredResponse(201, lines, b"body").encode()
    bench.store.on("acquire").answer(Completed(b"\x01R" + stored, "other:1"))
    answer = await bench.ask(bench.protect(bench.Handler()))
    assert (answer.headers, answer.body) == (
        [(b"link", b"<a>"), (b"content-length", b"4"), (b"idempotent-replayed", b"true")],
        b"body",
    )


@pytest.mark.parametrize("status", [150, 199, 600, 999])
async def test_a_status_that_no_replay_may_have_leaves_a_tombstone(bench: Any, status: int) -> None:
    """What the server makes of it is its own affair; the request was carried out and is not carried out again."""
    handler = bench.Handler(status=status)
    app = bench.protect(handler, on_failure="store")
    assert (await bench.ask(app)).status == status
    again = await bench.ask(app)
    assert (again.code, again.problem["original_status"], handler.runs) == ("response-not-stored", status, 1)


async def test_headers_may_be_lists_and_bytearrays(bench: Any) -> None:
    handler = bench.Handler(headers=[[bytearray(b"Location"), bytearray(b"/1")]])
    app = bench.protect(handler)
    await bench.ask(app)
    assert (await bench.ask(app)).lines("location") == ["/1"]


async def test_any_bytes_come_back(bench: Any) -> None:
    body = bytes(range(256)) * 100
    handler = bench.Handler(chunks=[body])
    app = bench.protect(handler)
    await bench.ask(app)
    assert (await bench.ask(app)).body == body


# ---------------------------------------------------------------------------------- content codings


@pytest.mark.parametrize(
    ("accepts", "status"),
    [
        (None, 201),
        (b"gzip, br", 201),
        (b"*", 201),
        (b"GZIP;q=0.5", 201),
        (b"identity", 406),
        (b"br", 406),
        (b"", 406),
        (b"gzip;q=0", 406),
        (b"gzip; q=0.000, *", 406),
        (b"*;q=0", 406),
    ],
)
async def test_a_coding_of_the_handlers_own_is_replayed_to_a_client_that_accepts_it(
    bench: Any, accepts: bytes | None, status: int
) -> None:
    headers = [(b"content-encoding", b"gzip"), (b"vary", b"accept-encoding"), (b"location", b"/orders/1")]
    handler = bench.Handler(headers=headers, chunks=[b"\x1f\x8b"])
    app = bench.protect(handler)
    await bench.ask(app)
    again = await bench.ask(app, headers=[] if accepts is None else [(b"accept-encoding", accepts)])
    assert (again.status, handler.runs) == (status, 1)
    if status == 201:
        assert (again.body, again.lines("content-encoding")) == (b"\x1f\x8b", ["gzip"])
        assert again.lines("vary") == ["accept-encoding"]
    else:
        assert (again.problem["original_status"], again.problem["location"]) == (201, "/orders/1")
