"""Leader election: one leads, the others campaign; the lead ends before its lease does."""

import asyncio
import itertools
from typing import Any

import pytest

from tenure import ConfigurationError, InMemoryLockStore, LeaderElection, Lease, LeaseStateError, Locks, LossReason
from tenure.events import LeadershipAcquired, LeadershipLost
from tenure.store import ListsLocks
from tenure.testing import FaultyStore, LoopClock, virtual

TTL_S = 3.0
CAMPAIGN_S = TTL_S / 3 * 1.2


class World:
    """Candidates on one store that can fail, on the loop's own (virtual) time."""

    def __init__(self, **options: Any) -> None:
        self.clock = LoopClock()
        self.inner = InMemoryLockStore(self.clock)
        self.store = FaultyStore(self.inner, clock=self.clock, **options)
        self.events: list[Any] = []
        self.connected: list[str] = []
        self.at_once = 0

    def locks(self, instance: str) -> Locks:
        return Locks(self.store, ttl=TTL_S, instance=instance, clock=self.clock, hooks=[self.hear])

    def hear(self, event: Any) -> None:
        if isinstance(event, LeadershipAcquired | LeadershipLost):
            self.events.append(event)

    def candidate(self, locks: Locks, key: str = "feed") -> LeaderElection:
        async def feed(lease: Lease) -> None:
            self.connected.append(locks.instance)
            self.at_once += 1
            assert self.at_once == 1
            try:
                await asyncio.sleep(10_000)
            finally:
                await asyncio.sleep(0.1)
                self.at_once -= 1

        return LeaderElection(locks, key, feed)


def now() -> float:
    return asyncio.get_running_loop().time()


@virtual
async def test_one_leads_for_as_long_as_it_lives_and_the_store_names_it() -> None:
    world = World()
    async with world.locks("a") as a, world.locks("b") as b:
        async with world.candidate(a) as first, world.candidate(b) as second:
            await asyncio.sleep(100 * TTL_S)
            assert (first.is_leader, second.is_leader) == (True, False)
            assert world.connected == ["a"]
            assert await second.leader() == "a"
        assert await first.leader() is None


@virtual
async def test_a_leader_that_shuts_down_is_replaced_at_the_others_next_campaign() -> None:
    world = World()
    async with world.locks("b") as b:
        async with world.locks("a") as a, world.candidate(a):
            await asyncio.sleep(0.1)
            second = world.candidate(b)
            await second.__aenter__()
            await asyncio.sleep(5)
        ended_at = now()
        while not second.is_leader:
            await asyncio.sleep(0.01)
        assert now() <= ended_at + CAMPAIGN_S
        assert [type(event) for event in world.events] == [LeadershipAcquired, LeadershipLost, LeadershipAcquired]
        assert world.events[1].reason is None


@virtual
async def test_a_dead_leader_is_replaced_within_a_ttl_and_a_campaign() -> None:
    world = World()
    async with world.locks("b") as b:
        await world.inner.acquire("feed", "dead:1", int(TTL_S * 1000))
        died_at = now()
        async with world.candidate(b) as candidate:
            while not candidate.is_leader:
                await asyncio.sleep(0.01)
            assert now() <= died_at + TTL_S + CAMPAIGN_S


@virtual
async def test_a_lost_lease_cancels_the_lead_and_the_events_come_in_order() -> None:
    world = World()
    async with world.locks("a") as a, world.candidate(a) as candidate:
        await asyncio.sleep(0.1)
        world.store.on("renew").refuse(times=1)
        await asyncio.sleep(TTL_S + CAMPAIGN_S)  # this store says no, and keeps the lock until its ttl ends
        assert world.connected == ["a", "a"]
        assert candidate.is_leader
    kinds = [type(event) for event in world.events]
    assert kinds == [LeadershipAcquired, LeadershipLost] * 2
    assert world.events[1].reason is LossReason.REFUSED
    assert world.events[0].token < world.events[2].token


