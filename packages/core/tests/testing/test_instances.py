"""Several instances in one process: what a kill, a stop, a pause and a cut network look like to the others."""

import asyncio
import inspect
import textwrap
from collections.abc import Callable
from typing import Any

import pytest

from tenure import (
    ConfigurationError,
    Lease,
    LeaseLostError,
    LeaseStateError,
    LockNotAcquiredError,
    StoreTimeoutError,
    current_lease,
    locked,
    on_one_instance,
)
from tenure.events import LeaseLost, LeaseReleased, LocksStarted
from tenure.jobs import job_lease
from tenure.testing import FaultError, InstanceKilledError, instances
from tenure.testing import _instances as source

JOB = "test-instances:export"


@on_one_instance(JOB)
async def export() -> str:
    return "exported"


async def lease_of_the_job() -> Lease | None:
    return job_lease(JOB)


@locked("test-instances:door")
async def through_the_door() -> int:
    lease = current_lease()
    assert lease is not None
    return lease.token


async def test_one_of_three_runs_the_job_and_keeps_it() -> None:
    async with instances(3) as shops:
        for _ in range(3):
            assert [await shop.call(export) for shop in shops] == ["exported", None, None]
        assert await shops.holder(f"{JOB}:owner") == "instance-1"


async def test_after_a_kill_the_job_is_taken_over_when_the_ttl_has_passed_and_not_before() -> None:
    async with instances(2, ttl="30s") as shops:
        await shops[0].call(export)
        await shops[0].kill()
        await shops.advance("29s")
        assert await shops[1].call(export) is None
        assert await shops.holder(f"{JOB}:owner") == "instance-1"
        await shops.advance("1s")
        assert await shops[1].call(export) == "exported"


async def test_after_a_stop_the_job_is_free_at_once() -> None:
    async with instances(2) as shops:
        await shops[0].call(export)
        await shops.advance("1s")  # for as long as a job's lease stays at least
        await shops[0].stop()
        assert await shops.holder(f"{JOB}:owner") is None
        assert await shops[1].call(export) == "exported"
        assert any(isinstance(event, LeaseReleased) for event in shops[0].events)


async def test_who_was_paused_past_its_ttl_learns_of_it_before_anything_else() -> None:
    async with instances(2, ttl="30s") as shops:
        await shops[0].call(export)
        lease = await shops[0].call(lease_of_the_job)
        assert lease is not None
        shops[0].pause()
        await shops.advance("31s")
        assert lease.held, "a process that does not run believes what it believed"
        assert await shops[1].call(export) == "exported"
        await shops[0].resume()
        assert not lease.held
        assert await shops[0].call(export) is None
        assert [type(event) for event in shops[0].events].count(LeaseLost) == 1


async def test_a_pause_that_is_shorter_than_the_ttl_costs_nothing() -> None:
    async with instances(2, ttl="30s") as shops:
        await shops[0].call(export)
        shops[0].pause()
        await shops.advance("15s")
        await shops[0].resume()
        await shops.advance("29s")
        assert [await shop.call(export) for shop in shops] == ["exported", None]


@pytest.mark.parametrize("hang", [False, True], ids=["its calls fail", "its calls hang"])
async def test_who_is_cut_off_gives_up_at_its_deadline_and_the_other_takes_over(hang: bool) -> None:
    async with instances(2, ttl="30s") as shops:
        await shops[0].call(export)
        lease = await shops[0].call(lease_of_the_job)
        assert lease is not None
        shops[0].cut(hang=hang)
        await shops.advance("30s")
        assert not lease.held
        assert await shops[1].call(export) == "exported"
        with pytest.raises(StoreTimeoutError if hang else FaultError):
            await asyncio.gather(shops[0].locks.try_acquire("another"), shops.advance("30s"))
        await shops[0].heal()
        assert await shops[0].call(export) is None


async def test_a_cut_that_heals_in_time_costs_nothing() -> None:
    async with instances(2, ttl="30s") as shops:
        await shops[0].call(export)
        shops[0].cut()
        await shops.advance("15s")
        await shops[0].heal()
        await shops.advance("60s")
        assert [await shop.call(export) for shop in shops] == ["exported", None]


async def test_one_reply_that_is_lost_is_a_fault_of_the_tests_own() -> None:
    async with instances(1) as shops:
        shops[0].store.on("acquire").lose_reply()
        with pytest.raises(FaultError):
            await shops[0].locks.try_acquire("job")
        await shops.advance("1s")
        assert await shops.holder("job") is None, "what an acquire of unknown outcome took is given back"


async def test_what_a_killed_instance_ran_ends_and_says_so() -> None:
    begun = asyncio.Event()

    async def work() -> None:
        begun.set()
        await asyncio.Event().wait()

    async with instances(1) as shops:
        call = asyncio.create_task(shops[0].call(work))
        await begun.wait()
        await shops[0].kill()
        await shops[0].kill()
        with pytest.raises(InstanceKilledError, match="instance-1 was killed"):
            await call
        with pytest.raises(LeaseStateError, match="was killed: start another"):
            await shops[0].call(work)


async def test_a_dead_instance_tells_nothing() -> None:
    async with instances(1) as shops:
        await shops[0].call(export)
        told = list(shops[0].events)
        await shops[0].kill()
        await shops.advance("60s")
        assert shops[0].events == told


