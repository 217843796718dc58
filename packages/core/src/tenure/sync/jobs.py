"""
The decorators, for plain functions and methods: the rules are those of `tenure.jobs`, where they stand.

Each call is a tick, or a guard, of the asynchronous decorator in the loop thread; the function itself runs in the
thread that called it. It cannot be stopped when a lease is lost: `LeaseLostError` is raised at its end, and
`current_lease().raise_unless_held()` raises at the point of use.
"""

import functools
import inspect
import weakref
from collections.abc import Callable, Coroutine
from datetime import datetime
from typing import Any, Final, ParamSpec, TypeVar

from tenure import context, jobs
from tenure._durations import Duration, to_ms, to_seconds
from tenure._keys import check_key
from tenure.errors import ConfigurationError
from tenure.sync._engine import Guarded
from tenure.sync.lease import Lease
from tenure.sync.locks import Locks, ambient_locks

__all__ = ["job_lease", "locked", "on_one_instance", "step_down", "without_overlapping"]

_P = ParamSpec("_P")
_R = TypeVar("_R")
_Slot = Callable[..., datetime | str | int]
_Ticks = Callable[..., Coroutine[Any, Any, Any]]

_MARK: Final = "__tenure_sync_job__"

_SLOT_TTL = "1d"


def on_one_instance(
    key: str | None = None,
    *,
    ttl: Duration | None = None,
    locks: Locks | str | None = None,
    slot: _Slot | None = None,
    slot_ttl: Duration = _SLOT_TTL,
) -> Callable[[Callable[_P, _R]], Callable[_P, _R | None]]:
    """
    Run a job on one instance: the first whose tick comes, and then every tick there.

    Elsewhere the call returns None at once, and logs why at debug. When the owner dies, its lease expires after the
    ttl, and the first tick after that takes the job over; when it shuts down, the lease is handed back and the next
    tick anywhere takes it. An instance is a process: each worker of a prefork pool is one of its own.

        @on_one_instance("invoices:nightly-export")
        @without_overlapping()
        def export() -> None: ...

    Args:
        key: The job's key; by default `module:qualname`. Give one to a job that must never run twice: a rename changes
            the default, and during a rolling deploy both names would run.
        ttl: The lease's ttl; by default that of the `Locks`.
        locks: The `Locks` to use, or the name of an attribute of `self` that holds it; by default the one entered, or
            the process's only one.
        slot: Called with the job's arguments, in the loop thread; returns the scheduled time (an aware `datetime`, or
            a str or int that names the slot). Each slot runs at most once, on whatever instance.
        slot_ttl: How long a slot stays claimed.

    Raises:
        ConfigurationError: At decoration: the function is `async def` or a generator, a value is wrong, or another job
            uses the key. At the call: the function has no stable name and was given no key.
        LeaseLostError: At the end of the call: the lease was lost during the run, which went on without.
        Exception: At the call: what the store raised; the tick did not run here.
    """
    # Without the locks: those of a call are an attribute of what stands before its own arguments.
    own_slot = None if slot is None else lambda _, *args, **kwargs: slot(*args, **kwargs)
    rule = jobs.on_one_instance(key, ttl=ttl, locks=_LOCKS, slot=own_slot, slot_ttl=slot_ttl)
    return lambda function: _declare(function, "on_one_instance", locks, rule)


def without_overlapping(
    key: str | None = None,
    *,
    at_least: Duration = 0,
    ttl: Duration | None = None,
    locks: Locks | str | None = None,
) -> Callable[[Callable[_P, _R]], Callable[_P, _R | None]]:
    """
    Run a job one run at a time, on whatever instance; a tick that comes during a run is skipped.

    On its own, it means "any instance, one run at a time". The ticks of several instances are skewed, so a job that
    ends sooner than the skew would run on each in turn: give `at_least`, or put it under `@on_one_instance` too.

    Inside the run, `current_lease()` is the run lock's lease: a new and greater token for every run.

    Args:
        key: The job's key, shared with `@on_one_instance` on the same function; by default `module:qualname`.
        at_least: How long the run lock is held from the start of a run, however soon the run ends.
        ttl: The run lock's ttl; by default that of the `Locks`. A run may take longer: it is renewed.
        locks: The `Locks` to use, or the name of an attribute of `self` that holds it; by default the one entered, or
            the process's only one.

    Raises:
        ConfigurationError: As `on_one_instance`.
        LeaseLostError: At the end of the call: the run lock was lost during the run, which went on without.
        Exception: At the call: what the store raised; the tick did not run here.
    """
    rule = jobs.without_overlapping(key, at_least=at_least, ttl=ttl, locks=_LOCKS)
    return lambda function: _declare(function, "without_overlapping", locks, rule)


