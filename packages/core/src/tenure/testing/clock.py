"""
A clock that moves only when the test says so.

An instance whose clock nobody moves is a paused process: it renews nothing, its deadlines do not come, and the
store (on a clock of its own) lets its locks expire. Give the in-memory store the same clock, and expiries move
with it. Prior art: trio's MockClock, and the manual clock of the NestJS package that this library comes from.
"""

import asyncio
import contextvars
import heapq
from collections.abc import Awaitable, Callable, Generator
from typing import Any, final

from tenure._durations import Duration
from tenure.clock import Timer, sleep_until
from tenure.testing._parked import is_parked, parked
from tenure.testing._spans import PATIENCE_S, span_s
from tenure.testing.errors import DeadlockError
from tenure.testing.virtual_time import START_S, describe_task

__all__ = ["ManualClock"]

_LOOK_AGAIN_S = 0.01
"""A call may park itself while it is waited for, which ends no wait: so look again, in real seconds."""

_MOST_TURNS = 1000
"""
Turns of the event loop after one firing. What a timer wakes is done in a handful; only a task that spins on
`sleep(0)` (a test that polls) reaches the limit, and it must not keep the clock from moving.
"""

_LEAST_PROGRESS_S = 0.001
"""A clock that moves less than this in all its patience is stuck on timers that set themselves again."""


@final
class ManualClock:
    """
    A `tenure.clock.Clock` for tests. It stands still until `advance()` or `stall()`.

    It knows the store calls of every engine on it (`tenure.clock.ObservesCalls`), so that `advance()` can wait
    until each renewal has reached the store: an in-memory one, or a real server over real connections. Calls
    of `tenure.testing.FaultyStore` that hang or are late on purpose are not waited for.

    Args:
        start: What `now()` reads at first, in seconds.
        patience_s: How long `advance()` waits, in real seconds, for store calls that do not end.
    """

    def __init__(self, start: float = START_S, *, patience_s: float = PATIENCE_S) -> None:
        self._now = start
        self._patience_s = patience_s
        # By due time, then by the order of setting, as an event loop would run them.
        self._queue: list[tuple[float, int, _ManualTimer]] = []
        self._set_so_far = 0
        self._pending = 0
        self._calls: set[asyncio.Task[Any]] = set()
        self._advancing = False

    def __repr__(self) -> str:
        return f"ManualClock(now={self._now!r}, timers={self._pending})"

    @property
    def timers(self) -> int:
        """How many timers are set: neither fired nor cancelled. Zero after a clean shutdown."""
        return self._pending

    def now(self) -> float:
        """Read the clock, in seconds."""
        return self._now

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        """
        Call *callback* once the clock reads *when*.

        One that is due already is called in the loop's next turn, as every event loop does; the clock need
        not move for it.
        """
        timer = _ManualTimer(self, when, callback)
        self._pending += 1
        if when <= self._now:
            timer.fire_soon()
        else:
            self._set_so_far += 1
            heapq.heappush(self._queue, (when, self._set_so_far, timer))
        return timer

    def store_call_started(self, task: "asyncio.Task[Any]") -> None:
        """Take note of a store call; `advance()` waits for its end."""
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def advance(self, duration: Duration) -> None:
        """
        Move the clock by *duration*, and fire what falls due on the way.

        Timers fire one after the other, by due time, those of one moment in the order in which they were set,
        each with `now()` at exactly its due time. After each, this waits until the engine has settled: every
        store call that was started has ended, and the event loop has run what that woke. A timer that is set
        meanwhile and falls due within the span fires too.

        Args:
            duration: Seconds (any fraction), a `timedelta`, or a string such as `"5m"`.

        Raises:
            DeadlockError: A store call did not end within the clock's patience (real time), or timers that
                set themselves again keep the clock from moving.
            RuntimeError: Another task is advancing this clock.
        """
        # Nine decimals: ten advances of 0.1 must read the same as one of 1.0, for a timer that stands there.
        target = round(self._now + span_s(duration, name="duration"), 9)
        if self._advancing:
            raise RuntimeError("This ManualClock is being advanced by another task: let one task move it.")
        self._advancing = True
        try:
            await self.settle()
            await self._fire_until(target)
            # A stall inside a callback may have moved it further.
            self._now = max(self._now, target)
        finally:
            self._advancing = False

    def stall(self, duration: Duration) -> Awaitable[None]:
        """
        Let *duration* pass while the process does not run: a blocked event loop, a pause, a suspend.

        The clock moves at once, before this returns, and no callback runs on the way. What is overdue fires
        late, in order, in the loop's next turn. So a guarded line right after this call reads a clock that is
        past the deadline while no timer has said so yet, as after `time.sleep()` in a coroutine.

        Args:
            duration: As of `advance()`.

        Returns:
            Something to await, or not: it waits as `settle()` does.
        """
        self._now = round(self._now + span_s(duration, name="duration"), 9)
        while (timer := self._next_due(self._now)) is not None:
            timer.fire_soon()
        return _Settling(self)

    async def sleep(self, duration: Duration) -> None:
        """Sleep until the clock has moved by *duration*. In a store of the test's own, it holds up no advance."""
        with parked():
            await sleep_until(self, self._now + span_s(duration, name="duration"))

    async def settle(self) -> None:
        """
        Wait, without moving the clock, until each store call has ended and nothing is left to run.

        Raises:
            DeadlockError: A store call did not end within the clock's patience (real time).
        """
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + self._patience_s
        while True:
            await _run_what_is_ready(loop)
            running = {call for call in self._calls if not call.done() and not is_parked(call)}
            if not running:
                return
            if loop.time() >= give_up_at:
                calls = ", ".join(sorted(describe_task(call) for call in running))
                raise DeadlockError(
                    f"ManualClock waited {self._patience_s:g} s of real time for store calls that do not end: "
                    f"{calls}. A store that waits on this clock must use clock.sleep(); one that hangs on "
                    "purpose is a FaultyStore."
                )
            await asyncio.wait(running, timeout=_LOOK_AGAIN_S, return_when=asyncio.FIRST_COMPLETED)

    async def _fire_until(self, target: float) -> None:
        loop = asyncio.get_running_loop()
        stood_at, stood_since = self._now, loop.time()
        while (timer := self._next_due(target)) is not None:
            self._now = max(self._now, timer.when)
            timer.fire_soon()
            await self.settle()
            if self._now >= stood_at + _LEAST_PROGRESS_S:
                stood_at, stood_since = self._now, loop.time()
            elif loop.time() >= stood_since + self._patience_s:
                raise DeadlockError(
                    f"ManualClock stands at {self._now!r}: for {self._patience_s:g} s of real time, timers have "
                    f"set themselves again for the same moment, the last one with {timer.callback_name}."
                )

    def _next_due(self, until: float) -> "_ManualTimer | None":
        """Take the first timer that is due by *until* off the queue."""
        while self._queue and self._queue[0][0] <= until:
            timer = heapq.heappop(self._queue)[2]
            if timer.is_set:
                return timer
        return None

    def _ended(self) -> None:
        """A timer has fired or was cancelled."""
        self._pending -= 1
        # An engine that sets and cancels a timer with each renewal would grow the queue without end.
        if len(self._queue) > 64 + 2 * self._pending:
            self._queue = [entry for entry in self._queue if entry[2].is_set]
            heapq.heapify(self._queue)


