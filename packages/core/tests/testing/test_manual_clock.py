import asyncio
import contextvars
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from tenure.clock import ObservesCalls, Timer, sleep_until, wait_until
from tenure.errors import ConfigurationError
from tenure.memory import InMemoryLockStore
from tenure.store import Acquired, Held
from tenure.testing import DeadlockError, FaultyStore, ManualClock


def store_call(clock: ManualClock, call: Any) -> "asyncio.Task[Any]":
    """Start a store call as the keeper does: a task of its own, of which the clock is told."""
    task = asyncio.create_task(call)
    clock.store_call_started(task)
    return task


def periodic(clock: ManualClock, every_s: float, work: Callable[[], object]) -> None:
    """Set a timer that sets itself again."""

    def fire() -> None:
        work()
        clock.call_at(clock.now() + every_s, fire)

    clock.call_at(clock.now() + every_s, fire)


async def test_it_observes_store_calls() -> None:
    assert isinstance(ManualClock(), ObservesCalls)


async def test_it_stands_still_while_real_time_passes() -> None:
    clock = ManualClock()
    before, fired = clock.now(), []
    clock.call_at(before + 0.001, lambda: fired.append(1))
    await asyncio.sleep(0.01)
    assert clock.now() == before
    assert fired == []


@pytest.mark.parametrize("span", [300, 300.0, "5m", timedelta(minutes=5)])
async def test_it_moves_by_what_it_is_told(span: Any) -> None:
    clock = ManualClock(start=50.0)
    await clock.advance(span)
    assert clock.now() == 350.0


@pytest.mark.parametrize("span", [-1, float("nan"), float("inf"), True, None, "5 minutes", "-5m"])
async def test_a_span_that_is_none_is_refused(span: Any) -> None:
    clock = ManualClock()
    before = clock.now()
    with pytest.raises(ConfigurationError):
        await clock.advance(span)
    with pytest.raises(ConfigurationError):
        clock.stall(span)
    assert clock.now() == before


async def test_timers_fire_by_due_time_each_at_its_own_moment() -> None:
    clock = ManualClock()
    start = clock.now()
    fired: list[tuple[float, float]] = []

    def note(due: float) -> None:
        fired.append((due, clock.now() - start))

    for due in (3.0, 1.0, 2.5, 7.0):
        clock.call_at(start + due, partial(note, due))
    await clock.advance(5)
    assert fired == [(1.0, 1.0), (2.5, 2.5), (3.0, 3.0)]
    assert clock.timers == 1


async def test_timers_of_one_moment_fire_in_the_order_in_which_they_were_set() -> None:
    clock = ManualClock()
    fired: list[int] = []
    for number in range(5):
        clock.call_at(clock.now() + 1, partial(fired.append, number))
    await clock.advance(1)
    assert fired == [0, 1, 2, 3, 4]


async def test_what_the_first_timer_of_a_moment_wakes_runs_before_the_second_fires() -> None:
    clock = ManualClock()
    seen: list[str] = []

    async def woken() -> None:
        await sleep_until(clock, clock.now() + 1)
        for _ in range(20):
            await asyncio.sleep(0)
        seen.append("woken")

    task = asyncio.create_task(woken())
    await asyncio.sleep(0)
    clock.call_at(clock.now() + 1, lambda: seen.append("second timer"))
    await clock.advance(1)
    assert seen == ["woken", "second timer"]
    await task


async def test_a_timer_set_within_the_span_fires_within_it() -> None:
    clock = ManualClock()
    start, ticks = clock.now(), []
    periodic(clock, 10, lambda: ticks.append(clock.now() - start))
    await clock.advance("1m")
    assert ticks == [10, 20, 30, 40, 50, 60]


async def test_a_cancelled_timer_does_not_fire_and_is_not_counted() -> None:
    clock = ManualClock()
    fired: list[str] = []
    timer = clock.call_at(clock.now() + 1, lambda: fired.append("cancelled"))
    clock.call_at(clock.now() + 1, lambda: fired.append("kept"))
    assert clock.timers == 2
    timer.cancel()
    timer.cancel()
    assert clock.timers == 1
    await clock.advance(2)
    assert fired == ["kept"]
    assert clock.timers == 0


async def test_a_timer_cancelled_by_another_of_its_moment_does_not_fire() -> None:
    clock = ManualClock()
    fired: list[str] = []
    others: list[Timer] = []

    def cancel_the_other() -> None:
        others[0].cancel()

    clock.call_at(clock.now() + 1, cancel_the_other)
    others.append(clock.call_at(clock.now() + 1, lambda: fired.append("second")))
    await clock.advance(1)
    assert fired == []


