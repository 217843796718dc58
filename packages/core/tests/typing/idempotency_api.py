"""Types of the public API of `tenure.idempotency`: checked by mypy and pyright, never run."""

from typing import Any, Literal, assert_type

from tenure import LossReason, open_idempotency_store
from tenure.config import OpenedIdempotencyStore
from tenure.idempotency import (
    JSON,
    Abandoned,
    Acquired,
    Completed,
    Completion,
    Execution,
    Idempotency,
    IdempotencyContext,
    IdempotencyStore,
    InFlight,
    InFlightError,
    InMemoryIdempotencyStore,
    Mismatch,
    OutcomeUnknownError,
    RecordsEffects,
    Replay,
    ResponseNotStoredError,
    Sealer,
    Settled,
)


class HandWrittenStore:
    """A store of an application's own: it derives from nothing of ours."""

    async def acquire(
        self, key: str, owner: str, fingerprint: str, lock_ttl_ms: int, grace_ms: int, *, takeover: bool = True
    ) -> Acquired | InFlight | Abandoned | Mismatch | Completed:
        return Acquired(1) if takeover else InFlight(lock_ttl_ms)

    async def extend(self, key: str, owner: str, lock_ttl_ms: int) -> bool:
        return True

    async def complete(self, key: str, owner: str, response: bytes, retention_ms: int) -> Completion:
        return Completion.STORED

    async def release(self, key: str, owner: str) -> bool:
        return True

    async def purge(self, limit: int = 1000) -> int:
        return 0


class HandWrittenSealer:
    """Likewise."""

    def seal(self, plain: bytes, *, bound_to: bytes) -> bytes:
        return bound_to + plain

    def open(self, sealed: bytes, *, bound_to: bytes) -> bytes:
        return sealed.removeprefix(bound_to)


STORES: list[IdempotencyStore] = [HandWrittenStore(), InMemoryIdempotencyStore(), open_idempotency_store("memory://")]
SEALER: Sealer = HandWrittenSealer()
assert_type(open_idempotency_store("memory://"), OpenedIdempotencyStore)

idempotency = Idempotency(
    HandWrittenStore(), lock_ttl="30s", retention=3600, on_abandoned="refuse", sealer=SEALER, secret=b"s" * 32
)
Idempotency(HandWrittenStore(), on_abandoned="perhaps")  # type: ignore[arg-type]
Idempotency("memory://")  # type: ignore[arg-type]
Idempotency(HandWrittenStore(), 30)  # type: ignore[call-arg]


async def plain() -> int:
    """Without the context."""
    return 7


async def told(context: IdempotencyContext) -> str:
    """With it."""
    assert_type(context.attempt, int)
    assert_type(context.lost, bool)
    assert_type(context.lost_reason, LossReason | None)
    assert_type(context.settlement, Literal["release", "store", "abandon"] | None)
    assert_type(context.downstream_key("charge"), str)
    context.settlement = "abandon"
    context.settlement = "forget"  # type: ignore[assignment]
    await context.assert_owner(object())
    return "done"


async def use() -> None:
    """What a user's checker infers."""
    async with idempotency as entered:
        assert_type(entered, Idempotency)
        assert_type(await entered.run("k", entered.fingerprint("a", b"b"), plain), int)
        assert_type(await entered.run("k", "f", told, wait="2s", on_error="abandon", codec=JSON), str)
        begun = await entered.begin("k", "f")
        assert_type(begun, Execution | Replay)
        if isinstance(begun, Replay):
            assert_type(begun.payload, bytes)
            return
        assert_type(await begun.complete(b""), Settled)
        assert_type(await begun.leave_tombstone(), Settled)
        assert_type(await begun.release(), bool)
        begun.abandon()


def handle(error: InFlightError | OutcomeUnknownError | ResponseNotStoredError) -> None:
    """What a web layer reads."""
    if isinstance(error, InFlightError):
        assert_type(error.retry_after_s, float)
    elif isinstance(error, OutcomeUnknownError):
        assert_type(error.attempt, int | None)
    else:
        assert_type(error.summary, bytes)
    assert_type(error.status_hint, int)


def look(store: Any) -> None:
    """A capability is found by isinstance."""
    if isinstance(store, RecordsEffects):
        assert_type(store, RecordsEffects)
