"""
The recorder: the conversation with the store about one record.

A call of unknown outcome is repeated where its owner may repeat it, and otherwise followed by what sets it right:

- An acquire that failed is asked once more with the same owner. One that was given up (its time was over, its caller
  was cancelled) is followed by a release, so that a late grant blocks nobody until its lock ends.
- A completion is repeated by the execution, for as long as it may take.
- A release is not: at worst the lock runs out.
"""

import random
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar, cast, final

from tenure._acquirer import ask_in_time, draw_owner
from tenure._keeper import Keeper
from tenure._kept import Kept, Renewer
from tenure._lease_machine import RENEWALS_PER_TTL, postponed
from tenure.clock import Clock, sleep_until
from tenure.errors import TenureError
from tenure.events import Event
from tenure.idempotency.envelope import RESPONSE, Sealer, bound_to, digest, open_envelope, seal
from tenure.idempotency_store import (
    Acquired,
    AcquireReply,
    Completed,
    Completion,
    IdempotencyStore,
    RecordsEffects,
    check_acquire_reply,
    check_completion_reply,
)
from tenure.store import Claim

__all__ = ["Recorder", "Replay", "Ticket"]

_T = TypeVar("_T")

_SECOND_TRY_S: Final = 0.05
"""How long an acquire that failed is paused before it is asked again, at most, in seconds."""

_NAME_LENGTH: Final = 12
"""Characters of a record's name in logs: enough to tell records apart, too few to be turned back into a key."""


@final
@dataclass(frozen=True, slots=True)
class Replay:
    """
    The key was completed before.

    Attributes:
        payload: What `Execution.complete` was given. Left out of the `repr`.
    """

    payload: bytes = field(repr=False)


@final
@dataclass(frozen=True, slots=True)
class Ticket:
    """One execution as the store knows it. Its key and its owner are left out of the `repr`."""

    key: str = field(repr=False)
    owner: str = field(repr=False)
    fingerprint: str = field(repr=False)
    attempt: int
    name: str