async def test_a_timer_that_is_due_already_fires_without_an_advance() -> None:
    clock = ManualClock()
    assert await wait_until(clock, asyncio.get_running_loop().create_future(), when=clock.now()) is False
    await sleep_until(clock, clock.now() - 5)
    assert clock.timers == 0


async def test_a_due_timer_can_still_be_called_off() -> None:
    clock = ManualClock()
    fired: list[int] = []
    clock.call_at(clock.now(), lambda: fired.append(1)).cancel()
    await clock.settle()
    assert fired == []


async def test_a_callback_sees_the_context_of_whoever_set_it() -> None:
    clock = ManualClock()
    variable = contextvars.ContextVar("variable", default="advancer")
    seen: list[str] = []

    async def setter() -> None:
        variable.set("setter")
        clock.call_at(clock.now() + 1, lambda: seen.append(variable.get()))

    await asyncio.create_task(setter())
    await clock.advance(1)
    assert seen == ["setter"]


async def test_ten_advances_of_a_tenth_reach_the_same_moment_as_one_of_a_whole() -> None:
    clock = ManualClock()
    fired: list[float] = []
    clock.call_at(clock.now() + 1, lambda: fired.append(clock.now()))
    for _ in range(10):
        await clock.advance(0.1)
    assert len(fired) == 1


async def test_a_thousand_timers_set_and_cancelled_leave_nothing_behind() -> None:
    clock = ManualClock()
    for _ in range(1000):
        clock.call_at(clock.now() + 60, lambda: None).cancel()
    assert clock.timers == 0
    assert len(clock._queue) < 100


async def test_advance_waits_for_store_calls_over_real_connections() -> None:
    clock = ManualClock()
    order: list[str] = []
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]

    async def renew() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"renew\n")
        order.append((await reader.readline()).decode().strip())
        writer.close()
        await writer.wait_closed()

    periodic(clock, 10, lambda: store_call(clock, renew()))
    async with server:
        await clock.advance("30s")
        order.append("advanced")
    assert order == ["renew", "renew", "renew", "advanced"]


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    line = await reader.readline()
    await asyncio.sleep(0.02)  # a server that thinks: the reply comes in a later turn of the loop
    writer.write(line)
    await writer.drain()
    writer.close()
    await writer.wait_closed()


async def test_the_next_timer_fires_only_after_the_store_call_of_the_last_one_has_ended() -> None:
    clock = ManualClock()
    seen: list[str] = []

    async def call() -> None:
        seen.append(f"sent at {clock.now() - start:g}")
        await asyncio.sleep(0.01)
        seen.append(f"answered at {clock.now() - start:g}")

    def send() -> None:
        store_call(clock, call())

    start = clock.now()
    clock.call_at(start + 1, send)
    clock.call_at(start + 2, lambda: seen.append("next timer"))
    await clock.advance(3)
    assert seen == ["sent at 1", "answered at 1", "next timer"]


async def test_a_store_call_started_before_the_advance_is_waited_for_before_time_moves() -> None:
    clock = ManualClock()
    seen: list[float] = []

    async def call() -> None:
        await asyncio.sleep(0.01)
        seen.append(clock.now())

    before = clock.now()
    task = store_call(clock, call())
    await clock.advance(5)
    assert seen == [before]
    await task


async def test_a_call_that_hangs_on_purpose_holds_up_no_advance() -> None:
    clock = ManualClock()
    store = FaultyStore(InMemoryLockStore(clock), clock=clock)
    store.on("renew").hang()
    call = store_call(clock, store.renew("k", "o", 1000))
    fired: list[float] = []
    clock.call_at(clock.now() + 3, lambda: fired.append(clock.now()))
    await clock.advance(5)
    assert len(fired) == 1
    assert not call.done()
    store.heal()
    await clock.settle()
    assert isinstance(call.exception(), ConnectionError)


async def test_a_store_that_sleeps_on_the_clock_itself_holds_up_no_advance() -> None:
    clock = ManualClock()

    async def slow_store() -> float:
        await clock.sleep(3)
        return clock.now()

    start = clock.now()
    call = store_call(clock, slow_store())
    await clock.advance(2)
    assert not call.done()
    await clock.advance(2)
    assert call.result() == start + 3


async def test_an_advance_that_cannot_settle_fails_and_names_the_call() -> None:
    clock = ManualClock(patience_s=0.05)
    call = store_call(clock, asyncio.Event().wait())
    with pytest.raises(DeadlockError, match=r"0\.05 s of real time .*Event\.wait"):
        await clock.advance(1)
    call.cancel()
    await clock.advance(1)


