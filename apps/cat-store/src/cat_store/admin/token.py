"""Who is an administrator: whoever sends the token. What administrators did is written down."""

import hashlib
import hmac
import logging
from typing import Final, cast, final

from litestar.enums import ScopeType
from litestar.middleware import ASGIMiddleware
from litestar.types import ASGIApp, HTTPScope, Message, Receive, Scope, Send

from cat_store.web.problems import problem

__all__ = ["ADMIN_TOKEN", "AdministratorsOnly"]

ADMIN_TOKEN: Final = "X-Admin-Token"  # noqa: S105 -- the name of a header
"""The header that carries the token."""

_NAME: Final = ADMIN_TOKEN.lower().encode()
_READING: Final = frozenset({"GET", "HEAD"})

logger: Final = logging.getLogger(__name__)


@final
class AdministratorsOnly(ASGIMiddleware):
    """
    Answers 403 to everybody who does not send the token; where there is none, to everybody.

    A middleware and not a guard of the route: who is no administrator is told so before anything else is looked at, the
    idempotency key among it.

    Each request of an administrator that may change something is a line of the log: what was asked for, of which job,
    from which address, and with which status it was answered. The address is that of whoever is connected, so behind a
    proxy it is the proxy's, unless the web server is told to trust it.

    Args:
        token: The token; None where nobody is an administrator.
    """

    scopes = (ScopeType.HTTP,)

    def __init__(self, token: str | None) -> None:
        self._digest: Final = None if token is None else _digest(token.encode())

    async def handle(self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp) -> None:
        """Let administrators through."""
        sent = [value for name, value in scope["headers"] if name == _NAME]
        # Of digests, in a time that depends neither on how much of the token was guessed nor on its length.
        if self._digest is None or len(sent) != 1 or not hmac.compare_digest(_digest(sent[0]), self._digest):
            raise problem(403, "administrators-only", f"Send the administrators' token in {ADMIN_TOKEN}.")
        request = cast("HTTPScope", scope)  # of no other kind, by `scopes`
        if request["method"] in _READING:
            await next_app(scope, receive, send)
            return
        status = 500  # of an error that somebody outside answers

        async def note_and_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await next_app(scope, receive, note_and_send)
        except Exception as error:
            status = getattr(error, "status_code", status)
            raise
        finally:
            _write_down(request, status)


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


def _write_down(request: HTTPScope, status: int) -> None:
    """Log one action. Whatever the client chose, such as the name of a job, is a field and is quoted in the text."""
    action = request["route_handler"].handler_name.rpartition(".")[2]
    job = request["path_params"].get("name")
    client = request["client"][0] if request["client"] else None
    logger.info(
        "An administrator asked for %s%s, from %s: answered with %d",
        action,
        "" if job is None else f" of {job!r}",
        client or "an unknown address",
        status,
        extra={"event": "admin.action", "action": action, "job": job, "client": client, "status": status},
    )
