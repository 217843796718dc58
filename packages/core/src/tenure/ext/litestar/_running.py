"""What one application runs with, from its start to its end."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import final

from litestar import Litestar

from tenure.errors import LeaseStateError
from tenure.ext.asgi import RequestGuard
from tenure.ext.litestar._sources import Source
from tenure.idempotency import Idempotency
from tenure.locks import Locks

__all__ = ["Running"]


@final
class Running:
    """
    The `Locks` and the `Idempotency` of one application. What was left stays here, for whoever asks for its state.

    Args:
        locks: Where the `Locks` comes from, or None.
        idempotency: Where the `Idempotency` comes from, or None.
    """

    def __init__(self, locks: Source[Locks] | None, idempotency: Source[Idempotency] | None) -> None:
        self._locks_source = locks
        self._idempotency_source = idempotency
        self._entered = False
        self.locks: Locks | None = None
        self.idempotency: Idempotency | None = None
        self._make_guard: Callable[[Idempotency], RequestGuard] | None = None
        self._guard: RequestGuard | None = None

    def when_started(self, make_guard: Callable[[Idempotency], RequestGuard]) -> None:
        """Have a guard made for the `Idempotency` of each start."""
        self._make_guard = make_guard

    @asynccontextmanager
    async def lifespan(self, app: Litestar) -> AsyncIterator[None]:
        """
        Enter what the application runs with, and leave it before what was entered earlier is left.

        The `Idempotency` is left last of the two: a guarded job that ends while the locks are handed back may still
        store what came of it.

        Raises:
            LeaseStateError: An instance was entered before, or the application is running.
        """
        if self._entered:
            raise LeaseStateError("This application is running already: its lifespan was entered, and not left.")
        self._entered = True
        try:
            async with AsyncExitStack() as left:
                if (idempotency := self._idempotency_source) is not None:
                    entered = await left.enter_async_context(idempotency.open(app))
                    self.idempotency = idempotency.check(entered)
                    if self._make_guard is not None:
                        self._guard = self._make_guard(self.idempotency)
                if (locks := self._locks_source) is not None:
                    self.locks = locks.check(await left.enter_async_context(locks.open(app)))
                yield
        finally:
            self._entered = False

    def the_locks(self) -> Locks:
        """
        Return the `Locks`.

        Raises:
            LeaseStateError: The application was not started.
        """
        if self.locks is None:
            raise LeaseStateError(_not_started("Locks"))
        return self.locks

    def the_idempotency(self) -> Idempotency:
        """
        Return the `Idempotency`.

        Raises:
            LeaseStateError: The application was not started.
        """
        if self.idempotency is None:
            raise LeaseStateError(_not_started("Idempotency"))
        return self.idempotency

    def the_guard(self) -> RequestGuard:
        """
        Return the guard of requests.

        Raises:
            LeaseStateError: The application was not started: a request that cannot be protected does not run.
        """
        if self._guard is None:
            raise LeaseStateError(_not_started("Idempotency"))
        return self._guard


def _not_started(what: str) -> str:
    return (
        f"The application's {what} is entered by its lifespan, and that has not run: serve it with a server that runs "
        "the lifespan, and test it inside `async with AsyncTestClient(app)`."
    )
