"""Machines of a store, for any test runner."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar, cast

from hypothesis import HealthCheck, Phase, settings
from hypothesis import seed as seeded
from hypothesis.errors import FlakyFailure
from hypothesis.stateful import run_state_machine_as_test

from tenure.errors import ConfigurationError
from tenure.testing.state_machines.lock_machine import LockStoreMachine
from tenure.testing.state_machines.machine import Setting, StoreMachine
from tenure.testing.state_machines.record_machine import IdempotencyStoreMachine

__all__ = ["idempotency_store_machine", "lock_store_machine", "run_machine"]

_MachineT = TypeVar("_MachineT", bound=StoreMachine)

_EXAMPLES, _STEPS = 100, 40
_REAL_EXAMPLES, _REAL_STEPS = 25, 20
"""What `TestCase` runs unless it is told otherwise: seconds."""

_LIMIT_S = 10.0


def lock_store_machine(
    make_store: Callable[[], Any],
    advance: Callable[[float], Any] | None = None,
    *,
    runner: asyncio.Runner | None = None,
    limit_s: float = _LIMIT_S,
) -> type[LockStoreMachine]:
    """
    Make a state machine that draws calls on a lock store and compares every reply with the reference model.

        TestLocks = lock_store_machine(make_store, advance=clock.advance).TestCase

    On a simulated clock the model knows every reply exactly. In real time a call that lands near an expiry may find the
    lock held or over: the model keeps both until an answer tells.

    Args:
        make_store: Makes the store of an example. A function, or an async one, that returns a store; or what cleans up
            too: one that returns an async context manager, or an async generator that yields a store once. A store
            that is a context manager itself is entered and left. Keys and owners are drawn for each example, so that a
            server may be shared; what was locked is released after it.
        advance: Moves the store's clock by so many seconds; a function, or an async one. Without it time is waited
            for, with ttls of some hundred milliseconds. The store's clock and this process's must not be stepped
            meanwhile.
        runner: Whose event loop every call runs on, for a store that outlives an example with its connections; it is
            the caller's to close. Without it each example has a loop of its own, closed behind it.
        limit_s: How long a call may take, in real seconds, before it fails as hung.

    Returns:
        A `hypothesis.stateful.RuleBasedStateMachine`, for `run_machine()`; its `TestCase` is a `unittest.TestCase` for
        pytest and others, with `TestCase.settings` to set.

    Raises:
        ConfigurationError: *limit_s* is not above 0.
    """
    return _made(LockStoreMachine, Setting(make_store, advance, runner, limit_s))


def idempotency_store_machine(
    make_store: Callable[[], Any],
    advance: Callable[[float], Any] | None = None,
    *,
    runner: asyncio.Runner | None = None,
    limit_s: float = _LIMIT_S,
) -> type[IdempotencyStoreMachine]:
    """
    Make a state machine that draws calls on an idempotency store and compares every reply with the reference model.

        TestRecords = idempotency_store_machine(make_store, advance=clock.advance).TestCase

    Args:
        make_store: As of `lock_store_machine()`.
        advance: As of `lock_store_machine()`.
        runner: As of `lock_store_machine()`.
        limit_s: As of `lock_store_machine()`.

    Returns:
        As of `lock_store_machine()`.

    Raises:
        ConfigurationError: *limit_s* is not above 0.
    """
    return _made(IdempotencyStoreMachine, Setting(make_store, advance, runner, limit_s))


def run_machine(machine: type[StoreMachine], *, examples: int = 300, steps: int = 40, seed: int | None = None) -> None:
    """
    Run a machine, outside of any event loop.

    Args:
        machine: Of `lock_store_machine()` or `idempotency_store_machine()`.
        examples: How many times it begins anew.
        steps: How many calls it draws each time.
        seed: Repeats the examples; drawn if None. In real time it repeats the calls, and not when they arrive.

    Raises:
        AssertionError: A reply was not what the model says. The message tells the reply, what it must be, and the
            history of the key; the steps, shortened on a simulated clock, are in its notes.
        ConfigurationError: An option is out of range.
    """
    if examples < 1 or steps < 1:
        raise ConfigurationError(f"A machine takes 1 example and 1 step at least, not {examples} and {steps}.")
    copy = type(machine.__name__, (machine,), {"__doc__": machine.__doc__})
    if seed is not None:
        seeded(seed)(copy)
    try:
        run_state_machine_as_test(copy, settings=_settings(machine, examples, steps))
    except FlakyFailure as flaky:
        # In real time the same calls need not meet the same moment again. The finding stands.
        raise _finding(flaky) from None


def _made(kind: type[_MachineT], setting: Setting) -> type[_MachineT]:
    if not setting.limit_s > 0:
        raise ConfigurationError(f"limit_s is {setting.limit_s!r}: a call must be given some time, in seconds.")
    made = type(kind.__name__, (kind,), {"__doc__": kind.__doc__, "setting": setting})
    machine = cast("type[_MachineT]", made)
    waits = setting.advance is None
    machine.TestCase.settings = _settings(
        machine, _REAL_EXAMPLES if waits else _EXAMPLES, _REAL_STEPS if waits else _STEPS
    )
    return machine


def _settings(machine: type[StoreMachine], examples: int, steps: int) -> settings:
    # Shortening a failure runs it some hundred times: nothing on a simulated clock, and minutes in real time.
    phases = [Phase.explicit, Phase.reuse, Phase.generate]
    if machine.setting.advance is not None:
        phases += [Phase.target, Phase.shrink]
    return settings(
        max_examples=examples,
        stateful_step_count=steps,
        phases=phases,
        database=None,
        deadline=None,
        print_blob=False,
        # One finding at a time: a store that breaks a rule gives another at every turn, and each is shortened.
        report_multiple_bugs=False,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
    )


def _finding(flaky: FlakyFailure) -> BaseException:
    """Return the failure that did not come again when the example was repeated."""
    failures = [one for one in flaky.exceptions if isinstance(one, AssertionError)]
    if not failures:
        return flaky
    failures[0].add_note("The same calls, made again, did not fail: it takes the moment, too.")
    return failures[0]
