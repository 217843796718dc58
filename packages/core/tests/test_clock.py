"""The clock: which one is read, timers that find a suspend, and waits that cancel nothing."""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import tenure.clock
from tenure.clock import ObservesCalls, SystemClock, sleep_until, wait_until
from tenure.testing import ManualClock, VirtualTimeLoop, run_virtual

PATIENCE_S = 10.0
"""How long a real loop is given for what comes within milliseconds; generous, for a machine may be busy."""


class Reading:
    """What a clock shows, moved by hand."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def jump(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def reading(monkeypatch: pytest.MonkeyPatch) -> Reading:
    """A system clock that shows what the test says, while the event loop's own time runs on."""
    shown = Reading()
    monkeypatch.setattr(SystemClock, "now", lambda _: shown.now_s)
    return shown


@pytest.fixture
def looks(reading: Reading, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Timers that look at the clock every two milliseconds; each look is recorded."""
    recorded: list[float] = []

    here = threading.get_ident()

    def now(_: SystemClock) -> float:
        # The thread of tenure.sync, where an earlier test has started it, looks at times of its own.
        if threading.get_ident() == here:
            recorded.append(reading.now_s)
        return reading.now_s

    monkeypatch.setattr(SystemClock, "now", now)
    monkeypatch.setattr(tenure.clock, "_STEP_S", 0.002)
    return recorded


async def until(condition: Callable[[], object]) -> None:
    """Poll *condition* on the real loop, within bounds."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.001)


# ---------------------------------------------------------------------------------- which is read


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="this system has no clock that counts a suspend")
def test_the_clock_that_counts_a_suspend_is_read_where_there_is_one() -> None:
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert before <= SystemClock().now() <= time.clock_gettime(time.CLOCK_BOOTTIME)


def test_the_monotonic_clock_is_read_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenure.clock, "_BOOTTIME", None)
    before = time.monotonic()
    assert before <= SystemClock().now() <= time.monotonic()


def test_the_clock_never_goes_back() -> None:
    readings = [SystemClock().now() for _ in range(1000)]
    assert readings == sorted(readings)


def test_only_a_clock_of_a_test_observes_store_calls() -> None:
    assert not isinstance(SystemClock(), ObservesCalls)
    assert isinstance(ManualClock(), ObservesCalls)


# ---------------------------------------------------------------------------------------- timers


async def test_a_timer_calls_once_the_clock_has_come_to_its_time() -> None:
    clock, called_at = SystemClock(), list[float]()
    due = clock.now() + 0.01
    clock.call_at(due, lambda: called_at.append(clock.now()))
    await until(lambda: called_at)
    assert called_at[0] >= due
    await asyncio.sleep(0.01)
    assert len(called_at) == 1


@pytest.mark.parametrize("late_s", [0.0, 0.1, 1e9])
async def test_a_timer_that_is_due_already_calls_from_the_loop_and_not_at_once(reading: Reading, late_s: float) -> None:
    calls: list[str] = []
    SystemClock().call_at(reading.now_s - late_s, lambda: calls.append("called"))
    assert calls == []
    await until(lambda: calls)
    assert calls == ["called"]


async def test_a_timer_that_was_cancelled_does_not_call(reading: Reading) -> None:
    calls: list[str] = []
    timer = SystemClock().call_at(reading.now_s, lambda: calls.append("cancelled"))
    timer.cancel()
    timer.cancel()
    SystemClock().call_at(reading.now_s, lambda: calls.append("kept"))
    await until(lambda: calls)
    assert calls == ["kept"]


async def test_a_timer_that_was_cancelled_between_two_looks_looks_no_more(looks: list[float], reading: Reading) -> None:
    calls: list[str] = []
    timer = SystemClock().call_at(reading.now_s + 3600, lambda: calls.append("called"))
    await until(lambda: len(looks) > 3)
    timer.cancel()
    seen = len(looks)
    reading.jump(7200)
    await asyncio.sleep(0.02)  # ten times the span between two looks
    assert (len(looks), calls) == (seen, [])


async def test_cancelling_a_timer_that_has_called_does_nothing(reading: Reading) -> None:
    calls: list[str] = []
    timer = SystemClock().call_at(reading.now_s, lambda: calls.append("called"))
    await until(lambda: calls)
    timer.cancel()


async def test_a_timer_may_be_cancelled_by_its_own_callback(reading: Reading) -> None:
    calls: list[str] = []

    def callback() -> None:
        timer.cancel()
        calls.append("called")

    timer = SystemClock().call_at(reading.now_s, callback)
    await until(lambda: calls)


async def test_a_suspend_is_found_although_the_loops_timers_do_not_count_it(
    looks: list[float], reading: Reading
) -> None:
    called_at: list[float] = []
    SystemClock().call_at(reading.now_s + 3600, lambda: called_at.append(reading.now_s))
    await until(lambda: len(looks) > 3)
    assert called_at == []
    reading.jump(5000)
    await until(lambda: called_at)
    assert called_at == [6000.0]


async def test_a_loop_whose_time_runs_ahead_of_the_clock_does_not_call_early(
    looks: list[float], reading: Reading
) -> None:
    called_at: list[float] = []
    SystemClock().call_at(reading.now_s + 0.004, lambda: called_at.append(reading.now_s))
    await until(lambda: len(looks) > 10)
    assert called_at == []
    reading.jump(0.004)
    await until(lambda: called_at)


