"""The plugin: what one application runs with, and how it is put into it."""

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any, final

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Receive, Scope, Send

from tenure.errors import ConfigurationError, LeaseStateError
from tenure.ext._sources import IdempotencySource, LocksSource, check_source, opened
from tenure.ext.asgi import (
    DEFAULT_NAMESPACE,
    DEFAULT_PROBLEM_BASE,
    ClientQuota,
    IdempotencyOptions,
    Principal,
    RequestGuard,
    Unscoped,
)
from tenure.ext.starlette._problems import exception_handlers
from tenure.ext.starlette._running import RUNNING, Running
from tenure.idempotency import Idempotency
from tenure.locks import Locks, ambient

__all__ = ["TenurePlugin", "in_order"]

_Lifespan = Callable[[Any], AbstractAsyncContextManager[Any]]
_Rules = IdempotencyOptions | Callable[[Any], IdempotencyOptions | None]


@final
class TenurePlugin:
    """
    Locks and idempotency for a Starlette or FastAPI application.

        plugin = TenurePlugin(
            locks=lambda app: Locks(PostgresLockStore(app.state.engine)),
            idempotency=lambda app: Idempotency(PostgresIdempotencyStore(app.state.engine)),
            principal=lambda scope: scope["user"].id,
        )
        app = FastAPI(lifespan=in_order(open_engine, plugin.lifespan, run_scheduler))
        plugin.install(app)

    Handlers get them from the dependencies `get_locks` and `get_idempotency`; jobs and `@locked` functions that they
    call find the same `Locks` by themselves, in background tasks and in applications that are mounted inside, too.

    Args:
        locks: A store's URL, settings, or a callable that makes a `Locks` at each start of the application. The
            callable may take the application. A `Locks` itself serves one start.
        idempotency: The same for an `Idempotency`, without settings.
        principal: Whom a request belongs to, from its scope, after authentication. Needed with `idempotency`, for
            without it one client reads what another one did; `UNSCOPED` waives it by name.
        options: The rules of protected requests, or a function that gives them for a scope (None: not protected).
        namespace: What sets the keys of this application apart from those of another one on the same store.
        problem_base: What stands before the code in the type of a problem of idempotency: a URL of your documentation,
            or a URN.
        quota: What each principal may have under keys on this instance, over all routes; None: what comes is carried
            out.
        problem_details: Whether errors of tenure that a handler raises are answered as problem details: a lock that is
            held 409, a lease that was lost or a store that does not answer 503. Your own handlers of them stay.

    Raises:
        ConfigurationError: There is nothing to run with, the principal is missing, or something makes no `Locks`.
    """

    def __init__(  # noqa: PLR0913 -- all have defaults, and are given by name
        self,
        *,
        locks: LocksSource | None = None,
        idempotency: IdempotencySource | None = None,
        principal: Principal | Unscoped | None = None,
        options: _Rules | None = None,
        namespace: str = DEFAULT_NAMESPACE,
        problem_base: str = DEFAULT_PROBLEM_BASE,
        quota: ClientQuota | None = None,
        problem_details: bool = True,
    ) -> None:
        if locks is None and idempotency is None:
            raise ConfigurationError("TenurePlugin has nothing to run with: pass locks=, idempotency=, or both.")
        if idempotency is not None and principal is None:
            raise ConfigurationError(
                "TenurePlugin(idempotency=...) needs principal=, a function of the scope that names whom a request "
                "belongs to: without it one client reads the stored responses of another. Where all clients are one, "
                "waive it by name: principal=UNSCOPED."
            )
        for kind, given in ((Locks, locks), (Idempotency, idempotency)):
            if given is not None:
                check_source(kind, given)
        self._locks = locks
        self._idempotency = idempotency
        self._guard_settings: dict[str, Any] = {
            "principal": principal,
            "namespace": namespace,
            "problem_base": problem_base,
            "quota": quota,
        }
        self._options: _Rules = options or IdempotencyOptions()
        self._problem_base = problem_base
        self._problem_details = problem_details
        self._running = Running()
        self._entered = False

    @contextlib.asynccontextmanager
    async def lifespan(self, app: Any = None) -> AsyncIterator[None]:
        """
        Enter what the application runs with, and leave it: the lifespan to give to the application.

        With a lifespan of your own, `in_order(yours, plugin.lifespan)`, or `async with plugin.lifespan(app):` inside of
        yours. Clients that the stores use are opened before it; what works under the locks is started after it.

        Raises:
            LeaseStateError: An instance was entered before, or the application is running.
            ConfigurationError: As `Locks` when it is entered, and where a callable returned something else.
        """
        if self._entered:
            raise LeaseStateError("This application is running already: its lifespan was entered, and not left.")
        self._entered = True
        try:
            async with AsyncExitStack() as left:
                # The Idempotency is left last of the two: a guarded body that ends while the locks are handed back may
                # still store what came of it.
                if self._idempotency is not None:
                    entered = await left.enter_async_context(opened(Idempotency, self._idempotency, app))
                    self._running.idempotency = entered
                    self._running.guard = RequestGuard(entered, **self._guard_settings)
                if self._locks is not None:
                    self._running.locks = await left.enter_async_context(opened(Locks, self._locks, app))
                yield
        finally:
            self._entered = False

    def install(self, app: Starlette) -> None:
        """
        Put it into *app*, before its first request; its lifespan is given to the application when that is made.

        The protection of requests goes inside of all middleware that the application has or gets: inside of
        authentication, CORS and compression, as it has to be. Middleware that has an effect of its own, such as one
        that commits, is then outside of it: leave `idempotency` out, and add `IdempotencyMiddleware` where it belongs.

        Raises:
            LeaseStateError: The application has been started.
        """
        if app.middleware_stack is not None:
            raise LeaseStateError("This application has been started: call plugin.install(app) where it is made.")
        app.user_middleware.insert(0, Middleware(_Outermost, running=self._running))
        if self._idempotency is not None:
            app.user_middleware.append(Middleware(_Innermost, running=self._running, options=self._options))
        if self._problem_details:
            for error, handler in exception_handlers(self._problem_base).items():
                app.exception_handlers.setdefault(error, handler)

    @property
    def locks(self) -> Locks:
        """
        The `Locks` of the running application, for code without a request.

        Raises:
            LeaseStateError: The application was not started.
        """
        return self._running.the_locks()

    @property
    def idempotency(self) -> Idempotency:
        """
        The `Idempotency` of the running application, for code without a request.

        Raises:
            LeaseStateError: The application was not started.
        """
        return self._running.the_idempotency()


