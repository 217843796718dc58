"""Responses on their way: what is forwarded when, what is held back, and what cannot be kept."""

import asyncio
import json
from typing import Any

import pytest

from tenure.idempotency import OutcomeUnknownError

START = {"type": "http.response.start", "status": 201, "headers": [(b"location", b"/orders/1")]}
PROBLEM_MEMBERS = {"original_status": 201, "location": "/orders/1"}


def chunk(body: bytes, *, more: bool = True) -> dict[str, Any]:
    return {"type": "http.response.body", "body": body, "more_body": more}


class Wire:
    """The server's end: what it was sent when, what had become of the record then, and what it raises."""

    def __init__(self, bench: Any) -> None:
        self.bench = bench
        self.sent: list[Any] = []
        self.completed_at: list[bool] = []
        self.raises: dict[str, BaseException] = {}
        self.gone = False

    async def receive(self) -> Any:
        if not self.gone:
            await asyncio.get_running_loop().create_future()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        if message["type"] in self.raises:
            raise self.raises[message["type"]]
        self.sent.append(message)
        self.completed_at.append("stored" in self.bench.outcomes or "tombstone" in self.bench.outcomes)


class Script:
    """An application that sends what it is told, one message at a time."""

    def __init__(self, *messages: Any) -> None:
        self.messages = messages
        self.runs = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.runs += 1
        await receive()
        for message in self.messages:
            if isinstance(message, BaseException):
                raise message
            if isinstance(message, asyncio.Event):
                await message.wait()
                continue
            await send(message)


async def through(bench: Any, app: Any, wire: Wire, **request: Any) -> None:
    """One request over *wire*."""
    body = [{"type": "http.request", "body": b"{}"}]

    async def receive() -> Any:
        return body.pop() if body else await wire.receive()

    await app(bench.scope(**request), receive, wire.send)


@pytest.fixture
def wire(bench: Any) -> Wire:
    return Wire(bench)


async def test_the_start_goes_out_before_the_record_is_completed_and_the_last_body_after(
    bench: Any, wire: Wire
) -> None:
    await through(bench, bench.protect(Script(START, chunk(b"done", more=False))), wire)
    assert wire.sent == [START, chunk(b"done", more=False)]
    assert wire.completed_at == [False, True]


async def test_a_commit_that_fails_in_the_hook_of_the_start_stores_nothing(bench: Any, wire: Wire) -> None:
    script = Script(START, chunk(b"done", more=False))
    app = bench.protect(script)
    wire.raises["http.response.start"] = RuntimeError("commit failed")
    with pytest.raises(RuntimeError, match="commit failed"):
        await through(bench, app, wire)
    assert bench.outcomes == ["acquired", "released"]
    assert (await bench.ask(app)).status == 201
    assert script.runs == 2


async def test_a_commit_that_fails_is_unknown_where_the_route_says_so_of_failures(bench: Any, wire: Wire) -> None:
    wire.raises["http.response.start"] = RuntimeError("commit failed")
    with pytest.raises(RuntimeError):
        await through(bench, bench.protect(Script(START), on_failure="abandon"), wire)
    assert bench.outcomes == ["acquired", "abandoned"]


async def test_a_commit_that_fails_makes_the_handlers_word_to_store_void(bench: Any, wire: Wire) -> None:
    async def inner(scope: Any, _: Any, send: Any) -> None:
        scope["state"]["idempotency"].settlement = "store"
        await send(START)

    wire.raises["http.response.start"] = RuntimeError("commit failed")
    with pytest.raises(RuntimeError):
        await through(bench, bench.protect(inner), wire)
    assert bench.outcomes == ["acquired", "released"]


@pytest.mark.parametrize("error", [ConnectionResetError("the database"), TimeoutError("the database")])
async def test_a_database_that_is_gone_at_the_commit_is_not_taken_for_a_client_that_is(
    bench: Any, wire: Wire, error: OSError
) -> None:
    wire.raises["http.response.start"] = error
    with pytest.raises(type(error), match="the database"):
        await through(bench, bench.protect(Script(START, chunk(b"done", more=False))), wire)
    assert bench.outcomes == ["acquired", "released"]


