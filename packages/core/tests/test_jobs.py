"""Job decorators: one instance, one run at a time, slots, and what a decorated function still is."""

import asyncio
import functools
import inspect
import logging
import pickle
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from tenure import (
    ConfigurationError,
    InMemoryLockStore,
    LeaderElection,
    LeaseLostError,
    LeaseStateError,
    LockNotAcquiredError,
    Locks,
    current_lease,
    locked,
    on_one_instance,
    without_overlapping,
)
from tenure.events import JobSkipped, JobStarted, SkipReason
from tenure.jobs import job_lease, step_down
from tenure.testing import FaultyStore, LoopClock, ManualClock, virtual

TTL_S = 3.0


class World:
    """Instances on one store that can fail, on the loop's own (virtual) time."""

    def __init__(self) -> None:
        self.clock = LoopClock()
        self.inner = InMemoryLockStore(self.clock)
        self.store = FaultyStore(self.inner, clock=self.clock)
        self.events: dict[str, list[Any]] = {}

    def locks(self, instance: str, **options: Any) -> Locks:
        heard: list[Any] = []
        self.events[instance] = heard
        return Locks(self.store, instance=instance, clock=self.clock, hooks=[heard.append], **{"ttl": TTL_S, **options})

    def skips(self, instance: str) -> list[SkipReason]:
        return [event.reason for event in self.events[instance] if isinstance(event, JobSkipped)]


class Shop:
    """An instance of an application: its jobs use the Locks in its own attribute."""

    def __init__(self, locks: Locks, ran: list[str], hold: asyncio.Event | None = None) -> None:
        self.locks = locks
        self.ran = ran
        self.open = hold

    @on_one_instance("shop:export", locks="locks")
    async def export(self) -> str:
        self.ran.append(self.locks.instance)
        return "exported"

    @on_one_instance("shop:count", locks="locks")
    @without_overlapping()
    async def count(self) -> int:
        self.ran.append(self.locks.instance)
        if self.open is not None:
            await self.open.wait()
        lease = current_lease()
        assert lease is not None
        return lease.token

    @without_overlapping("shop:alone", locks="locks", at_least=1)
    async def alone(self) -> None:
        self.ran.append(self.locks.instance)


@virtual
async def test_every_tick_runs_on_the_first_instance_whose_tick_came() -> None:
    world, ran = World(), list[str]()
    async with world.locks("a") as a, world.locks("b") as b, world.locks("c") as c:
        shops = [Shop(locks, ran) for locks in (a, b, c)]
        for _ in range(5):
            assert await asyncio.gather(*(shop.export() for shop in shops)) == ["exported", None, None]
            await asyncio.sleep(10 * TTL_S)
        assert ran == ["a"] * 5
        assert world.skips("b") == [SkipReason.ELSEWHERE] * 5
        started = [event for event in world.events["a"] if isinstance(event, JobStarted)]
        assert [(event.job, event.key) for event in started] == [
            (f"{__name__}:Shop.export", "shop:export:owner"),
        ]


@virtual
async def test_ticks_that_come_together_on_one_instance_ask_the_store_once() -> None:
    world, ran = World(), list[str]()
    async with world.locks("a") as a:
        world.store.on("acquire").slow_reply(0.1)
        assert await asyncio.gather(*(Shop(a, ran).export() for _ in range(5))) == ["exported"] * 5
        assert world.store.calls["acquire"] == 1


@virtual
async def test_a_tick_that_is_cancelled_while_it_asks_leaves_the_lease_to_the_instance() -> None:
    world, ran = World(), list[str]()
    async with world.locks("a") as a, world.locks("b") as b:
        world.store.on("acquire").slow_reply(0.1, times=1)
        tick = asyncio.get_running_loop().create_task(Shop(a, ran).export())
        await asyncio.sleep(0.05)
        tick.cancel()
        await asyncio.sleep(0.1)
        assert tick.cancelled()
        assert await Shop(b, ran).export() is None
        assert await Shop(a, ran).export() == "exported"


