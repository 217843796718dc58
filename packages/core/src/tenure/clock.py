"""
Clocks: the holder's own time, which runs through a suspend, and the timers on it.

A lease is trusted until a moment on the holder's clock. `time.monotonic()` stands still on Linux while the
machine is suspended (clock_gettime(2)), so a laptop or a VM that wakes after an hour would believe in a lease
that expired long ago. `CLOCK_BOOTTIME` counts that hour. No wall clock decides anything here.
"""

import asyncio
import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, final, runtime_checkable

__all__ = ["Alarm", "Clock", "ObservesCalls", "SystemClock", "Timer", "sleep_until", "wait_until"]


class Timer(Protocol):
    """A callback that is due at a time."""

    def cancel(self) -> None:
        """Call the callback off; nothing happens where it ran already."""
        ...


class Clock(Protocol):
    """What the engine needs of time. Seconds, from an origin of the clock's own."""

    def now(self) -> float:
        """Read the clock, in seconds. It never goes back."""
        ...

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        """Call *callback* from the running event loop once the clock reads *when* or more."""
        ...


@runtime_checkable
class ObservesCalls(Protocol):
    """A clock that wants to know of each store call, so that a test can wait until all have ended."""

    def store_call_started(self, task: "asyncio.Task[Any]") -> None:
        """Take note of a store call that has just been started."""
        ...


_BOOTTIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)

_STEP_S = 1.0
"""
The longest time between two looks at the clock while a timer is set, in seconds. The event loop's timers do
not count a suspend; looking once a second finds one within a second of the wake-up, for one cheap callback.
"""


@final
class SystemClock:
    """The machine's clock: `CLOCK_BOOTTIME` where there is one (Linux), `time.monotonic()` elsewhere."""

    def now(self) -> float:
        """Read the clock, in seconds since boot."""
        return time.monotonic() if _BOOTTIME is None else time.clock_gettime(_BOOTTIME)

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        """Call *callback* once `now()` reaches *when*; after a suspend, within a second of the wake-up."""
        return _SteppedTimer(self, when, callback)


class _SteppedTimer:
    """A timer on the event loop that is set again, a second at most at a time, until its clock says so."""

    __slots__ = ("_callback", "_clock", "_handle", "_loop", "_when")

    def __init__(self, clock: SystemClock, when: float, callback: Callable[[], None]) -> None:
        self._clock = clock
        self._when = when
        self._callback = callback
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.TimerHandle | None = None
        self._step()

    def cancel(self) -> None:
        """Call the callback off."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _step(self) -> None:
        left = self._when - self._clock.now()
        if left <= 0 and self._handle is not None:
            self._handle = None
            self._callback()
            return
        self._handle = self._loop.call_later(max(0.0, min(left, _STEP_S)), self._step)


@final
class Alarm:
    """
    One timer for the first of many moments.

    It is set to earlier ones only. What it stands for may be over when it goes off; then it does so for nothing, once,
    which is cheaper than a timer that is set anew whenever something begins and whenever something ends.

    Args:
        clock: The clock.
        callback: Called when it goes off; it may set it again.
    """

    __slots__ = ("_callback", "_clock", "_timer", "at")

    def __init__(self, clock: Clock, callback: Callable[[], None]) -> None:
        self._clock = clock
        self._callback = callback
        self._timer: Timer | None = None
        self.at = math.inf
        """The moment that it stands at, or infinity."""

    def set(self, when: float) -> None:
        """Go off at *when*, unless it does before."""
        if when >= self.at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self.at = when
        self._timer = self._clock.call_at(when, self._go_off)

    def call_off(self) -> None:
        """Do not go off."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self.at = None, math.inf

    def _go_off(self) -> None:
        self._timer, self.at = None, math.inf
        self._callback()


def _resolve(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


async def sleep_until(clock: Clock, when: float) -> None:
    """Sleep until *clock* reads *when*, in seconds on that clock."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    timer = clock.call_at(when, partial(_resolve, future))
    try:
        await future
    finally:
        timer.cancel()


async def wait_until(clock: Clock, *awaited: "asyncio.Future[Any]", when: float) -> bool:
    """
    Wait until one of *awaited* is done, or *clock* reads *when*; cancel none of them.

    `asyncio.wait` rather than `asyncio.timeout`: a driver that does not answer a cancellation (a hung server)
    would hold the caller for as long as it likes.

    Returns:
        Whether one of *awaited* is done.
    """
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    timer = clock.call_at(when, partial(_resolve, future))
    try:
        await asyncio.wait([*awaited, future], return_when=asyncio.FIRST_COMPLETED)
    finally:
        timer.cancel()
        future.cancel()
    return any(one.done() for one in awaited)
