"""Where an application's `Locks` and `Idempotency` come from: an instance, a callable, or settings."""

import inspect
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, TypeVar, cast, final

from litestar import Litestar

from tenure.config import TenureConfig
from tenure.errors import ConfigurationError, LeaseStateError
from tenure.idempotency import Idempotency
from tenure.locks import Locks, Phase

__all__ = ["IdempotencySource", "LocksSource", "Source"]

LocksSource = (
    Locks
    | TenureConfig
    | Callable[[], AbstractAsyncContextManager[Locks]]
    | Callable[[Litestar], AbstractAsyncContextManager[Locks]]
)
"""
A `Locks`; settings of one; or a callable that makes one when the application starts. The callable may take the
application, and may return any asynchronous context manager that gives a `Locks`: a `Locks` is one.
"""

IdempotencySource = (
    Idempotency
    | Callable[[], AbstractAsyncContextManager[Idempotency]]
    | Callable[[Litestar], AbstractAsyncContextManager[Idempotency]]
)
"""The same for an `Idempotency`."""

_T = TypeVar("_T", bound=Locks | Idempotency)


@final
class Source(Generic[_T]):
    """
    Makes what one start of an application needs.

    Args:
        kind: What it makes.
        given: Where it comes from.

    Raises:
        ConfigurationError: It is nothing that could make one.
    """

    def __init__(self, kind: type[_T], given: object) -> None:
        self.kind = kind
        self._given = given
        if not isinstance(given, kind) and not callable(given) and not self._are_settings:
            raise ConfigurationError(
                f"A {type(given).__name__} makes no {kind.__name__}: pass one, or a callable that returns one, such "
                f"as `lambda app: {kind.__name__}(store)`."
            )

    @property
    def _are_settings(self) -> bool:
        return self.kind is Locks and isinstance(self._given, TenureConfig)

    def open(self, app: Litestar) -> AbstractAsyncContextManager[_T]:
        """
        Return what is to be entered. A callable is called here, so inside the lifespan.

        Raises:
            LeaseStateError: It is an instance that was entered before.
            ConfigurationError: The callable returned something else.
        """
        given: Any = self._given
        if isinstance(given, self.kind):
            self._refuse_entered(given)
            return cast("AbstractAsyncContextManager[_T]", given)
        made = given.open() if self._are_settings else _call(given, app)
        if not isinstance(made, AbstractAsyncContextManager):
            if inspect.iscoroutine(made):
                made.close()
            raise ConfigurationError(
                f"The callable for the {self.kind.__name__} returned a {type(made).__name__}: it returns a "
                f"{self.kind.__name__}, or an asynchronous context manager that gives one. It is not awaited."
            )
        return cast("AbstractAsyncContextManager[_T]", made)

    def check(self, entered: object) -> _T:
        """
        Refuse what a context manager gave if it is something else.

        Raises:
            ConfigurationError: It is.
        """
        if not isinstance(entered, self.kind):
            raise ConfigurationError(
                f"What was entered for the {self.kind.__name__} is a {type(entered).__name__}: the callable is to "
                f"return a {self.kind.__name__}, or an asynchronous context manager that gives one."
            )
        return entered

    def _refuse_entered(self, given: Locks | Idempotency) -> None:
        # By name: the phases of the two are two enumerations.
        if given.phase.name == Phase.NEW.name:
            return
        raise LeaseStateError(
            f"The {self.kind.__name__} that TenurePlugin was given is {given.phase.value}, and a {self.kind.__name__} "
            "is entered once, by the plugin. An application that is started more than once (in tests, by a "
            f"reloader) passes a callable: `lambda: {self.kind.__name__}(store)`."
        )


def _call(given: Callable[..., Any], app: Litestar) -> Any:
    """Call it with the application if it takes an argument that it needs."""
    try:
        parameters = inspect.signature(given).parameters.values()
    except ValueError:  # a callable of C: it says nothing of its arguments
        return given()
    needed = any(
        one.default is one.empty and one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD) for one in parameters
    )
    return given(app) if needed else given()
