"""
State machines: random calls on a store, every reply compared with a reference model.

    from tenure.testing.state_machines import lock_store_machine, run_machine

    clock = ManualClock()
    machine = lock_store_machine(lambda: InMemoryLockStore(clock), advance=clock.advance)
    TestLocks = machine.TestCase              # for pytest and unittest
    run_machine(machine, examples=300)        # for any other runner

The cases of a contract show what somebody thought of. A machine draws what nobody did: acquisitions, renewals and
releases of a few owners on a few keys that are alike, races, cancelled calls, lost replies, hostile arguments and time;
and on a finding it looks for the shortest series of calls that leads there. The models are `lock_model` and
`record_model`, one short file each.

Needs Hypothesis: `pip install tenure[testing]`. Nothing else of `tenure.testing` does, so this is not imported with it.
"""

from tenure.errors import ConfigurationError

try:
    import hypothesis  # noqa: F401 -- looked for here, so that its absence is told in words
except ModuleNotFoundError:
    raise ConfigurationError(
        "Hypothesis is not installed, which tenure.testing.state_machines draws its calls with: "
        "pip install tenure[testing]"
    ) from None

from tenure.testing.state_machines.running import idempotency_store_machine, lock_store_machine, run_machine

__all__ = ["idempotency_store_machine", "lock_store_machine", "run_machine"]
