"""Which headers of a response belong to the outcome, and which to one connection, one client or one moment."""

import re
from collections.abc import Iterable
from typing import Final

from tenure.errors import ConfigurationError
from tenure.ext.asgi._types import Headers

__all__ = [
    "REPLAYED",
    "accepts_coding",
    "check_extra_headers",
    "header_lines",
    "is_line",
    "is_replayable",
    "stored_headers",
    "without",
]

REPLAYED: Final = (b"idempotent-replayed", b"true")
"""The mark of a replay; the first response has none."""

# Content-encoding is no choice of the client's here: what runs inside is not told what the client accepts.
_STORED: Final = frozenset(
    {
        b"cache-control",
        b"content-disposition",
        b"content-encoding",
        b"content-language",
        b"content-location",
        b"content-type",
        b"etag",
        b"last-modified",
        b"link",
        b"location",
        b"vary",
    }
)

_NEVER: Final = {
    "it identifies or admits one client": (
        "authentication-info authorization cookie proxy-authenticate proxy-authentication-info proxy-authorization "
        "set-cookie set-cookie2 www-authenticate clear-site-data"
    ),
    "it belongs to one connection": (
        "alt-svc connection content-length keep-alive proxy-connection te trailer transfer-encoding upgrade via"
    ),
    "it belongs to one moment": "age date server server-timing",
    "it names one request in the traces": "traceparent tracestate x-correlation-id x-request-id x-trace-id",
    "the middleware sets it": "idempotent-replayed",
}
_WHY_NEVER: Final = {name: why for why, names in _NEVER.items() for name in names.split()}
_NEVER_PREFIXES: Final = {
    "access-control-": "the CORS layer outside sets it for each origin",
    "ratelimit": "it counts one moment's requests",
    "x-ratelimit": "it counts one moment's requests",
    "x-rate-limit": "it counts one moment's requests",
}
_TOKEN: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9a-z]+")
_LINE_ENDS: Final = re.compile(rb"[\r\n\0]")


def check_extra_headers(names: Iterable[str]) -> frozenset[str]:
    """
    Read the names of headers that a route stores besides the usual ones.

    Returns:
        Them, in small letters.

    Raises:
        ConfigurationError: A name that is none, or that of a header which must not be shown to another request.
    """
    if isinstance(names, str):
        raise ConfigurationError('headers is a set of names: write {"x-order"}, not "x-order".')
    chosen = frozenset(map(_small, names))
    for name in chosen:
        if not _TOKEN.fullmatch(name):
            raise ConfigurationError('headers is a set of names of headers, such as {"x-order"}.')
        why = _why_never(name)
        if why is not None:
            raise ConfigurationError(f"headers names {name}, which is never replayed: {why}. Leave it out.")
    return chosen


def _small(name: object) -> str:
    return name.lower() if isinstance(name, str) else ""


def _why_never(name: str) -> str | None:
    by_prefix = (why for prefix, why in _NEVER_PREFIXES.items() if name.startswith(prefix))
    return _WHY_NEVER.get(name) or next(by_prefix, None)


def stored_headers(headers: Headers, extra: frozenset[str]) -> list[tuple[bytes, bytes]]:
    """
    Give those of *headers* that are kept with the outcome: in their order, with their repeats.

    A line that would split the response is left out: the first response is the server's to refuse, and a replay goes
    past whatever has refused it.
    """
    kept = _STORED | {name.encode("ascii") for name in extra}
    small = ((name.lower(), value) for name, value in map(_pair, headers))
    return [(name, value) for name, value in small if name in kept and is_line(name, value)]


def is_line(name: bytes, value: bytes) -> bool:
    """Whether a name in small letters and a value are one header line (RFC 9110, 5.1 and 5.5), and not several."""
    return _TOKEN.fullmatch(name.decode("latin-1")) is not None and _LINE_ENDS.search(value) is None


def is_replayable(name: bytes) -> bool:
    """Whether the header *name*, in small letters, may be sent with a replay at all, whoever stored it."""
    return _why_never(name.decode("latin-1")) is None


def header_lines(headers: Headers, name: bytes) -> list[bytes]:
    """Give the value of each line of the header *name*, which is in small letters."""
    return [value for key, value in map(_pair, headers) if key.lower() == name]


def without(headers: Headers, name: bytes) -> list[tuple[bytes, bytes]]:
    """Give *headers* without the lines of *name*, which is in small letters."""
    return [(key, value) for key, value in map(_pair, headers) if key.lower() != name]


def _pair(header: tuple[bytes, bytes]) -> tuple[bytes, bytes]:
    # Applications also send lists of two, and bytearrays.
    name, value = header
    return bytes(name), bytes(value)


def accepts_coding(request_headers: Headers, coding: bytes) -> bool:
    """
    Whether a client takes a body in *coding*, the value of a content-encoding, by its accept-encoding.

    A request without the header takes any coding (RFC 9110, 12.5.3).
    """
    lines = header_lines(request_headers, b"accept-encoding")
    if not lines:
        return True
    weights: dict[bytes, bool] = {}
    for part in b",".join(lines).lower().split(b","):
        name, _, parameters = part.partition(b";")
        weights[name.strip()] = not re.fullmatch(rb"\s*q\s*=\s*0(\.0*)?\s*", parameters)
    wanted = [one.strip() for one in coding.lower().split(b",")]
    anything = weights.get(b"*", False)
    return all(one in (b"", b"identity") or weights.get(one, anything) for one in wanted)
