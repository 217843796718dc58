"""What a request is recorded under and recognised by."""

from typing import Any

import pytest

from tenure import ConfigurationError
from tenure.ext.asgi import canonical_json
from tenure.ext.asgi._digests import fingerprint_parts, record_key
from tenure.idempotency.envelope import pack

JSON = [(b"content-type", b"application/json")]


def test_namespace_principal_and_key_cannot_be_shifted_into_one_another() -> None:
    keys = {
        record_key("a", "b", "cd"),
        record_key("a", "bc", "d"),
        record_key("ab", "c", "d"),
        record_key("ab", None, "cd"),
        record_key("a", None, "bcd"),
    }
    assert len(keys) == 5


def test_the_record_key_shows_nothing_of_what_it_is_made_of() -> None:
    key = record_key("http", "anna", "secret")
    assert len(key) == 64
    assert "anna" not in key
    assert "secret" not in key


def test_a_principal_may_be_any_text() -> None:
    assert len({record_key("http", name, "k") for name in ("ä", "\udce4", "a\0b", "a")}) == 4


def parts(bench: Any, body: bytes = b"{}", **request: Any) -> bytes:
    return pack(fingerprint_parts(bench.scope(**request), body, None))


async def test_method_path_query_type_and_body_make_the_fingerprint(bench: Any) -> None:
    first = parts(bench, headers=JSON)
    others = [
        parts(bench, headers=JSON, method="PATCH"),
        parts(bench, headers=JSON, path="/refunds"),
        parts(bench, headers=JSON, query_string=b"a=1"),
        parts(bench, headers=[(b"content-type", b"text/plain")]),
        parts(bench, b"[]", headers=JSON),
        parts(bench),
    ]
    assert len({first, *others}) == 7


async def test_parameters_of_the_type_and_other_headers_make_no_difference(bench: Any) -> None:
    charset = [(b"content-type", b"Application/JSON ; charset=utf-8"), (b"user-agent", b"other")]
    assert parts(bench, headers=JSON) == parts(bench, headers=charset)


async def test_an_escaped_slash_is_another_path(bench: Any) -> None:
    one = parts(bench, path="/a/b", raw_path=b"/a%2Fb")
    assert one != parts(bench, path="/a/b", raw_path=b"/a/b")


async def test_a_mounted_application_has_the_whole_path_whoever_mounted_it(bench: Any) -> None:
    starlette = parts(bench, path="/api/orders", root_path="/api", raw_path=None)
    stripped = parts(bench, path="/orders", root_path="/api", raw_path=None)
    asked = parts(bench, path="/orders", root_path="/api", raw_path=b"/api/orders?x=1")
    assert starlette == stripped == asked
    assert starlette != parts(bench, path="/orders", raw_path=None)


async def test_a_slash_at_the_end_makes_no_difference(bench: Any) -> None:
    assert parts(bench, path="/orders/") == parts(bench, path="/orders")
    assert parts(bench, path="/orders/", raw_path=None) == parts(bench, path="/orders", raw_path=None)


async def test_a_path_that_only_begins_like_the_root_path_is_not_below_it(bench: Any) -> None:
    assert parts(bench, path="/apiary", root_path="/api", raw_path=None) == parts(bench, path="/api/apiary")


async def test_parts_that_hold_what_separates_do_not_run_together(bench: Any) -> None:
    one = parts(bench, b"", path="/a", query_string=b"b=1&c")
    assert one != parts(bench, b"b=1&c", path="/a", query_string=b"")


async def test_the_same_body_in_other_chunks_is_the_same_request(bench: Any) -> None:
    handler = bench.Handler()
    app = bench.protect(handler)
    body = bytes(range(256)) * 4096  # 1 MiB
    for size in (len(body), 65_536, 1_000_003, 4_099):
        chunks = [body[at : at + size] for at in range(0, len(body), size)]
        answer = await bench.ask(app, body=chunks)
        assert answer.status == 201
    assert (handler.runs, handler.bodies) == (1, [body])


@pytest.mark.parametrize("request_", [{"path": "/refunds"}, {"method": "PATCH"}, {"query_string": b"dry=1"}])
async def test_a_key_used_on_another_endpoint_is_a_visible_error(bench: Any, request_: Any) -> None:
    handler = bench.Handler()
    app = bench.protect(handler)
    await bench.ask(app)
    answer = await bench.ask(app, **request_)
    assert (answer.status, answer.code, handler.runs) == (422, "key-reused", 1)


