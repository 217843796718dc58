"""The routes of one application, as Litestar registers them: which are protected, and by what rules."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, final

from litestar.config.compression import CompressionConfig
from litestar.handlers import HTTPRouteHandler
from litestar.routes import BaseRoute, HTTPRoute

from tenure.errors import ConfigurationError
from tenure.ext.asgi import IdempotencyOptions, RequestGuard
from tenure.ext.litestar._dependencies import refuse_impossible_context
from tenure.ext.litestar._guarded import GuardRequests, protect
from tenure.ext.litestar._openapi import document
from tenure.ext.litestar._options import OPT, Protect, options_of

__all__ = ["UNCOMPRESSED", "Protection", "Routes", "refuse_unprotected"]

UNCOMPRESSED: Final = "exclude_from_compression"
"""The key in `opt` that keeps Litestar's compression off a route, where the application chose none."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Protection:
    """
    How an application protects its routes.

    Attributes:
        guard: Returns the guard of the application that runs.
        defaults: The rules of a route that says no more than True.
        protect: Which routes are protected.
        problem_base: What stands before the code of a problem.
        limited: Whether clients have a quota.
        context_key: The name of the dependency that gives the execution's context.
    """

    guard: Callable[[], RequestGuard]
    defaults: IdempotencyOptions
    protect: Protect
    problem_base: str
    limited: bool
    context_key: str


@final
class Routes:
    """
    Protects routes as they are registered, at the start and later.

    Args:
        protection: How.
    """

    def __init__(self, protection: Protection) -> None:
        self._how = protection
        self._uncompressed = UNCOMPRESSED

    def leave_uncompressed(self, config: CompressionConfig) -> CompressionConfig:
        """
        Have compression look for the `opt` of protected routes.

        Returns:
            The settings to use: a copy where the application chose no key of its own.
        """
        if config.exclude_opt_key is None:
            return replace(config, exclude_opt_key=UNCOMPRESSED)
        self._uncompressed = config.exclude_opt_key
        return config

    def receive(self, route: BaseRoute) -> None:
        """
        Protect what is to be protected.

        Raises:
            ConfigurationError: A route's `opt` cannot be read, or a handler asks for a context that it may not have.
        """
        if not isinstance(route, HTTPRoute):
            return
        for handler in route.route_handlers:
            options = self._options_of(handler, route.path)
            refuse_impossible_context(handler, self._how.context_key, options)
            if options is not None and protect(handler, GuardRequests(self._how.guard, options)):
                handler.opt[self._uncompressed] = True
                document(handler, options, self._how.problem_base, limited=self._how.limited)

    def _options_of(self, handler: HTTPRouteHandler, path: str) -> IdempotencyOptions | None:
        return options_of(
            [layer.opt or {} for layer in handler.ownership_layers],
            handler.http_methods,
            self._how.defaults,
            protect=self._how.protect,
            route=f"{'/'.join(sorted(handler.http_methods))} {path}",
        )


def refuse_unprotected(route: BaseRoute) -> None:
    """
    Refuse a route that asks for protection where the plugin has none to give.

    Raises:
        ConfigurationError: It does. Left alone it would run twice what comes twice, and look as if it did not.
    """
    if isinstance(route, HTTPRoute):
        for handler in route.route_handlers:
            if handler.opt.get(OPT, False) is not False:
                raise ConfigurationError(
                    f'{route.path} asks for idempotency in its opt["{OPT}"], and TenurePlugin was given none: pass '
                    "TenurePlugin(idempotency=..., principal=...)."
                )
