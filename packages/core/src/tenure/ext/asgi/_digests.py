"""What a request is recorded under, and what it is recognised by. Every part has its length in front of it."""

from collections.abc import Callable
from typing import Final
from urllib.parse import quote

from tenure.errors import ConfigurationError
from tenure.ext.asgi._headers import header_lines
from tenure.ext.asgi._types import Scope
from tenure.idempotency.envelope import digest

__all__ = ["fingerprint_parts", "record_key"]

_VERSION: Final = "http 1"
"""Changes with what a fingerprint is made of, so that an old record is a visible mismatch and never a false match."""


def record_key(namespace: str, principal: str | None, key: str) -> str:
    """
    Digest what a request is recorded under: 64 hexadecimal characters.

    Without the secret, which may be rotated: under a new one every retry would be a new request.

    Args:
        namespace: Tells the uses of one store apart.
        principal: Whom the request belongs to; None where keys are shared by all.
        key: The client's key.
    """
    owned_by: tuple[bytes, ...] = () if principal is None else (_octets(principal),)
    return digest(b"", ("http record 1", _octets(namespace), *owned_by, _octets(key)))


def fingerprint_parts(
    scope: Scope, body: bytes, stands_for_body: Callable[[Scope, bytes], bytes] | None
) -> tuple[bytes | str, ...]:
    """
    Give what a request is recognised by: method, path, query, content-type without its parameters, and body.

    The path is a part, so that a key used on another endpoint is a visible error rather than a second operation.

    Raises:
        ConfigurationError: *stands_for_body* returned something else than bytes.
        Exception: What it raised.
    """
    content = body
    if stands_for_body is not None:
        content = stands_for_body(scope, body)
        if not isinstance(content, bytes):
            raise ConfigurationError(
                f"The fingerprint function returned a {type(content).__name__}: it must return bytes that stand for "
                "the body."
            )
    # A boundary or a charset in the parameters may differ from one retry to the next.
    media_type = b",".join(header_lines(scope["headers"], b"content-type")).partition(b";")[0].strip().lower()
    return _VERSION, scope["method"], _path(scope), scope.get("query_string", b""), media_type, content


def _path(scope: Scope) -> bytes:
    """
    Give the whole path as it was asked for.

    `raw_path` tells `%2F` from `/`. Without it, the root path is put in front of the path, which some servers and
    frameworks have done already. A slash at the end makes no difference: frameworks take it off, or send the client on
    to the path without it, where its key would be another request's.
    """
    raw: bytes | None = scope.get("raw_path")
    if raw:
        return raw.partition(b"?")[0].rstrip(b"/")  # some servers leave the query in it
    root, path = scope.get("root_path", "").rstrip("/"), scope["path"]
    whole = path if not root or path == root or path.startswith(f"{root}/") else root + path
    return quote(whole.encode("utf-8", "surrogatepass"), safe="/:@!$&'()*+,;=~-._").rstrip("/").encode("ascii")


def _octets(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
