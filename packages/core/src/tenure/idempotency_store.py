"""
The contract of an idempotency store: what became of a request, asked for by everyone who repeats it.

A store keeps one record a key. What a record allows stands in `tenure._idempotency_machine`; the rules for whoever
keeps it, each a case of `tenure.testing.idempotency_store_contract()`:

1. Each method is one atomic step on its key. Of any number of concurrent acquirers of a free key exactly one acquires.
2. acquire classifies and takes in that one step: another payload first, then what the record's state says.
3. A record in flight outlives its lock by its grace, so that "it began and nobody knows how it ended" can be seen, and
   its fingerprint still guards the key. Locks, graces and retentions end on the store's clock, in milliseconds.
4. Only the recorded owner extends, completes and releases, checked in the statement that writes. An expired lock gives
   others the right to take over and takes nothing from the owner until somebody does.
5. acquire and complete are safe to repeat by their owner; the first completion wins. The owner never changes but by an
   acquire, so a lost reply costs nothing.
6. extend never shortens what is left; nothing but time removes a completed record.
7. release says that this execution had no effect. After an earlier one whose outcome is unknown the record stays, as
   abandoned: what is not known of attempt one is not known of the key. A record whose effect is committed is not
   released at all.
8. The response is opaque bytes, stored together with the state in one write; the fingerprint stays beside it.
9. Keys, owners and fingerprints are compared exactly, and refused before any call as `check_key`, `check_owner` and
   `check_fingerprint` say; durations as `check_ttl_ms` says.
10. A store retries nothing, sets no timers, wraps no driver error, and opens and closes no connection that it was
    handed.
"""

import enum
from dataclasses import dataclass, field
from typing import Any, Protocol, final, runtime_checkable

from tenure._durations import check_ttl_ms
from tenure._idempotency_machine import RecordState
from tenure._keys import check_fingerprint, check_key, check_owner
from tenure.errors import ConfigurationError, StoreReplyError

__all__ = [
    "Abandoned",
    "AcquireReply",
    "Acquired",
    "Completed",
    "Completion",
    "IdempotencyStore",
    "InFlight",
    "Mismatch",
    "RecordState",
    "RecordsEffects",
    "check_acquire_reply",
    "check_completion_reply",
    "check_fingerprint",
    "check_key",
    "check_limit",
    "check_owner",
    "check_response",
    "check_ttl_ms",
]


@final
@dataclass(frozen=True, slots=True)
class Acquired:
    """
    The execution is the caller's.

    Attributes:
        attempt: 1 for the first execution under the key. More where an earlier one began and its outcome is unknown.
    """

    attempt: int


@final
@dataclass(frozen=True, slots=True)
class InFlight:
    """
    An execution of another owner's is believed alive.

    Attributes:
        expires_in_ms: What is left of its lock on the store's clock, in milliseconds, at least 1.
    """

    expires_in_ms: int


@final
@dataclass(frozen=True, slots=True)
class Abandoned:
    """
    An execution began and its outcome is unknown, and it may not be begun again.

    Attributes:
        attempt: How many executions began.
        effect_committed: Whether the last one is known to have had its effect, so that only its response is lost.
    """

    attempt: int
    effect_committed: bool = False


@final
@dataclass(frozen=True, slots=True)
class Mismatch:
    """
    The key is another payload's.

    Attributes:
        state: What that payload's record says: IN_FLIGHT, ABANDONED or COMPLETED.
    """

    state: RecordState


@final
@dataclass(frozen=True, slots=True)
class Completed:
    """
    The outcome is known.

    Attributes:
        response: The bytes of the first completion.
        owner: Who completed it. Left out of the `repr`, as the response is.
    """

    response: bytes = field(repr=False)
    owner: str = field(repr=False)


AcquireReply = Acquired | InFlight | Abandoned | Mismatch | Completed
"""What `acquire` may answer."""


@final
class Completion(enum.Enum):
    """What became of a completion."""

    STORED = "stored"
    """The record is completed, by this call or by an earlier one of the same owner."""
    STALE = "stale"
    """Somebody took the record over. Nothing was written."""
    GONE = "gone"
    """There is no record any more. Nothing was written."""