def locked(
    key: str | Callable[..., str],
    *,
    wait: Duration = 0,
    ttl: Duration | None = None,
    max_hold: Duration | None = None,
    locks: Locks | str | None = None,
) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """
    Run a function under a lease on *key*: `Locks.hold` as a decorator.

        @locked(lambda order_id: f"order:{order_id}", wait=2)
        def ship(order_id: int) -> None: ...

    Args:
        key: The key, or a callable that makes it of the function's arguments.
        wait: How long to keep trying for the key; 0 tries once.
        ttl: The lease's ttl; by default that of the `Locks`.
        max_hold: The longest time for which the lease is renewed.
        locks: The `Locks` to use, or the name of an attribute of `self` that holds it; by default the one entered, or
            the process's only one.

    Raises:
        ConfigurationError: At decoration: the function is `async def` or a generator, or a value is wrong.
        Exception: At the call, as `Locks.hold`.
    """
    to_seconds(wait, name="wait")
    for value, name in ((ttl, "ttl"), (max_hold, "max_hold")):
        if value is not None:
            to_ms(value, name=name)
    if isinstance(key, str):
        check_key(key)

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        _refuse(function, "locked")
        name = _name_of(function)

        @functools.wraps(function)
        def guarded(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            used = _find_locks(locks, args, name)
            taken = key if isinstance(key, str) else key(*args, **kwargs)
            with used.hold(taken, wait=wait, ttl=ttl, max_hold=max_hold):
                return function(*args, **kwargs)

        return guarded

    return decorate


# ------------------------------------------------------------------------------------------------ declaring

_LOCKS: Final = "locks"
"""The attribute of `Guarded` in which an asynchronous decorator finds the `Locks` of a call."""


def _declare(
    function: Callable[..., Any], decorator: str, locks: Locks | str | None, rule: Callable[[_Ticks], _Ticks]
) -> Callable[..., Any]:
    """Declare a job, or add a rule to the one that *function* already is."""
    _refuse(function, decorator)
    marked: tuple[Callable[[], object], _Ticks, Callable[..., Any], Locks | str | None] | None
    marked = getattr(function, _MARK, None)
    if marked is not None and marked[0]() is function:
        _, ticks, work, before = marked
        if locks is not None and before is not None and locks is not before:
            raise ConfigurationError(
                f"{_name_of(work)} is given two Locks: the two decorators share one. Name it in one."
            )
        return _wrapped(work, rule(ticks), locks or before)

    @functools.wraps(function)
    async def turn(guarded: Guarded, *_: object, **__: object) -> None:
        await guarded.turn(context.current_lease())

    return _wrapped(function, rule(turn), locks)


def _wrapped(work: Callable[..., Any], ticks: _Ticks, locks: Locks | str | None) -> Callable[..., Any]:
    name = _name_of(work)

    @functools.wraps(work)
    def tick(*args: Any, **kwargs: Any) -> Any:
        engine = _find_locks(locks, args, name).engine_of_tick()
        guarded = engine.stay(lambda guarded: ticks(guarded, *args, **kwargs))
        if guarded.enter() is None:
            return None
        try:
            result = work(*args, **kwargs)
        except BaseException:
            guarded.leave(failed=True)
            raise
        guarded.leave(failed=False)
        return result

    # With the mark of the asynchronous decorator: one that is put around another decorator's function finds its key.
    tick.__dict__.update(ticks.__dict__)
    tick.__dict__["__wrapped__"] = work
    setattr(tick, _MARK, (weakref.ref(tick), ticks, work, locks))
    return tick


def _refuse(function: object, decorator: str) -> None:
    if isinstance(function, classmethod | staticmethod):
        raise ConfigurationError(
            f"@{decorator} stands above @{type(function).__name__}: put @{type(function).__name__} on top of it."
        )
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigurationError(
            f"@{decorator} of tenure.sync is on {_name_of(function)}, which is `async def`: use "
            f"tenure.{decorator}, which cancels it when its lease is lost."
        )
    if inspect.isgeneratorfunction(function):
        raise ConfigurationError(
            f"@{decorator} is on {_name_of(function)}, which is a generator: its body runs when it is iterated over, "
            "and the guard would be left by then. Use `with locks.hold(...)` inside of it."
        )


def _name_of(function: Any) -> str:
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{getattr(function, '__module__', type(function).__module__)}:{name}"


def _find_locks(locks: Locks | str | None, args: tuple[Any, ...], name: str) -> Locks:
    if isinstance(locks, Locks):
        return locks
    if locks is None:
        return ambient_locks()
    found = getattr(args[0], locks, None) if args else None
    if not isinstance(found, Locks):
        raise ConfigurationError(
            f"{name} is to use the tenure.sync.Locks in the attribute {locks!r} of its first argument, which has none "
            "there: set it before the function is called."
        )
    return found


# ------------------------------------------------------------------------------------------------- for people


def job_lease(key: str, *, locks: Locks | None = None) -> Lease | None:
    """
    Look at the lease that this process has on the job under *key*: for a page or a command that shows it.

    Args:
        key: The job's key, as `@on_one_instance` has it.
        locks: The `Locks` that the job runs on; by default the ambient one.

    Returns:
        The lease; None where the job runs elsewhere, or nowhere yet.
    """
    engine = (locks or ambient_locks()).engine()
    lease = jobs.job_lease(key, locks=engine.inner)
    return None if lease is None else Lease(lease, engine)


def step_down(key: str, *, locks: Locks | None = None) -> bool:
    """
    Give the lease of the job under *key* back, so that the next tick anywhere takes the job.

    A run that is under way goes on to its end, as `tenure.jobs.step_down` tells.

    Args:
        key: The job's key, as `@on_one_instance` has it.
        locks: The `Locks` that the job runs on; by default the ambient one.

    Returns:
        Whether this process had the job.
    """
    engine = (locks or ambient_locks()).engine()
    return engine.run(lambda: jobs.step_down(key, locks=engine.inner), goes_on=True)
