"""The bench that a case works on: what every contract's cases have, and records to begin and to find."""

import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any, final

from tenure._idempotency_machine import RecordState
from tenure.idempotency_store import (
    Abandoned,
    Acquired,
    AcquireReply,
    Completed,
    Completion,
    IdempotencyStore,
    InFlight,
    Mismatch,
)
from tenure.testing._case import Script
from tenure.testing._stage import LONG_MS, Setting, Stage

__all__ = ["LONG_MS", "OTHER_PAYLOAD", "PAYLOAD", "MakeIdempotencyStore", "OpenTransaction", "RecordBench"]

MakeIdempotencyStore = Callable[
    [],
    IdempotencyStore
    | Awaitable[IdempotencyStore]
    | AbstractAsyncContextManager[IdempotencyStore]
    | AsyncIterator[IdempotencyStore],
]
"""How a case comes by a store: a function, sync or async, that returns one, or that makes and cleans one up."""

OpenTransaction = Callable[[], AbstractAsyncContextManager[Any]]
"""Opens a transaction in the store's database: gives its connection, commits when left, rolls back on an exception."""

PAYLOAD = "v1:" + "3f" * 32
"""The fingerprint of the request that the cases repeat: of the length that the engine's have."""

OTHER_PAYLOAD = "v1:" + "3f" * 31 + "3e"
"""Another request's: it differs in the last character, where a column that is too short has cut it."""


