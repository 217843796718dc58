"""Decorators and elections for threads: the rules of `tenure.jobs` and `tenure.election`, seen from threads."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tenure import ConfigurationError, LeaseLostError, LeaseStateError, LockNotAcquiredError
from tenure.sync import (
    LeaderElection,
    Lease,
    Locks,
    current_lease,
    job_lease,
    locked,
    on_one_instance,
    step_down,
    without_overlapping,
)

PATIENCE_S = 60
Make = Callable[..., Locks]


class Shop:
    """An instance of an application: its jobs name the attribute that holds its `Locks`."""

    def __init__(self, locks: Locks) -> None:
        self.locks = locks
        self.runs: list[int] = []
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.begun = threading.Event()

    @on_one_instance("sync-shop:export", locks="locks")
    def export(self, number: int) -> int:
        self.runs.append(number)
        return number

    @without_overlapping("sync-shop:count", locks="locks")
    def count(self) -> str:
        self.begun.set()
        self.goes_on.wait(PATIENCE_S)
        lease = current_lease()
        assert lease is not None
        lease.raise_unless_held()
        return "counted"

    @locked(lambda self, order: f"sync-shop:ship:{order}", locks="locks", wait=PATIENCE_S)
    def ship(self, order: int) -> int:
        lease = current_lease()
        assert lease is not None
        assert lease.key == f"sync-shop:ship:{order}"
        return lease.token


def test_one_instance_runs_the_job_and_the_others_tick_in_vain(make: Make) -> None:
    shops = [Shop(make()) for _ in range(3)]
    for number in range(3):
        assert [shop.export(number) for shop in shops] == [number, None, None]
    assert [shop.runs for shop in shops] == [[0, 1, 2], [], []]
    lease = job_lease("sync-shop:export", locks=shops[0].locks)
    assert lease is not None
    assert lease.held
    assert job_lease("sync-shop:export", locks=shops[1].locks) is None


def test_a_job_that_steps_down_is_taken_by_the_next_tick_anywhere(make: Make) -> None:
    first, second = Shop(make()), Shop(make())
    first.export(1)
    until(lambda: step_down("sync-shop:export", locks=first.locks) or second.export(2) is not None)
    until(lambda: second.export(2) == 2)
    assert first.export(3) is None


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_run_that_takes_longer_than_a_tick_is_not_overlapped(make: Make) -> None:
    first, second = Shop(make()), Shop(make())
    first.goes_on.clear()
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(first.count)
        assert first.begun.wait(PATIENCE_S)
        assert second.count() is None
        assert first.count() is None
        first.goes_on.set()
        assert run.result(PATIENCE_S) == "counted"
    until(lambda: second.count() == "counted")


def test_a_run_whose_lease_was_lost_says_so_at_its_end(make: Make, shared: Any) -> None:
    shop = Shop(make(ttl=0.5, store_timeout=0.2))
    shop.goes_on.clear()
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(shop.count)
        assert shop.begun.wait(PATIENCE_S)
        shared.roads[0].down()
        until(lambda: shop.locks.statistics().lost == 1)
        shop.goes_on.set()
        with pytest.raises(LeaseLostError):
            run.result(PATIENCE_S)


def test_a_locked_function_takes_a_key_of_its_arguments(make: Make) -> None:
    shop, other = Shop(make()), Shop(make())
    assert shop.ship(order=7) < other.ship(order=7)


def test_what_a_job_raises_comes_out_and_the_next_tick_runs(make: Make) -> None:
    locks = make()

    @without_overlapping("sync-jobs:fails", locks=locks)
    def fails() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    until(lambda: "sync-jobs:fails" not in {lock.key for lock in locks.list_locks()})
    with pytest.raises(ZeroDivisionError):
        fails()


def test_a_decorator_without_a_locks_means_the_one_that_is_entered(make: Make) -> None:
    @locked("sync-jobs:ambient")
    def token() -> int:
        lease = current_lease()
        assert lease is not None
        return lease.token

    with make(), make() as inner:
        assert token() > 0
        assert inner.statistics().acquired == 1
    with pytest.raises(ConfigurationError, match=r"name the one that is meant"):
        make(), make(), token()


def test_an_asynchronous_function_is_refused(make: Make) -> None:
    async def work() -> None: ...

    for decorate in (on_one_instance("sync-jobs:a"), without_overlapping("sync-jobs:b"), locked("sync-jobs:c")):
        with pytest.raises(ConfigurationError):
            decorate(work)


def test_a_held_key_refuses_a_locked_function_that_does_not_wait(make: Make) -> None:
    locks, other = make(), make()

    @locked("sync-jobs:held", locks=locks)
    def work() -> None: ...

    with other.hold("sync-jobs:held"), pytest.raises(LockNotAcquiredError):
        work()


# ------------------------------------------------------------------------------------------------ elections


class Candidate:
    def __init__(self, locks: Locks) -> None:
        self.leads = threading.Event()
        self.ended = threading.Event()
        self.leases: list[Lease] = []
        self.election = LeaderElection(locks, "sync-jobs:feed", self.lead)

    def lead(self, lease: Lease) -> None:
        self.leases.append(lease)
        self.leads.set()
        lease.lost.wait()
        self.ended.set()


def test_one_of_two_leads_until_it_leaves_and_then_the_other_does(make: Make) -> None:
    first, second = Candidate(make(ttl=1, drain=5, instance="one")), Candidate(make(ttl=1, drain=5, instance="two"))
    with first.election:
        assert first.leads.wait(PATIENCE_S)
        assert first.election.is_leader
        with second.election:
            assert second.election.leader() == "one"
            assert not second.election.is_leader
            first.election.step_down()
            assert first.ended.wait(PATIENCE_S)
            assert second.leads.wait(PATIENCE_S)
            assert second.leases[0].token > first.leases[0].token
    assert second.ended.wait(PATIENCE_S)
    assert not second.election.is_leader


def test_an_election_is_entered_once_and_not_asked_before(make: Make) -> None:
    candidate = Candidate(make())
    assert not candidate.election.is_leader
    with pytest.raises(LeaseStateError, match="not entered"):
        candidate.election.leader()
    with candidate.election:
        pass
    with pytest.raises(LeaseStateError, match="entered before"), candidate.election:
        pass


def test_a_lead_that_fails_frees_the_lease_for_another(make: Make) -> None:
    def fails(lease: Lease) -> None:
        raise ZeroDivisionError

    second = Candidate(make(ttl=1, drain=5))
    with LeaderElection(make(ttl=1), "sync-jobs:feed", fails), second.election:
        assert second.leads.wait(PATIENCE_S)
