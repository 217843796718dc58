"""
A holder whose clock is chosen: `python -m chaos.programs.clocked`, for clocks that step and clocks that stop.

`--clock system` is the library's own. `wall` counts in calendar time, as a naive holder does: the control for steps of
it. For a machine that is suspended, which cannot be done to one process, the nemesis stops this process (SIGSTOP) and
writes into `--asleep` how long it slept before it lets it go on. `boottime` then is a clock that ran through the sleep,
and `monotonic` one that stood still, as those of Linux do (clock_gettime(2)); the timers of the event loop are of the
second kind in both.

It says `granted`, `lost`, and `believed`: that it asked after a sleep, and the lease was held.
"""

import argparse
import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable
from typing import final

from chaos.programs.instance import instance, parser_of, say
from tenure import Lease
from tenure.clock import Clock, SystemClock, Timer
from tenure.testing.history import HistoryRecorder

_LOOK_S = 0.01


@final
class ReadClock:
    """A clock that reads *read*, with timers that look at it every ten milliseconds of the event loop's time."""

    def __init__(self, read: Callable[[], float]) -> None:
        self._read = read

    def now(self) -> float:
        """Read the clock, in seconds."""
        return self._read()

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        """Call *callback* once the clock reads *when*."""
        return _Look(self, when, callback)


@final
class _Look:
    def __init__(self, clock: ReadClock, when: float, callback: Callable[[], None]) -> None:
        self._clock, self._when, self._callback = clock, when, callback
        self._handle = self._next()

    def cancel(self) -> None:
        """Call it off."""
        self._handle.cancel()

    def _next(self) -> asyncio.TimerHandle:
        left = max(0.0, min(self._when - self._clock.now(), _LOOK_S))
        return asyncio.get_running_loop().call_later(left, self._look)

    def _look(self) -> None:
        if self._clock.now() >= self._when:
            self._callback()
        else:
            self._handle = self._next()


@final
class Sleep:
    """How long this process was put to sleep so far, as the nemesis writes it down."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDONLY)

    def seconds(self) -> float:
        """Read it, in seconds."""
        return float(os.pread(self._fd, 32, 0) or b"0")

    def awake(self) -> float:
        """Read a monotonic clock that stands still during a sleep."""
        return time.monotonic() - self.seconds()


@final
class SleepyLoop(asyncio.SelectorEventLoop):
    """An event loop on a clock that stands still during a sleep."""

    def __init__(self, sleep: Sleep) -> None:
        super().__init__()
        self._sleep = sleep

    def time(self) -> float:
        """Read that clock."""
        return self._sleep.awake()


def clock_of(name: str, sleep: Sleep | None) -> Clock:
    """Make the clock of that name."""
    if name == "system":
        return SystemClock()
    if name == "wall":
        return ReadClock(lambda: time.clock_gettime(time.CLOCK_REALTIME))
    assert sleep is not None, "--asleep goes with a clock for sleeps"
    return ReadClock(time.monotonic if name == "boottime" else sleep.awake)


async def work(lease: Lease, recorder: HistoryRecorder, sleep: Sleep | None) -> None:
    """Ask at each beat whether the lease is held, and say so after a sleep."""
    say("granted", key=lease.key, token=lease.token)
    slept_before = sleep.seconds() if sleep else 0.0
    while True:
        slept, asked_at = sleep.seconds() if sleep else 0.0, recorder.now()
        if not lease.held:
            break
        recorder.note("believes", at=asked_at, key=lease.key, token=lease.token)
        if slept > slept_before:
            say("believed", key=lease.key, token=lease.token)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.02):  # around an event of our own, no store call
                await lease.lost.wait()
    say("lost", key=lease.key, token=lease.token, reason=lease.lost.reason and lease.lost.reason.name)
    with contextlib.suppress(Exception):
        await lease.release()


async def main(options: argparse.Namespace, sleep: Sleep | None) -> None:
    """Campaign until SIGTERM."""
    async with instance(options, clock=clock_of(options.clock, sleep)) as one:

        async def campaign() -> None:
            while True:
                try:
                    lease = await one.locks.acquire(options.key, wait=3600)
                except Exception:  # noqa: BLE001 -- whatever a driver raises after a step; the history holds its type
                    await asyncio.sleep(0.02)
                    continue
                await work(lease, one.recorder, sleep)

        await one.work(asyncio.create_task(campaign()))


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = parser_of("clocked")
    parser.add_argument("--key", default="job")
    parser.add_argument("--clock", choices=("system", "wall", "boottime", "monotonic"), default="system")
    parser.add_argument("--asleep", default="", help="the file in which the nemesis says how long this slept")
    return parser.parse_args()


def run() -> None:
    """Run on the loop that goes with the clock."""
    options = parse()
    sleep = Sleep(options.asleep) if options.asleep else None
    with asyncio.Runner(loop_factory=None if sleep is None else lambda: SleepyLoop(sleep)) as runner:
        runner.run(main(options, sleep))


if __name__ == "__main__":
    logging.getLogger("tenure").setLevel(logging.ERROR)
    run()
