"""The world of the facts of `tenure.idempotency`: one store, faults for it, and as many instances as a fact needs."""

from typing import Any

from tenure import LossReason
from tenure.events import ExecutionLost, IdempotencyOutcome, RecordOutcome
from tenure.idempotency import Execution, Idempotency, InMemoryIdempotencyStore, Replay
from tenure.testing import FaultyIdempotencyStore, LoopClock

LOCK_S = 3.0


class World:
    def __init__(self) -> None:
        self.clock = LoopClock()
        self.inner = InMemoryIdempotencyStore(self.clock)
        self.store = FaultyIdempotencyStore(self.inner, clock=self.clock)
        self.events: list[Any] = []

    def instance(self, **options: Any) -> Idempotency:
        defaults: dict[str, Any] = {"lock_ttl": LOCK_S, "retention": "1h", "store_timeout": 1}
        return Idempotency(
            options.pop("store", self.store), clock=self.clock, hooks=[self.events.append], **(defaults | options)
        )

    def outcomes(self) -> list[IdempotencyOutcome]:
        return [event.outcome for event in self.events if isinstance(event, RecordOutcome)]

    def lost(self) -> list[LossReason]:
        return [event.reason for event in self.events if isinstance(event, ExecutionLost)]


async def begin(one: Idempotency, key: str = "k", **options: Any) -> Execution:
    begun = await one.begin(key, "f", **options)
    assert isinstance(begun, Execution)
    return begun


async def replayed(one: Idempotency, key: str = "k") -> bytes:
    begun = await one.begin(key, "f")
    assert isinstance(begun, Replay)
    return begun.payload
