"""C27: a caller is cancelled at every await of the public API, on a real store: nothing is left behind."""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from dataclasses import dataclass, field
from typing import Any, final

from chaos.scenario import Run, scenario
from chaos.stores import STANDALONE, Backend, backend
from tenure import (
    LeaderElection,
    Lease,
    Locks,
    LockStore,
    TenureError,
    on_one_instance,
    open_store,
    without_overlapping,
)
from tenure.config import open_idempotency_store
from tenure.idempotency import Idempotency
from tenure.jobs import step_down
from tenure.store import ListsLocks
from tenure_postgres import (
    PostgresIdempotencyStore,
    PostgresLockStore,
    create_idempotency_schema_sql,
    create_lock_engine,
)

_TTL_S = 30
"""Far above the time in which everything has to be free again: what is left to its ttl counts as leaked."""

_LOCK_TTL_S = 3
"""Of idempotency records: one whose function was cancelled is left to it, for nobody knows what the function did."""

_FREE_S = 5.0
_END_S = 30.0
"""After so long a cancelled call is taken for one that hangs."""

_GROWTH = 1.4
"""Within one await the cancellation comes after 0, 1, 2, ... turns of the event loop, then this factor apart."""

_MOST_AWAITS = 60
_MOST_TURNS = 5000
_CONNECTIONS = 12
"""Connections that one process's stores may have: the pools' limits."""


@final
class CancelledAt:
    """
    Awaits something, and has its own task cancelled at the n-th time that it is suspended.

    Args:
        awaited: What is run.
        suspension: At which suspension, counted from 1.
        turns: After how many turns of the event loop.
        twice: Whether a second cancellation follows a turn later.
    """

    def __init__(self, awaited: Awaitable[Any], suspension: int, turns: int, *, twice: bool) -> None:
        self._awaited = awaited
        self._suspension = suspension
        self._turns = turns
        self._twice = twice
        self._count = 0
        self.sent = False
        self.suspensions = 0

    def __await__(self) -> Generator[Any, Any, Any]:
        task = asyncio.current_task()
        assert task is not None
        inner = self._awaited.__await__()
        send = _nexter(inner)
        while True:
            try:
                waited_for = send()
            except StopIteration as ended:
                return ended.value
            self.suspensions += 1
            if self.suspensions == self._suspension:
                asyncio.get_running_loop().call_soon(self._count_down, task, self._turns)
            try:
                yield waited_for
            except BaseException as error:  # noqa: BLE001 -- passed on to where it belongs
                send = _thrower(inner, error)
            else:
                send = _nexter(inner)

    def _count_down(self, task: "asyncio.Task[Any]", turns: int) -> None:
        if task.done() or (self.suspensions != self._suspension and not self.sent):
            return  # it has gone on: another trial cancels it there
        loop = asyncio.get_running_loop()
        if turns > 0:
            loop.call_soon(self._count_down, task, turns - 1)
            return
        self.sent = True
        task.cancel()
        if self._twice:
            loop.call_soon(task.cancel)


def _thrower(inner: Any, error: BaseException) -> Callable[[], Any]:
    return lambda: inner.throw(error)


def _nexter(inner: Any) -> Callable[[], Any]:
    return lambda: next(inner)


@final
@dataclass(slots=True)
class Stage:
    """
    What is called, and what was found.

    Attributes:
        store: The lock store, to look at and to take keys by hand.
        locks: On it.
        idempotency: On the same server.
        connections: How many connections are out of their pools, or on the server beyond the pools.
        effects: How often the function of each idempotency key came to its end.
        found: Counts: of trials, of cancellations that were sent, of what was wrong.
        awaits: The awaits of each operation.
        tried: The keys of the trials of jobs and of idempotency.
        left: Whose keys were locked when they were looked at last.
    """

    store: LockStore
    locks: Locks
    idempotency: Idempotency
    connections: Callable[[], int]
    effects: Counter[str] = field(default_factory=Counter)
    found: Counter[str] = field(default_factory=Counter)
    awaits: dict[str, int] = field(default_factory=dict)
    tried: dict[str, list[str]] = field(default_factory=lambda: {"job": [], "idempotency": []})
    left: str = ""


Operation = Callable[[Stage, str], Awaitable[object]]


# ------------------------------------------------------------------------------------------ the operations


async def _try_acquire(stage: Stage, key: str) -> object:
    return await stage.locks.try_acquire(key)


async def _acquire_after_a_wait(stage: Stage, key: str) -> object:
    await stage.store.acquire(key, "somebody:else", 60)
    return await stage.locks.acquire(key, wait=10)


async def _hold(stage: Stage, key: str) -> None:
    async with stage.locks.hold(key, wait=1):
        await asyncio.sleep(0)


