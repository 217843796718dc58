"""
An event loop on which time jumps: half a minute of renewals in a millisecond, and the same way every time.

When nothing is ready to run, the loop sets its time to the next timer's and goes on. No socket, no thread and
no signal can wake it, so a run depends on nothing but the program and the seed. With a seed, the callbacks
that are ready in one turn run in an order drawn from it: other seeds, other interleavings, each replayable.
Prior art: FoundationDB's simulator, trio's autojump clock, async-solipsism.
"""

import asyncio
import contextvars
import functools
import heapq
import math
import random
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar, final

from tenure.clock import Timer
from tenure.testing.errors import DeadlockError

__all__ = ["START_S", "LoopClock", "VirtualTimeLoop", "describe_task", "run_virtual", "virtual"]

_T = TypeVar("_T")

_TEST_WITHIN_S = 3600.0
"""How long a test may take, in virtual seconds: longer than any that ends."""

START_S = 1_000_000.0
"""
Where a test's clock begins, in seconds. Not zero: a time of 0.0 is falsy, and code that takes a span for a
time, or asks `if deadline:`, would pass. And far from zero: such a time lies a million seconds in the past.
"""


@final
class VirtualTimeLoop(asyncio.BaseEventLoop):
    """
    An event loop whose time stands still while anything runs, and jumps to the next timer when nothing can.

    A timer never runs early: `time()` reads exactly the moment that it was due. A wait that nothing can end
    raises `DeadlockError` out of the run. Threads and sockets are refused: they live in real time.

    Several processes can be simulated on one loop, and one of them paused: what runs in a context that *hold_back*
    says True of (tasks, callbacks, timers) is kept until `let_go()`, while time goes on for the others. It is how
    SIGSTOP looks from outside: nothing of the process runs, and when it goes on, everything that is overdue is.

    Args:
        seed: Where the order of what is ready in one turn is drawn from; None keeps asyncio's own order.
        hold_back: Asked of the context of each callback that is about to run, whether it must not run now.
    """

    # asyncio's own state, which its type stubs leave out. The same in 3.11, 3.12 and 3.13.
    _ready: "deque[asyncio.Handle]"
    _scheduled: "list[asyncio.TimerHandle]"
    _clock_resolution: float
    _timer_cancelled_count: int
    _stopping: bool

    def __init__(
        self, seed: int | None = None, *, hold_back: Callable[[contextvars.Context], bool] | None = None
    ) -> None:
        super().__init__()
        self._rng = None if seed is None else random.Random(seed)  # noqa: S311 - replayable, not secret
        self._hold_back = hold_back
        self._held_back: list[asyncio.Handle] = []
        self._selector = _JumpingSelector(self)
        self._now = START_S
        self.jump_to(START_S)

    def time(self) -> float:
        """Read the loop's time, in virtual seconds."""
        return self._now

    def jump_to(self, when: float) -> None:
        """Set the time to *when*, unless it is past that already. The loop does so; a test has no need to."""
        self._now = max(self._now, when)
        # asyncio runs what is due before `time() + resolution`. One step of the float keeps a timer that is
        # due a hair later waiting for its own moment, so that no callback ever reads a time before its own.
        self._clock_resolution = math.ulp(self._now)

    def jump_to_next_timer(self) -> None:
        """Set the time to that of the next timer."""
        # The timer's own number, not now + timeout: that sum can round to just below it.
        self.jump_to(self._scheduled[0].when())

    def let_go(self) -> None:
        """Ask *hold_back* again about everything that is held back; what may run now runs in the next turn."""
        self._ready.extend(self._held_back)
        self._held_back.clear()

    def run_in_executor(self, *_: Any) -> Any:  # type: ignore[override]  # refuses whatever is passed
        """Refuse: a thread runs in real time, and the loop would call its wait a deadlock."""
        raise RuntimeError(
            "A thread cannot run under virtual time: its result would come at a moment that no seed repeats. "
            "Run this test on an ordinary event loop, or replace what needs the thread."
        )

    def _run_once(self) -> None:
        if self._hold_back is not None:
            self._keep_what_is_held_back(self._hold_back)
        if self._rng is not None and len(self._ready) > 1:
            turn = list(self._ready)
            self._rng.shuffle(turn)
            self._ready.clear()
            self._ready.extend(turn)
        if self._hold_back is not None and self._ready:
            # Due timers are among what is ready already: what is left of asyncio's own turn is to run it.
            for _ in range(len(self._ready)):
                handle: Any = self._ready.popleft()
                if not handle._cancelled:  # noqa: SLF001
                    handle._run()  # noqa: SLF001
            return
        super()._run_once()  # type: ignore[misc]  # not in the stubs

    def _keep_what_is_held_back(self, hold_back: Callable[[contextvars.Context], bool]) -> None:
        """Leave ready only what may run. Timers too: asyncio would run those that fall due in this very turn."""
        while True:
            self._take_due_timers()
            turn: list[Any] = [handle for handle in self._ready if not handle._cancelled]  # noqa: SLF001
            self._ready.clear()
            for handle in turn:
                (self._held_back if hold_back(handle._context) else self._ready).append(handle)  # noqa: SLF001
            # What was held back made nothing ready: time goes on to the next timer, which may be another's.
            if self._ready or not self._scheduled or self._stopping:
                return
            self.jump_to_next_timer()

    def _take_due_timers(self) -> None:
        """Move the timers that are due to what is ready, and drop cancelled ones from the head, as asyncio does."""
        timers: list[Any] = self._scheduled
        while timers and (timers[0]._cancelled or timers[0]._when <= self._now):  # noqa: SLF001 - read at every turn
            timer = heapq.heappop(timers)
            timer._scheduled = False  # noqa: SLF001 - asyncio's own mark of a timer in its heap
            if timer._cancelled:  # noqa: SLF001
                self._timer_cancelled_count -= 1
            else:
                self._ready.append(timer)

    def _process_events(self, event_list: Sequence[Any]) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """Nothing sleeps that could be woken."""