def clock_beside(loop: VirtualTimeLoop, monkeypatch: pytest.MonkeyPatch) -> Reading:
    """A system clock that runs with *loop*'s time, and ahead of it by every suspend."""
    suspended = Reading()
    suspended.now_s = 0.0
    monkeypatch.setattr(SystemClock, "now", lambda _: loop.time() + suspended.now_s)
    return suspended


@pytest.mark.parametrize("awake_s", [0.0, 0.4, 1799.9])
def test_a_suspend_is_found_within_a_second_of_the_wake_up(awake_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        suspended = clock_beside(loop, monkeypatch)
        called: asyncio.Future[float] = loop.create_future()
        SystemClock().call_at(SystemClock().now() + 3600, lambda: called.set_result(loop.time()))
        await asyncio.sleep(awake_s)
        suspended.jump(3600)
        woke_up_at = loop.time()
        return await called - woke_up_at

    assert run_virtual(main) <= 1.0


def test_a_timer_of_an_hour_looks_once_a_second_and_calls_on_time(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0

    async def main() -> float:
        loop = asyncio.get_running_loop()
        began_at = loop.time()

        def now(_: SystemClock) -> float:
            nonlocal looks
            looks += 1
            return loop.time()

        monkeypatch.setattr(SystemClock, "now", now)
        called: asyncio.Future[float] = loop.create_future()
        SystemClock().call_at(began_at + 3600, lambda: called.set_result(loop.time()))
        return await called - began_at

    assert run_virtual(main) == pytest.approx(3600)
    assert looks in (3601, 3602)  # the last one may fall a rounding short of the hour


# ----------------------------------------------------------------------------------------- waits


class HandTimer:
    """A timer that a test fires."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class HandClock:
    """A clock whose timers a test fires, at whatever moment of the loop it likes."""

    def __init__(self) -> None:
        self.timers: list[HandTimer] = []
        self.whens: list[float] = []

    def now(self) -> float:
        return 0.0

    def call_at(self, when: float, callback: Callable[[], None]) -> HandTimer:
        self.whens.append(when)
        self.timers.append(HandTimer(callback))
        return self.timers[-1]

    def fire(self) -> None:
        for timer in self.timers:
            timer.callback()


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


async def started(work: Any) -> "asyncio.Task[Any]":
    task = asyncio.create_task(work)
    await asyncio.sleep(0)
    return task


async def test_a_sleep_ends_when_the_clock_comes_to_its_time(clock: HandClock) -> None:
    sleeper = await started(sleep_until(clock, 30.0))
    await asyncio.sleep(0)
    assert not sleeper.done()
    assert clock.whens == [30.0]
    clock.fire()
    await sleeper
    assert clock.timers[0].cancelled


async def test_a_sleep_on_the_systems_clock_lasts_until_its_time() -> None:
    due = SystemClock().now() + 0.01
    await sleep_until(SystemClock(), due)
    assert SystemClock().now() >= due


async def test_a_sleep_that_is_cancelled_leaves_no_timer_behind(clock: HandClock) -> None:
    sleeper = await started(sleep_until(clock, 30.0))
    sleeper.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sleeper
    assert clock.timers[0].cancelled


async def test_a_sleep_that_is_cancelled_as_its_time_comes_is_cancelled(clock: HandClock) -> None:
    sleeper = await started(sleep_until(clock, 30.0))
    sleeper.cancel()
    clock.fire()  # before the sleeper could call its timer off
    with pytest.raises(asyncio.CancelledError):
        await sleeper


async def test_a_wait_ends_with_the_first_that_is_done_and_cancels_none_of_the_others(clock: HandClock) -> None:
    done, hung = asyncio.Event(), asyncio.create_task(asyncio.Event().wait())
    waiter = await started(wait_until(clock, hung, asyncio.create_task(done.wait()), when=30.0))
    done.set()
    assert await waiter is True
    assert not hung.done()
    assert clock.timers[0].cancelled
    hung.cancel()


async def test_a_wait_for_what_hangs_ends_at_its_time_and_cancels_nothing(clock: HandClock) -> None:
    hung = asyncio.create_task(asyncio.Event().wait())
    waiter = await started(wait_until(clock, hung, when=30.0))
    clock.fire()
    assert await waiter is False
    assert not hung.done()
    hung.cancel()


async def test_a_wait_that_is_cancelled_cancels_nothing_and_leaves_no_timer_behind(clock: HandClock) -> None:
    hung = asyncio.create_task(asyncio.Event().wait())
    waiter = await started(wait_until(clock, hung, when=30.0))
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    assert not hung.done()
    assert clock.timers[0].cancelled
    hung.cancel()


async def test_a_wait_does_not_raise_what_it_waited_for(clock: HandClock) -> None:
    async def fail() -> None:
        raise LookupError

    failing = asyncio.create_task(fail())
    assert await wait_until(clock, failing, when=30.0)
    with pytest.raises(LookupError):
        await failing


async def test_what_is_done_when_time_is_up_counts_as_done(clock: HandClock) -> None:
    answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    waiter = await started(wait_until(clock, answer, when=30.0))
    clock.fire()
    answer.set_result("in the same turn")
    assert await waiter is True


async def test_a_driver_that_does_not_heed_a_cancellation_holds_up_no_wait() -> None:
    async def stubborn() -> None:
        while not free.is_set():
            try:
                await free.wait()
            except asyncio.CancelledError:
                continue

    free = asyncio.Event()
    call = await started(stubborn())
    call.cancel()
    assert await wait_until(SystemClock(), call, when=SystemClock().now() + 0.01) is False
    free.set()
    await call