async def _release(stage: Stage, key: str) -> None:
    lease = await stage.locks.acquire(key)
    await lease.release()


async def _lead(stage: Stage, key: str) -> None:
    led = asyncio.Event()

    async def lead(_: Lease) -> None:
        led.set()
        await asyncio.Event().wait()

    async with LeaderElection(stage.locks, key, lead) as election:
        await led.wait()
        await election.step_down()


async def _tick(stage: Stage, key: str) -> None:
    @on_one_instance(key, locks=stage.locks)
    @without_overlapping(locks=stage.locks)
    async def job() -> None:
        await asyncio.sleep(0)

    await job()


async def _run_once(stage: Stage, key: str) -> None:
    async def work() -> int:
        await asyncio.sleep(0)
        stage.effects[key] += 1
        return 1

    await stage.idempotency.run(key, stage.idempotency.fingerprint(key), work, wait=4 * _LOCK_TTL_S)


async def _open_and_close(stage: Stage, key: str) -> None:
    async with Locks(stage.store, ttl=_TTL_S, startup_check="warn", drain=0.05, hooks=[]) as locks:
        await locks.acquire(key)


OPERATIONS: dict[str, Operation] = {
    "try_acquire": _try_acquire,
    "acquire": _acquire_after_a_wait,
    "hold": _hold,
    "release": _release,
    "election": _lead,
    "job": _tick,
    "idempotency": _run_once,
    "open and close": _open_and_close,
}


async def _naive(stage: Stage, key: str) -> None:
    """Take a lock as it stands in many a tutorial: nothing sees to a grant that nobody heard of."""
    await stage.store.acquire(key, "naive:owner", _TTL_S * 1000)
    await stage.store.release(key, "naive:owner")


# -------------------------------------------------------------------------------------------- the scenario


@scenario(
    "C27",
    "a cancellation at every await of the public API",
    claims="H7 H9",
    stores=STANDALONE,
    quick=1,
    full=10,
    quick_stores=("postgres", "valkey"),
)
async def callers_are_cancelled(run: Run) -> None:
    """However a call is cut short, the key is free soon, no task goes on, and connections are back in their pool."""
    async with backend(run.store) as found, _staged(found) as stage:
        for sweep in range(run.n):
            for name, operation in OPERATIONS.items():
                await _sweep(stage, f"{name}:{sweep}", operation)
        await _settle(stage)
        counts, trials, left = stage.found, stage.found["cancelled"], stage.left
        await _repeat_what_was_cut_short(stage)
        await _sweep(stage, "naive:0", _naive)
        naive = len(await _locked(stage, "naive"))
    run.figure("awaits", ", ".join(f"{name} {count}" for name, count in stage.awaits.items() if name != "naive"))
    run.figure("trials", counts["trials"])
    if left:
        run.figure("left locked by", left)
    run.zero("keys still locked 5 s later, of a ttl of 30 s", counts["locked"], of=trials)
    run.zero("leases, waiters or guards left in the Locks", counts["kept"], of=trials)
    run.zero("tasks left", counts["tasks"], of=trials)
    run.zero("connections not given back", counts["connections"], of=trials)
    run.zero("calls that did not end", counts["hung"], of=trials)
    run.zero("errors beside the cancellation", counts["errors"], of=trials)
    run.zero(
        "records of no use to a repeat after their lock's ttl",
        counts["stuck records"],
        of=len(stage.tried["idempotency"]),
    )
    run.zero(
        "answers given without the effect, or effects repeated after an answer",
        counts["wrong effects"],
        of=len(stage.tried["idempotency"]),
    )
    run.control("a lock without an engine, cancelled likewise", failed=naive, of=max(naive, counts["naive"]))


async def _sweep(stage: Stage, name: str, operation: Operation) -> None:
    """Cancel *operation* at each of its awaits, at several moments of each."""
    for suspension in range(1, _MOST_AWAITS + 1):
        turns, reached = 0, False
        while turns < _MOST_TURNS:
            trial = await _try(stage, f"{name}:{suspension}:{turns}", operation, suspension, turns)
            reached = reached or trial.suspensions >= suspension
            if not trial.sent:
                break
            turns = max(turns + 1, int(turns * _GROWTH))
        if not reached:
            stage.awaits[name.partition(":")[0]] = max(stage.awaits.get(name.partition(":")[0], 0), suspension - 1)
            return


