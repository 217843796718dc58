"""
The execution: one attempt to carry a request out, from its acquire to what became of it.

    OPEN --complete, leave_tombstone--> SETTLED      the store is told; it fails: PENDING, and it is told again
    OPEN --release--------------------> SETTLED      known to have had no effect
    OPEN --abandon--------------------> SETTLED      nobody knows: the lock runs out, and the next one is told

Until it is settled its lock is extended. The lock may end all the same (the store is away for longer than the lock
lives). That is no verdict: as long as nobody took over, the record is still the execution's own. So it is told
(`context.lost`), and goes on extending.
"""

import enum
from collections.abc import Callable
from typing import Any, Final, Literal, final

from tenure._acquirer import shielded
from tenure._backoff import Backoff
from tenure._kept import Kept
from tenure._lease_machine import LeaseEvent
from tenure.clock import Timer, sleep_until
from tenure.errors import ConfigurationError, LossReason
from tenure.events import ExecutionLost, IdempotencyOutcome, RecordOutcome
from tenure.idempotency.envelope import RESPONSE, TOMBSTONE, digest
from tenure.idempotency.recorder import Recorder, Ticket
from tenure.idempotency_store import Completion, RecordsEffects

__all__ = ["Execution", "IdempotencyContext", "Settled", "Settlement"]

Settlement = Literal["release", "store", "abandon"]
"""What becomes of an execution's record: forgotten (no effect), kept with its response, or left as unknown."""

_DOWNSTREAM_LENGTH: Final = 32
"""Characters of a downstream key: 128 bits, and short enough for every provider's limit."""

_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 5.0
"""The pauses between the tries of a completion that goes on in the background, in seconds."""

_NOT_RECOVERED: Final = frozenset({LossReason.EXPIRED, LossReason.STALLED})
"""Ends of a lock after which it may live again: nobody said that the record is another's."""


@final
class Settled(enum.Enum):
    """What became of an execution."""

    STORED = "stored"
    STALE = "stale"
    """Another execution took the record over; nothing was written."""
    GONE = "gone"
    """The record had ended; nothing was written."""
    RELEASED = "released"
    ABANDONED = "abandoned"
    PENDING = "pending"
    """The store failed; the completion goes on in the background."""


_OUTCOMES: Final = {
    Completion.STORED: (Settled.STORED, IdempotencyOutcome.STORED),
    Completion.STALE: (Settled.STALE, IdempotencyOutcome.STALE),
    Completion.GONE: (Settled.GONE, IdempotencyOutcome.GONE),
    None: (Settled.RELEASED, IdempotencyOutcome.RELEASED),
}


@final
class IdempotencyContext:
    """
    What a guarded function may know of its execution.

    Attributes:
        attempt: 1, or more where an earlier execution began and nobody knows how it ended. A function that cannot be
            repeated blindly looks at it.
        settlement: Set it to say what becomes of the record, whatever the response or the error is: "release" where
            nothing happened, "store" to keep the response, "abandon" where nobody knows. None leaves it to the policy.
        asserted: Whether `assert_owner` was called and did not raise.
        lost_reason: How the execution's lock ended under it, or None.
    """

    __slots__ = ("_recorder", "_secret", "_ticket", "asserted", "attempt", "lost_reason", "settlement")

    def __init__(self, ticket: Ticket, recorder: Recorder, secret: bytes) -> None:
        self._ticket = ticket
        self._recorder = recorder
        self._secret = secret
        self.asserted = False
        self.attempt: Final[int] = ticket.attempt
        self.lost_reason: LossReason | None = None
        self.settlement: Settlement | None = None

    @property
    def owner(self) -> str:
        """The id of the execution. Not for logs."""
        return self._ticket.owner

    @property
    def lost(self) -> bool:
        """Whether the execution's lock ended, so that another one may have begun."""
        return self.lost_reason is not None

    def downstream_key(self, label: str = "") -> str:
        """
        Derive an idempotency key for a provider that this function calls.

        The same for every attempt under the same key, so that a repeat after a crash is the provider's to recognise.

        Args:
            label: Which call, where there are several: "charge", "refund".

        Returns:
            32 hexadecimal characters, which tell nothing of the client's key where the Idempotency has a secret.
        """
        return digest(self._secret, ("downstream", self._ticket.key, label))[:_DOWNSTREAM_LENGTH]

    async def assert_owner(self, connection: Any) -> None:
        """
        Have the effects of a transaction exactly once: record the effect in the very transaction that has it.

            async with engine.begin() as connection:
                await context.assert_owner(connection)
                await connection.execute(...)

        Nobody takes the record over until the transaction ends. If it commits, nobody runs the request again, even if
        this process dies before the response is stored; if it rolls back, nothing happened.

        Args:
            connection: The transaction's connection or session, on the database of the idempotency store.

        Race prevented: an execution that was paused and replaced commits beside its successor.

        Raises:
            ExecutionLostError: The record is another's by now: roll back.
            ConfigurationError: The store's records are not in a database that the application writes to.
            Exception: What the driver raises.
        """
        store = self._recorder.store
        if not isinstance(store, RecordsEffects):
            raise ConfigurationError(
                f"{type(store).__name__} keeps its records outside of the application's database, so an effect cannot "
                "be recorded together with them. Use PostgresIdempotencyStore on the same database, or pass "
                "downstream_key() to a provider that recognises a repeat."
            )
        await store.assert_owner(connection, self._ticket.key, self._ticket.owner)
        self.asserted = True

    def __repr__(self) -> str:
        return f"<IdempotencyContext of request {self._ticket.name}, attempt {self.attempt}>"


