"""
Requests under their keys: the adapter between Litestar and the guard that frameworks share.

The guard stands innermost of a route's own middleware, so that authentication has run on whatever layer it stands, and
outside of Litestar's exception handler, so that it sees an `HTTPException` as the response that the client gets. What
follows from that place:

- Guards run inside the route, after the guard here. So they are asked before the store is (`authorize_connection`): a
  replay goes to nobody whom the route would refuse. On a first execution they run twice.
- CSRF, allowed hosts, the response cache and validation are inside too. Their answers are those of a handler that did
  not run: the record is released, whatever the status.
- Compression is inside as well. It is left out on protected routes, for a replay is read by another client.
- Hooks of `before_send` run when the start of the response is sent on, a commit among them. A hook that fails makes
  the request a failed one.
"""

from collections.abc import Callable
from typing import Any, cast, final

from litestar.enums import ScopeType
from litestar.handlers import HTTPRouteHandler
from litestar.handlers.base import BaseRouteHandler
from litestar.middleware import ASGIMiddleware
from litestar.types import ASGIApp, Message, Receive, ReceiveMessage, Scope, Send

from tenure.ext.asgi import CONTEXT_KEY, IdempotencyOptions, RequestGuard
from tenure.ext.litestar._run import Run, current_run, noticed
from tenure.idempotency import IdempotencyContext

__all__ = ["GuardRequests", "protect"]


@final
class GuardRequests(ASGIMiddleware):
    """
    Lets the requests of one handler run under their keys.

    Args:
        guard: Returns the guard of the application that runs; it raises where the lifespan has not.
        options: The rules of the route.
    """

    scopes = (ScopeType.HTTP,)

    def __init__(self, guard: Callable[[], RequestGuard], options: IdempotencyOptions) -> None:
        self._guard = guard
        self._options = options

    async def handle(self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp) -> None:
        """Run, replay or refuse one request."""
        handler = cast("HTTPRouteHandler", scope["route_handler"])
        body = _Body(receive)

        async def authorize() -> None:
            request = handler.resolve_request_class()(scope, receive=body.again, send=send)
            await handler.authorize_connection(connection=request)

        async def execute(inner_scope: Any, inner_receive: Any, inner_send: Any) -> None:
            await _execute(inner_scope, inner_receive, inner_send, next_app)

        await self._guard().handle(
            cast("Any", scope),
            cast("Any", body.receive),
            cast("Any", send),
            execute,
            options=self._options,
            authorize=authorize if handler.resolve_guards() else None,
        )


@final
class _Body:
    """
    Keeps the messages of the body, for the route's guards to read it once more.

    A guard that looks into the body would otherwise wait for messages that were read for the fingerprint.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._seen: list[ReceiveMessage] = []
        self._given = 0

    async def receive(self) -> ReceiveMessage:
        message = await self._receive()
        if message["type"] == "http.request":
            self._seen.append(message)
        return message

    async def again(self) -> ReceiveMessage:
        if self._given < len(self._seen):
            self._given += 1
            return self._seen[self._given - 1]
        return await self._receive()


async def _execute(scope: Scope, receive: Receive, send: Send, next_app: ASGIApp) -> None:
    context = scope["state"].get(CONTEXT_KEY)
    run = Run(context if isinstance(context, IdempotencyContext) else None)

    async def tell_and_send(message: Message) -> None:
        if message["type"] == "http.response.start":
            run.tell()
        await send(message)

    token = current_run.set(run)
    try:
        await next_app(scope, receive, tell_and_send)
    except BaseException:
        run.tell()
        raise
    finally:
        current_run.reset(token)


def protect(handler: HTTPRouteHandler, middleware: GuardRequests) -> bool:
    """
    Put *middleware* around a handler, and have its calls noted.

    Returns:
        Whether it was done now. A handler is registered anew when its path gets another method, and done once.
    """
    standing = list(handler.middleware or [])
    if any(isinstance(one, GuardRequests) for one in standing):
        return False
    handler.middleware = [*standing, middleware]
    # Not handler(...), which would warn of the missing sync_to_thread once more.
    BaseRouteHandler.__call__(handler, noticed(handler.fn))
    return True
