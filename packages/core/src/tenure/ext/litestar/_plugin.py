"""The plugin: locks and idempotency of a Litestar application."""

from collections.abc import Callable, Sequence
from typing import final

from litestar.config.app import AppConfig
from litestar.plugins import InitPlugin, ReceiveRoutePlugin
from litestar.routes import BaseRoute

from tenure.errors import ConfigurationError
from tenure.ext.asgi import (
    DEFAULT_NAMESPACE,
    DEFAULT_PROBLEM_BASE,
    ClientQuota,
    IdempotencyOptions,
    Principal,
    RequestGuard,
    Unscoped,
)
from tenure.ext.litestar import _dependencies
from tenure.ext.litestar._ambient import AmbientLocks
from tenure.ext.litestar._commits import watch_commits
from tenure.ext.litestar._health import Health, health_route
from tenure.ext.litestar._options import Protect
from tenure.ext.litestar._placement import move_in_front, refuse_later_owners
from tenure.ext.litestar._problems import exception_handlers
from tenure.ext.litestar._routes import Protection, Routes, refuse_unprotected
from tenure.ext.litestar._running import Running
from tenure.ext.litestar._sources import IdempotencySource, LocksSource, Source
from tenure.idempotency import Idempotency
from tenure.locks import Locks

__all__ = ["TenurePlugin"]


