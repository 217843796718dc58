"""Errors of tenure as problem details (RFC 9457), where an application asks for it."""

from collections.abc import Callable
from typing import Any, Final

from litestar import Request, Response
from litestar.types import ExceptionHandlersMap

from tenure.errors import IdempotencyError
from tenure.ext._lock_problems import LOCK_PROBLEMS, LOCKS_BASE
from tenure.ext.asgi import Problem, problem_of

__all__ = ["exception_handlers"]

_Handler = Callable[[Request[Any, Any, Any], Any], Response[Any]]

_RETRY_AFTER_S: Final = 5
"""The most seconds that the 409 of an execution in flight asks for, as in `IdempotencyOptions`."""


def exception_handlers(problem_base: str) -> ExceptionHandlersMap:
    """
    Say what each error of tenure is answered with.

    - `LockNotAcquiredError` 409 and a Retry-After: somebody else works on it.
    - `LeaseLostError` 503: this server stopped in the middle because it could not prove that the key was its own. It
      may have had a part of its effect. No Retry-After: whether a repeat is safe is the application's to know.
    - `StoreError` 503: the store of the locks or of the records did not answer.
    - `IdempotencyError`, from a handler's own `Idempotency.run`: the problem that the middleware has for it.

    No body holds a key, an owner or an error's text, which may hold the key.

    Args:
        problem_base: What stands before the code in the type of a problem of idempotency.
    """
    handlers: dict[int | type[Exception], _Handler] = {
        error: _always(problem) for error, problem in LOCK_PROBLEMS.items()
    }

    def answer(_: Request[Any, Any, Any], error: IdempotencyError) -> Response[Any]:
        return _response(problem_of(error, max_retry_after_s=_RETRY_AFTER_S), problem_base)

    handlers[IdempotencyError] = answer
    return handlers


def _always(problem: Problem) -> _Handler:
    def answer(_: Request[Any, Any, Any], __: Exception) -> Response[Any]:
        return _response(problem, LOCKS_BASE)

    return answer


def _response(problem: Problem, base: str) -> Response[Any]:
    return Response(
        problem.content(base),
        status_code=problem.status,
        headers=dict(problem.headers(base)),
        media_type="application/problem+json",
    )
