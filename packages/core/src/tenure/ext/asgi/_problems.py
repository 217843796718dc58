"""
Problem details (RFC 9457): what a client is told instead of a response of the handler.

Each code is a stable type of its own, so that a client can tell "wait" from "ask a human" though both are 409. No text
holds the key, the fingerprint, the principal or the owner.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Any, Final, final

from tenure.errors import (
    ExecutionLostError,
    IdempotencyError,
    InFlightError,
    KeyReusedError,
    OutcomeUnknownError,
    ResponseNotStoredError,
)
from tenure.ext.asgi._record import StoredResponse, read_summary, summary_of
from tenure.ext.asgi._types import Send

__all__ = ["PROBLEMS", "Problem", "problem_of"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """
    One problem, ready to be sent.

    Attributes:
        code: The stable code, the last part of its type; None where the status says it all (`about:blank`).
        status: The HTTP status.
        title: The same for every problem of the code.
        detail: What the client should do.
        retry_after_s: Whole seconds to wait before the request is repeated; the Retry-After header and the member
            `retry_after`. None where waiting does not help.
        members: Further members: `original_status` and `location` of a request that was carried out.
    """

    code: str | None
    status: int
    title: str
    detail: str
    retry_after_s: int | None = None
    members: Mapping[str, Any] = field(default_factory=dict)

    def type(self, base: str) -> str:
        """Give the type: *base* and the code."""
        return "about:blank" if self.code is None else f"{base}{self.code}"

    def content(self, base: str) -> dict[str, Any]:
        """Give the members of the JSON object, for a problem base such as `"urn:tenure:idempotency:"`."""
        content = {"type": self.type(base), "title": self.title, "status": self.status, "detail": self.detail}
        if self.code is not None:
            content["code"] = self.code
        if self.retry_after_s is not None:
            content["retry_after"] = self.retry_after_s
        return {**content, **self.members}

    def headers(self, base: str) -> list[tuple[str, str]]:
        """Give the headers besides type and length: Retry-After, and Link where the type can be looked up."""
        headers = [] if self.retry_after_s is None else [("retry-after", str(self.retry_after_s))]
        if self.code is not None and base.lower().startswith(("http://", "https://")):
            headers.append(("link", f'<{self.type(base)}>; rel="describedby"'))
        return headers

    async def send(self, send: Send, *, base: str) -> None:
        """Send it as `application/problem+json`."""
        body = json.dumps(self.content(base)).encode()
        headers = [
            ("content-type", "application/problem+json"),
            ("content-length", str(len(body))),
            ("cache-control", "no-store"),
            *self.headers(base),
        ]
        pairs = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        await send({"type": "http.response.start", "status": self.status, "headers": pairs})
        await send({"type": "http.response.body", "body": body, "more_body": False})


def _blank(status: HTTPStatus, detail: str) -> Problem:
    return Problem(code=None, status=status.value, title=status.phrase, detail=detail)


_CODED: Final = (
    Problem(
        code="missing-key",
        status=400,
        title="The idempotency key is missing",
        detail="This operation needs the idempotency key header: a value of your choice, such as a UUID, new for each "
        "operation and the same for each repetition of it.",
    ),
    Problem(
        code="malformed-key",
        status=400,
        title="The idempotency key cannot be read",
        detail="Send the idempotency key header once, as a string of 1 to 255 printable ASCII characters, such as a "
        "UUID in double quotes. Nothing was done.",
    ),
    Problem(
        code="in-flight",
        status=409,
        title="A request with this idempotency key is in progress",
        detail="The first request with this key is still being worked on. Repeat this one unchanged after a pause.",
    ),
    Problem(
        code="key-reused",
        status=422,
        title="The idempotency key belongs to another request",
        detail="This key was used for a request with another method, path, query, type or body. Use a new key for a "
        "new request, and repeat a request unchanged.",
    ),
    Problem(
        code="outcome-unknown",
        status=409,
        title="The outcome of the first request is unknown",
        detail="An earlier request with this key began, and how it ended is not known. Repeating it does not help: "
        "find out whether it took effect.",
    ),
    Problem(
        code="response-not-stored",
        status=409,
        title="The request was carried out, and its response was not kept",
        detail="Read the result where it is stored. Do not repeat the request with a new key.",
    ),
    Problem(
        code="too-many-requests",
        status=429,
        title="Too many requests with idempotency keys",
        detail="Too many requests of this client are in progress, or too many of its idempotency keys are new. Nothing "
        "was done now. Repeat this request unchanged after a pause; whether it was carried out before is told then.",
        retry_after_s=1,
    ),
    Problem(
        code="store-unavailable",
        status=503,
        title="Idempotency cannot be guaranteed at the moment",
        detail="The record of idempotency keys did not answer, so nothing was done. Repeat this request unchanged "
        "after a pause.",
        retry_after_s=1,
    ),
)

PROBLEMS: Final[Mapping[str, Problem]] = {problem.code: problem for problem in _CODED if problem.code is not None}
"""Each kind of problem by its code, for documentation as OpenAPI."""

BODY_TOO_LONG: Final = _blank(
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    "The body is longer than a request with an idempotency key may have here. Nothing was done.",
)
NOT_SCOPED: Final = _blank(
    HTTPStatus.INTERNAL_SERVER_ERROR, "The request could not be attributed to a client. Nothing was done."
)
UNREADABLE: Final = _blank(
    HTTPStatus.INTERNAL_SERVER_ERROR,
    "The stored response to this request could not be read. Nothing was done now; the request was carried out before.",
)
_NOT_ACCEPTABLE: Final = _blank(
    HTTPStatus.NOT_ACCEPTABLE,
    "The request was carried out, and its response is kept in a content coding that this request does not accept. "
    "Repeat it with an Accept-Encoding that allows the coding.",
)

PLAIN_FAILURE: Final = StoredResponse(
    HTTPStatus.INTERNAL_SERVER_ERROR.value,
    [(b"content-type", b"application/problem+json")],
    json.dumps(
        {"type": "about:blank", "title": "Internal Server Error", "status": HTTPStatus.INTERNAL_SERVER_ERROR.value}
    ).encode(),
)
"""What is replayed of an exception that left no response, where a route stores its failures."""


def not_acceptable(response: StoredResponse) -> Problem:
    """Give the 406 of a client that could not read *response*, with what it needs to find the result."""
    return replace(_NOT_ACCEPTABLE, members=read_summary(summary_of(response.status, response.headers)))


def problem_of(error: IdempotencyError, *, max_retry_after_s: int) -> Problem:
    """
    Give the problem that *error* is.

    Args:
        error: What `begin` raised, or the handler.
        max_retry_after_s: The most seconds to ask for. An execution may end any time before its lock does.
    """
    match error:
        case InFlightError():
            return in_flight(error.retry_after_s, max_retry_after_s)
        case ExecutionLostError():
            # The execution that replaced this one is at work.
            return in_flight(1, max_retry_after_s)
        case KeyReusedError():
            return PROBLEMS["key-reused"]
        case OutcomeUnknownError():
            return PROBLEMS["outcome-unknown"]
        case ResponseNotStoredError():
            return replace(PROBLEMS["response-not-stored"], members=read_summary(error.summary))
        case _:
            return PROBLEMS["outcome-unknown"]


def in_flight(left_s: float, max_retry_after_s: int) -> Problem:
    """Give the 409 of a request whose first is at work, asking to wait at least a second."""
    # A store may answer a time that is no number of seconds (a clock that jumped): then the least.
    seconds = math.ceil(left_s) if math.isfinite(left_s) else max_retry_after_s
    return replace(PROBLEMS["in-flight"], retry_after_s=max(1, min(seconds, max_retry_after_s)))
