"""The scope of what runs inside, and what the layers outside get to see of it."""

from typing import Any, Final, final

from tenure.ext.asgi._headers import without
from tenure.ext.asgi._types import Scope
from tenure.idempotency import IdempotencyContext

__all__ = ["CONTEXT_KEY", "InnerScope", "is_executed"]

CONTEXT_KEY: Final = "idempotency"
"""Under which name `scope["state"]` holds the `IdempotencyContext` while a request is executed."""


def is_executed(scope: Scope) -> bool:
    """Whether *scope* is that of a request which is executed under its key already."""
    return isinstance((scope.get("state") or {}).get(CONTEXT_KEY), IdempotencyContext)


_UNSTORABLE: Final = frozenset(
    {
        "http.response.debug",
        "http.response.early_hint",
        "http.response.pathsend",
        "http.response.push",
        "http.response.trailers",
        "http.response.zerocopysend",
    }
)
"""Extensions whose messages are no part of a response that can be stored. Not offered, frameworks do without."""

_OURS: Final = frozenset({"headers", "extensions", "state"})


@final
class InnerScope:
    """
    A copy of a request's scope for what runs inside, as ASGI asks of a middleware.

    The accept-encoding is left out, so that what is stored was compressed for nobody in particular; a layer outside
    still compresses for the client at hand. The state is a copy as well: a server that shares it among the requests of
    a connection would otherwise hand one request the context of another.

    Attributes:
        scope: The copy.
    """

    def __init__(self, outer: Scope, context: IdempotencyContext) -> None:
        self._outer = outer
        self.scope: dict[str, Any] = {
            **outer,
            "headers": without(outer["headers"], b"accept-encoding"),
            "state": {**(outer.get("state") or {}), CONTEXT_KEY: context},
        }
        offered = outer.get("extensions")
        if offered is not None:
            self.scope["extensions"] = {name: value for name, value in offered.items() if name not in _UNSTORABLE}

    def publish(self) -> None:
        """
        Let the layers outside see what was put into the scope inside: the matched route, or the session that a hook
        around `send` commits. Called before each message, for such hooks look there.
        """
        for name, value in self.scope.items():
            if name not in _OURS:
                self._outer[name] = value
        for name, value in self.scope.get("state", {}).items():
            if name != CONTEXT_KEY:
                self._outer.setdefault("state", {})[name] = value