async def test_a_function_may_stand_for_the_body(bench: Any) -> None:
    handler = bench.Handler()
    app = bench.protect(handler, fingerprint=lambda _, body: body.partition(b"|")[0])
    assert (await bench.ask(app, body=b"a|1")).status == 201
    assert (await bench.ask(app, body=b"a|2")).replayed
    assert (await bench.ask(app, body=b"b|1")).code == "key-reused"


async def test_a_fingerprint_that_is_no_bytes_is_an_error_and_nothing_runs(bench: Any) -> None:
    handler = bench.Handler()
    with pytest.raises(ConfigurationError, match="fingerprint function returned a str"):
        await bench.ask(bench.protect(handler, fingerprint=lambda *_: "text"))
    assert (handler.runs, bench.outcomes) == (0, [])


async def test_under_a_secret_the_fingerprint_is_another_one(make_bench: Any) -> None:
    seen = []
    for secret in (None, b"s" * 32):
        bench = make_bench(secret=secret)
        async with bench.idempotency:
            await bench.ask(bench.protect(bench.Handler()))
        (record,) = bench.memory._records.items()
        seen.append((record[0], record[1].fingerprint))
    # The key stays: a secret that is rotated must not make every retry a new request.
    assert seen[0][0] == seen[1][0]
    assert seen[0][1] != seen[1][1]


# ------------------------------------------------------------------------------------- canonical JSON


def canonical(bench: Any, body: bytes, content_type: bytes = b"application/json") -> bytes:
    return canonical_json(bench.scope(headers=[(b"content-type", content_type)]), body)


SAME = [
    (b'{"a": 1, "b": [true, null]}', b'{"b":[true,null],"a":1.0}'),
    (b'{"a": 100}', b'{"a": 1E2}'),
    (b'{"a": 0}', b'{"a": -0.0}'),
    (b'{"a": 0.10}', b'{"a": 1e-1}'),
    ('{"a": "ä"}'.encode(), rb'{"a": "\u00e4"}'),
]
DIFFERENT = [
    (b'{"a": 1}', b'{"a": "1"}'),
    (b'{"a": 1}', b'{"a": true}'),
    (b'{"a": 1}', b'{"a": -1}'),
    (b"[1, 2]", b"[2, 1]"),
    (b'{"a": 9007199254740993}', b'{"a": 9007199254740992}'),
    (b'{"a": 1e400}', b'{"a": 1e401}'),
    (b'{"a": 1, "a": 2}', b'{"a": 2}'),
    (b'{"a": 1, "a": 2}', b'{"a": 2, "a": 1}'),
    (b'{"a": NaN}', b'{"a": null}'),
    (b'{"n": "1e0"}', b"1"),
    (b'{"o": {}}', b"{}"),
    (b"{", b"{ "),
]


@pytest.mark.parametrize(("one", "other"), SAME)
async def test_json_that_says_the_same_is_the_same(bench: Any, one: bytes, other: bytes) -> None:
    assert canonical(bench, one) == canonical(bench, other)


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
async def test_json_that_says_something_else_is_different(bench: Any, one: bytes, other: bytes) -> None:
    assert canonical(bench, one) != canonical(bench, other)


@pytest.mark.parametrize("body", [b"[" * 100_000, b"1" * 10_000, b"1e" + b"9" * 100, b"\xff", b"", b'"\\ud800"'])
async def test_no_body_breaks_the_canonical_form(bench: Any, body: bytes) -> None:
    assert canonical(bench, body) == canonical(bench, body)


async def test_only_json_is_read_as_json(bench: Any) -> None:
    body = b'{"a": 1}'
    assert canonical(bench, body, b"text/plain").startswith(b"raw:")
    assert canonical(bench, body, b"application/vnd.api+json; charset=utf-8").startswith(b"json:")


async def test_shuffled_members_are_one_request_with_the_canonical_form(bench: Any) -> None:
    handler = bench.Handler()
    app = bench.protect(handler, fingerprint=canonical_json)
    await bench.ask(app, headers=JSON, body=b'{"a": 1, "b": 2}')
    assert (await bench.ask(app, headers=JSON, body=b'{"b":2,"a":1.0}')).replayed
    assert (await bench.ask(app, headers=JSON, body=b'{"b":2,"a":2}')).code == "key-reused"
