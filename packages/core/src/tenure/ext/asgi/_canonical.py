"""JSON bodies that say the same, recognised as the same."""

import json
import re
from typing import Any, Final

from tenure.ext.asgi._headers import header_lines
from tenure.ext.asgi._types import Scope

__all__ = ["canonical_json"]

_JSON_TYPE: Final = re.compile(rb"(?:application/json|[^/\s]+/[^/\s;]+\+json)\s*(?:;.*)?", re.IGNORECASE | re.DOTALL)
_NUMBER: Final = re.compile(r"(-?)(\d+)(?:\.(\d+))?(?:[eE]([+-]?\d+))?", re.ASCII)


class _AmbiguousError(ValueError):
    """A name that occurs twice in an object: which one counts is the reader's choice."""


def canonical_json(scope: Scope, body: bytes) -> bytes:
    """
    Give one form for all JSON texts that say the same: for `IdempotencyOptions(fingerprint=canonical_json)`.

    The order of an object's members, whitespace, escapes and the way a number is written (`1`, `1.0`, `1e0`) make no
    difference; numbers are compared exactly, however long. A body that is not JSON by its content-type, cannot be read
    as JSON, or names a member twice stands for itself, byte for byte.

    Args:
        scope: The request's.
        body: Its body.
    """
    content_type = header_lines(scope["headers"], b"content-type")
    if len(content_type) != 1 or not _JSON_TYPE.fullmatch(content_type[0].strip()):
        return b"raw:" + body
    try:
        value = json.loads(body, object_pairs_hook=_once, parse_int=_exact, parse_float=_exact, parse_constant=_refuse)
        # A text is marked, so that "1" and 1 do not become the same.
        text = json.dumps(_marked(value), sort_keys=True, separators=(",", ":"))
    except (ValueError, RecursionError):
        return b"raw:" + body
    return b"json:" + text.encode()


class _Number(str):
    """A number in its one form."""

    __slots__ = ()


def _exact(text: str) -> _Number:
    """Write a number as its digits without trailing zeros, and a power of ten."""
    match = _NUMBER.fullmatch(text)
    assert match is not None
    sign, whole, fraction, exponent = match[1], match[2], match[3] or "", match[4] or "0"
    if len(exponent) > 18:  # an int that Python refuses to read, and no sensible number
        raise ValueError("exponent")
    digits = (whole + fraction).lstrip("0")
    significant = digits.rstrip("0")
    if not significant:
        return _Number("0")
    power = int(exponent) - len(fraction) + len(digits) - len(significant)
    return _Number(f"{sign}{significant}e{power}")


def _once(members: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(members)
    if len(content) != len(members):
        raise _AmbiguousError
    return content


def _refuse(constant: str) -> Any:
    raise ValueError(constant)  # NaN and infinity are no JSON


def _marked(value: Any) -> Any:
    match value:
        case _Number():
            return {"n": str(value)}
        case dict():
            return {"o": {name: _marked(member) for name, member in value.items()}}
        case list():
            return [_marked(member) for member in value]
        case _:
            return value