async def test_the_report_of_a_failed_commit_is_no_outcome_whatever_its_status(bench: Any, wire: Wire) -> None:
    async def inner(_: Any, receive: Any, send: Any) -> None:
        await receive()
        try:
            await send(START)
        except RuntimeError:  # a framework's error handler, inside
            wire.raises.clear()
            await send({"type": "http.response.start", "status": 422, "headers": []})
            await send(chunk(b"sorry", more=False))

    wire.raises["http.response.start"] = RuntimeError("commit failed")
    await through(bench, bench.protect(inner), wire)
    assert [message.get("status") for message in wire.sent] == [422, None]
    assert bench.outcomes == ["acquired", "released"]


# ------------------------------------------------------------------------------- clients that hang up


async def test_a_client_that_hung_up_after_the_handler_ended_gets_the_response_on_its_retry(
    bench: Any, wire: Wire
) -> None:
    headers = [(b"content-length", b"4")]
    after = []
    script = Script({**START, "headers": headers}, chunk(b"do"), chunk(b"ne"), chunk(b"", more=False))
    app = bench.protect(script)

    async def with_background(*call: Any) -> None:
        await app.app(*call)
        after.append(1)

    protected = bench.protect(with_background)
    wire.gone = True
    wire.raises = dict.fromkeys(("http.response.start", "http.response.body"), OSError("hung up"))
    await through(bench, protected, wire)
    assert bench.outcomes == ["acquired", "stored"]
    again = await bench.ask(protected)
    assert (again.status, again.body, again.replayed) == (201, b"done", True)
    assert (script.runs, after) == (1, [1])


async def test_a_client_that_hung_up_at_the_last_message_gets_the_response_on_its_retry(bench: Any, wire: Wire) -> None:
    app = bench.protect(Script(START, chunk(b"done", more=False)))
    wire.gone = True
    wire.raises["http.response.body"] = BrokenPipeError()
    await through(bench, app, wire)
    assert (await bench.ask(app)).replayed


async def test_an_endless_stream_is_told_that_its_client_hung_up_and_leaves_a_tombstone(bench: Any, wire: Wire) -> None:
    async def inner(_: Any, receive: Any, send: Any) -> None:
        await receive()
        await send(START)
        while True:
            await send(chunk(b"tick"))
            wire.gone = True
            wire.raises["http.response.body"] = OSError("hung up")

    app = bench.protect(inner)
    with pytest.raises(OSError, match="hung up"):
        await through(bench, app, wire)
    again = await bench.ask(app)
    assert (again.status, again.code) == (409, "response-not-stored")
    assert {name: again.problem[name] for name in PROBLEM_MEMBERS} == PROBLEM_MEMBERS


