"""Who is an administrator: whoever sends the token."""

import hmac
from typing import Final, final

from litestar.enums import ScopeType
from litestar.middleware import ASGIMiddleware
from litestar.types import ASGIApp, Receive, Scope, Send

from cat_store.web.problems import problem

__all__ = ["ADMIN_TOKEN", "AdministratorsOnly"]

ADMIN_TOKEN: Final = "X-Admin-Token"  # noqa: S105 -- the name of a header
"""The header that carries the token."""

_NAME: Final = ADMIN_TOKEN.lower().encode()


@final
class AdministratorsOnly(ASGIMiddleware):
    """
    Answers 403 to everybody who does not send the token; where there is none, to everybody.

    A middleware and not a guard of the route: who is no administrator is told so before anything else is looked at, the
    idempotency key among it.

    Args:
        token: The token; None where nobody is an administrator.
    """

    scopes = (ScopeType.HTTP,)

    def __init__(self, token: str | None) -> None:
        self._token: Final = None if token is None else token.encode()

    async def handle(self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp) -> None:
        """Let administrators through."""
        sent = [value for name, value in scope["headers"] if name == _NAME]
        # In a time that does not depend on how much of the token was guessed.
        if self._token is None or len(sent) != 1 or not hmac.compare_digest(sent[0], self._token):
            raise problem(403, "administrators-only", f"Send the administrators' token in {ADMIN_TOKEN}.")
        await next_app(scope, receive, send)
