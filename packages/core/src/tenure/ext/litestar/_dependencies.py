"""What handlers are given: the `Locks`, the `Idempotency`, and the context of the request's own execution."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from litestar.config.app import AppConfig
from litestar.di import Provide
from litestar.handlers import HTTPRouteHandler
from litestar.types import Scope

from tenure.errors import ConfigurationError
from tenure.ext.asgi import CONTEXT_KEY, IdempotencyOptions
from tenure.ext.litestar._running import Running
from tenure.idempotency import Idempotency, IdempotencyContext
from tenure.locks import Locks

__all__ = ["add", "providers", "refuse_impossible_context", "refuse_replaced"]

_TYPES: Final = {"Locks": Locks, "Idempotency": Idempotency, "IdempotencyContext": IdempotencyContext}
"""For handlers whose annotations are text, as under `from __future__ import annotations`."""


def providers(
    running: Running, *, locks: str | None, idempotency: str | None, context: str | None
) -> dict[str, Provide]:
    """Make the dependencies, under the names given; None leaves one out."""
    functions: dict[str | None, Callable[..., Any]] = {
        locks: running.the_locks,
        idempotency: running.the_idempotency,
        context: _context_of(context),
    }
    return {name: Provide(function, sync_to_thread=False) for name, function in functions.items() if name is not None}


def add(app_config: AppConfig, ours: Mapping[str, Provide]) -> None:
    """
    Add the dependencies and the types that their annotations name.

    Raises:
        ConfigurationError: The application has one of the same name.
    """
    for name, provide in ours.items():
        if name in app_config.dependencies:
            raise ConfigurationError(_taken(name))
        app_config.dependencies[name] = provide
    for name, kind in _TYPES.items():
        app_config.signature_namespace.setdefault(name, kind)


def refuse_replaced(app_config: AppConfig, ours: Mapping[str, Provide]) -> None:
    """
    Refuse plugins that took a name of ours after us: handlers would be given something else.

    Raises:
        ConfigurationError: One did.
    """
    for name, provide in ours.items():
        if app_config.dependencies.get(name) is not provide:
            raise ConfigurationError(_taken(name))


def _taken(name: str) -> str:
    return (
        f'The application has a dependency "{name}" of its own, and TenurePlugin would replace it: rename one, with '
        "locks_key=, idempotency_key= or context_key= of the plugin."
    )


def _context_of(name: str | None) -> Callable[..., Any]:
    def provide_context(scope: Scope) -> IdempotencyContext | None:
        context = scope.get("state", {}).get(CONTEXT_KEY)
        if isinstance(context, IdempotencyContext):
            return context
        handler: Any = scope["route_handler"]
        assert name is not None
        if _needed_by(handler, name):
            raise ConfigurationError(
                f'{handler} asks for "{name}", and this request has no execution: it came without an idempotency key, '
                "or with a method that is not protected. " + _remedy(name)
            )
        return None

    return provide_context


def refuse_impossible_context(handler: HTTPRouteHandler, name: str, options: IdempotencyOptions | None) -> None:
    """
    Refuse a handler that asks for the context on a route where a request may have none.

    It would fail with 500 for the first client that sends no key.

    Raises:
        ConfigurationError: It does.
    """
    if (options is None or not options.required) and _needed_by(handler, name):
        state = "is not idempotent" if options is None else "takes requests without an idempotency key"
        raise ConfigurationError(f'{handler} asks for "{name}", and its route {state}. ' + _remedy(name))


def _remedy(name: str) -> str:
    return (
        'Require the key with opt={"idempotency": {"required": True}}, or annotate '
        f'"{name}: IdempotencyContext | None" and look whether there is one.'
    )


def _needed_by(handler: HTTPRouteHandler, name: str) -> bool:
    """Whether the handler, or a dependency that it uses, takes the context and does not take None for it."""
    return any(
        name in parameters and not parameters[name].is_optional and not parameters[name].has_default
        for parameters in _signatures(handler)
    )


def _signatures(handler: HTTPRouteHandler) -> Iterator[Mapping[str, Any]]:
    """Go through the parameters of the handler, and of the dependencies that it reaches."""
    dependencies = handler.resolve_dependencies()
    todo = [handler.parsed_fn_signature]
    seen: set[str] = set()
    while todo:
        parameters = todo.pop().parameters
        yield parameters
        for reached in parameters.keys() & dependencies.keys() - seen:
            seen.add(reached)
            todo.append(dependencies[reached].parsed_fn_signature)