class _ManualTimer:
    """A callback on a ManualClock."""

    __slots__ = ("_callback", "_clock", "_context", "callback_name", "when")

    def __init__(self, clock: ManualClock, when: float, callback: Callable[[], None]) -> None:
        self._clock = clock
        self._callback: Callable[[], None] | None = callback
        # As loop.call_at() does: a callback sees the context variables of whoever set it.
        self._context = contextvars.copy_context()
        self.when = when
        self.callback_name = getattr(callback, "__qualname__", type(callback).__name__)

    @property
    def is_set(self) -> bool:
        return self._callback is not None

    def cancel(self) -> None:
        """Call the callback off."""
        if self._callback is not None:
            self._callback = None
            self._clock._ended()  # noqa: SLF001 - the timer is a part of its clock

    def fire_soon(self) -> None:
        """Call the callback in the loop's next turn, unless it is called off before."""
        asyncio.get_running_loop().call_soon(self._fire, context=self._context)

    def _fire(self) -> None:
        callback = self._callback
        if callback is not None:
            self.cancel()
            callback()


class _Settling:
    """What `stall()` returns: awaiting it settles, dropping it does nothing."""

    __slots__ = ("_clock",)

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock

    def __await__(self) -> Generator[Any, None, None]:
        return self._clock.settle().__await__()


async def _run_what_is_ready(loop: asyncio.AbstractEventLoop) -> None:
    """Let the event loop run until it would wait."""
    for _ in range(_MOST_TURNS):
        await asyncio.sleep(0)
        # asyncio's loops tell; another one (uvloop) is given all the turns, a millisecond's worth.
        if not getattr(loop, "_ready", True):
            return
