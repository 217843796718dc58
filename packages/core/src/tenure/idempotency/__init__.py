"""
Idempotency: a request, a message or a job that comes twice is carried out once.

    async with Idempotency(store) as idempotency:
        receipt = await idempotency.run(f"charge:{order.id}", idempotency.fingerprint(order.json), charge)

The first call under a key runs the function and keeps what it returns; a repeat gets the same answer. While the first
one runs, a repeat is told so (`InFlightError`); another payload under the key is refused (`KeyReusedError`). The record
is kept alive for as long as the function runs. If its process dies, the next call runs the function again and is told
that it is the second attempt, or is refused (`on_abandoned="refuse"`).

For HTTP see `tenure.ext.asgi` and `tenure.ext.litestar`; for what a store has to keep, `tenure.idempotency_store`.
"""

from tenure.errors import (
    ExecutionLostError,
    IdempotencyError,
    InFlightError,
    KeyReusedError,
    NoEffectError,
    OutcomeUnknownError,
    ResponseNotStoredError,
    SealError,
    StoreFullError,
)
from tenure.idempotency.codec import JSON, Codec
from tenure.idempotency.engine import Idempotency
from tenure.idempotency.envelope import Sealer
from tenure.idempotency.execution import Execution, IdempotencyContext, Settled, Settlement
from tenure.idempotency.recorder import Replay
from tenure.idempotency_store import (
    Abandoned,
    Acquired,
    Completed,
    Completion,
    IdempotencyStore,
    InFlight,
    Mismatch,
    RecordsEffects,
)
from tenure.locks import Phase
from tenure.memory import InMemoryIdempotencyStore

__all__ = [
    "JSON",
    "Abandoned",
    "Acquired",
    "Codec",
    "Completed",
    "Completion",
    "Execution",
    "ExecutionLostError",
    "Idempotency",
    "IdempotencyContext",
    "IdempotencyError",
    "IdempotencyStore",
    "InFlight",
    "InFlightError",
    "InMemoryIdempotencyStore",
    "KeyReusedError",
    "Mismatch",
    "NoEffectError",
    "OutcomeUnknownError",
    "Phase",
    "RecordsEffects",
    "Replay",
    "ResponseNotStoredError",
    "SealError",
    "Sealer",
    "Settled",
    "Settlement",
    "StoreFullError",
]
