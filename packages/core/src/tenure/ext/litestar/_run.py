"""One run of a handler under a key, and what became known of it on the way."""

import functools
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, Final, final

from litestar.utils.sync import AsyncCallable, is_async_callable

from tenure.errors import NoEffectError, OutcomeUnknownError
from tenure.idempotency import IdempotencyContext

__all__ = ["Run", "current_run", "noticed"]


@final
class Run:
    """
    One request's way through the application, from the guard inwards.

    Attributes:
        context: Its execution's, or None for a request without a key.
        commits: The commits of its sessions that are watched while the response is sent.
    """

    def __init__(self, context: IdempotencyContext | None) -> None:
        self.context = context
        self.commits: list[Any] = []
        self._started = False
        self._said: Exception | None = None

    def begin(self) -> None:
        """Note that the handler itself is called: all before it (validation, guards, CSRF) was passed."""
        self._started = True

    def shown(self, error: Exception) -> Exception:
        """Note what the handler said of its effect, and return the error that the client is to see."""
        self._said = error
        cause = error.__cause__
        return cause if isinstance(error, NoEffectError) and isinstance(cause, Exception) else error

    def tell(self) -> None:
        """Have the record settled as the run demands, where it does. Litestar answers errors with mere responses."""
        if self.context is None:
            return
        if not self._started or isinstance(self._said, NoEffectError):
            self.context.settlement = "release"
        elif isinstance(self._said, OutcomeUnknownError):
            self.context.settlement = "abandon"


current_run: Final[ContextVar[Run | None]] = ContextVar("tenure_litestar_run", default=None)
"""The run of this request. It reaches threads and child tasks; hooks of `before_send` have it too."""


def noticed(function: Any) -> Any:
    """Wrap a handler's function so that its call is noted, as a function of the same kind."""
    if isinstance(function, AsyncCallable):
        return AsyncCallable(_noticed_sync(function.func))
    return _noticed_async(function) if is_async_callable(function) else _noticed_sync(function)


def _noticed_sync(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        run = _begin()
        try:
            return function(*args, **kwargs)
        except (NoEffectError, OutcomeUnknownError) as error:
            shown = run.shown(error)
            if shown is error:
                raise
            raise shown from shown.__cause__

    return call


def _noticed_async(function: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    @functools.wraps(function)
    async def call(*args: Any, **kwargs: Any) -> Any:
        run = _begin()
        try:
            return await function(*args, **kwargs)
        except (NoEffectError, OutcomeUnknownError) as error:
            shown = run.shown(error)
            if shown is error:
                raise
            raise shown from shown.__cause__

    return call


def _begin() -> Run:
    run = current_run.get() or Run(None)
    run.begin()
    return run
