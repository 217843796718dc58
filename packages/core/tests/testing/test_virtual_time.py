import asyncio
import contextvars
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tenure.clock import Clock, sleep_until
from tenure.memory import InMemoryLockStore
from tenure.store import Acquired, Held
from tenure.testing import DeadlockError, LoopClock, ManualClock, VirtualTimeLoop, run_virtual


def test_a_year_passes_in_a_moment() -> None:
    async def main() -> float:
        start = asyncio.get_running_loop().time()
        await asyncio.sleep(366 * 86_400)
        return asyncio.get_running_loop().time() - start

    began = time.monotonic()
    assert run_virtual(main) == 366 * 86_400
    assert time.monotonic() - began < 5  # a year in real time it is not


def test_time_stands_still_while_anything_runs() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        start = loop.time()
        asyncio.get_running_loop().call_later(1, lambda: None)
        for _ in range(100):
            await asyncio.sleep(0)
        assert loop.time() == start

    run_virtual(main)


def test_timers_run_at_exactly_their_time() -> None:
    async def main() -> None:
        clock = LoopClock()
        start = clock.now()
        # A third is no number of the float's: sums of it come out a hair to either side.
        due = [start + number / 3 for number in range(1, 300)]
        read: list[float] = []
        for when in due:
            clock.call_at(when, lambda: read.append(clock.now()))
        await asyncio.sleep(1000)
        assert read == due

    run_virtual(main)


def test_a_timer_a_hair_after_another_waits_for_its_own_moment() -> None:
    async def main() -> None:
        clock = LoopClock()
        first = clock.now() + 1
        second = first + 2e-10
        assert second > first
        read: list[float] = []
        for when in (first, second):
            clock.call_at(when, lambda: read.append(clock.now()))
        await asyncio.sleep(2)
        assert read == [first, second]

    run_virtual(main)


def test_asyncio_itself_works_on_it() -> None:
    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(30):
                await asyncio.Event().wait()
        async with asyncio.TaskGroup() as group:
            slow, fast = group.create_task(asyncio.sleep(5, "slow")), group.create_task(asyncio.sleep(1, "fast"))
        assert (slow.result(), fast.result()) == ("slow", "fast")
        done, pending = await asyncio.wait([asyncio.create_task(asyncio.sleep(10))], timeout=5)
        assert (len(done), len(pending)) == (0, 1)
        await asyncio.gather(*pending)

    run_virtual(main)


def test_a_wait_that_nothing_can_end_raises_and_names_who_waits() -> None:
    async def stuck_forever() -> None:
        await asyncio.Event().wait()

    with pytest.raises(DeadlockError, match=r"stuck_forever > Event\.wait"):
        run_virtual(stuck_forever)


def test_a_thread_is_refused() -> None:
    async def main() -> None:
        await asyncio.to_thread(time.monotonic)

    with pytest.raises(RuntimeError, match="thread cannot run under virtual time"):
        run_virtual(main)


def test_an_error_of_the_program_comes_out_as_it_is() -> None:
    async def main() -> None:
        await asyncio.sleep(1)
        raise KeyError("its own")

    with pytest.raises(KeyError, match="its own"):
        run_virtual(main)


def order_of_five(seed: int | None) -> list[int]:
    async def main() -> list[int]:
        ran: list[int] = []

        async def note(number: int) -> None:
            await asyncio.sleep(0)
            ran.append(number)
            await asyncio.sleep(0)
            ran.append(number)

        await asyncio.gather(*(note(number) for number in range(5)))
        return ran

    return run_virtual(main, seed=seed)


def test_the_same_seed_gives_the_same_run() -> None:
    assert [order_of_five(seed) for seed in range(20)] == [order_of_five(seed) for seed in range(20)]


def test_other_seeds_give_other_interleavings() -> None:
    assert len({tuple(order_of_five(seed)) for seed in range(50)}) > 10


def test_without_a_seed_the_order_is_asyncios_own() -> None:
    assert order_of_five(None) == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4]


def test_a_race_that_one_order_hides_is_found_by_a_seed() -> None:
    def winners(seed: int | None) -> int:
        async def main() -> int:
            holder: list[str] = []

            async def acquire(name: str, later: int) -> None:
                for _ in range(later):
                    await asyncio.sleep(0)
                if not holder:
                    await asyncio.sleep(0)
                    holder.append(name)

            await asyncio.gather(acquire("a", 0), acquire("b", 1))
            return len(holder)

        return run_virtual(main, seed=seed)

    assert winners(None) == 1
    assert {winners(seed) for seed in range(20)} == {1, 2}


