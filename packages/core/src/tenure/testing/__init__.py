"""
For tests: a clock that the test moves, a store that fails on request, and the contract of a store.

- `ManualClock` for an application's tests: `await clock.advance("5m")` fires what falls due, in order, and waits
  until each renewal has reached the store.
- `instances(3)` for an application's tests: three instances on one store and one clock, each to be paused, cut off from
  the store, stopped or killed.
- `FaultyStore` and `FaultyIdempotencyStore` around any store: lost requests and replies, delays, hangs, what runs late.
- `lock_store_contract()` for who writes a store: its cases, for any test runner; `lock_store_mutants()` proves
  that they find what they look for. `idempotency_store_contract()` and `idempotency_store_mutants()` for who writes an
  idempotency store; `idempotency_histories()` compares several stores, call by call, in random histories.
- `HistoryRecorder` and `check_history()`: what every process asked, was told and believed, and whether it was right.
- `tenure.testing.state_machines`, with the extra `testing`: random calls on a store beside a reference model.
- `virtual`, `run_virtual()`, `VirtualTimeLoop` and `LoopClock` for tests and simulations: time jumps, and a seed
  repeats the run.

Nothing here needs a package beyond the standard library, but for the state machines: those need Hypothesis.
"""

from tenure.testing._instances import Instance, InstanceKilledError, Instances, instances
from tenure.testing.clock import ManualClock
from tenure.testing.contract import Case, lock_store_contract, run_all
from tenure.testing.errors import DeadlockError, FaultError
from tenure.testing.faults import FaultyStore
from tenure.testing.history import HistoryError, HistoryRecorder, HistoryReport, Violation, check_history
from tenure.testing.idempotency_contract import idempotency_store_contract
from tenure.testing.idempotency_histories import HistoriesReport, idempotency_histories
from tenure.testing.idempotency_mutants import IdempotencyMutant, idempotency_store_mutants
from tenure.testing.mutants import Mutant, lock_store_mutants
from tenure.testing.record_faults import FaultyIdempotencyStore
from tenure.testing.virtual_time import LoopClock, VirtualTimeLoop, run_virtual, virtual

__all__ = [
    "Case",
    "DeadlockError",
    "FaultError",
    "FaultyIdempotencyStore",
    "FaultyStore",
    "HistoriesReport",
    "HistoryError",
    "HistoryRecorder",
    "HistoryReport",
    "IdempotencyMutant",
    "Instance",
    "InstanceKilledError",
    "Instances",
    "LoopClock",
    "ManualClock",
    "Mutant",
    "Violation",
    "VirtualTimeLoop",
    "check_history",
    "idempotency_histories",
    "idempotency_store_contract",
    "idempotency_store_mutants",
    "instances",
    "lock_store_contract",
    "lock_store_mutants",
    "run_all",
    "run_virtual",
    "virtual",
]