@final
class Recorder:
    """
    Speaks with the store for an `Idempotency`.

    Args:
        store: The store.
        keeper: Who runs the calls, and extends the locks.
        clock: The holder's clock.
        emit: Where events go.
        rng: Where jitter comes from.
        instance: The instance's name, with which its owners begin.
        lock_ttl_ms: How long a lock lives without an extension.
        grace_ms: How long a record is kept after its lock has ended.
        store_timeout_s: How long a call may take, in seconds.
        sealer: Who seals responses, or None.
        secret: What keys are hashed under in logs; None for one of this process's own.
    """

    def __init__(  # noqa: PLR0913 -- what an `Idempotency` shares with it
        self,
        store: IdempotencyStore,
        keeper: Keeper,
        clock: Clock,
        emit: Callable[[Event], None],
        rng: random.Random,
        *,
        instance: str,
        lock_ttl_ms: int,
        grace_ms: int,
        store_timeout_s: float,
        sealer: Sealer | None,
        secret: bytes | None,
    ) -> None:
        self.store = store
        self.keeper = keeper
        self.clock = clock
        self.emit = emit
        self.rng = rng
        self._instance = instance
        self._lock_ttl_ms = lock_ttl_ms
        self._grace_ms = grace_ms
        self._store_timeout_s = store_timeout_s
        # A caller waits for these two: at worst a completion goes on behind it, and a lock runs out.
        self._short_timeout_s = min(store_timeout_s, lock_ttl_ms / 1000 / RENEWALS_PER_TTL)
        self._sealer = sealer
        self._secret = secret or secrets.token_bytes(32)
        self._renewer = Renewer(store.extend)

    def name_of(self, key: str) -> str:
        """Name the record of *key* for logs."""
        return digest(self._secret, ("record", key))[:_NAME_LENGTH]

    def draw_owner(self) -> str:
        """Draw the id of an execution."""
        return draw_owner(self._instance)

    async def acquire(self, key: str, owner: str, fingerprint: str, *, takeover: bool) -> tuple[AcquireReply, float]:
        """
        Ask the store once, or twice where the first call failed.

        Returns:
            The answer, and when it was asked, in seconds on the holder's clock.

        Raises:
            StoreTimeoutError: It did not answer in time, or so late that the lock had ended. A release is sent behind.
            Exception: What the store raises, twice in a row. A release is sent behind.
        """

        def ask() -> Awaitable[AcquireReply]:
            return self.store.acquire(key, owner, fingerprint, self._lock_ttl_ms, self._grace_ms, takeover=takeover)

        return await ask_in_time(
            self.keeper,
            self.clock,
            self._ask_twice(ask),
            granted=Acquired,
            ttl_s=self._lock_ttl_ms / 1000,
            timeout_s=self._store_timeout_s,
            release=partial(self.store.release, key, owner),
        )

    async def _ask_twice(self, ask: Callable[[], Awaitable[AcquireReply]]) -> AcquireReply:
        """Ask again with the same owner: a reply that was lost on its way is told again."""
        try:
            reply = await ask()
        except TenureError:
            raise
        except Exception:  # noqa: BLE001 -- whatever a driver raises, its outcome is unknown
            await sleep_until(self.clock, self.clock.now() + _SECOND_TRY_S * self.rng.random())
            reply = await ask()
        return check_acquire_reply(reply)

    def open(self, key: str, fingerprint: str, reply: Completed) -> tuple[bool, bytes]:
        """
        Open a stored outcome.

        Returns:
            Whether the response was kept; and it, or what was left in its place.

        Raises:
            SealError: The sealer cannot open it.
            StoreReplyError: It is none of ours.
        """
        kind, payload = open_envelope(self._sealer, reply.response, bound_to(key, reply.owner, fingerprint))
        return kind == RESPONSE, payload

    def seal(self, ticket: Ticket, kind: bytes, payload: bytes) -> bytes:
        """Put an outcome into the form in which the store keeps it."""
        return seal(self._sealer, kind, payload, bound_to(ticket.key, ticket.owner, ticket.fingerprint))

    def keep(self, ticket: Ticket, sent_at: float, *, at_once: bool = False) -> Kept:
        """
        Extend the lock of an execution from now on.

        Args:
            ticket: The execution.
            sent_at: From when its lock counts, in seconds on the holder's clock.
            at_once: Whether the first extension is due now, rather than after a third of the lock's ttl.
        """
        claim = Claim(ticket.key, ticket.owner, self._lock_ttl_ms)
        kept = Kept(self.clock, claim, ticket.attempt, sent_at, self._renewer)
        if at_once:
            kept.term = postponed(kept.term, sent_at)
        self.keeper.keep(kept)
        return kept

    async def complete(self, ticket: Ticket, sealed: bytes, retention_ms: int, *, asserted: bool) -> Completion | None:
        """
        Complete an execution, in one try.

        Args:
            ticket: The execution.
            sealed: Its outcome.
            retention_ms: How long it is kept.
            asserted: Whether it asserted its effect in a transaction of its own. Where that was not committed, there is
                nothing to complete: a framework may swallow a failed commit and send its response all the same.

        Returns:
            What became of it; None where its effect is known to have failed and its record was released.

        Raises:
            Exception: What the store raises; the outcome is unknown.
        """
        if asserted and not await self._call(
            "effect_committed", cast("RecordsEffects", self.store).effect_committed(ticket.key, ticket.owner)
        ):
            await self._call("release", self.store.release(ticket.key, ticket.owner))
            return None
        completing = self.store.complete(ticket.key, ticket.owner, sealed, retention_ms)
        return check_completion_reply(await self._call("complete", completing))

    async def release(self, ticket: Ticket) -> bool:
        """
        Release an execution's record, in one try.

        Raises:
            Exception: What the store raises; at worst the lock runs out.
        """
        return await self._call("release", self.store.release(ticket.key, ticket.owner)) is True

    async def _call(self, operation: str, call: Awaitable[_T]) -> _T:
        return await self.keeper.call(operation, call, timeout_s=self._short_timeout_s)
