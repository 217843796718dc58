"""The key's header: what is one key, what is none, and that what cannot be read never runs unprotected."""

from typing import Any

import pytest

from tenure.ext.asgi._key_header import MalformedKeyError, read_key

SAME_KEY = [b'"abc"', b"abc", b'  "abc"\t', b"\tabc ", b'"abc";v=1', b'"abc"; a; b="x;,y"; c=:aGk=:;d=?1;e=1.5;f=*t/x']

MALFORMED = {
    "empty": b"",
    "blank": b" \t ",
    "an empty string": b'""',
    "a blank string": b'"  "',
    "two quotes too many": b'""""',
    "an open string": b'"abc',
    "a closed string": b'abc"',
    "an unknown escape": rb'"a\bc"',
    "a list": b"a, a",
    "a list of strings": b'"a", "a"',
    "a comma": b"a,b",
    "a space": b"a b",
    "a semicolon": b"a;b",
    "a backslash": rb"a\b",
    "a tab": b"a\tb",
    "a tab in a string": b'"a\tb"',
    "DEL": b"a\x7fb",
    "DEL in a string": b'"a\x7f"',
    "NUL": b"a\0b",
    "a newline at the end": b"abc\n",
    "a newline after a string": b'"abc"\n',
    "latin-1": "ä".encode("latin-1"),
    "utf-8": "ä".encode(),
    "latin-1 in a string": b'"\xe4"',
    "digits of another script": "\u0661".encode(),
    "too long": b"a" * 256,
    "a string too long": b'"' + b"a" * 256 + b'"',
    "parameters without a name": b'"abc";',
    "parameters in capitals": b'"abc";A=1',
    "something after the string": b'"abc" x',
    "an integer parameter too long": b'"abc";a=1234567890123456',
}


@pytest.mark.parametrize("value", SAME_KEY)
def test_a_string_and_the_bare_value_are_one_key_and_parameters_are_ignored(value: bytes) -> None:
    assert read_key([value], syntax="lenient") == "abc"


@pytest.mark.parametrize("value", MALFORMED.values(), ids=MALFORMED.keys())
@pytest.mark.parametrize("syntax", ["lenient", "strict"])
def test_what_is_no_key_is_malformed(value: bytes, syntax: Any) -> None:
    with pytest.raises(MalformedKeyError):
        read_key([value], syntax=syntax)


def test_strict_refuses_the_bare_value_and_takes_the_string() -> None:
    assert read_key([b'"a b"'], syntax="strict") == "a b"
    with pytest.raises(MalformedKeyError):
        read_key([b"abc"], syntax="strict")


def test_both_escapes_are_read() -> None:
    assert read_key([rb'"a\"b\\c"'], syntax="strict") == 'a"b\\c'


def test_the_longest_key_has_255_characters_after_it_was_read() -> None:
    assert len(read_key([b"a" * 255], syntax="lenient")) == 255
    assert len(read_key([b'"' + rb"\"" * 255 + b'"'], syntax="lenient")) == 255


def test_two_lines_are_malformed_also_where_they_say_the_same() -> None:
    with pytest.raises(MalformedKeyError):
        read_key([b"abc", b"abc"], syntax="lenient")


def test_every_character_that_a_bare_key_may_have_is_taken() -> None:
    allowed = bytes(code for code in range(0x21, 0x7F) if chr(code) not in '",;\\')
    assert read_key([allowed], syntax="lenient") == allowed.decode()


@pytest.mark.parametrize("value", MALFORMED.values(), ids=MALFORMED.keys())
async def test_a_malformed_key_is_answered_400_and_nothing_runs_also_where_no_key_is_required(
    bench: Any, value: bytes
) -> None:
    handler = bench.Handler()
    answer = await bench.ask(bench.protect(handler), key=value)
    assert (answer.status, answer.code, handler.runs) == (400, "malformed-key", 0)


async def test_a_repeated_header_is_answered_400(bench: Any) -> None:
    handler = bench.Handler()
    answer = await bench.ask(bench.protect(handler), headers=[(b"Idempotency-Key", b"k-1")])
    assert (answer.status, answer.code, handler.runs) == (400, "malformed-key", 0)


async def test_a_missing_key_is_answered_400_where_the_route_requires_one(bench: Any) -> None:
    handler = bench.Handler()
    answer = await bench.ask(bench.protect(handler, required=True), key=None)
    assert (answer.status, answer.code, handler.runs) == (400, "missing-key", 0)


async def test_a_missing_key_passes_untouched_where_none_is_required_and_is_counted(bench: Any) -> None:
    handler = bench.Handler()
    app = bench.protect(handler)
    accepts = (b"accept-encoding", b"gzip")
    for _ in range(2):
        answer = await bench.ask(app, key=None, headers=[accepts])
        assert answer.status == 201
    assert handler.runs == 2
    assert accepts in handler.scopes[0]["headers"]
    assert "state" not in handler.scopes[0]
    assert bench.outcomes == ["bypassed", "bypassed"]


async def test_another_header_can_carry_the_key(bench: Any) -> None:
    handler = bench.Handler()
    app = bench.protect(handler, header="X-Request-Key")
    for name in (b"x-request-key", b"X-REQUEST-KEY"):
        await bench.ask(app, key=None, headers=[(name, b"k")])
    assert handler.runs == 1