@virtual
async def test_a_job_that_steps_down_moves_to_the_next_instance_whose_tick_comes() -> None:
    world, ran = World(), list[str]()
    async with world.locks("a") as a, world.locks("b") as b:
        assert await Shop(a, ran).export() == "exported"
        lease = job_lease("shop:export", locks=a)
        assert lease is not None
        assert job_lease("shop:export", locks=b) is None
        await asyncio.sleep(2)
        assert await step_down("shop:export", locks=a)
        assert not lease.held
        assert job_lease("shop:export", locks=a) is None
        assert not await step_down("shop:export", locks=a)
        assert await Shop(b, ran).export() == "exported"
        assert await Shop(a, ran).export() is None
        assert ran == ["a", "b"]


@virtual
async def test_a_job_that_steps_down_right_after_a_run_began_keeps_others_away_for_the_rest_of_the_second() -> None:
    world, ran = World(), list[str]()
    async with world.locks("a") as a, world.locks("b") as b:
        await Shop(a, ran).export()
        assert await step_down("shop:export", locks=a)
        assert await Shop(b, ran).export() is None
        await asyncio.sleep(1.01)
        assert await Shop(b, ran).export() == "exported"


def test_the_key_of_a_job_is_checked_before_it_is_looked_for() -> None:
    with pytest.raises(ConfigurationError):
        job_lease("")


@virtual
async def test_a_dead_owner_is_replaced_after_its_ttl_and_not_before() -> None:
    world, ran = World(), list[str]()
    async with world.locks("b") as b:
        await world.inner.acquire("shop:export:owner", "dead:1", int(TTL_S * 1000))
        await asyncio.sleep(TTL_S - 0.001)
        assert await Shop(b, ran).export() is None
        await asyncio.sleep(0.002)
        assert await Shop(b, ran).export() == "exported"


@virtual
async def test_an_owner_that_shuts_down_hands_over_at_the_next_tick() -> None:
    world, ran = World(), list[str]()
    async with world.locks("b") as b:
        async with world.locks("a") as a:
            assert await Shop(a, ran).export() == "exported"
            await asyncio.sleep(1.0)
        assert await Shop(b, ran).export() == "exported"


@virtual
async def test_a_lease_whose_run_has_just_started_is_kept_for_the_rest_of_the_second() -> None:
    world, ran = World(), list[str]()
    async with world.locks("b") as b:
        async with world.locks("a") as a:
            assert await Shop(a, ran).export() == "exported"
            await asyncio.sleep(0.25)
        # The same tick, on an instance whose clock is behind.
        assert await Shop(b, ran).export() is None
        await asyncio.sleep(0.751)
        assert await Shop(b, ran).export() == "exported"


@virtual
async def test_ticks_during_a_long_run_are_skipped_everywhere_and_the_next_one_runs() -> None:
    world, ran = World(), list[str]()
    async with world.locks("a") as a, world.locks("b") as b:
        gate = asyncio.Event()
        owner, other = Shop(a, ran, gate), Shop(b, ran, gate)
        long = asyncio.get_running_loop().create_task(owner.count())
        for _ in range(3):
            await asyncio.sleep(300)
            assert await asyncio.gather(owner.count(), other.count()) == [None, None]
        assert ran == ["a"]
        assert world.skips("a") == [SkipReason.OVERLAP] * 3
        assert world.skips("b") == [SkipReason.ELSEWHERE] * 3
        gate.set()
        first = await long
        second = await owner.count()
        assert first is not None
        assert second is not None
        assert second > first


@virtual
async def test_a_run_on_its_own_lock_may_be_on_any_instance_but_one_at_a_time_for_at_least_a_second() -> None:
    world, ran = World(), list[str]()
    async with world.locks("a") as a, world.locks("b") as b:
        await Shop(a, ran).alone()
        await asyncio.sleep(0.9)  # the skewed tick of the other instance
        await Shop(b, ran).alone()
        assert ran == ["a"]
        await asyncio.sleep(0.101)
        await Shop(b, ran).alone()
        assert ran == ["a", "b"]


