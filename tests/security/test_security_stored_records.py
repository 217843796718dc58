"""
What the store gives back is looked at as if a stranger had written it: it may have been one.

Whoever can write to the store can do worse than to break a replay. But a record that is cut off, of another release or
of another application must be one known error that says nothing of its content, and never a header of its own choosing.
"""

import asyncio
import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tenure.errors import SealError, StoreReplyError
from tenure.ext.asgi import IdempotencyMiddleware
from tenure.ext.asgi._record import StoredResponse, UnreadableRecordError, read_summary
from tenure.ext.sealing import AesGcmSealer
from tenure.idempotency import Idempotency, InMemoryIdempotencyStore
from tenure.idempotency.envelope import open_envelope

CANARY = "canary-5150"

quickly = settings(deadline=None, max_examples=80, database=None)

# Values that are legal JSON and nearly a head, as well as any.
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner))
LINES = st.lists(st.lists(st.text(max_size=12), min_size=1, max_size=3), max_size=4)
HEADS = st.fixed_dictionaries({"status": st.integers(-1, 70_000) | VALUES, "headers": LINES | VALUES}) | VALUES


def record(head: bytes, body: bytes = b"", version: int = 1) -> bytes:
    return bytes([version]) + len(head).to_bytes(4, "big") + head + body


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


# --------------------------------------------------------------------------------------------- fuzzing


def decoded(payload: bytes) -> StoredResponse | None:
    """Decode, and see to it that nothing but the one error comes out, with nothing in it."""
    try:
        return StoredResponse.decode(payload)
    except UnreadableRecordError as error:
        refusal = error
    assert refusal.args == ()
    assert refusal.__cause__ is None
    assert refusal.__suppress_context__ or refusal.__context__ is None
    return None


@quickly
@given(st.binary(max_size=64) | st.binary(max_size=64).map(lambda rest: b"\x01" + rest))
def test_any_bytes_are_a_response_or_one_known_error(payload: bytes) -> None:
    decoded(payload)


@quickly
@given(HEADS, st.binary(max_size=8), st.integers(0, 12))
def test_any_head_is_a_response_or_one_known_error(head: Any, body: bytes, cut: int) -> None:
    payload = record(json.dumps(head).encode(), body)
    response = decoded(payload[: len(payload) - cut])
    if response is not None and cut == 0:
        assert response.body == body


@quickly
@given(st.integers(0, 255), st.binary(max_size=40))
def test_a_record_of_another_version_is_never_read(version: int, rest: bytes) -> None:
    if version != 1:
        assert decoded(bytes([version]) + rest) is None


def test_a_record_that_is_nested_too_deeply_is_unreadable() -> None:
    assert decoded(record(nested(100_000))) is None


def test_a_number_that_is_too_long_to_be_read_is_unreadable() -> None:
    assert decoded(record(b'{"status":' + b"9" * 10_000 + b',"headers":[]}')) is None


@quickly
@given(st.binary(max_size=64) | VALUES.map(lambda value: json.dumps(value).encode()))
@example(b"")
def test_any_summary_is_read_or_left_out(summary: bytes) -> None:
    content = read_summary(summary)
    assert set(content) <= {"original_status", "location"}


def test_a_summary_that_is_nested_too_deeply_is_left_out() -> None:
    assert read_summary(nested(100_000)) == {}


@quickly
@given(st.binary(max_size=64), st.booleans())
def test_any_envelope_is_opened_or_refused_without_a_word_of_it(stored: bytes, sealed: bool) -> None:
    sealer = AesGcmSealer({"k": b"k" * 32}, current="k") if sealed else None
    stored += CANARY.encode()
    said = ""
    try:
        kind, _ = open_envelope(sealer, stored, b"binding")
    except (StoreReplyError, SealError) as error:
        said = f"{error}{error!r}{error.__cause__}{error.__context__}"
    else:
        assert not sealed
        assert stored[:1] == b"\x01"
        assert kind in (b"R", b"T")
    assert CANARY not in said