async def _try(stage: Stage, key: str, operation: Operation, suspension: int, turns: int) -> CancelledAt:
    # Every other one is cancelled a second time, while it cleans up after the first.
    twice = (suspension + turns) % 2 == 1
    trial = CancelledAt(_coroutine(operation, stage, key), suspension, turns, twice=twice)

    async def carried_out() -> object:
        return await trial

    task = asyncio.create_task(carried_out())
    done, _ = await asyncio.wait([task], timeout=_END_S)
    stage.found["trials"] += 1
    stage.found["cancelled"] += trial.sent
    stage.found["hung"] += not done
    if done and not task.cancelled():
        error = task.exception()
        # A cancellation that comes when all is done is not delivered any more; an error is none of the caller's doing.
        stage.found["errors"] += error is not None
        result = None if error else task.result()
        if isinstance(result, Lease):
            await result.release()
    if operation in (_tick, _run_once):
        stage.tried[name_of(operation)].append(key)
    return trial


def name_of(operation: Operation) -> str:
    """Name an operation as the keys of its trials begin."""
    return next(name for name, known in OPERATIONS.items() if known is operation)


async def _coroutine(operation: Operation, stage: Stage, key: str) -> object:
    return await operation(stage, key)


async def _settle(stage: Stage) -> None:
    """Give everything the time that it may take to be free, and count what is not."""
    ours = [name for name in OPERATIONS if name != "idempotency"]
    await asyncio.sleep(0.5)

    async def left() -> dict[str, int]:
        for key in stage.tried["job"]:
            # Kept between ticks on purpose, cancelled or not; one that a slow server grants late, too.
            await step_down(key, locks=stage.locks)
        statistics = stage.locks.statistics()
        locked = {name: len(await _locked(stage, name)) for name in ours}
        stage.left = ", ".join(f"{name} {count}" for name, count in locked.items() if count)
        return {
            "locked": sum(locked.values()),
            "kept": statistics.held + statistics.waiting + statistics.guarded,
            "tasks": len(asyncio.all_tasks() - _standing),
            "connections": stage.connections(),
        }

    until = time.monotonic() + _FREE_S
    counts = await left()
    while any(counts.values()) and time.monotonic() < until:
        await asyncio.sleep(0.1)
        counts = await left()
    stage.found.update(counts)


_standing: "set[asyncio.Task[Any]]" = set()
"""The tasks that were there before the trials: this scenario's, and the clients' own."""


async def _locked(stage: Stage, name: str) -> list[str]:
    assert isinstance(stage.store, ListsLocks)
    return [record.key for record in await stage.store.list_locks(f"{name}:")]


async def _repeat_what_was_cut_short(stage: Stage) -> None:
    """Run every idempotency key again: it runs to its end, or replays; it is never stuck, nor run after an answer."""
    for key in stage.tried["idempotency"]:
        before = stage.effects[key]
        try:
            await _run_once(stage, key)
            again = stage.effects[key]
            await _run_once(stage, key)
        except TenureError:
            stage.found["stuck records"] += 1
            continue
        # Cancelled after the effect and before the answer, it may run again: the caller has had no answer. Not twice.
        stage.found["wrong effects"] += again < 1 or again > before + 1 or stage.effects[key] != again


@contextlib.asynccontextmanager
async def _staged(found: Backend) -> AsyncIterator[Stage]:
    """Open the stores, and what stands on them, without a hook that logs each of some thousand releases."""
    async with contextlib.AsyncExitStack() as stack:
        store, records, connections = await _open(found, stack)
        locks = await stack.enter_async_context(Locks(store, ttl=_TTL_S, instance="cancelling", drain=0.05, hooks=[]))
        idempotency = await stack.enter_async_context(
            Idempotency(records, lock_ttl=_LOCK_TTL_S, store_timeout=_LOCK_TTL_S, drain=0.05, hooks=[])
        )
        # Once uncancelled: clients connect, and start what tasks they have.
        warm = Stage(store, locks, idempotency, connections)
        for name, operation in OPERATIONS.items():
            await _try(warm, f"{name}:warm", operation, 0, 0)
        await step_down("job:warm", locks=locks)
        _standing.clear()
        _standing.update(asyncio.all_tasks())
        yield Stage(store, locks, idempotency, connections)


async def _open(found: Backend, stack: contextlib.AsyncExitStack) -> tuple[LockStore, Any, Callable[[], int]]:
    if found.store == "postgres":
        await asyncio.to_thread(found.server.execute, create_idempotency_schema_sql())
        engine = create_lock_engine(found.url)
        stack.push_async_callback(engine.dispose)
        pool: Any = engine.pool
        return PostgresLockStore(engine), PostgresIdempotencyStore(engine), lambda: int(pool.checkedout())
    store = await stack.enter_async_context(open_store(found.url))
    records = await stack.enter_async_context(open_idempotency_store(found.url))

    def beyond() -> int:
        return max(0, int(found.server.info("clients")["connected_clients"]) - 1 - _CONNECTIONS)

    return store, records, beyond