@virtual
async def test_a_lost_owner_lease_cancels_the_run_and_the_next_tick_takes_the_job_again() -> None:
    world, ran = World(), list[str]()
    async with world.locks("a") as a:
        shop = Shop(a, ran, asyncio.Event())
        run = asyncio.get_running_loop().create_task(shop.count())
        await asyncio.sleep(0.1)
        world.store.on("renew_many").refuse(times=1)
        world.store.on("renew", key="shop:count:owner").refuse(times=1)
        with pytest.raises(LeaseLostError):
            await run
        world.store.heal()
        shop.open = None
        await asyncio.sleep(TTL_S)
        assert isinstance(await shop.count(), int)


@virtual
async def test_the_run_reads_the_run_locks_lease_and_what_outlives_it_reads_it_as_ended() -> None:
    world = World()
    seen: list[Any] = []

    async with world.locks("a") as a:

        @on_one_instance("outlived", locks=a)
        async def job() -> None:
            lease = current_lease()
            assert lease is not None
            seen.append(lease)
            with pytest.raises(LeaseStateError, match="guard"):
                await lease.release()
            seen.append(asyncio.get_running_loop().create_task(_held_later()))

        await job()
        lease, later = seen
        assert lease.key == "outlived:owner"
        assert not lease.held
        assert await later is False
        assert a.statistics().held == 1


async def _held_later() -> bool:
    lease = current_lease()
    assert lease is not None
    await asyncio.sleep(0.1)
    return lease.held


@virtual
async def test_a_failing_run_fails_loudly_and_keeps_its_place() -> None:
    world = World()
    async with world.locks("a") as a:

        @on_one_instance("fails", locks=a)
        @without_overlapping()
        async def job() -> None:
            raise ZeroDivisionError

        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                await job()
        assert [record.key for record in await world.inner.list_locks()] == ["fails:owner"]


@virtual
async def test_a_store_that_is_down_fails_the_tick_and_the_next_one_runs() -> None:
    world, ran = World(), list[str]()
    async with world.locks("a") as a:
        world.store.on("acquire").lose_request(times=1)
        with pytest.raises(Exception, match="request"):
            await Shop(a, ran).export()
        assert await Shop(a, ran).export() == "exported"


# ------------------------------------------------------------------------------------------------ slots


def slotted(locks: Locks, ran: list[Any], **options: Any) -> Callable[[datetime], Coroutine[Any, Any, Any]]:
    @on_one_instance("slots", slot=lambda at: at, locks=locks, **options)
    async def job(at: datetime) -> None:
        ran.append(at)

    return job


@virtual
async def test_each_slot_runs_at_most_once_whatever_the_skew_and_the_handover() -> None:
    world, ran = World(), list[Any]()
    two = datetime(2026, 10, 25, 2, 0, tzinfo=timezone(timedelta(hours=2)))
    again = datetime(2026, 10, 25, 2, 0, tzinfo=timezone(timedelta(hours=1)))
    async with world.locks("b") as b:
        async with world.locks("a") as a:
            await slotted(a, ran)(two)
            await asyncio.sleep(5)
        await slotted(b, ran)(two)
        await slotted(b, ran)(two.astimezone(UTC))
        await slotted(b, ran)(again)
        assert ran == [two, again]
        assert world.skips("b") == [SkipReason.SLOT_TAKEN] * 2
        # Left to expire: a day, unless another time is given.
        [slot, _] = await world.inner.list_locks("slots@")
        assert slot.expires_in_ms > 86_000_000


@virtual
async def test_a_slot_without_a_time_zone_is_refused_and_frees_the_run() -> None:
    world, ran = World(), list[Any]()
    async with world.locks("a") as a:
        with pytest.raises(ConfigurationError, match="time zone"):
            await slotted(a, ran)(datetime(2026, 10, 25, 2, 0))  # noqa: DTZ001
        await slotted(a, ran)(datetime(2026, 10, 25, 2, 0, tzinfo=UTC))
        assert len(ran) == 1