async def test_a_response_too_long_to_be_kept_is_not_made_to_its_end_for_a_client_that_hung_up(
    bench: Any, wire: Wire
) -> None:
    made = []

    async def inner(_: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({**START, "headers": [(b"content-length", b"1000000")]})
        for _ in range(1000):
            made.append(1)
            await send(chunk(b"x" * 1000))

    app = bench.protect(inner, max_response_bytes=5000)
    wire.gone = True
    wire.raises = dict.fromkeys(("http.response.start", "http.response.body"), OSError("hung up"))
    with pytest.raises(OSError, match="hung up"):
        await through(bench, app, wire)
    assert len(made) == 6
    assert (await bench.ask(app)).code == "response-not-stored"


async def test_the_handler_goes_on_when_its_client_hangs_up_meanwhile(bench: Any) -> None:
    handler = bench.Handler()
    handler.pause()
    app = bench.protect(handler)
    wire = Wire(bench)
    first = asyncio.create_task(through(bench, app, wire))
    await handler.reached.wait()
    wire.gone = True
    handler.proceed.set()
    await first
    assert (await bench.ask(app)).replayed


# ---------------------------------------------------------------------------------------- streams


@pytest.mark.parametrize("content_type", [b"text/event-stream", b"application/x-ndjson", b"text/plain"])
async def test_what_a_stream_sends_reaches_its_client_at_once(bench: Any, wire: Wire, content_type: bytes) -> None:
    end = asyncio.Event()
    start = {**START, "headers": [(b"content-type", content_type)]}
    app = bench.protect(Script(start, chunk(b"data: 1\n\n"), end, chunk(b"", more=False)))
    running = asyncio.create_task(through(bench, app, wire))
    await asyncio.wait([running], timeout=0.05)
    assert wire.sent == [start, chunk(b"data: 1\n\n")]
    assert bench.outcomes == ["acquired"]
    end.set()
    await running
    assert wire.completed_at == [False, False, True]


async def test_a_short_stream_is_replayed_byte_for_byte(bench: Any) -> None:
    script = Script(START, chunk(b"a"), chunk(b""), chunk(b"\0b"), chunk(b"", more=False))
    app = bench.protect(script)
    first, second = await bench.ask(app), await bench.ask(app)
    assert (first.body, second.body, second.lines("content-length")) == (b"a\0b", b"a\0b", ["3"])
    assert (second.replayed, script.runs) == (True, 1)


async def test_the_chunk_that_fills_the_content_length_is_held_until_the_record_is_settled(
    bench: Any, wire: Wire
) -> None:
    end = asyncio.Event()
    start = {**START, "headers": [(b"Content-Length", b"4")]}
    app = bench.protect(Script(start, chunk(b"do"), chunk(b"ne"), end, chunk(b"", more=False)))
    running = asyncio.create_task(through(bench, app, wire))
    await asyncio.wait([running], timeout=0.05)
    assert wire.sent == [start, chunk(b"do")]
    end.set()
    await running
    assert wire.sent == [start, chunk(b"do"), chunk(b"ne", more=False)]
    assert wire.completed_at == [False, False, True]
    # Duplicates of a client that has everything find the response, never themselves in flight.
    assert (await bench.ask(app)).body == b"done"


@pytest.mark.parametrize("over", [0, 1])
async def test_a_response_one_byte_over_the_limit_reaches_its_client_and_never_runs_again(
    bench: Any, wire: Wire, over: int
) -> None:
    script = Script(START, chunk(b"12345"), chunk(b"67890" + b"1" * over, more=False))
    app = bench.protect(script, max_response_bytes=10)
    await through(bench, app, wire)
    assert b"".join(message.get("body", b"") for message in wire.sent) == b"1234567890" + b"1" * over
    for _ in range(2):
        again = await bench.ask(app)
        assert (again.status, script.runs) == ((409, 1) if over else (201, 1))
    if over:
        assert again.code == "response-not-stored"
        assert {name: again.problem[name] for name in PROBLEM_MEMBERS} == PROBLEM_MEMBERS
        assert again.lines("retry-after") == []


@pytest.mark.parametrize(
    "messages",
    [
        ({"type": "http.response.pathsend", "path": "/etc/hostname"},),
        ({"type": "http.response.zerocopysend", "file": 3, "more_body": True}, chunk(b"", more=False)),
        ({"type": "http.response.zerocopysend", "file": 3},),
    ],
    ids=["a path", "a descriptor and a body", "a descriptor"],
)
async def test_a_file_sent_without_its_bytes_leaves_a_tombstone(bench: Any, wire: Wire, messages: Any) -> None:
    script = Script(START, *messages)
    app = bench.protect(script)
    await through(bench, app, wire)
    assert wire.sent == [START, *messages]
    assert wire.completed_at[-1]
    assert ((await bench.ask(app)).code, script.runs) == ("response-not-stored", 1)


async def test_a_response_with_trailers_leaves_a_tombstone(bench: Any, wire: Wire) -> None:
    trailers = {"type": "http.response.trailers", "headers": [(b"grpc-status", b"0")]}
    script = Script({**START, "trailers": True}, chunk(b"a", more=False), trailers)
    app = bench.protect(script)
    await through(bench, app, wire)
    assert wire.sent[-1] == trailers
    assert ((await bench.ask(app)).code, script.runs) == ("response-not-stored", 1)


async def test_messages_beside_the_response_go_through_and_are_not_stored(bench: Any, wire: Wire) -> None:
    hint = {"type": "http.response.early_hint", "links": [b"</style.css>"]}
    app = bench.protect(Script(hint, START, {"type": "http.response.debug"}, chunk(b"a", more=False)))
    await through(bench, app, wire)
    assert [message["type"].rpartition(".")[2] for message in wire.sent] == ["early_hint", "start", "debug", "body"]
    again = await bench.ask(app)
    assert (again.body, again.replayed) == (b"a", True)


async def test_a_failure_that_cannot_be_stored_is_no_success(bench: Any) -> None:
    script = Script({**START, "status": 500}, chunk(b"123", more=False))
    app = bench.protect(script, max_response_bytes=2)
    await bench.ask(app)
    await bench.ask(app)
    assert (script.runs, bench.outcomes) == (2, ["acquired", "released"] * 2)


# ---------------------------------------------------------------------------------- broken responses


@pytest.mark.parametrize("end", [(), (RuntimeError("the stream broke"),)], ids=["returns", "raises"])
@pytest.mark.parametrize(
    ("policy", "outcome"), [("release", "tombstone"), ("store", "tombstone"), ("abandon", "abandoned")]
)
async def test_a_success_that_broke_off_is_never_taken_for_no_effect(
    bench: Any, wire: Wire, policy: str, outcome: str, end: Any
) -> None:
    script = Script({**START, "headers": [(b"content-length", b"9")]}, chunk(b"1"), chunk(b"23"), *end)
    app = bench.protect(script, on_failure=policy)
    if end:
        with pytest.raises(RuntimeError, match="broke"):
            await through(bench, app, wire)
    else:
        await through(bench, app, wire)
    assert bench.outcomes == ["acquired", outcome]
    assert (await bench.ask(app)).status == 409


@pytest.mark.parametrize("end", [(), (RuntimeError("behind it"),)], ids=["returns", "raises"])
@pytest.mark.parametrize("policy", ["release", "abandon"])
async def test_a_response_that_had_all_come_is_stored_though_its_last_message_did_not(
    bench: Any, wire: Wire, policy: str, end: Any
) -> None:
    script = Script({**START, "headers": [(b"content-length", b"3")]}, chunk(b"1"), chunk(b"23"), *end)
    app = bench.protect(script, on_failure=policy)
    if end:
        with pytest.raises(RuntimeError, match="behind"):
            await through(bench, app, wire)
    else:
        await through(bench, app, wire)
    assert wire.sent[-1] == chunk(b"23")  # nothing is kept from a client
    assert wire.completed_at == [False, False, True]
    again = await bench.ask(app)
    assert (again.body, again.replayed) == (b"123", True)


async def test_an_error_of_ours_behind_a_start_is_no_second_response(bench: Any, wire: Wire) -> None:
    app = bench.protect(Script(START, chunk(b"1"), OutcomeUnknownError()))
    with pytest.raises(OutcomeUnknownError):
        await through(bench, app, wire)
    assert wire.sent == [START, chunk(b"1")]
    assert bench.outcomes == ["acquired", "abandoned"]


async def test_a_broken_stream_is_not_stored_as_a_whole_one_because_its_handler_asked_for_storing(bench: Any) -> None:
    async def inner(scope: Any, _: Any, send: Any) -> None:
        scope["state"]["idempotency"].settlement = "store"
        await send(START)
        await send(chunk(b"half"))

    app = bench.protect(inner)
    await bench.ask(app)
    assert (await bench.ask(app)).code == "response-not-stored"


async def test_what_is_sent_out_of_order_is_left_to_the_server(bench: Any, wire: Wire) -> None:
    again = {**START, "status": 500}
    app = bench.protect(Script(START, again, chunk(b"a", more=False), chunk(b"b", more=False), START))
    await through(bench, app, wire)
    assert wire.sent == [START, again, chunk(b"a", more=False), chunk(b"b", more=False), START]
    assert ((await bench.ask(app)).status, (await bench.ask(app)).body) == (201, b"a")


async def test_a_cancellation_while_it_completes_still_completes(bench: Any, wire: Wire) -> None:
    bench.store.on("complete").slow_reply(1)
    app = bench.protect(Script(START, chunk(b"done", more=False)))
    running = asyncio.create_task(through(bench, app, wire))
    await bench.store.called("complete", times=1)
    running.cancel()
    await bench.clock.advance(1)
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (await bench.ask(app)).replayed


async def test_the_tombstone_holds_status_and_location_alone(bench: Any) -> None:
    from tenure.ext.asgi._record import read_summary, summary_of

    summary = summary_of(201, [(b"Location", b"/1"), (b"location", b"/2"), (b"set-cookie", b"a")])
    assert json.loads(summary) == {"original_status": 201, "location": "/1"}
    assert read_summary(summary) == {"original_status": 201, "location": "/1"}
    assert summary_of(201, [(b"location", b"/" * 5000)]) == b'{"original_status": 201}'
    for other in (b"", b"\xff", b"[]", b'{"original_status": true, "location": 1, "other": 2}'):
        assert read_summary(other) == {}
