"""The middleware: plain ASGI, around any application."""

from collections.abc import Callable
from typing import Final, final

from tenure.errors import ConfigurationError
from tenure.ext.asgi._guard import DEFAULT_NAMESPACE, DEFAULT_PROBLEM_BASE, RequestGuard
from tenure.ext.asgi._options import IdempotencyOptions, Principal, Unscoped
from tenure.ext.asgi._quota import ClientQuota
from tenure.ext.asgi._types import ASGIApp, Receive, Scope, Send
from tenure.idempotency import Idempotency

__all__ = ["IdempotencyMiddleware"]

_DEFAULTS: Final = IdempotencyOptions()


@final
class IdempotencyMiddleware:
    """
    Carries out once what a client sends twice under one Idempotency-Key, and sends each repeat the first response.

        idempotency = Idempotency(PostgresIdempotencyStore(engine))
        app = IdempotencyMiddleware(app, idempotency=idempotency, principal=lambda scope: str(scope["user"].id))

    With Starlette and FastAPI: `app.add_middleware(IdempotencyMiddleware, idempotency=..., principal=...)`. Enter the
    `Idempotency` in the application's lifespan.

    Put it **inside** authentication (the principal must be known) and inside CORS, compression and rate limits (what
    they add is one request's and is not replayed), and **outside** of what has the effect. A CORS layer shows the mark
    of a replay to scripts if its exposed headers name `Idempotent-Replayed`. Whatever answers inside of it before the
    handler does, with a 4xx, is taken for the outcome.

    **Handlers that call something outside: read `IdempotencyOptions.on_failure` first.** The default takes a failed
    request for one without an effect. After an external call an exception should be `abandon`.

    What becomes of a response: 2xx, 3xx and 4xx are stored and replayed, but 307, 308, 401, 403, 407, 408, 409, 423,
    425 and 429 free the key; 5xx and exceptions as `on_failure` says. A success whose response cannot be stored (too
    long, cut off, a file by its path) leaves a tombstone: repeats get 409 `response-not-stored`, and nothing runs
    again. A cancellation leaves the outcome unknown. A request with a key finds its `IdempotencyContext` as
    `scope["state"]["idempotency"]` (Starlette: `request.state.idempotency`); one without has none.

    Streams reach their client as they come; only the end of a response waits for its record.

    Args:
        app: What is protected.
        idempotency: The engine.
        principal: Whom a request belongs to, or `UNSCOPED`. There is no default: a scope that is shared by accident
            shows one client's responses to another.
        options: The rules, or a function that gives them for a scope (None: pass untouched).
        namespace: Tells this API's keys from those of others that use the same store.
        problem_base: What a problem's code is appended to for its type.
        quota: What each principal may have, or None. There is no number that fits all: without one, a client that may
            send requests may fill the store, unless something outside limits it.

    Raises:
        ConfigurationError: An argument that cannot work.
    """

    def __init__(  # noqa: PLR0913 -- named, and most with a default
        self,
        app: ASGIApp,
        *,
        idempotency: Idempotency,
        principal: Principal | Unscoped,
        options: IdempotencyOptions | Callable[[Scope], IdempotencyOptions | None] = _DEFAULTS,
        namespace: str = DEFAULT_NAMESPACE,
        problem_base: str = DEFAULT_PROBLEM_BASE,
        quota: ClientQuota | None = None,
    ) -> None:
        if not isinstance(options, IdempotencyOptions) and not callable(options):
            raise ConfigurationError("options is an IdempotencyOptions, or a function of the scope that gives one.")
        self.app = app
        self._options = options
        self._guard = RequestGuard(
            idempotency, principal=principal, namespace=namespace, problem_base=problem_base, quota=quota
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; websockets and the lifespan pass untouched."""
        options = self._rules(scope)
        if options is None:
            await self.app(scope, receive, send)
        else:
            await self._guard.handle(scope, receive, send, self.app, options=options)

    def _rules(self, scope: Scope) -> IdempotencyOptions | None:
        if scope["type"] != "http":
            return None
        return self._options if isinstance(self._options, IdempotencyOptions) else self._options(scope)
