"""The clocks of a run: one of the store's own, and one of each instance's, which may be slow and may stand still."""

import asyncio
import contextvars
from collections.abc import Callable
from typing import final

__all__ = ["HolderClock", "ServerClock"]

_ROUNDING_S = 1e-9
"""A timer is set this much after its moment: at the moment itself, the sum of floats may read a hair before it."""

_STEP_S = 1.0
"""The system clock looks once a second whether it was suspended, so what a suspend made overdue comes that late."""


@final
class ServerClock:
    """The store's clock: the true time, and whatever it was stepped by."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.offset_s = 0.0

    def now(self) -> float:
        """Read the clock, in seconds. It may go back: that is the fault."""
        return self._loop.time() + self.offset_s

    def call_at(self, when: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        """Refuse: a store has no timers."""
        raise NotImplementedError


@final
class HolderClock:
    """
    An instance's clock: a `tenure.clock.Clock` of its own rate.

    Args:
        loop: The true time.
        rate: Seconds on this clock for a true second.
        monotonic: Whether it stands still during a suspend, as CLOCK_MONOTONIC does; CLOCK_BOOTTIME counts it.
        origin: What it reads at first. Nobody compares the readings of two instances.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, *, rate: float, monotonic: bool, origin: float) -> None:
        self._loop = loop
        self._began = loop.time()
        self._origin = origin
        self._asleep_since: float | None = None
        self._timers: dict[_Timer, None] = {}
        self._stopped = False
        self.rate = rate
        self.monotonic = monotonic
        self.missed_s = 0.0
        """True seconds that it did not count so far."""

    def now(self) -> float:
        """Read the clock, in its own seconds."""
        true_now = self._loop.time()
        if self.monotonic and self._asleep_since is not None:
            true_now = self._asleep_since
        return self._origin + (true_now - self._began - self.missed_s) * self.rate

    def true_time_of(self, when: float) -> float:
        """Tell at which true time this clock reads *when*, if it is not suspended before."""
        return self._began + self.missed_s + (when - self._origin) / self.rate

    def call_at(self, when: float, callback: Callable[[], None]) -> "_Timer":
        """Call *callback* once the clock reads *when*."""
        timer = _Timer(self, callback)
        if self._stopped:
            return timer
        self._timers[timer] = None
        timer.set_for(self._loop, max(self._loop.time(), self.true_time_of(when) + _ROUNDING_S))
        return timer

    def suspend(self) -> None:
        """Stop, as the machine does."""
        self._asleep_since = self._loop.time()

    def wake(self, look_after: float) -> None:
        """
        Go on after a suspend.

        Args:
            look_after: From 0 to 1, how long after the wake-up the next look at the clock comes.
        """
        assert self._asleep_since is not None
        now = self._loop.time()
        slept_s, self._asleep_since = now - self._asleep_since, None
        if self.monotonic:
            self.missed_s += slept_s
        for timer in list(self._timers):
            # The event loop's timers did not count the suspend. With a clock that did, the next look finds it.
            shifted = timer.true_when + slept_s
            looked_at = shifted if self.monotonic else min(shifted, now + look_after * _STEP_S)
            timer.set_for(self._loop, max(timer.true_when, looked_at))

    def stop(self) -> None:
        """Fire nothing any more: the run is over."""
        self._stopped = True
        for timer in list(self._timers):
            timer.cancel()

    def forget(self, timer: "_Timer") -> None:
        """Take note that *timer* fired or was called off."""
        self._timers.pop(timer, None)


@final
class _Timer:
    """A callback on a holder's clock."""

    __slots__ = ("_callback", "_clock", "_context", "_handle", "true_when")

    def __init__(self, clock: HolderClock, callback: Callable[[], None]) -> None:
        self._clock = clock
        self._callback = callback
        self._context = contextvars.copy_context()
        self._handle: asyncio.TimerHandle | None = None
        self.true_when = 0.0

    def set_for(self, loop: asyncio.AbstractEventLoop, true_when: float) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self.true_when = true_when
        self._handle = loop.call_at(true_when, self._fire, context=self._context)

    def _fire(self) -> None:
        self._clock.forget(self)
        self._callback()

    def cancel(self) -> None:
        """Call the callback off."""
        self._clock.forget(self)
        if self._handle is not None:
            self._handle.cancel()
