"""The application's `Locks` as the ambient one of its requests, however many applications a process runs."""

from typing import final

from litestar.middleware import ASGIMiddleware
from litestar.types import ASGIApp, Receive, Scope, Send

from tenure.ext.litestar._running import Running
from tenure.locks import ambient

__all__ = ["AmbientLocks"]


@final
class AmbientLocks(ASGIMiddleware):
    """
    Makes jobs and `@locked` functions that a request calls find this application's `Locks`.

    A request runs in another context than the lifespan. With one `Locks` a process that is no matter; with two, the
    one that is meant is that of the application that was asked. Background tasks run inside of it too.

    Args:
        running: What the application runs with.
    """

    def __init__(self, running: Running) -> None:
        self._running = running

    async def handle(self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp) -> None:
        """Call the next application under the ambient `Locks`."""
        # Not enter() and leave(): the Locks was entered by the lifespan, and stays so when this request ends.
        with ambient.within(self._running.locks):
            await next_app(scope, receive, send)