@final
class Execution:
    """
    One attempt to carry a request out, which its maker settles in one of four ways. See the module.

    Attributes:
        context: What the guarded function may know.
    """

    def __init__(  # noqa: PLR0913 -- made by `Idempotency.begin` alone
        self,
        ticket: Ticket,
        recorder: Recorder,
        *,
        sent_at: float,
        secret: bytes,
        retention_ms: int,
        completion_deadline_s: float,
        max_execution_s: float | None,
        ended: Callable[["Execution"], None],
    ) -> None:
        self.context = IdempotencyContext(ticket, recorder, secret)
        self._ticket = ticket
        self._recorder = recorder
        self._clock = recorder.clock
        self._began_at = sent_at
        self._retention_ms = retention_ms
        self._completion_deadline_s = completion_deadline_s
        self._ended = ended
        self._settled: Settled | None = None
        self._timer: Timer | None = None
        self._kept: Kept | None = None
        self._extend(sent_at)
        if max_execution_s is not None:
            self._timer = self._clock.call_at(sent_at + max_execution_s, self._overdue)

    @property
    def settled(self) -> Settled | None:
        """What became of it so far; None while it runs."""
        return self._settled

    # ------------------------------------------------------------------------------------ settling

    async def complete(self, payload: bytes) -> Settled:
        """
        Keep *payload* as the outcome. The function's effect has happened.

        The first try is waited for, for at most a third of the lock's ttl, and shielded from the caller's cancellation.
        If the store fails, the completion goes on in the background, and the lock is extended meanwhile.

        Returns:
            STORED, STALE or GONE as the store says; PENDING where it goes on; RELEASED where an asserted effect turned
            out not to be committed. For an execution that is settled already, how.

        Raises:
            Exception: What the sealer raises; nothing was stored, and the outcome is left as unknown.
        """
        return await self._complete(RESPONSE, payload, IdempotencyOutcome.STORED)

    async def leave_tombstone(self, summary: bytes = b"") -> Settled:
        """
        Keep the outcome without a response: it was carried out, and the response cannot be kept.

        Args:
            summary: What a repeat is told in its place (`ResponseNotStoredError.summary`).
        """
        return await self._complete(TOMBSTONE, summary, IdempotencyOutcome.TOMBSTONE)

    async def release(self) -> bool:
        """
        Forget the execution: it is known to have had no effect.

        Shielded from the caller's cancellation and bounded in time; a store that fails is reported as an event, and the
        lock runs out.

        Returns:
            Whether the record was released.
        """
        if not self._settle(Settled.RELEASED):
            return False
        released = await shielded(self._recorder.keeper.spawn(self._release()))
        self._ended(self)
        return released

    def abandon(self) -> None:
        """Leave the record as it is: nobody knows whether the function had its effect. Its lock runs out."""
        if self._settle(Settled.ABANDONED):
            self._report(IdempotencyOutcome.ABANDONED)
            self._ended(self)

    def _settle(self, as_: Settled) -> bool:
        if self._settled is not None:
            return False
        self._settled = as_
        self._stop_extending()
        return True

    async def _complete(self, kind: bytes, payload: bytes, outcome: IdempotencyOutcome) -> Settled:
        if self._settled is not None:
            return self._settled
        try:
            sealed = self._recorder.seal(self._ticket, kind, payload)
        except Exception:
            self.abandon()
            raise
        self._settle(Settled.PENDING)
        return await shielded(self._recorder.keeper.spawn(self._first_try(sealed, len(payload), outcome)))

    async def _first_try(self, sealed: bytes, size: int, outcome: IdempotencyOutcome) -> Settled:
        try:
            await self._try(sealed, size, outcome)
        except Exception as error:  # noqa: BLE001 -- whatever the store raises, the response is on its way already
            self._report(IdempotencyOutcome.STORE_ERROR, error=type(error).__name__)
            # The record must not run out while it is tried again. No loss is reported any more: it is settled.
            self._extend(self._clock.now())
            self._recorder.keeper.spawn(self._more_tries(sealed, size, outcome))
            return Settled.PENDING
        self._ended(self)
        assert self._settled is not None
        return self._settled

    async def _more_tries(self, sealed: bytes, size: int, outcome: IdempotencyOutcome) -> None:
        """Go on completing until the store answers, or for as long as a completion may take."""
        pauses = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S, self._recorder.rng)
        until = self._clock.now() + self._completion_deadline_s
        last: str | None = None
        try:
            while self._clock.now() < until:
                await sleep_until(self._clock, min(until, self._clock.now() + pauses.next_s()))
                try:
                    await self._try(sealed, size, outcome)
                except Exception as error:  # noqa: BLE001 -- as above
                    last = type(error).__name__
                else:
                    return
            self._settled = Settled.ABANDONED
            self._report(IdempotencyOutcome.ABANDONED, error=last)
        finally:
            self._stop_extending()
            self._ended(self)

    async def _try(self, sealed: bytes, size: int, outcome: IdempotencyOutcome) -> None:
        completion = await self._recorder.complete(
            self._ticket, sealed, self._retention_ms, asserted=self.context.asserted
        )
        self._settled, said = _OUTCOMES[completion]
        self._report(outcome if completion is Completion.STORED else said, size=size)

    async def _release(self) -> bool:
        try:
            released = await self._recorder.release(self._ticket)
        except Exception as error:  # noqa: BLE001 -- the lock runs out by itself
            self._report(IdempotencyOutcome.STORE_ERROR, error=type(error).__name__)
            return False
        if released:
            self._report(IdempotencyOutcome.RELEASED)
        else:
            # An effect that was asserted and committed cannot be taken back: the record stays, and its lock runs out.
            kept = self.context.asserted
            self._report(IdempotencyOutcome.ABANDONED if kept else IdempotencyOutcome.STALE)
        return released

    def _report(self, outcome: IdempotencyOutcome, *, size: int | None = None, error: str | None = None) -> None:
        elapsed_s = self._clock.now() - self._began_at
        self._recorder.emit(RecordOutcome(self._ticket.name, outcome, self._ticket.attempt, elapsed_s, size, error))

    # ----------------------------------------------------------------------------------- extending

    def _extend(self, since: float, *, at_once: bool = False) -> None:
        kept = self._recorder.keep(self._ticket, since, at_once=at_once)
        kept.watch(self._lock_ended)
        self._kept = kept

    def _lock_ended(self, reason: LossReason | None) -> None:
        self._kept = None
        if reason is None:
            return
        if self._settled is None and self.context.lost_reason is None:
            self.context.lost_reason = reason
            self._recorder.emit(ExecutionLost(self._ticket.name, self._ticket.attempt, reason))
        if reason in _NOT_RECOVERED:
            self._extend(self._clock.now(), at_once=True)

    def _overdue(self) -> None:
        self._timer = None
        if self._kept is not None:
            self._recorder.keeper.end(self._kept, LeaseEvent.OVERDUE)

    def _stop_extending(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        kept, self._kept = self._kept, None
        if kept is not None:
            # Unwatched first: a lock that ended a moment ago would be taken for one that is to live again.
            kept.unwatch(self._lock_ended)
            self._recorder.keeper.end(kept, LeaseEvent.GIVEN_BACK)

    def __repr__(self) -> str:
        state = "running" if self._settled is None else self._settled.value
        return f"<Execution of request {self._ticket.name}, attempt {self._ticket.attempt}, {state}>"
