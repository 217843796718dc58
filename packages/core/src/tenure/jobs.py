"""
Jobs: functions that every instance calls, and that run where and when they should.

| decorator              | its lock                       | is held                 | so that there are never          |
|------------------------|--------------------------------|-------------------------|----------------------------------|
| `@on_one_instance`     | `<key>:owner`, the job's lease | between ticks           | three instances that all run it  |
| `@without_overlapping` | `<key>`, the run lock          | for the length of a run | two runs of it at the same time  |

Ownership is sticky on purpose. A tick is not an instant: the instances' clocks differ, so a lock for each tick would
have to outlive the run by the skew, and a fast job would still run once more on the instance that is late. A lease
that is held between ticks has none of that. What it costs is that one instance runs all ticks of a job.

Ticks that nobody runs are not caught up: while a crashed owner's lease expires, up to a ttl of ticks is skipped. Write
jobs that do everything that is due, rather than what the tick was for. Where each slot must run at most once whatever
the skew, the handover and the clock change, give the slot (`slot=`): it is claimed as a lock of its own, which is left
to expire.
"""

import functools
import inspect
import weakref
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, ParamSpec, TypeVar, final

from tenure._claims import Claimant, Claims, ambient_claims
from tenure._durations import Duration, to_ms, to_seconds
from tenure._job_leases import JobLeases, owner_key
from tenure._keys import check_key
from tenure.errors import ConfigurationError
from tenure.events import JobSkipped, SkipReason
from tenure.lease import Lease, give_back_quietly
from tenure.locks import Locks, Phase, ambient_locks

__all__ = ["job_lease", "locked", "on_one_instance", "step_down", "without_overlapping"]

_P = ParamSpec("_P")
_R = TypeVar("_R")
_Function = Callable[_P, Coroutine[Any, Any, _R]]
_Slot = Callable[..., datetime | str | int]

_MARK: Final = "__tenure_job__"

_SLOT_TTL = "1d"
"""How long a slot stays claimed where nobody said otherwise: far longer than an instance can be late for it."""


@final
@dataclass(frozen=True, slots=True)
class _Ownership:
    ttl: Duration | None
    slot: _Slot | None
    slot_ttl_ms: int


@final
@dataclass(frozen=True, slots=True)
class _NoOverlap:
    ttl: Duration | None
    at_least_s: float


@final
@dataclass(frozen=True, slots=True)
class _Job:
    """A declared job: the function, the key that it was given, and the rules that it stands under."""

    function: Callable[..., Coroutine[Any, Any, Any]]
    given_key: str | None
    locks: Locks | str | None
    ownership: _Ownership | None = None
    no_overlap: _NoOverlap | None = None

    @property
    def name(self) -> str:
        return _name_of(self.function)

    @property
    def key(self) -> str:
        return self.given_key or self.name

    @property
    def owner_key(self) -> str:
        return owner_key(self.key)

    @property
    def problem(self) -> str | None:
        """Why the job has no key that could be the same on every instance and in every version."""
        unstable = next((part for part in ("<lambda>", "<locals>", "__main__:") if part in self.name), None)
        if self.given_key is not None or unstable is None:
            return None
        return (
            f"{self.name} has no stable name ({unstable.rstrip(':')}), and its key must be the same on every instance "
            "and in every version: name one, such as @on_one_instance('invoices:nightly-export')."
        )

    def locks_for(self, args: tuple[Any, ...]) -> Locks:
        return _find_locks(self.locks, args, self.name)