@final
class TenurePlugin(InitPlugin):
    """
    Locks and idempotency for a Litestar application.

        app = Litestar(
            route_handlers=[...],
            plugins=[
                SQLAlchemyPlugin(config=alchemy),
                TenurePlugin(
                    locks=lambda: Locks(PostgresLockStore(alchemy.get_engine())),
                    idempotency=lambda: Idempotency(PostgresIdempotencyStore(alchemy.get_engine())),
                    principal=lambda scope: scope["user"].id,
                ),
            ],
        )

    The two are entered by the application's lifespan, after what is listed before (list the plugin after the one that
    owns the database) and left before it. Handlers are given `locks: Locks` and `idempotency: Idempotency`; jobs and
    `@locked` functions that they call find the same `Locks` by themselves, in background tasks too.

    A route is protected by `opt={"idempotency": True}` at its handler, controller, router or application, by
    `IdempotencyOptions`, or by a dict of what differs. Its handler may take `idempotency_context: IdempotencyContext`.
    The route's guards are asked before the store is, so that no replay goes to whom the route refuses; on a first
    execution they are asked twice. Such a route is not compressed by Litestar, for a replay is read by another client.

    Args:
        locks: A `Locks`, settings of one, or a callable that makes one at each start of the application. The callable
            may take the application.
        idempotency: The same for an `Idempotency`.
        principal: Whom a request belongs to, from its scope, after authentication. Needed with `idempotency`, for
            without it one client reads what another one did; `UNSCOPED` waives it by name.
        options: The rules of a protected route that says nothing else.
        protect: "opted" protects the routes that say so. "all" protects every route whose methods the options name, but
            those with `opt={"idempotency": False}`. Keys are optional on them unless the options require them.
        namespace: What sets the keys of this application apart from those of another one on the same store.
        problem_base: What stands before the code in the type of a problem of idempotency: a URL of your documentation,
            or a URN.
        quota: What each principal may have under keys on this instance, over all routes; None: what comes is carried
            out. OpenAPI has its 429 where there is one.
        problem_details: Whether errors of tenure that a handler raises are answered as problem details: a lock that is
            held 409, a lease that was lost or a store that does not answer 503. Your own handlers of them stay.
        health_path: Where the state of both is told: 200 where this instance may take work, else 503. None: nowhere.
        health_in_schema: Whether that route is part of OpenAPI.
        locks_key: The name of the dependency.
        idempotency_key: The same.
        context_key: The name of the dependency that gives the request's `IdempotencyContext`.
        after: Types of further plugins that own a client which the stores use: this plugin refuses to be listed before
            them. Those of advanced-alchemy are known.

    Raises:
        ConfigurationError: There is nothing to run with, or the principal is missing. When the application is made:
            the plugin is listed before a plugin that owns its database; a dependency of the same name exists; a route's
            `opt` cannot be read; or a handler asks for a context that it may not have.
        LeaseStateError: When the application starts: an instance was entered before. Pass a callable.
    """

    def __init__(  # noqa: PLR0913 -- all have defaults, and are given by name
        self,
        *,
        locks: LocksSource | None = None,
        idempotency: IdempotencySource | None = None,
        principal: Principal | Unscoped | None = None,
        options: IdempotencyOptions | None = None,
        protect: Protect = "opted",
        namespace: str = DEFAULT_NAMESPACE,
        problem_base: str = DEFAULT_PROBLEM_BASE,
        quota: ClientQuota | None = None,
        problem_details: bool = False,
        health_path: str | None = None,
        health_in_schema: bool = False,
        locks_key: str = "locks",
        idempotency_key: str = "idempotency",
        context_key: str = "idempotency_context",
        after: Sequence[type] = (),
    ) -> None:
        if locks is None and idempotency is None:
            raise ConfigurationError("TenurePlugin has nothing to run with: pass locks=, idempotency=, or both.")
        if idempotency is not None and principal is None:
            raise ConfigurationError(
                "TenurePlugin(idempotency=...) needs principal=, a function of the scope that names whom a request "
                "belongs to: without it one client reads the stored responses of another. Where all clients are one, "
                "waive it by name: principal=UNSCOPED (from tenure.ext.asgi)."
            )
        if protect not in ("opted", "all"):
            raise ConfigurationError(f'protect is {protect!r}: it is "opted" or "all".')
        self._locks = None if locks is None else Source(Locks, locks)
        self._idempotency = None if idempotency is None else Source(Idempotency, idempotency)
        self._principal = principal
        self._options = options or IdempotencyOptions()
        self._protect: Protect = protect
        self._namespace = namespace
        self._problem_base = problem_base
        self._quota = quota
        self._problem_details = problem_details
        self._health_path = health_path
        self._health_in_schema = health_in_schema
        self._locks_key = locks_key
        self._idempotency_key = idempotency_key
        self._context_key = context_key
        self._after = tuple(after)

    def on_app_init(self, app_config: AppConfig) -> AppConfig:
        """Add what one application runs with. The plugin itself keeps nothing: several applications may have it."""
        owned = refuse_later_owners(app_config.plugins, self, self._after)
        running = Running(self._locks, self._idempotency)
        app_config.lifespan.append(running.lifespan)
        if self._locks is not None:
            app_config.middleware.insert(0, AmbientLocks(running))
        dependencies = _dependencies.providers(
            running,
            locks=self._locks_key if self._locks else None,
            idempotency=self._idempotency_key if self._idempotency else None,
            context=self._context_key if self._idempotency else None,
        )
        _dependencies.add(app_config, dependencies)
        if self._problem_details:
            for error, handler in exception_handlers(self._problem_base).items():
                app_config.exception_handlers.setdefault(error, handler)
        if self._health_path is not None:
            health = Health(running, locks=self._locks is not None, idempotency=self._idempotency is not None)
            app_config.route_handlers.append(health_route(self._health_path, health, in_schema=self._health_in_schema))
        routes = Routes(self._protection(running)) if self._idempotency else None

        def finish(complete: AppConfig) -> None:
            move_in_front(complete.lifespan, running.lifespan, owned)
            _dependencies.refuse_replaced(complete, dependencies)
            if routes is not None:
                watch_commits(complete, owned)
                if complete.compression_config is not None:
                    complete.compression_config = routes.leave_uncompressed(complete.compression_config)

        app_config.plugins.append(_Rest(finish, routes.receive if routes else refuse_unprotected))
        return app_config

    def _protection(self, running: Running) -> Protection:
        principal = self._principal
        assert principal is not None

        def make(idempotency: Idempotency) -> RequestGuard:
            return RequestGuard(
                idempotency,
                principal=principal,
                namespace=self._namespace,
                problem_base=self._problem_base,
                quota=self._quota,
            )

        running.when_started(make)
        return Protection(
            guard=running.the_guard,
            defaults=self._options,
            protect=self._protect,
            problem_base=self._problem_base,
            limited=self._quota is not None,
            context_key=self._context_key,
        )


@final
class _Rest(InitPlugin, ReceiveRoutePlugin):
    """
    What is to be done when every plugin that is listed has had its turn, and with each route after that.

    `SQLAlchemyPlugin` adds a second plugin behind all that are listed, which owns the engine; this one comes behind it.
    """

    def __init__(self, finish: Callable[[AppConfig], None], receive: Callable[[BaseRoute], None]) -> None:
        self._finish = finish
        self._receive = receive

    def on_app_init(self, app_config: AppConfig) -> AppConfig:
        self._finish(app_config)
        return app_config

    def receive_route(self, route: BaseRoute) -> None:
        self._receive(route)