def test_the_loop_clock_is_a_clock_and_the_in_memory_store_lives_on_it() -> None:
    async def main() -> None:
        clock: Clock = LoopClock()
        store = InMemoryLockStore(clock)
        await store.acquire("k", "a", 30_000)
        await asyncio.sleep(29)
        assert isinstance(await store.acquire("k", "b", 1000), Held)
        await sleep_until(clock, clock.now() + 1)
        assert isinstance(await store.acquire("k", "b", 1000), Acquired)

    run_virtual(main)


def test_a_loop_clock_can_be_read_after_its_run() -> None:
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        clock = LoopClock(runner.get_loop())
        start = clock.now()
        runner.run(asyncio.sleep(5))
        assert clock.now() == start + 5


async def test_a_loop_clock_reads_an_ordinary_loop_too() -> None:
    clock = LoopClock()
    fired = asyncio.Event()
    clock.call_at(clock.now() + 0.001, fired.set)
    await fired.wait()
    assert clock.now() <= asyncio.get_running_loop().time()


def test_a_manual_clock_works_under_virtual_time_and_finds_its_deadlock_at_once() -> None:
    async def main() -> None:
        clock = ManualClock()
        ticks: list[float] = []
        clock.call_at(clock.now() + 1, lambda: ticks.append(clock.now()))
        await clock.advance(2)
        assert len(ticks) == 1
        call = asyncio.create_task(asyncio.Event().wait())
        clock.store_call_started(call)
        with pytest.raises(DeadlockError):
            await clock.advance(1)
        call.cancel()

    run_virtual(main)


PROCESS: contextvars.ContextVar[str] = contextvars.ContextVar("process", default="")


def context_of(process: str) -> contextvars.Context:
    context = contextvars.copy_context()
    context.run(PROCESS.set, process)
    return context


def run_held_back(main: Callable[[VirtualTimeLoop, set[str]], Coroutine[Any, Any, None]], seed: int | None) -> None:
    """Run *main* on a loop that holds back the processes in the set that it is given."""
    paused: set[str] = set()
    loop = VirtualTimeLoop(seed, hold_back=lambda context: context.get(PROCESS, "") in paused)
    try:
        loop.run_until_complete(main(loop, paused))
    finally:
        paused.clear()
        loop.let_go()
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.close()


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_a_process_that_is_held_back_does_nothing_until_it_is_let_go_while_time_goes_on(seed: int | None) -> None:
    ran: list[tuple[str, float]] = []

    async def main(loop: VirtualTimeLoop, paused: set[str]) -> None:
        start = loop.time()

        async def work(name: str) -> None:
            for _ in range(4):
                await asyncio.sleep(1)
                ran.append((name, loop.time() - start))

        works = [loop.create_task(work(name), context=context_of(name)) for name in ("a", "b")]
        await asyncio.sleep(1.5)
        paused.add("a")
        await asyncio.sleep(2)
        paused.clear()
        loop.let_go()
        await asyncio.wait(works)

    run_held_back(main, seed)
    # What was due in the pause comes at its end, and what follows from it counts from there.
    assert [at for name, at in ran if name == "a"] == [1, 3.5, 4.5, 5.5]
    assert [at for name, at in ran if name == "b"] == [1, 2, 3, 4]


def test_a_timer_of_a_process_that_is_held_back_can_be_called_off_meanwhile() -> None:
    async def main(loop: VirtualTimeLoop, paused: set[str]) -> None:
        fired: list[float] = []
        timers = [loop.call_later(after, fired.append, after, context=context_of("a")) for after in (1, 2, 8)]
        paused.add("a")
        await asyncio.sleep(5)
        timers[0].cancel()
        paused.clear()
        loop.let_go()
        await asyncio.sleep(0.5)
        assert fired == [2]
        await asyncio.sleep(5)
        assert fired == [2, 8]

    run_held_back(main, None)


def test_waiting_for_a_process_that_nobody_lets_go_is_a_deadlock() -> None:
    async def main(loop: VirtualTimeLoop, paused: set[str]) -> None:
        paused.add("a")
        await loop.create_task(asyncio.sleep(1), context=context_of("a"))

    with pytest.raises(DeadlockError):
        run_held_back(main, None)