def on_one_instance(
    key: str | None = None,
    *,
    ttl: Duration | None = None,
    locks: Locks | str | None = None,
    slot: _Slot | None = None,
    slot_ttl: Duration = _SLOT_TTL,
) -> Callable[[_Function[_P, _R]], _Function[_P, _R | None]]:
    """
    Run a job on one instance: the first whose tick comes, and then every tick there.

    Elsewhere the call returns None at once, and logs why at debug. When the owner dies, its lease expires after the
    ttl, and the first tick after that takes the job over; when it shuts down, the lease is handed back and the next
    tick anywhere takes it.

        @on_one_instance("invoices:nightly-export")
        @without_overlapping()
        async def export(ctx): ...

    Args:
        key: The job's key; by default `module:qualname`. Give one to a job that must never run twice: a rename changes
            the default, and during a rolling deploy both names would run.
        ttl: The lease's ttl; by default that of the `Locks`.
        locks: The `Locks` to use, or the name of an attribute of `self` that holds it; by default the one entered.
        slot: Called with the job's arguments; returns the scheduled time (an aware `datetime`, or a str or int that
            names the slot). Each slot runs at most once, on whatever instance.
        slot_ttl: How long a slot stays claimed.

    Raises:
        ConfigurationError: At decoration: the function is not `async def`, a value is wrong, or another job uses the
            key. When the `Locks` is entered, and at the call: the function has no stable name and was given no key.
        LeaseLostError: At the call: the lease was lost during the run, which was cancelled.
        Exception: At the call: what the store raised; the tick did not run here.
    """
    rule = _Ownership(_checked_ttl(ttl), slot, to_ms(slot_ttl, name="slot_ttl"))
    return lambda function: _declare(function, key, locks, ownership=rule)


def without_overlapping(
    key: str | None = None,
    *,
    at_least: Duration = 0,
    ttl: Duration | None = None,
    locks: Locks | str | None = None,
) -> Callable[[_Function[_P, _R]], _Function[_P, _R | None]]:
    """
    Run a job one run at a time, on whatever instance; a tick that comes during a run is skipped.

    On its own, it means "any instance, one run at a time". The ticks of several instances are skewed, so a job that
    ends sooner than the skew would run on each in turn: give `at_least`, or put it under `@on_one_instance` too.

    Inside the run, `current_lease()` is the run lock's lease: a new and greater token for every run.

    Args:
        key: The job's key, shared with `@on_one_instance` on the same function; by default `module:qualname`.
        at_least: How long the run lock is held from the start of a run, however soon the run ends.
        ttl: The run lock's ttl; by default that of the `Locks`. A run may take longer: it is renewed.
        locks: The `Locks` to use, or the name of an attribute of `self` that holds it; by default the one entered.

    Raises:
        ConfigurationError: At decoration, as `on_one_instance`.
        LeaseLostError: At the call: the run lock was lost during the run, which was cancelled.
        Exception: At the call: what the store raised; the tick did not run here.
    """
    rule = _NoOverlap(_checked_ttl(ttl), to_seconds(at_least, name="at_least"))
    return lambda function: _declare(function, key, locks, no_overlap=rule)