async def test_timers_that_never_let_time_pass_fail_the_advance_and_name_the_callback() -> None:
    clock = ManualClock(patience_s=0.05)
    periodic(clock, 1e-9, lambda: None)
    with pytest.raises(DeadlockError, match=r"periodic\.<locals>\.fire"):
        await clock.advance(1)


async def test_a_task_that_spins_does_not_keep_the_clock_from_moving() -> None:
    clock = ManualClock()
    stop = False

    async def spin() -> None:
        while not stop:
            await asyncio.sleep(0)

    spinning = asyncio.create_task(spin())
    ticks: list[int] = []
    periodic(clock, 1, lambda: ticks.append(1))
    await clock.advance(5)
    stop = True
    await spinning
    assert len(ticks) == 5


async def test_two_tasks_cannot_advance_one_clock() -> None:
    clock = ManualClock()
    call = store_call(clock, asyncio.sleep(0.05))
    first = asyncio.create_task(clock.advance(1))
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="another task"):
        await clock.advance(1)
    await first
    await clock.advance(1)
    await call


async def test_a_cancelled_advance_leaves_the_clock_usable() -> None:
    clock = ManualClock()
    call = store_call(clock, asyncio.Event().wait())
    advancing = asyncio.create_task(clock.advance(1))
    await asyncio.sleep(0.02)
    advancing.cancel()
    await asyncio.wait([advancing])
    call.cancel()
    await clock.advance(1)


async def test_sleep_ends_when_the_clock_has_moved_by_it() -> None:
    clock = ManualClock()
    start = clock.now()
    sleeper = asyncio.create_task(clock.sleep("10s"))
    await clock.advance(9.999)
    assert not sleeper.done()
    await clock.advance(0.001)
    assert sleeper.done()
    assert clock.now() == start + 10


async def test_after_a_stall_the_next_line_reads_the_new_time_and_no_timer_has_fired_yet() -> None:
    clock = ManualClock()
    start = clock.now()
    fired: list[tuple[float, float]] = []

    def note(due: float) -> None:
        fired.append((due, clock.now() - start))

    for due in (2, 1, 90):
        clock.call_at(start + due, partial(note, due))
    stalled = clock.stall("1m")
    assert clock.now() == start + 60
    assert fired == []
    await stalled
    # Late, in order, both at the time at which the process runs again.
    assert fired == [(1, 60), (2, 60)]
    assert clock.timers == 1


async def test_a_stall_that_nobody_awaits_still_fires_what_is_overdue() -> None:
    clock = ManualClock()
    fired: list[int] = []
    clock.call_at(clock.now() + 1, lambda: fired.append(1))
    clock.stall(5)
    await asyncio.sleep(0)
    assert fired == [1]


async def test_overdue_timers_fire_before_anything_that_they_wake_runs() -> None:
    clock = ManualClock()
    seen: list[str] = []

    async def sleeper() -> None:
        await clock.sleep(1)
        seen.append("woken")

    task = asyncio.create_task(sleeper())
    await asyncio.sleep(0)
    clock.call_at(clock.now() + 2, lambda: seen.append("deadline"))
    await clock.stall(5)
    assert seen == ["deadline", "woken"]
    await task


async def test_a_stall_inside_a_callback_makes_later_timers_late() -> None:
    clock = ManualClock()
    start, seen = clock.now(), []

    def block() -> None:
        clock.stall(10)

    clock.call_at(start + 1, block)
    clock.call_at(start + 3, lambda: seen.append(clock.now() - start))
    await clock.advance(5)
    assert seen == [11]
    assert clock.now() == start + 11


async def test_expiry_in_the_in_memory_store_moves_with_the_clock() -> None:
    clock = ManualClock()
    store = InMemoryLockStore(clock)
    first = await store.acquire("k", "a", 30_000)
    await clock.advance(29.9)
    assert isinstance(await store.acquire("k", "b", 1000), Held)
    await clock.advance(0.1)
    second = await store.acquire("k", "b", 1000)
    assert isinstance(first, Acquired)
    assert isinstance(second, Acquired)
    assert second.token > first.token


async def test_an_instance_whose_clock_is_not_advanced_is_a_paused_process() -> None:
    paused, running = ManualClock(), ManualClock()
    renewals: list[str] = []
    periodic(paused, 10, lambda: renewals.append("paused"))
    periodic(running, 10, lambda: renewals.append("running"))
    await running.advance("25s")
    assert renewals == ["running", "running"]


async def test_it_shows_its_time_and_its_timers() -> None:
    clock = ManualClock(start=5.0)
    clock.call_at(6.0, lambda: None)
    assert repr(clock) == "ManualClock(now=5.0, timers=1)"