@pytest.mark.parametrize(
    "stored",
    [CANARY.encode(), b"\xff" + CANARY.encode(), nested(100_000) + CANARY.encode()],
    ids=["no JSON", "no text", "nested too deeply"],
)
async def test_a_stored_result_that_cannot_be_decoded_is_one_known_error_without_a_word_of_it(stored: bytes) -> None:
    async def never() -> None:
        raise AssertionError("it ran again")

    async with Idempotency(InMemoryIdempotencyStore(), hooks=[]) as idempotency:
        execution: Any = await idempotency.begin("key", "fingerprint")
        await execution.complete(stored)
        with pytest.raises(StoreReplyError) as caught:
            await idempotency.run("key", "fingerprint", never)
        assert CANARY not in f"{caught.value}{caught.value!r}{caught.value.__dict__}"
        assert (caught.value.__cause__, caught.value.__context__) == (None, None)


# ---------------------------------------------------------------------------------- header injection


SPLITTING = [
    ("location", "/orders/7\r\nset-cookie: session=stolen"),
    ("location", "/orders/7\nx: y"),
    ("etag", "a\rb"),
    ("etag", "a\0b"),
    ("link\r\nset-cookie", "session=stolen"),
    ("set cookie:", "x"),
    ("", "x"),
]


@pytest.mark.parametrize(("name", "value"), SPLITTING)
def test_a_stored_header_that_would_split_the_response_is_unreadable(name: str, value: str) -> None:
    head = json.dumps({"status": 201, "headers": [["content-type", "text/plain"], [name, value]]}).encode()
    assert decoded(record(head, b"body")) is None


@pytest.mark.parametrize("status", [-1, 0, 99, 100, 199, 600, 1000, 70_000])
def test_a_stored_status_that_is_none_of_a_response_is_unreadable(status: int) -> None:
    assert decoded(record(json.dumps({"status": status, "headers": []}).encode())) is None


class Wire:
    """A client of an application, which is told what was sent to it."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def ask(self, key: str = "k-1", account: str = "anna") -> list[Any]:
        sent: list[Any] = []
        inbox = [{"type": "http.request", "body": b"{}", "more_body": False}]

        async def receive() -> Any:
            return inbox.pop() if inbox else await asyncio.get_running_loop().create_future()

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "method": "POST",
            "path": "/orders",
            "headers": [(b"idempotency-key", key.encode()), (b"x-account", account.encode())],
        }
        await self._app(scope, receive, send)
        return sent


async def test_a_header_of_the_handlers_that_would_split_the_response_is_not_replayed() -> None:
    """The first response is the server's to refuse; a replay goes past whatever has refused it."""

    async def handler(_: Any, receive: Any, send: Any) -> None:
        await receive()
        headers = [(b"location", b"/orders/7\r\nset-cookie: session=stolen"), (b"etag", b'"7"')]
        await send({"type": "http.response.start", "status": 201, "headers": headers})
        await send({"type": "http.response.body", "body": b"done"})

    async with Idempotency(InMemoryIdempotencyStore()) as idempotency:
        wire = Wire(IdempotencyMiddleware(handler, idempotency=idempotency, principal=lambda _: "anna"))
        await wire.ask()
        again = await wire.ask()
        for name, value in again[0]["headers"]:
            assert not {*b"\r\n\0"} & {*name, *value}


async def test_no_header_of_the_replay_admits_anybody() -> None:
    async def handler(_: Any, receive: Any, send: Any) -> None:
        await receive()
        headers = [
            (name, CANARY.encode())
            for name in (b"set-cookie", b"Set-Cookie2", b"AUTHORIZATION", b"authentication-info", b"x-session")
        ]
        await send({"type": "http.response.start", "status": 201, "headers": headers})
        await send({"type": "http.response.body", "body": b"done"})

    store = InMemoryIdempotencyStore()
    async with Idempotency(store) as idempotency:
        wire = Wire(IdempotencyMiddleware(handler, idempotency=idempotency, principal=lambda _: "anna"))
        assert CANARY in repr(await wire.ask())
        [kept] = store._records.values()
        assert kept.response is not None
        assert CANARY.encode() not in kept.response
        again = await wire.ask()
        assert (again[1]["body"], CANARY in repr(again)) == (b"done", False)
