"""What one application runs with, as its requests find it."""

from typing import Final, final

from tenure.errors import LeaseStateError
from tenure.ext.asgi import RequestGuard
from tenure.idempotency import Idempotency
from tenure.locks import Locks

__all__ = ["RUNNING", "Running", "not_started"]

RUNNING: Final = "tenure.ext.starlette"
"""Under which name a request's scope holds it."""


@final
class Running:
    """What is entered. What was left stays here: a request that comes too late is told that it is closed."""

    def __init__(self) -> None:
        self.locks: Locks | None = None
        self.idempotency: Idempotency | None = None
        self.guard: RequestGuard | None = None

    def the_locks(self) -> Locks:
        """Return the `Locks`, or raise `LeaseStateError` where the application was not started."""
        if self.locks is None:
            raise not_started("Locks")
        return self.locks

    def the_idempotency(self) -> Idempotency:
        """Return the `Idempotency`, or raise `LeaseStateError` where the application was not started."""
        if self.idempotency is None:
            raise not_started("Idempotency")
        return self.idempotency

    def the_guard(self) -> RequestGuard:
        """Return the guard, or raise `LeaseStateError`: a request that cannot be protected does not run."""
        if self.guard is None:
            raise not_started("Idempotency")
        return self.guard


def not_started(what: str) -> LeaseStateError:
    """Make the error of whoever asks for *what* in an application that does not have it."""
    return LeaseStateError(
        f"The application's {what} is not there: give TenurePlugin one, make the application with "
        "`lifespan=plugin.lifespan`, and call `plugin.install(app)`. Serve it with a server that runs the lifespan, "
        "and test it inside `with TestClient(app)`."
    )
