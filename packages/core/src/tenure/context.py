"""The lease that the running code stands under, for whatever it calls."""

from contextvars import ContextVar

from tenure.lease import Lease

__all__ = ["current_lease", "enter", "leave"]

_current: ContextVar[Lease | None] = ContextVar("tenure_current_lease", default=None)


def current_lease() -> Lease | None:
    """
    Return the innermost lease that the calling code runs under, or None outside of any guard.

    A guard is `hold()`, `async with lease`, `@locked` or a job decorator. The lease is found by everything that
    the guarded code calls, and by the tasks that it starts. In a task that outlives its guard it reads as ended:
    `held` is False, and `raise_unless_held()` raises.
    """
    return _current.get()


def enter(lease: Lease) -> Lease | None:
    """Make *lease* the current one; returns the one before it, for `leave`."""
    before = _current.get()
    _current.set(lease)
    return before


def leave(before: Lease | None) -> None:
    """
    Make the lease before the guard the current one again.

    The value is set rather than a token reset: a guard in an async generator (a pytest fixture) may be left in
    another task, whose context refuses the token of the first.
    """
    _current.set(before)
