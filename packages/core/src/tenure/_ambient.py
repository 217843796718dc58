"""
The ambient `Locks`: the one that decorators use which name none.

Entering a `Locks` makes it the ambient one for the code inside and for the tasks that it starts (a context
variable). Work that was started elsewhere, such as the requests of a web server whose lifespan entered the
`Locks`, has another context; there the process's only entered one is meant, and several are refused rather than
guessed at.
"""

import contextlib
import weakref
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Generic, TypeVar, final

from tenure.errors import ConfigurationError, LeaseStateError

__all__ = ["Ambient"]

_T = TypeVar("_T")


@final
class Ambient(Generic[_T]):
    """Objects that are entered and left, and the one that is meant here."""

    def __init__(self) -> None:
        self._here: ContextVar[_T | None] = ContextVar("tenure_ambient", default=None)
        self._entered: weakref.WeakSet[_T] = weakref.WeakSet()

    def enter(self, one: _T) -> _T | None:
        """Make *one* the ambient one of this context; returns the one before it, for `leave`."""
        before = self._here.get()
        self._here.set(one)
        self._entered.add(one)
        return before

    def leave(self, one: _T, before: _T | None) -> None:
        """Make it so no more; it may be left in another context than the one that it was entered in."""
        self._entered.discard(one)
        if self._here.get() is one:
            self._here.set(before)

    @contextlib.contextmanager
    def within(self, one: _T | None) -> Iterator[None]:
        """Mean *one*, which was entered elsewhere, for the code inside: a request under its application's `Locks`."""
        token = self._here.set(one)
        try:
            yield
        finally:
            self._here.reset(token)

    def get(self) -> _T:
        """
        Find the ambient one.

        Raises:
            LeaseStateError: None is entered.
            ConfigurationError: Several are entered, none of them in this context.
        """
        here = self._here.get()
        # It may have been left in another context, which could not tell this one.
        if here is not None and here in self._entered:
            return here
        entered = list(self._entered)
        if not entered:
            raise LeaseStateError(
                "No Locks is entered: run this inside `async with locks:`, or name one in the decorator (locks=)."
            )
        if len(entered) > 1:
            raise ConfigurationError(
                f"{len(entered)} Locks are entered in this process, none of them in this task's context: name the one "
                "that is meant in the decorator (locks=)."
            )
        return entered[0]