# ------------------------------------------------------------------------------------------- declaring


@on_one_instance("declared", ttl="30s")
@without_overlapping(at_least=1)
async def declared(number: int, *, name: str = "x") -> str:
    """Say what it is."""
    return f"{number}{name}"


@without_overlapping()
@on_one_instance()
async def named_by_itself() -> None:
    pass


@virtual
async def test_signature_name_docstring_pickling_and_coroutineness_survive() -> None:
    assert inspect.iscoroutinefunction(declared)
    assert str(inspect.signature(declared)) == "(number: int, *, name: str = 'x') -> str"
    assert (declared.__name__, declared.__qualname__, declared.__module__) == ("declared", "declared", __name__)
    assert declared.__doc__ == "Say what it is."
    async with World().locks("a"):
        assert await declared(7, name="y") == "7y"


def test_a_decorated_function_pickles_by_its_name() -> None:
    assert pickle.loads(pickle.dumps(declared)) is declared


@virtual
async def test_the_key_defaults_to_module_and_qualname() -> None:
    world = World()
    async with world.locks("a"):
        await named_by_itself()
        assert [record.key for record in await world.inner.list_locks()] == [f"{__name__}:named_by_itself:owner"]


def test_a_sync_function_is_refused_with_the_way_out() -> None:
    for decorator in (on_one_instance("k"), without_overlapping("k"), locked("k")):
        with pytest.raises(ConfigurationError, match="to_thread"):
            decorator(lambda: None)  # type: ignore[arg-type, return-value]


def test_a_static_method_decorated_from_above_is_refused() -> None:
    async def job() -> None: ...

    with pytest.raises(ConfigurationError, match="put @staticmethod on top"):
        on_one_instance("k")(staticmethod(job))  # type: ignore[arg-type]


@virtual
async def test_an_unstable_name_needs_a_key_at_the_start_and_at_the_call() -> None:
    @on_one_instance()
    async def job() -> None: ...

    with pytest.raises(ConfigurationError, match="no stable name"):
        await job()
    with pytest.raises(ConfigurationError, match="no stable name"):
        async with World().locks("a"):
            pass
    del job


def test_two_jobs_on_one_key_are_refused() -> None:
    @on_one_instance("twice")
    async def first() -> None: ...

    async def second() -> None: ...

    with pytest.raises(ConfigurationError, match=r"first.*'twice'|'twice'"):
        without_overlapping("twice")(second)
    with pytest.raises(ConfigurationError, match="twice:owner"):
        without_overlapping("twice:owner")(second)
    del first
    without_overlapping("twice")(second)


def test_the_same_job_declared_for_three_instances_is_one_job() -> None:
    def build() -> Callable[[], Coroutine[Any, Any, None]]:
        @on_one_instance("built")
        async def job() -> None: ...

        return job

    assert len({build(), build(), build()}) == 3


@virtual
async def test_a_job_on_the_key_of_an_election_is_refused() -> None:
    async with World().locks("a") as a:
        election = LeaderElection(a, "feed", _lead)

        async def job() -> None: ...

        with pytest.raises(ConfigurationError, match='Election "feed"'):
            on_one_instance("feed", locks=a)(job)
        kept = on_one_instance("feed2")(job)
        with pytest.raises(ConfigurationError, match="feed2"):
            LeaderElection(a, "feed2:owner", _lead)
        del election, kept


async def _lead(lease: object) -> None: ...


def test_contradictions_between_the_two_decorators_are_refused() -> None:
    async def job() -> None: ...

    once = on_one_instance("one")(job)
    with pytest.raises(ConfigurationError, match="two keys"):
        without_overlapping("other")(once)
    with pytest.raises(ConfigurationError, match="twice"):
        on_one_instance("one")(once)
    first, second = (Locks(InMemoryLockStore()) for _ in range(2))
    del once
    with pytest.raises(ConfigurationError, match="two Locks"):
        without_overlapping(locks=first)(on_one_instance("one", locks=second)(job))
    for bad in ({"ttl": 0}, {"slot_ttl": -1}):
        with pytest.raises(ConfigurationError):
            on_one_instance("one", **bad)
    with pytest.raises(ConfigurationError, match="at_least"):
        without_overlapping("one", at_least=-1)


