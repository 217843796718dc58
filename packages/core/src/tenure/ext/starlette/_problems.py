"""Errors of tenure as problem details (RFC 9457)."""

from collections.abc import Awaitable, Callable
from typing import Any, Final

from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response
from starlette.websockets import WebSocket, WebSocketState

from tenure.errors import IdempotencyError
from tenure.ext._lock_problems import LOCK_PROBLEMS, LOCKS_BASE
from tenure.ext.asgi import DEFAULT_PROBLEM_BASE, Problem, problem_of

__all__ = ["exception_handlers"]

_Handler = Callable[[Any, Any], Awaitable[Any]]

_RETRY_AFTER_S: Final = 5
"""The most seconds that the 409 of an execution in flight asks for, as in `IdempotencyOptions`."""

_TRY_AGAIN_LATER: Final = 1013
"""The close code of a websocket whose server cannot serve it now (IANA registry of RFC 6455)."""


def exception_handlers(problem_base: str = DEFAULT_PROBLEM_BASE) -> dict[Any, _Handler]:
    """
    Say what each error of tenure is answered with; for applications that are mounted inside of another one.

        app.mount("/v2", FastAPI(exception_handlers=exception_handlers()))

    - `LockNotAcquiredError` 409 and a Retry-After: somebody else works on it.
    - `LeaseLostError` 503: this server stopped in the middle because it could not prove that the key was its own. It
      may have had a part of its effect. No Retry-After: whether a repeat is safe is the application's to know.
    - `StoreError` 503: the store of the locks or of the records did not answer.
    - `IdempotencyError`, from a handler's own `Idempotency.run`: the problem that the middleware has for it.

    A websocket is closed with 1013. No body holds a key, an owner or an error's text, which may hold the key.

    Args:
        problem_base: What stands before the code in the type of a problem of idempotency.
    """
    handlers = {error: _always(problem) for error, problem in LOCK_PROBLEMS.items()}

    async def answer(connection: HTTPConnection, error: IdempotencyError) -> Response | None:
        return await _answer(connection, problem_of(error, max_retry_after_s=_RETRY_AFTER_S), problem_base)

    return {**handlers, IdempotencyError: answer}


def _always(problem: Problem) -> _Handler:
    async def answer(connection: HTTPConnection, _: Exception) -> Response | None:
        return await _answer(connection, problem, LOCKS_BASE)

    return answer


async def _answer(connection: HTTPConnection, problem: Problem, base: str) -> Response | None:
    if isinstance(connection, WebSocket):
        if connection.application_state is not WebSocketState.DISCONNECTED:
            await connection.close(_TRY_AGAIN_LATER, problem.title)
        return None
    assert isinstance(connection, Request)
    return JSONResponse(
        problem.content(base),
        status_code=problem.status,
        headers=dict(problem.headers(base)),
        media_type="application/problem+json",
    )