@final
class RecordBench(Stage):
    """An idempotency store of the case's own, and what a case needs to judge it."""

    def __init__(  # noqa: PLR0913, PLR0917 -- the stage's four, and what only records need
        self,
        setting: Setting,
        script: Script[Any],
        stack: AsyncExitStack,
        store: IdempotencyStore,
        effects: OpenTransaction | None = None,
        purges: bool | None = None,
    ) -> None:
        super().__init__(setting, script, stack, store)
        self.purges = purges
        self._effects = effects

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        """Open a transaction in the store's database."""
        assert self._effects is not None, "a case of effects is left out where nobody can have one"
        return self._effects()

    # -------------------------------------------------------------------------------------- time

    @property
    def edge_ms(self) -> int:
        """How near to an end a case looks: a clock that the test moves stands still in between, a real one does not."""
        return 1 if self.setting.advance_time else self.setting.ttl_ms // 4

    async def pass_almost(self, span_ms: int) -> None:
        """Let *span_ms* pass but for the edge."""
        await self.pass_ms(span_ms - self.edge_ms)

    async def pass_the_end(self) -> None:
        """Let the edge pass, to the moment just after the end."""
        if self.setting.advance_time:
            await self.pass_ms(2 * self.edge_ms)
        else:
            await self.outlast(self.edge_ms)

    # ------------------------------------------------------------------------------------- calls

    async def acquire(  # noqa: PLR0913 -- the contract's
        self,
        key: str,
        owner: str,
        fingerprint: str = PAYLOAD,
        *,
        lock_ms: int = LONG_MS,
        grace_ms: int = LONG_MS,
        takeover: bool = True,
    ) -> AcquireReply:
        """Ask for *key*, and remember to give it back after the case."""
        # Before the call: one that is cancelled may be granted all the same.
        known = (key, owner) in self._granted
        self._granted.add((key, owner))
        reply: AcquireReply = await self.store.acquire(key, owner, fingerprint, lock_ms, grace_ms, takeover=takeover)
        if not known and not isinstance(reply, Acquired):
            self._granted.discard((key, owner))
        return reply

    async def begin(  # noqa: PLR0913 -- the contract's, and what to say
        self,
        key: str,
        owner: str | None = None,
        fingerprint: str = PAYLOAD,
        *,
        lock_ms: int = LONG_MS,
        grace_ms: int = LONG_MS,
        attempt: int = 1,
        what: str = "acquire() of an absent record",
    ) -> str:
        """Begin execution number *attempt* under *key*, which must be allowed, and return its owner."""
        owner = owner or self.owner()
        reply = await self.acquire(key, owner, fingerprint, lock_ms=lock_ms, grace_ms=grace_ms)
        self._require_reply(reply, Acquired(attempt), what)
        return owner

    async def abandon(self, key: str, owner: str | None = None, *, grace_ms: int = LONG_MS) -> str:
        """Begin an execution under *key* and let its lock run out; return its owner."""
        owner = await self.begin(key, owner, lock_ms=self.short_ms, grace_ms=grace_ms)
        await self.outlast(self.short_ms)
        return owner

    async def completes(
        self,
        key: str,
        owner: str,
        response: bytes = b"done",
        *,
        retention_ms: int = LONG_MS,
        what: str = "complete() by the recorded owner",
    ) -> None:
        """Complete, which must be stored."""
        reply = await self.store.complete(key, owner, response, retention_ms)
        self.equal(reply, Completion.STORED, what=what)

    # ------------------------------------------------------------------------------------- looks

    async def look(self, key: str, fingerprint: str = PAYLOAD) -> AcquireReply:
        """Ask for *key* as somebody new who takes nothing over: it writes nothing but on an absent record."""
        return await self.acquire(
            key, self.owner(), fingerprint, lock_ms=self.short_ms, grace_ms=self.short_ms, takeover=False
        )

    async def find_in_flight(self, key: str, *, what: str) -> int:
        """Require an execution under *key* that is believed alive, and return what is left of its lock."""
        reply = await self.look(key)
        if not isinstance(reply, InFlight):
            self.fail(f"{what} gave {reply!r}", "InFlight")
        return reply.expires_in_ms

    async def find_abandoned(self, key: str, attempt: int = 1, *, effect: bool = False, what: str) -> None:
        """Require an execution under *key* whose outcome is unknown."""
        self._require_reply(await self.look(key), Abandoned(attempt, effect), f"{what}, without a takeover,")

    async def find_mismatch(self, key: str, state: RecordState, *, what: str) -> None:
        """Require the record of *key* to be another payload's."""
        self._require_reply(await self.look(key, OTHER_PAYLOAD), Mismatch(state), what)

    async def find_completed(self, key: str, response: bytes, owner: str | None = None, *, what: str) -> None:
        """Require an outcome under *key*: these bytes, and of *owner* if given."""
        self.require_completed(await self.look(key), response, owner, what=what)

    async def find_absent(self, key: str, fingerprint: str = PAYLOAD, *, what: str) -> str:
        """Require nothing to be known of *key*: somebody new begins as the first."""
        owner = self.owner()
        reply = await self.acquire(key, owner, fingerprint, lock_ms=self.short_ms, grace_ms=self.short_ms)
        self._require_reply(reply, Acquired(1), what)
        return owner

    # ---------------------------------------------------------------------------------- verdicts

    def require_completed(self, reply: AcquireReply, response: bytes, owner: str | None = None, *, what: str) -> None:
        """Require *reply* to be an outcome: these bytes, and of *owner* if given."""
        if not isinstance(reply, Completed):
            self.fail(f"{what} gave {reply!r}", "Completed")
        if type(reply.response) is not bytes or reply.response != response:
            self.fail(f"{what} gave another response, a {type(reply.response).__name__}", "the bytes of the first")
        if owner is not None and reply.owner != owner:
            self.fail(f"{what} named another owner", "the one that completed it")

    def _require_reply(self, reply: AcquireReply, expected: AcquireReply, what: str) -> None:
        if type(reply) is not type(expected) or repr(reply) != repr(expected):
            self.fail(f"{what} gave {reply!r}", repr(expected))

    def left(self, left_ms: int, at_least: int, at_most: int, *, what: str) -> None:
        """Require what is left of a lock to be a whole number of milliseconds within bounds."""
        if type(left_ms) is not int or not at_least <= left_ms <= at_most:
            self.fail(f"{what}: {left_ms!r} ms are left", f"an int from {at_least} to {math.floor(at_most)}")
