import asyncio
import time

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
