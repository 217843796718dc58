"""Where a host program's `Locks` and `Idempotency` come from: a URL, settings, an instance, or a callable."""

import contextlib
import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from tenure.config import TenureConfig, open_idempotency_store
from tenure.errors import ConfigurationError, LeaseStateError
from tenure.idempotency import Idempotency
from tenure.locks import Locks, Phase

__all__ = ["IdempotencySource", "LocksSource", "check_source", "opened"]

LocksSource = str | TenureConfig | Locks | Callable[..., AbstractAsyncContextManager[Locks]]
"""
A store's URL; settings; a `Locks`; or a callable that makes one at each start. The callable may take the host, and may
return any asynchronous context manager that gives a `Locks`: a `Locks` is one.
"""

IdempotencySource = str | Idempotency | Callable[..., AbstractAsyncContextManager[Idempotency]]
"""The same for an `Idempotency`."""

_T = TypeVar("_T", Locks, Idempotency)


def check_source(kind: type[Any], given: object) -> None:
    """
    Refuse what makes no *kind*, where it is written.

    Raises:
        ConfigurationError: It does not.
    """
    settings = kind is Locks and isinstance(given, TenureConfig)
    if not isinstance(given, str | kind) and not callable(given) and not settings:
        raise ConfigurationError(
            f"A {type(given).__name__} makes no {kind.__name__}: pass the store's URL, or a callable that returns one, "
            f"such as `lambda: {kind.__name__}(store)`."
        )


@contextlib.asynccontextmanager
async def opened(kind: type[_T], given: object, host: object) -> AsyncIterator[_T]:
    """
    Enter what *given* makes, and leave it with all that was opened for it.

    Args:
        kind: `Locks` or `Idempotency`.
        given: Where it comes from.
        host: What a callable is given that takes an argument: the application, or the worker's context.

    Raises:
        LeaseStateError: It is an instance that was entered before.
        ConfigurationError: It makes something else; or as the instance raises when it is entered.
    """
    async with _manager(kind, given, host) as entered:
        if not isinstance(entered, kind):
            raise ConfigurationError(
                f"What was entered for the {kind.__name__} is a {type(entered).__name__}: the callable is to return a "
                f"{kind.__name__}, or an asynchronous context manager that gives one."
            )
        yield entered


def _manager(kind: type[Any], given: Any, host: object) -> AbstractAsyncContextManager[Any]:
    if isinstance(given, kind):
        _refuse_entered(given)
        return given  # type: ignore[no-any-return]  # of that kind, and each is one
    if isinstance(given, str):
        return TenureConfig(store=given).open() if kind is Locks else _idempotency_on(given)
    made = given.open() if isinstance(given, TenureConfig) else _call(given, host)
    if isinstance(made, AbstractAsyncContextManager):
        return made
    if inspect.iscoroutine(made):
        made.close()
    raise ConfigurationError(
        f"The callable for the {kind.__name__} returned a {type(made).__name__}: it returns a {kind.__name__}, or an "
        "asynchronous context manager that gives one. It is not awaited."
    )


@contextlib.asynccontextmanager
async def _idempotency_on(url: str) -> AsyncIterator[Idempotency]:
    async with open_idempotency_store(url) as store, Idempotency(store) as idempotency:
        yield idempotency


def _refuse_entered(given: Locks | Idempotency) -> None:
    # By name: the phases of the two are two enumerations.
    if given.phase.name != Phase.NEW.name:
        kind = type(given).__name__
        raise LeaseStateError(
            f"The {kind} that was given is {given.phase.value}, and a {kind} is entered once, by its host. What is "
            f"started more than once (in tests, by a reloader) passes a callable: `lambda: {kind}(store)`."
        )


def _call(given: Callable[..., Any], host: object) -> Any:
    """Call it with the host if it takes an argument that it needs."""
    try:
        parameters = inspect.signature(given).parameters.values()
    except ValueError:  # a callable of C: it says nothing of its arguments
        return given()
    needed = any(
        one.default is one.empty and one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD) for one in parameters
    )
    return given(host) if needed else given()