class _JumpingSelector:
    """Where an event loop would wait for the world."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> Sequence[Any]:
        if timeout is None:
            waiting = sorted(describe_task(task) for task in asyncio.all_tasks(self._loop))
            raise DeadlockError(
                "Nothing is ready, no timer is set, and nobody outside can wake a virtual-time loop: this would "
                f"wait for ever. Waiting: {'; '.join(waiting) or 'no task'}."
            )
        if timeout > 0:
            self._loop.jump_to_next_timer()
        return ()


def describe_task(task: "asyncio.Task[Any]") -> str:
    """Say where *task* stands, without the arguments of any call: they may hold owners."""
    stands: Any = task.get_coro()
    names = [getattr(stands, "__qualname__", type(stands).__name__)]
    frame = getattr(stands, "cr_frame", None)
    while asyncio.iscoroutine(awaited := getattr(stands, "cr_await", None)):
        stands = awaited
        names.append(stands.__qualname__)
        frame = stands.cr_frame or frame
    where = "" if frame is None else f" ({frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno})"
    return " > ".join(names) + where


@final
class LoopClock:
    """
    The event loop's own time as a `tenure.clock.Clock`; under `VirtualTimeLoop`, virtual time.

    Args:
        loop: The loop to read; None means the running one at each call.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._loop = loop

    def now(self) -> float:
        """Read the loop's time, in seconds."""
        return (self._loop or asyncio.get_running_loop()).time()

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        """Call *callback* once the loop's time reaches *when*."""
        return (self._loop or asyncio.get_running_loop()).call_at(when, callback)


def run_virtual(
    main: Callable[[], Coroutine[Any, Any, _T]], *, seed: int | None = None, within_s: float | None = None
) -> _T:
    """
    Run *main* on a virtual-time loop of its own, and return what it returns.

    Args:
        main: An async function without arguments.
        seed: As of `VirtualTimeLoop`; the same seed gives the same run.
        within_s: The virtual seconds that it may take. A wait that never ends costs no time here and never ends, if
            anything goes on beside it: a lease that is renewed for ever, say.

    Raises:
        DeadlockError: The run came to a point that nothing can lead on from.
        TimeoutError: It took longer than *within_s*.
    """

    async def bounded() -> _T:
        async with asyncio.timeout(within_s):
            return await main()

    with asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(seed)) as runner:
        return runner.run(bounded())


def virtual(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """
    Make of an async test without arguments one that runs on virtual time, for any test runner.

        @virtual
        async def test_a_dead_owner_is_replaced_after_its_ttl() -> None: ...

    It may take an hour of virtual time, which is a moment of real time; then it fails.
    """

    @functools.wraps(test)
    def run() -> None:
        run_virtual(test, within_s=_TEST_WITHIN_S)

    # Left by wraps: a test runner that follows it would find a coroutine function, and run it on a loop of its own.
    del run.__wrapped__
    return run
