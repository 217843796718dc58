"""
Types of the public API: checked by mypy and pyright, never run.

What stands here must type-check as it stands: `assert_type` says what a user's checker infers, and a `type: ignore`
that is no longer needed fails too (mypy's `warn_unused_ignores`).
"""

from collections.abc import Callable, Coroutine, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, assert_type

from tenure import (
    Acquired,
    ConfigurationError,
    Held,
    InMemoryLockStore,
    LeaderElection,
    Lease,
    LeaseLostError,
    LeaseStateError,
    LockNotAcquiredError,
    Locks,
    LockStore,
    LossReason,
    StoreError,
    StoreReplyError,
    StoreTimeoutError,
    TenureError,
    current_lease,
    locked,
    on_one_instance,
    open_store,
    without_overlapping,
)
from tenure.clock import Clock, SystemClock, Timer
from tenure.config import OpenedStore, TenureConfig
from tenure.events import Event, LeaseLost
from tenure.instrumentation import Hook, LoggingHook, OpenTelemetryHook, PrometheusHook, StructlogHook
from tenure.store import ChecksServer, Claim, Finding, ListsLocks, LockRecord, QueuesWaiters, RenewsMany, WakesWaiters

# -------------------------------------------------------------------------------------- the stores


class HandWrittenStore:
    """A store of an application's own: it derives from nothing of ours."""

    async def acquire(self, key: str, owner: str, ttl_ms: int) -> Acquired | Held:
        return Acquired(1, "released") if ttl_ms else Held(expires_in_ms=1000)

    async def renew(self, key: str, owner: str, ttl_ms: int) -> bool:
        return True

    async def release(self, key: str, owner: str) -> bool:
        return True


class CapableStore(HandWrittenStore):
    """The same with everything that a store may offer besides."""

    async def renew_many(self, claims: Sequence[Claim]) -> list[bool | None]:
        return [None for _ in claims]

    async def list_locks(self, prefix: str = "") -> list[LockRecord]:
        return [LockRecord("k", "a:1", 1, 1000)]

    async def check(self) -> list[Finding]:
        return [Finding("code", fatal=False, message="What.", remedy="Do.")]

    async def released(self, key: str) -> None:
        return None

    async def acquire_queued(self, key: str, owner: str, ttl_ms: int, place_ms: int) -> Acquired | Held:
        return Held(expires_in_ms=1000)

    async def granted(self, key: str, owner: str) -> Acquired:
        return Acquired(2, "released")


class RenewsNothing:
    """No store: it cannot renew."""

    async def acquire(self, key: str, owner: str, ttl_ms: int) -> Acquired | Held:
        return Held()

    async def release(self, key: str, owner: str) -> bool:
        return False


hand_written: LockStore = HandWrittenStore()
in_memory: LockStore = InMemoryLockStore(SystemClock())
capabilities: tuple[RenewsMany, ListsLocks, ChecksServer, WakesWaiters, QueuesWaiters] = (
    CapableStore(),
    CapableStore(),
    CapableStore(),
    CapableStore(),
    CapableStore(),
)
refused: LockStore = RenewsNothing()  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]


async def stores() -> None:
    opened = open_store("postgresql+asyncpg://app@db/shop", allow_in_memory=False, environment="production")
    assert_type(opened, OpenedStore)
    store: LockStore = opened
    assert_type(await store.acquire("k", "a:1", 1000), Acquired | Held)
    assert_type(await store.renew("k", "a:1", 1000), bool)
    assert_type(await store.release("k", "a:1"), bool)
    async with opened as entered:
        used: LockStore = entered
        Locks(used)
    await opened.aclose()
    reply = await store.acquire("k", "a:1", 1000)
    if isinstance(reply, Acquired):
        assert_type(reply.token, int)
        assert_type(reply.after, Literal["released", "expired"] | None)
    else:
        assert_type(reply.expires_in_ms, int | None)


# --------------------------------------------------------------------------------------- the locks


async def locks_and_leases(locks: Locks) -> None:
    lease = await locks.try_acquire("k", ttl="5m")
    assert_type(lease, Lease | None)
    assert_type(await locks.acquire("k", wait=2), Lease)
    await locks.acquire("k", wait=timedelta(seconds=2), ttl=0.5)
    async with locks.hold("k", wait=float("inf"), ttl="30s", max_hold=timedelta(minutes=5)) as held:
        assert_type(held, Lease)
        assert_type(held.key, str)
        assert_type(held.token, int)
        assert_type(held.held, bool)
        assert_type(held.after, Literal["released", "expired"] | None)
        assert_type(held.lost.is_set, bool)
        assert_type(held.lost.reason, LossReason | None)
        assert_type(await held.lost.wait(), LossReason | None)
        held.lost.raise_if_set()
        held.raise_unless_held()
        assert_type(await held.release(), bool)
    async with await locks.acquire("k") as entered:
        assert_type(entered, Lease)
    async with locks as same:
        assert_type(same, Locks)
    await locks.close()
    assert_type(current_lease(), Lease | None)
    assert_type(locks.instance, str)
    assert_type(locks.ttl_s, float)
    assert_type(locks.store, LockStore)
    assert_type(locks.statistics().held, int)