def in_order(*lifespans: _Lifespan) -> _Lifespan:
    """
    Make one lifespan of several: entered in their order, and left in the opposite one. What they yield is put together.

        app = FastAPI(lifespan=in_order(open_engine, plugin.lifespan, run_scheduler))
    """

    @contextlib.asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[Mapping[str, Any] | None]:
        state: dict[str, Any] = {}
        async with AsyncExitStack() as left:
            for one in lifespans:
                state.update(await left.enter_async_context(one(app)) or {})
            # Not an empty one: a server without support for state would refuse it.
            yield state or None

    return lifespan


@final
class _Outermost:
    """
    Shows each request what its application runs with.

    A request runs in another context than the lifespan. With one `Locks` a process that is no matter; with two, the one
    that is meant is that of the application that was asked.
    """

    def __init__(self, app: ASGIApp, running: Running) -> None:
        self._app = app
        self._running = running

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        scope[RUNNING] = self._running
        # Not enter() and leave(): the Locks was entered by the lifespan, and stays so when this request ends.
        locks = self._running.locks
        with contextlib.nullcontext() if locks is None else ambient.within(locks):
            await self._app(scope, receive, send)


@final
class _Innermost:
    """Has a request under an idempotency key carried out once. `IdempotencyMiddleware`, with what each start makes."""

    def __init__(self, app: ASGIApp, running: Running, options: _Rules) -> None:
        self._app = app
        self._running = running
        self._options = options

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        options: IdempotencyOptions | None = None
        if scope["type"] == "http":
            options = self._options if isinstance(self._options, IdempotencyOptions) else self._options(scope)
        if options is None:
            await self._app(scope, receive, send)
        else:
            await self._running.the_guard().handle(scope, receive, send, self._app, options=options)