class IdempotencyStore(Protocol):
    """The contract of a store. All times are on the store's own clock; the caller's is never consulted."""

    async def acquire(  # noqa: PLR0913 -- what a record holds, by name
        self, key: str, owner: str, fingerprint: str, lock_ttl_ms: int, grace_ms: int, *, takeover: bool = True
    ) -> AcquireReply:
        """
        Begin an execution under *key* for *owner*, or say what the record allows instead.

        Args:
            key: 1 to 500 characters, compared exactly; already scoped to whom it belongs to.
            owner: The id drawn for this acquisition. Opaque; never logged.
            fingerprint: 1 to 200 characters: a digest of the payload.
            lock_ttl_ms: How long the execution is believed alive without an extension, in milliseconds.
            grace_ms: How long the record is kept after its lock has ended, in milliseconds.
            takeover: Whether an abandoned execution may be begun again, by one attempt more.

        Returns:
            `Acquired`, `InFlight`, `Abandoned`, `Mismatch` or `Completed`. The recorded owner of a record that is not
            completed gets its attempt again, and its lock is extended, so that a lost reply can be asked for again.

        Atomic: one step decides and writes. Who acquires nothing writes nothing.
        Prevents: two requests read "new", and both run.
        Cancellation: the outcome is unknown. The engine sends a release behind it.
        Raises: what the driver raises, unwrapped.
        """
        ...

    async def extend(self, key: str, owner: str, lock_ttl_ms: int) -> bool:
        """
        Have the lock end *lock_ttl_ms* from now or later, if *owner* is the recorded one and has not completed.

        Returns:
            Whether *owner* is still in flight. An expired lock that nobody took over lives again.

        Atomic: one step decides and writes.
        Prevents: A pauses, its lock expires, B takes over, A extends by key alone and keeps B's lock alive.
        Cancellation: the outcome is unknown.
        Raises: what the driver raises, unwrapped.
        """
        ...

    async def complete(self, key: str, owner: str, response: bytes, retention_ms: int) -> Completion:
        """
        Store *response* as the outcome, for *retention_ms* from now, if *owner* is the recorded one.

        Returns:
            STORED, also for a repeat by the same owner, which stores nothing: the first completion wins. STALE where
            the record is another's, GONE where there is none.

        Atomic: response, state and retention in one write; the fingerprint stays.
        Prevents: a replaced execution overwrites the outcome of the one that replaced it.
        Cancellation: the outcome is unknown; repeat it.
        Raises: what the driver raises, unwrapped.
        """
        ...

    async def release(self, key: str, owner: str) -> bool:
        """
        Forget the execution of *owner*, which is known to have had no effect.

        Returns:
            Whether *owner* was in flight. After an earlier attempt of unknown outcome the record stays, abandoned and
            with its count; a record whose effect is committed stays as it is, and the answer is False.

        Atomic: one step decides and writes.
        Prevents: A outlives its lock, B takes over, A fails and frees the record under B.
        Cancellation: the outcome is unknown; at worst the lock runs out.
        Raises: what the driver raises, unwrapped.
        """
        ...

    async def purge(self, limit: int = 1000) -> int:
        """
        Delete records whose time has ended, at most *limit* of them.

        Returns:
            How many were deleted; 0 in a store that expires them by itself.

        Atomic: each record by itself, its end looked at again under its lock.
        Prevents: a record that is acquired anew while it is being purged is deleted under its execution.
        Raises: what the driver raises, unwrapped.
        """
        ...


@runtime_checkable
class RecordsEffects(Protocol):
    """A store whose records live in the application's own database, so that an effect and its proof commit together."""

    async def assert_owner(self, connection: Any, key: str, owner: str) -> None:
        """
        Record, inside the transaction of *connection*, that the execution of *owner* has its effect.

        Nobody takes the record over until the transaction ends; after its commit, nobody ever does.

        Prevents: an execution that was replaced commits beside the one that replaced it; a repeat after a crash
            between the commit and the completion has the effect a second time.

        Raises:
            ExecutionLostError: The record is another's, or there is none: roll back.
        """
        ...

    async def effect_committed(self, key: str, owner: str) -> bool:
        """
        Whether the effect that *owner* asserted is committed; waits for a transaction that is still under way.

        Raises: what the driver raises, unwrapped.
        """
        ...


def check_response(response: bytes) -> bytes:
    """
    Refuse a response that is not bytes. The message holds nothing of it.

    Raises:
        ConfigurationError: It is of another type.
    """
    if type(response) is not bytes:
        raise ConfigurationError(f"The response is a {type(response).__name__}: a store is given bytes.")
    return response


def check_limit(limit: int) -> int:
    """
    Refuse a limit that is no number of records.

    Raises:
        ConfigurationError: It is not an `int` (a bool is none), or less than 1.
    """
    if type(limit) is not int or not 1 <= limit <= 1_000_000:
        raise ConfigurationError("limit is the most records to purge in one call: an int from 1 to a million.")
    return limit


def check_acquire_reply(reply: object) -> AcquireReply:
    """
    Refuse a reply of `acquire` that the contract does not allow.

    Raises:
        StoreReplyError: It is none of the five, or its attempt is no count. A reply that cannot be read never lets an
            execution begin.
    """
    if not isinstance(reply, AcquireReply):
        raise StoreReplyError(
            f"The store's acquire() returned a {type(reply).__name__}; it must return Acquired, InFlight, Abandoned, "
            "Mismatch or Completed of tenure.idempotency."
        )
    if isinstance(reply, Acquired) and (type(reply.attempt) is not int or reply.attempt < 1):
        raise StoreReplyError("The store's acquire() returned an attempt that is no count from 1 on.")
    if isinstance(reply, Completed) and type(reply.response) is not bytes:
        raise StoreReplyError(
            f"The store's acquire() returned a response of type {type(reply.response).__name__}; it must be bytes."
        )
    return reply


def check_completion_reply(reply: object) -> Completion:
    """
    Refuse a reply of `complete` that the contract does not allow.

    Raises:
        StoreReplyError: It is no `Completion`.
    """
    if not isinstance(reply, Completion):
        raise StoreReplyError(f"The store's complete() returned a {type(reply).__name__}; it must be a Completion.")
    return reply