def what_is_final(lease: Lease) -> None:
    lease.token = 1  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    lease.key = "other"  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]


class Hooks:
    """A hook may be any callable that takes an event."""

    def __call__(self, event: Event, /) -> None:
        if isinstance(event, LeaseLost):
            assert_type(event.reason, LossReason)


def hear(event: Event) -> None:
    """So may a function."""


heard: list[Event] = []
hooks: list[Hook] = [Hooks(), hear, heard.append, LoggingHook(), StructlogHook(), PrometheusHook(), OpenTelemetryHook()]


class HandWrittenClock:
    """A clock of a test's own."""

    def now(self) -> float:
        return 0.0

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        raise NotImplementedError


clock: Clock = HandWrittenClock()

Locks(
    HandWrittenStore(),
    ttl=timedelta(seconds=30),
    instance="shop-1",
    store_timeout="5s",
    drain=0,
    startup_check="strict",
    hooks=hooks,
    clock=clock,
)
Locks(hand_written, startup_check="loud")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
Locks(hand_written, 30)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


async def settings() -> None:
    config = TenureConfig(store="memory://", ttl="30s")
    assert_type(TenureConfig.from_env({"TENURE_STORE": "memory://"}), TenureConfig)
    async with config.open(hooks=[]) as locks:
        assert_type(locks, Locks)


# ---------------------------------------------------------------------------------------- the jobs


@on_one_instance("invoices:nightly-export")
@without_overlapping(at_least="30s")
async def export(context: dict[str, Any], *, dry_run: bool = False) -> int:
    return len(context) if dry_run else 0


@without_overlapping()
async def count() -> str:
    return ""


@on_one_instance(ttl=30, slot=lambda: datetime.now(UTC), slot_ttl="2d")  # noqa: TID251 -- a slot is a wall-clock time
async def notify() -> None: ...


@locked("stock", wait=2, ttl="30s", max_hold="5m")
async def reconcile(product: int, *, full: bool) -> list[int]:
    return [product, full]


@locked(lambda order_id: f"order:{order_id}")
async def ship(order_id: int) -> None:
    lease = current_lease()
    assert lease is not None
    assert_type(lease.token, int)


async def jobs() -> None:
    # A job returns None where it did not run, and keeps what it takes.
    assert_type(await assert_type(export({}, dry_run=True), Coroutine[Any, Any, int | None]), int | None)
    assert_type(await count(), str | None)
    assert_type(await notify(), None)
    # What is locked runs or raises, so it returns what it returned.
    assert_type(await assert_type(reconcile(1, full=True), Coroutine[Any, Any, list[int]]), list[int])
    assert_type(await ship(4711), None)
    await export("no dict")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await export({}, dry="run")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await reconcile(1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


class Shop:
    """Jobs may be methods, which find their `Locks` in an attribute."""

    def __init__(self, locks: Locks) -> None:
        self.locks = locks

    @on_one_instance("shop:export", locks="locks")
    async def export(self, day: str) -> int:
        return len(day)

    @locked("shop:stock", locks="locks")
    async def reconcile(self) -> bool:
        return True


async def methods(shop: Shop) -> None:
    assert_type(await shop.export("monday"), int | None)
    assert_type(await shop.reconcile(), bool)
    await shop.export(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


@on_one_instance("sync")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
def synchronous() -> int:
    return 1


# ----------------------------------------------------------------------------------- the elections


async def feed(lease: Lease) -> None:
    """What a leader does."""


async def elections(locks: Locks) -> None:
    async with LeaderElection(locks, "feed", feed, ttl="10s") as election:
        assert_type(election, LeaderElection)
        assert_type(election.is_leader, bool)
        assert_type(await election.leader(), str | None)
        await election.step_down()


# -------------------------------------------------------------------------------------- the errors


def errors(error: TenureError) -> None:
    if isinstance(error, LeaseLostError):
        assert_type(error.key, str)
        assert_type(error.token, int)
        assert_type(error.reason, LossReason)
    if isinstance(error, LockNotAcquiredError):
        assert_type(error.waited_s, float)
        assert_type(error.status_hint, int)
    if isinstance(error, StoreTimeoutError):
        assert_type(error.operation, str)
        assert_type(error.timeout_s, float)


parents: list[type[TenureError]] = [ConfigurationError, LeaseStateError, StoreError, StoreReplyError]
builtin: tuple[type[ValueError], type[RuntimeError]] = (ConfigurationError, LeaseStateError)
