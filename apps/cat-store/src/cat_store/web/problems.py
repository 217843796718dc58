"""Every error as problem details (RFC 9457): what is wrong and what to do, and nothing of the server's insides."""

import logging
from http import HTTPStatus
from typing import Any, Final

import msgspec
from litestar import Request, Response
from litestar.exceptions import HTTPException
from litestar.openapi.datastructures import ResponseSpec
from litestar.plugins.problem_details import ProblemDetailsConfig, ProblemDetailsException, ProblemDetailsPlugin
from litestar.types import ExceptionHandlersMap
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, ProgrammingError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from cat_store.partners.connection import PartnerError

__all__ = ["Problem", "described", "exception_handlers", "problem", "problem_details"]

logger = logging.getLogger(__name__)

_TYPE: Final = "urn:cat-store:"
_PAUSE_S: Final = 1
"""What a client is asked to wait where the shop itself is in trouble, in seconds."""


class Problem(msgspec.Struct, frozen=True):
    """What is wrong with a request, for the API's description."""

    status: int
    title: str
    detail: str
    type: str = "about:blank"


def problem(
    status: int, code: str, detail: str, *, headers: dict[str, str] | None = None, **members: Any
) -> ProblemDetailsException:
    """
    Make an error that is answered as problem details.

    Args:
        status: The HTTP status.
        code: What stands behind `urn:cat-store:` in the type; it never changes, so that clients may rely on it.
        detail: What is wrong, and what to do.
        headers: Headers of the answer.
        members: Further members.
    """
    return ProblemDetailsException(
        detail=detail,
        status_code=status,
        title=HTTPStatus(status).phrase,
        type_=_TYPE + code,
        headers=headers,
        extra=members or None,
    )


def described(description: str) -> ResponseSpec:
    """Describe an answer in problem details, for the API's description."""
    return ResponseSpec(
        Problem, description=description, media_type="application/problem+json", generate_examples=False
    )


def problem_details() -> ProblemDetailsPlugin:
    """Build the plugin that turns what Litestar itself raises (404, 405, 400, 413) into problem details."""
    return ProblemDetailsPlugin(ProblemDetailsConfig(exception_to_problem_detail_map={HTTPException: _of_http}))


def exception_handlers() -> ExceptionHandlersMap:
    """
    Say what the shop's own troubles are answered with.

    A database that is away or busy: 503. A partner that failed: 502. A mistake in the program: 500, and its traceback
    in the log: Litestar alone would answer and say nothing.
    """
    return {
        DBAPIError: _database_failed,
        PoolTimeoutError: _database_failed,
        OSError: _database_failed,
        PartnerError: _partner_failed,
        Exception: _mistake,
    }


def _of_http(error: HTTPException) -> ProblemDetailsException:
    members = {"errors": error.extra} if isinstance(error.extra, list) else error.extra
    return ProblemDetailsException(
        detail=error.detail,
        status_code=error.status_code,
        title=HTTPStatus(error.status_code).phrase,
        type_="about:blank",
        headers=error.headers,
        extra=members,
    )


def _database_failed(request: Request[Any, Any, Any], error: Exception) -> Response[Any]:
    if isinstance(error, (DataError, IntegrityError, ProgrammingError)):
        return _mistake(request, error)
    logger.error(
        "The database failed under %s %s: %s",
        request.method,
        request.url.path,
        type(error).__name__,
        extra={"event": "web.database_failed", "error": type(error).__name__},
    )
    return problem(
        503,
        "database-unavailable",
        "The shop's database does not answer at the moment. Repeat the request after a pause.",
        headers={"Retry-After": str(_PAUSE_S)},
    ).to_response(request)


def _partner_failed(request: Request[Any, Any, Any], error: Exception) -> Response[Any]:
    logger.error("%s", error, extra={"event": "web.partner_failed", "error": type(error).__name__})
    return problem(
        502, "partner-failed", "A partner of the shop's did not do what it was asked to do. Repeat the request later."
    ).to_response(request)


def _mistake(request: Request[Any, Any, Any], error: Exception) -> Response[Any]:
    logger.error(
        "A mistake in the program under %s %s",
        request.method,
        request.url.path,
        exc_info=error,
        extra={"event": "web.mistake", "error": type(error).__name__},
    )
    return problem(
        500, "mistake", "The shop made a mistake. Nothing is known to be wrong with the request."
    ).to_response(request)
