"""Start and shutdown, in phases."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from tenure import (
    ConfigurationError,
    InMemoryLockStore,
    LeaseLostError,
    LeaseStateError,
    Locks,
    LossReason,
    on_one_instance,
)
from tenure.events import JobSkipped, LeaseLost, LocksClosed, LocksStarted, SkipReason, StoreFinding
from tenure.store import Finding
from tenure.testing import FaultyStore, LoopClock, virtual

TTL_S = 3.0


class CheckedStore:
    """A store whose start-up check finds what it is told to find."""

    def __init__(self, inner: InMemoryLockStore, findings: Sequence[Finding] | Exception) -> None:
        self.acquire, self.renew, self.release = inner.acquire, inner.renew, inner.release
        self.findings = findings

    async def check(self) -> Sequence[Finding]:
        if isinstance(self.findings, Exception):
            raise self.findings
        return self.findings


class World:
    def __init__(self) -> None:
        self.clock = LoopClock()
        self.inner = InMemoryLockStore(self.clock)
        self.store = FaultyStore(self.inner, clock=self.clock)
        self.events: list[Any] = []

    def locks(self, store: Any = None, **options: Any) -> Locks:
        return Locks(
            store or self.store,
            instance="a",
            clock=self.clock,
            hooks=[self.events.append],
            **{"ttl": TTL_S, **options},
        )

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    async def holders(self) -> list[str]:
        return [record.key for record in await self.inner.list_locks()]


def now() -> float:
    return asyncio.get_running_loop().time()


# ------------------------------------------------------------------------------------------------ start


@virtual
async def test_the_start_names_the_store_in_use_and_how_far_it_reaches() -> None:
    world = World()
    async with world.locks():
        assert world.of(LocksStarted) == [LocksStarted("a", "FaultyStore", "process")]
    assert world.of(LocksClosed) == [LocksClosed("a")]


WARNING = Finding("fsync-off", fatal=False, message="fsync is off.", remedy="Turn it on.")
FATAL = Finding("table-missing", fatal=True, message="There is no table.", remedy="Run the migration.")


@virtual
async def test_a_finding_that_is_not_fatal_is_told_of_and_strict_refuses_it() -> None:
    world = World()
    store = CheckedStore(world.inner, [WARNING])
    async with world.locks(store):
        assert world.of(StoreFinding) == [StoreFinding("fsync-off", "fsync is off.", "Turn it on.")]
    with pytest.raises(ConfigurationError, match="fsync-off"):
        await world.locks(store, startup_check="strict").__aenter__()
    async with world.locks(store, startup_check=False):
        assert len(world.of(StoreFinding)) == 1


@virtual
async def test_a_fatal_finding_refuses_the_start_and_names_the_fix() -> None:
    world = World()
    locks = world.locks(CheckedStore(world.inner, [WARNING, FATAL]))
    with pytest.raises(ConfigurationError, match="Run the migration"):
        await locks.__aenter__()
    with pytest.raises(LeaseStateError):
        await locks.try_acquire("k")


@virtual
async def test_a_server_that_cannot_be_looked_at_is_told_of_without_the_drivers_words() -> None:
    world = World()
    async with world.locks(CheckedStore(world.inner, RuntimeError("password=hunter2"))):
        [finding] = world.of(StoreFinding)
        assert finding.code == "store-unreachable"
        assert "hunter2" not in str(finding)
        assert "RuntimeError" in finding.message
    with pytest.raises(ConfigurationError, match="as it says"):
        await world.locks(CheckedStore(world.inner, ConfigurationError("as it says"))).__aenter__()


@virtual
async def test_a_ttl_shorter_than_three_round_trips_is_refused_before_any_lock_is_asked_for() -> None:
    world = World()
    world.store.on("release").slow_reply(0.1)
    with pytest.raises(ConfigurationError, match="three round trips"):
        await world.locks(ttl=0.2).__aenter__()
    async with world.locks() as locks:
        with pytest.raises(ConfigurationError, match="three round trips"):
            await locks.acquire("k", ttl=0.2)
    assert world.store.calls["acquire"] == 0


@virtual
async def test_a_store_that_is_down_at_the_start_may_be_up_at_the_first_acquire() -> None:
    world = World()
    world.store.down()
    async with world.locks() as locks:
        world.store.heal()
        async with locks.hold("k") as lease:
            assert lease.held


@virtual
async def test_a_hung_store_does_not_hang_the_start() -> None:
    world = World()
    world.store.on("release").hang(ignore_cancellation=60)
    started_at = now()
    async with world.locks():
        assert now() <= started_at + 3
        world.store.heal()


# ------------------------------------------------------------------------------------------------ close


@virtual
async def test_closing_releases_what_is_still_held_and_says_that_it_was() -> None:
    world = World()
    async with world.locks() as locks:
        leases = [await locks.acquire(f"k{number}") for number in range(5)]
    assert await world.holders() == []
    assert all(lease.lost.reason is LossReason.CLOSED for lease in leases)
    assert {event.reason for event in world.of(LeaseLost)} == {LossReason.CLOSED}


@virtual
async def test_closing_lets_guarded_bodies_end_and_refuses_new_work_meanwhile() -> None:
    world = World()
    locks = world.locks(drain=10)
    ended: list[str] = []

    async def body() -> None:
        async with locks.hold("k"):
            await asyncio.sleep(4)
            async with locks.hold("needed to end"):
                ended.append("nested")
            await asyncio.sleep(1)
            ended.append("body")

    @on_one_instance("job", locks=locks)
    async def job() -> None:
        ended.append("job")

    await locks.__aenter__()
    task = asyncio.get_running_loop().create_task(body())
    await asyncio.sleep(0.1)
    closing = asyncio.get_running_loop().create_task(locks.close())
    await asyncio.sleep(0.1)
    with pytest.raises(LeaseStateError, match="shutting down"):
        await locks.try_acquire("other")
    assert await job() is None
    assert world.of(JobSkipped)[-1].reason is SkipReason.DRAINING
    await closing
    await task
    assert ended == ["nested", "body"]
    assert world.of(LeaseLost) == []
    assert await world.holders() == []


@virtual
async def test_a_body_that_does_not_end_in_time_is_cancelled_and_cleans_up_under_its_lease() -> None:
    world = World()
    locks = world.locks(drain=2)
    cleaned: list[list[str]] = []

    async def body() -> None:
        async with locks.hold("k"):
            try:
                await asyncio.sleep(600)
            finally:
                await asyncio.sleep(0.5)
                cleaned.append(await world.holders())

    await locks.__aenter__()
    task = asyncio.get_running_loop().create_task(body())
    await asyncio.sleep(0.1)
    started_at = now()
    await locks.close()
    assert now() == pytest.approx(started_at + 2.5)
    with pytest.raises(LeaseLostError, match="closed"):
        await task
    assert cleaned == [["k"]]
    assert await world.holders() == []


@virtual
async def test_a_body_that_closes_its_own_locks_does_not_wait_for_itself() -> None:
    world = World()
    locks = world.locks()
    await locks.__aenter__()
    started_at = now()
    with pytest.raises(LeaseLostError):
        async with locks.hold("k"):
            await locks.close()
    assert now() == pytest.approx(started_at)
    assert await world.holders() == []


@virtual
async def test_closing_is_finished_however_often_it_is_cancelled() -> None:
    world = World()
    locks = world.locks()
    await locks.__aenter__()
    await locks.acquire("k")
    world.store.on("release").slow_request(0.5)
    closing = asyncio.get_running_loop().create_task(locks.close())
    for _ in range(3):
        await asyncio.sleep(0.1)
        closing.cancel()
    await asyncio.wait([closing])
    assert closing.cancelled()
    assert await world.holders() == []


@virtual
async def test_a_store_that_fails_does_not_keep_the_rest_from_closing() -> None:
    world = World()
    async with world.locks() as locks:
        await locks.acquire("k")
        world.store.on("release").lose_request()
    assert locks.phase.value == "closed"


@virtual
async def test_a_hung_store_does_not_hang_the_close() -> None:
    world = World()
    async with world.locks() as locks:
        for number in range(3):
            await locks.acquire(f"k{number}")
        world.store.on("*").hang(ignore_cancellation=3600)
        started_at = now()
    assert now() <= started_at + TTL_S / 3 + 3
    assert locks.phase.value == "closed"
    await world.store.aclose()


@virtual
async def test_a_grant_that_comes_while_closing_is_given_back_and_kept_by_nobody() -> None:
    """It was asked for before, outside of any guard; kept, a closed `Locks` would renew it for as long as it lives."""
    store = FaultyStore(InMemoryLockStore(LoopClock()), clock=LoopClock())
    locks = Locks(store, ttl=3, clock=LoopClock(), hooks=[])
    async with locks:
        store.on("acquire").slow_reply(0.5)
        asking = asyncio.create_task(locks.try_acquire("k"))
        await store.called("acquire")
    with pytest.raises(LeaseStateError, match="closed while 'k' was being taken"):
        await asking
    assert await store.list_locks() == []
    assert len(locks._keeper) == 0
