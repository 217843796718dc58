"""
A store that fails on request, around one that works.

What a network, a server and a driver do to a call, one at a time and on purpose: the request is lost, or the
reply; either is slow; nothing answers; what was given up on runs late. Faults are set for a method, for a number
of calls, by a predicate, or by chance from a seed; delays pass on an injected clock.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar, Self, cast

from tenure.clock import Clock
from tenure.store import (
    Acquired,
    ChecksServer,
    Claim,
    Finding,
    Held,
    ListsLocks,
    LockRecord,
    LockStore,
    QueuesWaiters,
    RenewsMany,
    WakesWaiters,
)
from tenure.testing._faulty import Faulty
from tenure.testing._passage import Call, Rule
from tenure.testing._script import Faults

__all__ = ["Call", "Faults", "FaultyStore", "Rule"]


class FaultyStore(Faulty):
    """
    A `LockStore` around another one. It has the capabilities of the inner one, and no others.

        store = FaultyStore(InMemoryLockStore(clock), clock=clock)
        store.on("renew").lose_reply(times=2)
        store.on("acquire").hang()
        await store.called("renew", times=3)
        store.heal()

    A call meets the faults that were set for it in the order in which they were set: delays add up, and the
    first fault that ends the call ends it. With none set, the call passes through untouched.

    Args:
        inner: The store that works.
        clock: On which delays pass. The engine's `ManualClock` moves them along with everything else.
        seed: Where faults set with `chance` are drawn from.
        without: Capabilities to hide, to see an engine fall back on the three methods.

    Attributes:
        calls: How often each method was called: `store.calls["renew"]`.
        executions: How often a call of each method ended on the inner store, also one whose reply was lost.
        fired: How often each kind of fault met a call. A fault that never did has proven nothing.
    """

    def __new__(
        cls, inner: LockStore, *, without: Collection[type] = (), clock: Clock | None = None, seed: int = 0
    ) -> Self:
        """Make an instance of the class that has the inner store's capabilities: `isinstance` asks the class."""
        del clock, seed
        offered = frozenset(one for one in _CAPABILITIES if one not in without and isinstance(inner, one))
        kind: type[FaultyStore] = cls
        return cast("Self", object.__new__(_with_capabilities(kind, offered)))

    def __init__(
        self, inner: LockStore, *, without: Collection[type] = (), clock: Clock | None = None, seed: int = 0
    ) -> None:
        del without
        super().__init__(inner, clock=clock, seed=seed)

    METHODS = (
        "acquire",
        "renew",
        "release",
        "renew_many",
        "list_locks",
        "check",
        "released",
        "acquire_queued",
        "granted",
    )
    REFUSALS: ClassVar[Mapping[str, Callable[[Call], Any]]] = {
        "acquire": lambda _: Held(),
        "renew": lambda _: False,
        "release": lambda _: False,
        "renew_many": lambda call: [False] * len(call.args[0]),
        "acquire_queued": lambda _: Held(),
    }

    # -------------------------------------------------------------------------------- the store

    async def acquire(self, key: str, owner: str, ttl_ms: int) -> Acquired | Held:
        """Acquire, through the faults."""
        reply: Acquired | Held = await self._pass("acquire", key, owner, ttl_ms)
        return reply

    async def renew(self, key: str, owner: str, ttl_ms: int) -> bool:
        """Renew, through the faults."""
        reply: bool = await self._pass("renew", key, owner, ttl_ms)
        return reply

    async def release(self, key: str, owner: str) -> bool:
        """Release, through the faults."""
        reply: bool = await self._pass("release", key, owner)
        return reply


class _Renewing(FaultyStore):
    async def renew_many(self, claims: Sequence[Claim]) -> Sequence[bool | None]:
        """Renew many, through the faults."""
        reply: Sequence[bool | None] = await self._pass("renew_many", claims)
        return reply


class _Listing(FaultyStore):
    async def list_locks(self, prefix: str = "") -> Sequence[LockRecord]:
        """List locks, through the faults."""
        reply: Sequence[LockRecord] = await self._pass("list_locks", prefix)
        return reply


class _Checking(FaultyStore):
    async def check(self) -> Sequence[Finding]:
        """Check the server, through the faults."""
        reply: Sequence[Finding] = await self._pass("check")
        return reply


class _Waking(FaultyStore):
    async def released(self, key: str) -> None:
        """Wait for a release, through the faults."""
        await self._pass("released", key)


class _Queueing(FaultyStore):
    async def acquire_queued(self, key: str, owner: str, ttl_ms: int, place_ms: int) -> Acquired | Held:
        """Acquire or queue, through the faults."""
        reply: Acquired | Held = await self._pass("acquire_queued", key, owner, ttl_ms, place_ms)
        return reply

    async def granted(self, key: str, owner: str) -> Acquired:
        """Wait for a grant, through the faults: the request is the listening, and the reply the message."""
        reply: Acquired = await self._pass("granted", key, owner)
        return reply


_CAPABILITIES: dict[type, type[FaultyStore]] = {
    RenewsMany: _Renewing,
    ListsLocks: _Listing,
    ChecksServer: _Checking,
    WakesWaiters: _Waking,
    QueuesWaiters: _Queueing,
}


_made: dict[tuple[type[FaultyStore], frozenset[type]], type[FaultyStore]] = {}


def _with_capabilities(kind: type[FaultyStore], offered: frozenset[type]) -> type[FaultyStore]:
    """Make the class of a faulty store that offers exactly *offered*, once for each set."""
    parts = [part for one, part in _CAPABILITIES.items() if one in offered and not issubclass(kind, part)]
    if (kind, offered) not in _made:
        _made[kind, offered] = type(kind.__name__, (*parts, kind), {"__module__": kind.__module__})
    return _made[kind, offered]
