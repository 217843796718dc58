"""Thousands of leases in one process: spread, a few groups at a time, each lost on time, and nothing that piles up."""

import asyncio
import gc
import random
import tracemalloc
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

import pytest

from tenure import Acquired, Held, Lease, Locks, LossReason
from tenure.events import LeaseLost, LeaseRenewedLate
from tenure.store import Claim, RenewsMany
from tenure.testing import LoopClock, VirtualTimeLoop, run_virtual

TTL_S = 30.0
INTERVAL_S = TTL_S / 3
MANY = 2000


class Ledger:
    """A store on virtual time that grants whatever it is asked for, and writes down when it is asked to renew."""

    reach = "cluster"

    def __init__(self, *, answer_s: float = 0.0) -> None:
        self.answer_s = answer_s
        self.sent: list[tuple[float, int]] = []
        self.under_way = 0
        self.most_under_way = 0
        self.in_turn = 0
        self.most_in_a_turn = 0
        self.hang_next = 0
        self.hang_for_ever = False
        self.silent: set[str] = set()
        self._token = 0

    async def acquire(self, key: str, owner: str, ttl_ms: int) -> Acquired | Held:
        self._token += 1
        return Acquired(self._token)

    async def release(self, key: str, owner: str) -> bool:
        return True

    async def renew(self, key: str, owner: str, ttl_ms: int) -> bool:
        self._note(1)
        if key in self.silent:
            await asyncio.get_running_loop().create_future()
        return True

    async def renew_many(self, claims: Sequence[Claim]) -> Sequence[bool | None]:
        self._note(len(claims))
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            if self.hang_for_ever or self.hang_next:
                self.hang_next -= 1
                await asyncio.get_running_loop().create_future()
            if self.answer_s:
                await asyncio.sleep(self.answer_s)
        finally:
            self.under_way -= 1
        return [None if claim.key in self.silent else True for claim in claims]

    def _note(self, count: int) -> None:
        loop = asyncio.get_running_loop()
        self.sent.append((loop.time(), count))
        if not self.in_turn:
            loop.call_soon(self._turn_over)
        self.in_turn += count

    def _turn_over(self) -> None:
        self.most_in_a_turn, self.in_turn = max(self.most_in_a_turn, self.in_turn), 0

    def busiest(self, after: float, before: float, window_s: float = 1.0) -> int:
        """Count the renewals of the busiest window."""
        windows: Counter[int] = Counter()
        for at, count in self.sent:
            if after <= at < before:
                windows[int(at // window_s)] += count
        return max(windows.values())


class NoJitter(random.Random):
    """Nothing is early: what was acquired together is due together."""

    def random(self) -> float:
        return 0.0


class World:
    def __init__(self, ledger: Ledger, rng: random.Random) -> None:
        self.ledger = ledger
        self.events: list[LeaseLost | LeaseRenewedLate] = []
        hear: Callable[[object], None] = self._hear
        self.locks = Locks(
            ledger, ttl=TTL_S, clock=LoopClock(), rng=rng, hooks=[hear], startup_check=False, instance="many"
        )

    def _hear(self, event: object) -> None:
        if isinstance(event, LeaseLost | LeaseRenewedLate):
            self.events.append(event)

    async def take(self, count: int = MANY) -> list[Lease]:
        taken = [await self.locks.try_acquire(f"k{number}") for number in range(count)]
        return [lease for lease in taken if lease is not None]

    def lost(self) -> list[LossReason]:
        return [event.reason for event in self.events if isinstance(event, LeaseLost)]


def now() -> float:
    return asyncio.get_running_loop().time()


def with_many(ledger: Ledger, body: Callable[[World], Awaitable[None]], rng: random.Random | None = None) -> None:
    """Run *body* with a world on virtual time."""

    async def main() -> None:
        world = World(ledger, rng or random.Random(7))
        async with world.locks:
            await body(world)

    run_virtual(main, within_s=3600)


# ------------------------------------------------------------------------------------------ spread


def test_leases_that_were_acquired_in_one_burst_are_not_renewed_in_one() -> None:
    ledger = Ledger()

    async def body(world: World) -> None:
        start = now()
        await world.take()
        await asyncio.sleep(20 * INTERVAL_S)
        # Evenly, it would be a tenth a second; at first they come within five seconds of ten.
        assert ledger.busiest(start, start + INTERVAL_S) <= 0.35 * MANY
        assert ledger.busiest(start + 15 * INTERVAL_S, start + 20 * INTERVAL_S) <= 0.3 * MANY
        assert not world.events

    with_many(ledger, body)


def test_no_renewal_is_late_and_few_are_more_than_needed() -> None:
    ledger = Ledger()

    async def body(world: World) -> None:
        await world.take(500)
        await asyncio.sleep(20 * INTERVAL_S)
        sent = world.locks.statistics().renewals
        assert 20 * 500 <= sent <= 1.12 * 20 * 500
        assert not world.events

    with_many(ledger, body)


def test_a_crowd_that_a_standstill_made_is_spread_again() -> None:
    """Ten seconds in which nothing ran: they are all due at once, and are not so for ever after."""
    ledger = Ledger()

    async def body(world: World) -> None:
        await world.take()
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        await asyncio.sleep(5.0)
        loop.jump_to(now() + 12.0)
        resumed = now()
        await asyncio.sleep(0.5)
        assert ledger.busiest(resumed, resumed + 0.5) >= 0.9 * MANY
        await asyncio.sleep(1.5 * INTERVAL_S)
        assert ledger.busiest(resumed + 1, resumed + 1.5 * INTERVAL_S) <= 0.4 * MANY
        assert world.lost() == []

    with_many(ledger, body)


# ------------------------------------------------------------------------------- a few at a time


def test_one_turn_of_the_loop_sends_five_hundred_at_most() -> None:
    ledger = Ledger()

    async def body(world: World) -> None:
        await world.take()
        await asyncio.sleep(2.5 * INTERVAL_S)
        assert sum(count for _, count in ledger.sent) == 2 * MANY
        assert ledger.most_in_a_turn == 500

    with_many(ledger, body, NoJitter())


def test_a_slow_store_has_four_groups_to_answer_at_most_and_every_lease_is_renewed() -> None:
    ledger = Ledger(answer_s=0.2)

    async def body(world: World) -> None:
        leases = await world.take(5000)
        await asyncio.sleep(5 * INTERVAL_S)
        assert ledger.most_under_way == 4
        assert max(count for _, count in ledger.sent) == 500
        assert all(lease.held for lease in leases)
        assert not world.events

    with_many(ledger, body, NoJitter())


def test_groups_that_hang_hold_up_no_other_lease() -> None:
    ledger = Ledger()

    async def body(world: World) -> None:
        leases = await world.take(5000)
        ledger.hang_next = 4
        await asyncio.sleep(INTERVAL_S + 0.2 * TTL_S)
        assert sum(count for _, count in ledger.sent) >= 5000, "the others went out once those were known to hang"
        await asyncio.sleep(3 * INTERVAL_S)
        assert all(lease.held for lease in leases), "the second renewal of the others covered for the first"
        assert world.lost() == []

    with_many(ledger, body, NoJitter())


def test_leases_that_wait_behind_groups_that_hang_are_lost_to_the_moment() -> None:
    ledger = Ledger()

    async def body(world: World) -> None:
        start = now()
        await world.take(6000)
        ledger.hang_for_ever = True
        await asyncio.sleep(0.99 * TTL_S - 0.001)
        assert world.lost() == []
        await asyncio.sleep(0.002)
        assert now() <= start + TTL_S
        assert world.lost() == [LossReason.EXPIRED] * 6000

    with_many(ledger, body, NoJitter())


def test_the_loss_of_one_is_found_on_time_while_the_others_renew() -> None:
    ledger = Ledger(answer_s=0.05)

    async def body(world: World) -> None:
        leases = await world.take()
        await asyncio.sleep(3 * INTERVAL_S)
        ledger.silent.add("k77")
        kept = leases[77]._kept
        await leases[77].lost.wait()
        assert kept.term.trusted_until <= now() <= kept.term.trusted_until + 0.001
        assert world.lost() == [LossReason.EXPIRED]
        await asyncio.sleep(3 * INTERVAL_S)
        assert sum(lease.held for lease in leases) == MANY - 1

    with_many(ledger, body)


# ------------------------------------------------------------------------------ nothing piles up


def test_what_came_and_went_leaves_nothing_behind_on_the_agenda() -> None:
    async def body(world: World) -> None:
        held = await world.take(10)
        for number in range(3000):
            lease = await world.locks.try_acquire(f"brief-{number}")
            assert lease is not None
            await lease.release()
        keeper = world.locks._keeper
        assert len(keeper._agenda) <= 200
        assert len(keeper._patience) <= 200
        assert len(keeper._tasks) <= 1
        assert all(lease.held for lease in held)

    with_many(Ledger(), body)


def test_renewals_leave_nothing_behind_on_the_agenda() -> None:
    async def body(world: World) -> None:
        await world.take(200)
        await asyncio.sleep(60 * INTERVAL_S)
        assert len(world.locks._keeper._agenda) <= 64 + 2 * 200

    with_many(Ledger(), body)


MEMORY_A_LEASE = 2048
"""Bytes, of which a lease takes about a half: with its key, its owner and every entry that knows of it."""


def test_a_lease_takes_two_kibibytes_at_most() -> None:
    async def body(world: World) -> None:
        await world.take(200)
        gc.collect()
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            leases = [await world.locks.try_acquire(f"order-{number}") for number in range(1000)]
            await asyncio.sleep(1.1 * INTERVAL_S)
            gc.collect()
            after, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert all(leases)
        assert 300 < (after - before) / 1000 < MEMORY_A_LEASE

    with_many(Ledger(), body)


def test_the_ledger_renews_many() -> None:
    assert isinstance(Ledger(), RenewsMany)


@pytest.mark.parametrize("count", [1, 7])
def test_few_leases_are_spread_too(count: int) -> None:
    """Instances that were started together each hold a few: they are not to come to the store together for ever."""
    ledger = Ledger()

    async def body(world: World) -> None:
        await world.take(count)
        await asyncio.sleep(10 * INTERVAL_S)
        spans = {round(at % INTERVAL_S, 3) for at, _ in ledger.sent}
        assert len(spans) >= 8

    with_many(ledger, body)
