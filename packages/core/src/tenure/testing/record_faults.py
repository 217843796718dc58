"""An idempotency store that fails on request, around one that works."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from tenure.idempotency_store import AcquireReply, Completion, InFlight
from tenure.testing._faulty import Faulty
from tenure.testing._passage import Call

__all__ = ["FaultyIdempotencyStore"]


class FaultyIdempotencyStore(Faulty):
    """
    An `IdempotencyStore` around another one, with the faults of `FaultyStore`.

        store = FaultyIdempotencyStore(InMemoryIdempotencyStore(clock), clock=clock)
        store.on("complete").lose_reply(times=2)
        store.on("acquire").lose_request()
        await store.called("extend", times=3)
        store.heal()

    Args:
        inner: The store that works.
        clock: On which delays pass. The engine's `ManualClock` moves them along with everything else.
        seed: Where faults set with `chance` are drawn from.
    """

    METHODS = ("acquire", "extend", "complete", "release", "purge")
    REFUSALS: ClassVar[Mapping[str, Callable[[Call], Any]]] = {
        "acquire": lambda _: InFlight(1000),
        "extend": lambda _: False,
        "complete": lambda _: Completion.STALE,
        "release": lambda _: False,
    }

    async def acquire(  # noqa: PLR0913 -- the contract's
        self, key: str, owner: str, fingerprint: str, lock_ttl_ms: int, grace_ms: int, *, takeover: bool = True
    ) -> AcquireReply:
        """Acquire, through the faults."""
        reply: AcquireReply = await self._pass(
            "acquire", key, owner, fingerprint, lock_ttl_ms, grace_ms, takeover=takeover
        )
        return reply

    async def extend(self, key: str, owner: str, lock_ttl_ms: int) -> bool:
        """Extend, through the faults."""
        reply: bool = await self._pass("extend", key, owner, lock_ttl_ms)
        return reply

    async def complete(self, key: str, owner: str, response: bytes, retention_ms: int) -> Completion:
        """Complete, through the faults."""
        reply: Completion = await self._pass("complete", key, owner, response, retention_ms)
        return reply

    async def release(self, key: str, owner: str) -> bool:
        """Release, through the faults."""
        reply: bool = await self._pass("release", key, owner)
        return reply

    async def purge(self, limit: int = 1000) -> int:
        """Purge, through the faults."""
        reply: int = await self._pass("purge", limit)
        return reply