def locked(
    key: str | Callable[..., str],
    *,
    wait: Duration = 0,
    ttl: Duration | None = None,
    max_hold: Duration | None = None,
    locks: Locks | str | None = None,
) -> Callable[[_Function[_P, _R]], _Function[_P, _R]]:
    """
    Run a function under a lease on *key*: `Locks.hold` as a decorator.

        @locked(lambda order_id: f"order:{order_id}", wait=2)
        async def ship(order_id: int) -> None: ...

    Args:
        key: The key, or a callable that makes it of the function's arguments.
        wait: How long to keep trying for the key; 0 tries once.
        ttl: The lease's ttl; by default that of the `Locks`.
        max_hold: The longest time that the function may take.
        locks: The `Locks` to use, or the name of an attribute of `self` that holds it; by default the one entered.

    Raises:
        ConfigurationError: At decoration: the function is not `async def`, or a value is wrong.
        Exception: At the call, as `Locks.hold`.
    """
    to_seconds(wait, name="wait")
    _checked_ttl(ttl)
    if isinstance(key, str):
        check_key(key)

    def decorate(function: _Function[_P, _R]) -> _Function[_P, _R]:
        _refuse_sync(function, "locked")
        name = _name_of(function)

        @functools.wraps(function)
        async def guarded(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            used = _find_locks(locks, args, name)
            taken = key if isinstance(key, str) else key(*args, **kwargs)
            async with used.hold(taken, wait=wait, ttl=ttl, max_hold=max_hold):
                return await function(*args, **kwargs)

        return guarded

    return decorate


# ------------------------------------------------------------------------------------------------ declaring


def _declare(
    function: Callable[..., Coroutine[Any, Any, Any]],
    key: str | None,
    locks: Locks | str | None,
    *,
    ownership: _Ownership | None = None,
    no_overlap: _NoOverlap | None = None,
) -> Callable[..., Coroutine[Any, Any, Any]]:
    """Declare a job, or add a rule to the one that *function* already is."""
    decorator = "on_one_instance" if ownership is not None else "without_overlapping"
    _refuse_sync(function, decorator)
    job = _Job(function, key, locks, ownership, no_overlap)
    marked: tuple[Callable[[], object], _Job] | None = getattr(function, _MARK, None)
    if marked is not None and marked[0]() is function:
        _claims_of(marked[1]).drop(function)
        job = _merged(marked[1], job)
    elif marked is not None and key is None:
        # Another decorator stands between the two: two guards, one inside the other, on the key that they share.
        job = replace(job, given_key=marked[1].key)
    check_key(job.owner_key)
    return _wrapped(job)


def _merged(job: _Job, more: _Job) -> _Job:
    """Put the rule of *more* on *job*: two decorators on one function are one job."""
    if (job.ownership and more.ownership) or (job.no_overlap and more.no_overlap):
        raise ConfigurationError(f"{job.name} stands under the same job decorator twice: once is enough.")
    if job.given_key and more.given_key and job.key != more.key:
        raise ConfigurationError(
            f"{job.name} is given two keys, {job.key!r} and {more.key!r}: the two decorators share one. Name it in one."
        )
    if more.locks is not None and job.locks is not None and more.locks is not job.locks:
        raise ConfigurationError(f"{job.name} is given two Locks: the two decorators share one. Name it in one.")
    return replace(
        job,
        given_key=more.given_key or job.given_key,
        locks=more.locks or job.locks,
        ownership=more.ownership or job.ownership,
        no_overlap=more.no_overlap or job.no_overlap,
    )


def _wrapped(job: _Job) -> Callable[..., Coroutine[Any, Any, Any]]:
    @functools.wraps(job.function)
    async def tick(*args: Any, **kwargs: Any) -> Any:
        return await _tick(job, args, kwargs)

    # A weak reference to itself tells this wrapper from one that another decorator put around it, to which
    # functools.wraps copied the mark.
    setattr(tick, _MARK, (weakref.ref(tick), job))
    keys = frozenset({job.key, job.owner_key})
    _claims_of(job).add(tick, Claimant(f"Job {job.name}", (job.name,), keys, job.problem))
    return tick


def _claims_of(job: _Job) -> Claims:
    return job.locks.claims if isinstance(job.locks, Locks) else ambient_claims


def _refuse_sync(function: object, decorator: str) -> None:
    if isinstance(function, classmethod | staticmethod):
        raise ConfigurationError(
            f"@{decorator} stands above @{type(function).__name__}: put @{type(function).__name__} on top of it."
        )
    if not inspect.iscoroutinefunction(function):
        raise ConfigurationError(
            f"@{decorator} is on {_name_of(function)}, which is not `async def`: a thread cannot be stopped when the "
            "lease is lost. Wrap it: `async def job(): await asyncio.to_thread(sync_job)`."
        )


def _name_of(function: Any) -> str:
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{getattr(function, '__module__', type(function).__module__)}:{name}"


def _checked_ttl(ttl: Duration | None) -> Duration | None:
    if ttl is not None:
        to_ms(ttl, name="ttl")
    return ttl


def _find_locks(locks: Locks | str | None, args: tuple[Any, ...], name: str) -> Locks:
    if isinstance(locks, Locks):
        return locks
    if locks is None:
        return ambient_locks()
    found = getattr(args[0], locks, None) if args else None
    if not isinstance(found, Locks):
        raise ConfigurationError(
            f"{name} is to use the Locks in the attribute {locks!r} of its first argument, which has none there: set "
            "it before the job is called."
        )
    return found


# ------------------------------------------------------------------------------------------------- for people


def job_lease(key: str, *, locks: Locks | None = None) -> Lease | None:
    """
    Look at the lease that this instance has on the job under *key*: for a page or a command that shows it.

    Args:
        key: The job's key, as `@on_one_instance` has it.
        locks: The `Locks` that the job runs on; by default the ambient one.

    Returns:
        The lease; None where the job runs elsewhere, or nowhere yet.
    """
    key = owner_key(check_key(key))
    return (locks or ambient_locks()).part(JobLeases).owned(key)


async def step_down(key: str, *, locks: Locks | None = None) -> bool:
    """
    Give the lease of the job under *key* back, so that the next tick anywhere takes the job.

    A run that is under way goes on to its end. Under `@without_overlapping` its run lock keeps everyone else's ticks
    away until then; without it, a run may begin elsewhere beside it. A lease whose run began less than a second ago
    lives for the rest of that second, as at shutdown.

    Args:
        key: The job's key, as `@on_one_instance` has it.
        locks: The `Locks` that the job runs on; by default the ambient one.

    Returns:
        Whether this instance had the job. A release that the store does not answer is reported as an event, and the
        lease expires.
    """
    key = owner_key(check_key(key))
    return await (locks or ambient_locks()).part(JobLeases).step_down(key)


# -------------------------------------------------------------------------------------------------- running


async def _tick(job: _Job, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """One call of a decorated job: run it here and now, or skip it and say why."""
    if job.problem is not None:
        raise ConfigurationError(job.problem)
    locks = job.locks_for(args)
    if locks.phase is Phase.DRAINING:
        return _skip(locks, job, SkipReason.DRAINING)
    locks.refuse_unless_open()
    leases = locks.part(JobLeases)
    owner: Lease | None = None
    if job.ownership is not None:
        owner = await leases.take(job.owner_key, job.name, job.ownership.ttl)
        if owner is None:
            return _skip(locks, job, SkipReason.ELSEWHERE)
        leases.run_starts(job.owner_key)
    run: Lease | None = None
    if job.no_overlap is not None:
        run = await locks.try_acquire(job.key, ttl=job.no_overlap.ttl)
        if run is None:
            return _skip(locks, job, SkipReason.OVERLAP)
    started_at = locks.clock.now()
    try:
        if not await _claims_slot(locks, job, args, kwargs):
            return _skip(locks, job, SkipReason.SLOT_TAKEN)
        leases_of_run = [lease for lease in (owner, run) if lease is not None]
        return await _run(locks, leases_of_run, functools.partial(job.function, *args, **kwargs))
    finally:
        if run is not None and job.no_overlap is not None:
            await _end_run(locks, run, started_at + job.no_overlap.at_least_s)


async def _run(locks: Locks, leases: list[Lease], work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    # Lent: what the run started must find the job's lease ended when the run is, although the instance keeps it.
    lent = [lease.lend() for lease in leases]
    try:
        async with locks.guard(lent, give_back=[]):
            return await work()
    finally:
        for lease in lent:
            lease.end_loan()


async def _end_run(locks: Locks, run: Lease, not_before: float) -> None:
    """Give the run lock back, or see that it lasts until *not_before*, for the ticks that are still to come."""
    rest_s = not_before - locks.clock.now()
    if rest_s > 0 and run.held:
        await locks.acquirer.let_expire(run, rest_s)
    else:
        await give_back_quietly(run)


async def _claims_slot(locks: Locks, job: _Job, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    if job.ownership is None or job.ownership.slot is None:
        return True
    slot = _slot_name(job.ownership.slot(*args, **kwargs))
    return await locks.acquirer.claim(f"{job.key}@{slot}", job.ownership.slot_ttl_ms)


def _slot_name(slot: datetime | str | int) -> str:
    if isinstance(slot, datetime):
        if slot.tzinfo is None:
            raise ConfigurationError(
                "A slot is a datetime without a time zone: on the night that has 02:00 twice it would name two runs as "
                "one. Return an aware datetime, such as one in UTC."
            )
        return slot.astimezone(UTC).isoformat()
    return str(slot)


def _skip(locks: Locks, job: _Job, reason: SkipReason) -> None:
    locks.emit(JobSkipped(job.name, job.key, reason))
