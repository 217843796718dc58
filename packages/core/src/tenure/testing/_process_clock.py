"""One process's view of a clock that several share: it stands still while that process is paused."""

import asyncio
import contextvars
from collections.abc import Callable
from typing import Any, final

from tenure.clock import Clock, ObservesCalls, Timer

__all__ = ["ProcessClock"]


@final
class ProcessClock:
    """
    A `tenure.clock.Clock` that can be stopped while the one below goes on.

    Nothing of a paused process runs, and it reads no clock: when it goes on, the time that passed is there at once, and
    what fell due meanwhile fires late, in its order.

    Args:
        shared: The clock that all processes have in common.
    """

    def __init__(self, shared: Clock) -> None:
        self.shared = shared
        self._stands_at: float | None = None
        self._overdue: list[tuple[_Timer, contextvars.Context]] = []

    def now(self) -> float:
        """Read the clock, in seconds; while it is stopped, the moment at which it was."""
        return self.shared.now() if self._stands_at is None else self._stands_at

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        """Call *callback* once the clock reads *when*."""
        return _Timer(self, when, callback)

    def store_call_started(self, task: "asyncio.Task[Any]") -> None:
        """Tell the clock below of a store call, where it wants to know."""
        if isinstance(self.shared, ObservesCalls):
            self.shared.store_call_started(task)

    def stop(self) -> None:
        """Stand still from now on. Twice changes nothing."""
        if self._stands_at is None:
            self._stands_at = self.shared.now()

    def go_on(self) -> None:
        """Read the clock below again; what is overdue fires in the loop's next turn."""
        self._stands_at = None
        overdue, self._overdue = self._overdue, []
        loop = asyncio.get_running_loop()
        for timer, context in overdue:
            loop.call_soon(timer.fire, context=context)

    def keeps(self, timer: "_Timer") -> bool:
        """Keep *timer*, which is due, where the clock stands still; for the timer."""
        if self._stands_at is None:
            return False
        self._overdue.append((timer, contextvars.copy_context()))
        return True


class _Timer:
    """A callback on a `ProcessClock`."""

    __slots__ = ("_below", "_callback", "_clock")

    def __init__(self, clock: ProcessClock, when: float, callback: Callable[[], None]) -> None:
        self._clock = clock
        self._callback: Callable[[], None] | None = callback
        self._below = clock.shared.call_at(when, self._due)

    def cancel(self) -> None:
        """Call the callback off."""
        self._callback = None
        self._below.cancel()

    def _due(self) -> None:
        if not self._clock.keeps(self):
            self.fire()

    def fire(self) -> None:
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()