@virtual
async def test_who_steps_down_lets_the_others_campaign_first() -> None:
    world = World()
    async with world.locks("a") as a, world.locks("b") as b, world.candidate(a) as first:
        await asyncio.sleep(0.1)
        async with world.candidate(b) as second:
            await second.step_down()  # does not lead: nothing happens
            await first.step_down()
            assert not first.is_leader
            await asyncio.sleep(3 * TTL_S)
            assert (first.is_leader, second.is_leader) == (False, True)


@virtual
async def test_a_lead_that_returns_or_raises_frees_the_lease_and_rests() -> None:
    world = World()
    led_at: list[float] = []

    async def lead(lease: Lease) -> None:
        led_at.append(now())
        if len(led_at) == 2:
            raise ZeroDivisionError

    async with world.locks("a") as a, LeaderElection(a, "feed", lead):
        await asyncio.sleep(4.0)
    pauses = [later - earlier for earlier, later in itertools.pairwise(led_at)]
    assert len(pauses) >= 2
    assert all(pause == pytest.approx(TTL_S / 2) for pause in pauses)


@virtual
async def test_a_store_that_is_down_is_campaigned_on_again() -> None:
    world = World()
    async with world.locks("a") as a:
        world.store.on("acquire").lose_request()
        async with world.candidate(a) as candidate:
            await asyncio.sleep(10 * TTL_S)
            assert not candidate.is_leader
            world.store.heal()
            await asyncio.sleep(2 * CAMPAIGN_S)
            assert candidate.is_leader


@virtual
async def test_closing_the_locks_steps_down_and_the_lead_ends_before_its_lease() -> None:
    world = World()
    async with world.locks("a") as a:
        candidate = world.candidate(a)
        await candidate.__aenter__()
        await asyncio.sleep(1)
        assert await world.inner.list_locks()
    assert world.at_once == 0
    assert not candidate.is_leader
    assert await world.inner.list_locks() == []
    assert [type(event) for event in world.events] == [LeadershipAcquired, LeadershipLost]
    await candidate.hand_back()


@virtual
async def test_a_lead_that_is_cancelled_before_its_first_step_gives_its_lease_back() -> None:
    """Else the lease is renewed for as long as the process lives, and nobody leads."""
    for turns in range(60):
        world = World()
        async with world.locks("a") as locks:
            async with world.candidate(locks):
                for _ in range(turns):
                    await asyncio.sleep(0)
            await asyncio.sleep(0.2)  # a release behind an acquire that was cancelled
            assert locks.statistics().held == 0, f"left after {turns} turns"
            assert await world.inner.list_locks() == []


@virtual
async def test_an_election_is_left_whole_however_often_that_is_cancelled() -> None:
    world = World()
    async with world.locks("a") as locks:

        async def leave() -> None:
            async with world.candidate(locks) as election:
                while not election.is_leader:
                    await asyncio.sleep(0.01)

        leaving = asyncio.create_task(leave())
        for _ in range(20):
            await asyncio.sleep(0.02)
            leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        assert await world.inner.list_locks() == []
        async with world.candidate(locks):  # its claim on the key is gone
            pass


@virtual
async def test_an_election_that_ended_gives_up_its_claim_on_the_key() -> None:
    world = World()
    async with world.locks("a") as a:
        async with world.candidate(a):
            with pytest.raises(ConfigurationError, match="feed"):
                world.candidate(a)
        async with world.candidate(a):
            await asyncio.sleep(0.1)


@virtual
async def test_an_election_before_the_start_is_refused() -> None:
    world = World()
    with pytest.raises(LeaseStateError):
        await world.candidate(world.locks("a")).__aenter__()
    with pytest.raises(ConfigurationError):
        LeaderElection(world.locks("a"), "", lambda _: asyncio.sleep(0))
    with pytest.raises(ConfigurationError):
        LeaderElection(world.locks("a"), "k", lambda _: asyncio.sleep(0), ttl=0)


@virtual
async def test_a_store_that_cannot_list_cannot_tell_who_leads() -> None:
    world = World(without=(ListsLocks,))
    async with world.locks("a") as a, world.candidate(a) as candidate:
        with pytest.raises(ConfigurationError, match="list_locks"):
            await candidate.leader()