async def test_a_body_whose_lease_is_lost_is_cancelled_and_told() -> None:
    async with instances(2, ttl="30s") as shops:

        async def work() -> None:
            async with shops[0].locks.hold("job"):
                await asyncio.Event().wait()

        call = asyncio.create_task(shops[0].call(work))
        while await shops.holder("job") is None:
            await asyncio.sleep(0)
        shops[0].cut()
        await shops.advance("30s")
        with pytest.raises(LeaseLostError):
            await call


async def test_a_lock_excludes_across_instances_and_tokens_grow() -> None:
    async with instances(2) as shops:
        first = await shops[0].call(through_the_door)
        second = await shops[1].call(through_the_door)
        assert second > first
        lease = await shops[0].locks.acquire("test-instances:door")
        with pytest.raises(LockNotAcquiredError):
            await shops[1].call(through_the_door)
        await lease.release()


async def test_one_that_comes_back_may_have_its_old_name() -> None:
    async with instances(2) as shops:
        await shops[0].kill()
        again = await shops.start("instance-1")
        assert [len(shops), again.name] == [3, "instance-1"]
        with pytest.raises(ConfigurationError, match="runs already"):
            await shops.start("instance-2")
        assert (await shops.start()).name == "instance-4"


async def test_a_paused_instance_is_not_asked() -> None:
    async with instances(1) as shops:
        shops[0].pause()
        assert shops[0].is_paused
        with pytest.raises(LeaseStateError, match="is paused"):
            await shops[0].call(export)
        with pytest.raises(LeaseStateError, match="is paused"):
            shops[0].pause()
        assert "paused" in repr(shops[0])


@pytest.mark.parametrize(("number", "names"), [(0, None), (2, ["one"]), (2, ["one", "one"])])
async def test_names_that_do_not_fit_are_refused(number: int, names: Any) -> None:
    with pytest.raises(ConfigurationError, match="give one for each"):
        async with instances(number, names=names):
            pass


async def test_the_same_seed_is_the_same_run() -> None:
    async def run(seed: int) -> list[str]:
        async with instances(3, ttl="30s", seed=seed) as shops:
            await shops[0].call(export)
            waiting = [asyncio.create_task(shop.locks.acquire("door", wait="5m")) for shop in shops]
            for _ in range(40):
                await shops.advance("1.3s")
                await asyncio.gather(*(one.result().release() for one in waiting if one.done()), return_exceptions=True)
            for one in waiting:
                one.cancel()
            await asyncio.wait(waiting)
            return [
                f"{shop.name} {event}" for shop in shops for event in shop.events if not isinstance(event, LocksStarted)
            ]

    assert await run(7) == await run(7)


async def test_the_log_names_what_the_locks_stand_on() -> None:
    async with instances(1) as shops:
        [started] = [event for event in shops[0].events if isinstance(event, LocksStarted)]
        assert started.store == "InstanceStore"
        assert "InstanceStore" in repr(shops[0].locks)


async def test_nothing_is_left_behind_by_a_test_that_ends_amid_everything() -> None:
    before = asyncio.all_tasks()
    async with instances(3) as shops:
        await shops[0].call(export)
        shops[0].pause()
        shops[1].cut(hang=True)
        asking = asyncio.create_task(shops[1].locks.try_acquire("job"))
        await asyncio.sleep(0)
    await asyncio.wait([asking])
    assert asking.exception() is not None
    assert asyncio.all_tasks() == before


async def test_the_example_of_the_documentation_is_true() -> None:
    text = inspect.getdoc(instances) or ""
    example = textwrap.dedent(text.partition("one clock.\n")[2].partition("What happens to an instance")[0])
    indented = textwrap.indent(example, "    ")
    names: dict[str, Any] = {"on_one_instance": on_one_instance, "instances": instances}
    exec(f"async def example():\n{indented}", names)
    await names["example"]()


# -------------------------------------------------------------------------------------------------- planted bugs


def _kill_hands_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source.Instance, "kill", source.Instance.stop)


def _pause_does_not_stop_the_road(monkeypatch: pytest.MonkeyPatch) -> None:
    async def at_once(self: Any) -> None:
        return None

    monkeypatch.setattr(source.InstanceStore, "_while_paused", at_once)
    monkeypatch.setattr(source.ProcessClock, "stop", lambda self: None)


def _a_cut_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source.Instance, "cut", lambda self, *, hang=False: None)


def _the_dead_speak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source.Instance, "_tell", lambda self, event: source.tell(self._hooks, event))


@pytest.mark.parametrize(
    ("plant", "fact"),
    [
        (_kill_hands_back, test_after_a_kill_the_job_is_taken_over_when_the_ttl_has_passed_and_not_before),
        (_pause_does_not_stop_the_road, test_who_was_paused_past_its_ttl_learns_of_it_before_anything_else),
        (_a_cut_changes_nothing, test_a_body_whose_lease_is_lost_is_cancelled_and_told),
        (_the_dead_speak, test_a_dead_instance_tells_nothing),
    ],
)
async def test_a_planted_bug_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], fact: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, TimeoutError)):
        async with asyncio.timeout(2):
            await fact()