@virtual
async def test_a_decorator_between_the_two_is_kept() -> None:
    world, calls = World(), list[str]()

    def traced(function: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], Coroutine[Any, Any, None]]:
        @functools.wraps(function)
        async def trace() -> None:
            calls.append("trace")
            await function()

        return trace

    async with world.locks("a"):

        @on_one_instance()
        @traced
        @without_overlapping("traced")
        async def job() -> None:
            calls.append("job")

        await job()
        assert calls == ["trace", "job"]
        assert [record.key for record in await world.inner.list_locks()] == ["traced:owner"]


# ---------------------------------------------------------------------------------------- which Locks


@virtual
async def test_the_ambient_locks_is_the_one_entered_here_or_the_only_one() -> None:
    world = World()
    ready, done = asyncio.Event(), asyncio.Event()

    async def serve() -> None:
        await ready.wait()
        await declared(1)
        done.set()

    serving = asyncio.get_running_loop().create_task(serve())  # its context knows no Locks
    with pytest.raises(LeaseStateError, match="No Locks is entered"):
        await declared(1)
    async with world.locks("a"):
        ready.set()
        await done.wait()
        assert any(isinstance(event, JobStarted) for event in world.events["a"])
    await serving


@virtual
async def test_several_entered_locks_are_not_guessed_among() -> None:
    world = World()
    go = asyncio.Event()

    async def serve() -> None:
        await go.wait()
        await declared(1)

    serving = asyncio.get_running_loop().create_task(serve())
    async with world.locks("a"), world.locks("b"):
        go.set()
        with pytest.raises(ConfigurationError, match="2 Locks are entered"):
            await serving
        assert await declared(1) == "1x"
        assert any(isinstance(event, JobStarted) for event in world.events["b"])
    with pytest.raises(LeaseStateError):
        await declared(1)


@virtual
async def test_a_missing_attribute_is_named() -> None:
    shop = Shop.__new__(Shop)
    with pytest.raises(ConfigurationError, match="attribute 'locks'"):
        await shop.export()


# --------------------------------------------------------------------------------------------- @locked


@virtual
async def test_locked_is_hold_as_a_decorator_with_a_key_made_of_the_arguments() -> None:
    world = World()

    @locked(lambda order: f"order:{order}", wait=1)
    async def ship(order: int) -> str:
        lease = current_lease()
        assert lease is not None
        await asyncio.sleep(0.1)
        return lease.key

    async with world.locks("a") as a:
        assert await asyncio.gather(ship(1), ship(2), ship(1)) == ["order:1", "order:2", "order:1"]
        async with a.hold("order:3"):
            with pytest.raises(LockNotAcquiredError):
                await asyncio.get_running_loop().create_task(ship(3))


def test_locked_refuses_a_bad_key_and_a_bad_wait_at_decoration() -> None:
    with pytest.raises(ConfigurationError):
        locked("")
    with pytest.raises(ConfigurationError):
        locked("k", wait=-1)


# ------------------------------------------------------------------------------------------------ logs


async def test_the_log_says_what_ran_where_and_why_not(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    store = InMemoryLockStore(clock)
    caplog.set_level(logging.DEBUG, logger="tenure")
    async with Locks(store, instance="a", clock=clock) as a, Locks(store, instance="b", clock=clock) as b:
        ran: list[str] = []
        await Shop(a, ran).export()
        await Shop(b, ran).export()
        await clock.advance(2)
    said = [record.getMessage() for record in caplog.records]
    token = next(line for line in said if "runs on this instance" in line)
    assert token.startswith(f'{__name__}:Shop.export runs on this instance (lease "shop:export:owner", fencing token ')
    assert f"Skipped {__name__}:Shop.export: it runs on another instance" in said
