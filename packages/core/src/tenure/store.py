"""
The store contract: three methods that decide who holds a key, and what else a store may offer.

A store keeps, for each key, the owner of the live lock, its fencing token and its expiry. `Locks` asks it
for nothing but the three methods of `LockStore`; everything else is a capability of its own, a small
protocol that a store either has or has not, found with `isinstance`.

The rules, each a case of `tenure.testing.lock_store_contract()`:

1. Each method is one atomic step on its key. Of any number of concurrent acquirers exactly one wins.
2. An expired lock does not exist, for every method, whether or not it was deleted. Expiry is on the store's
   clock, in milliseconds.
3. renew and release succeed only for the recorded owner of a live lock, checked in the statement that
   writes. Renew never re-creates a lock, never revives an expired one and never touches another's.
4. acquire is safe to repeat: the recorded owner of a live lock gets the same token and a fresh ttl.
5. Tokens are positive integers below 2**53 and grow per key for ever: across releases, expiries, restarts,
   deletions, and failovers that lose the last writes.
6. Keys are compared exactly, and refused before any call as `check_key` says.
7. Durations are whole milliseconds, refused as `check_ttl_ms` says, never rounded.
8. A store retries nothing, sets no timers, wraps no driver error, and opens and closes no connection that
   it was handed.
9. After an acquire whose outcome is unknown, the engine sends an owner-checked release.
10. `Held` carries what is left of the lock, where the store knows it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, final, runtime_checkable

from tenure._durations import check_ttl_ms
from tenure._keys import check_key, check_owner
from tenure.errors import StoreReplyError

__all__ = [
    "MAX_TOKEN",
    "Acquired",
    "ChecksServer",
    "Claim",
    "Ending",
    "Finding",
    "Held",
    "ListsLocks",
    "LockRecord",
    "LockStore",
    "QueuesWaiters",
    "Reach",
    "RenewsMany",
    "WakesWaiters",
    "check_acquire_reply",
    "check_key",
    "check_owner",
    "check_ttl_ms",
]

MAX_TOKEN = 2**53 - 1
"""The greatest token: beyond it a JSON reader or a Lua number would round, and fencing would break silently."""

Ending = Literal["released", "expired"]
"""How the lock before this one ended."""

Reach = Literal["process", "host", "cluster"]
"""Whom a store excludes: callers in one process, on one host, or on every instance."""


@final
@dataclass(frozen=True, slots=True)
class Acquired:
    """
    The key is the caller's.

    Attributes:
        token: The fencing token, 1 to 2**53 - 1; greater than every token that the key had before.
        after: How the previous lock on the key ended, or None where there was none or the store does not
            know. "expired" tells the holder that its predecessor may have left work half done.
    """

    token: int
    after: Ending | None = None


@final
@dataclass(frozen=True, slots=True)
class Held:
    """
    The key is another owner's.

    Attributes:
        expires_in_ms: What is left of the lock on the store's clock, in milliseconds, where it is known.
    """

    expires_in_ms: int | None = None


class LockStore(Protocol):
    """The contract of a store. All times are on the store's own clock; the caller's is never consulted."""

    async def acquire(self, key: str, owner: str, ttl_ms: int) -> Acquired | Held:
        """
        Take *key* for *owner*, if no live lock of another owner is on it.

        Args:
            key: 1 to 500 characters, compared exactly.
            owner: The id drawn for this acquisition. Opaque; never logged.
            ttl_ms: Whole milliseconds until the lock expires, from 1 to a hundred years.

        Returns:
            `Acquired` with the token, or `Held`. The recorded owner of a live lock gets its token again and
            a fresh ttl, so that a lost reply can be asked for again.

        Atomic: one statement decides and writes; the token is drawn after the key is locked.
        Prevents: two callers read "free", and both take the lock.
        Cancellation: the outcome is unknown. The engine sends a release behind it.
        Raises: what the driver raises, unwrapped.
        """
        ...

    async def renew(self, key: str, owner: str, ttl_ms: int) -> bool:
        """
        Move the expiry of *key* to *ttl_ms* from now, if *owner* still holds it.

        Returns:
            Whether *owner* held a live lock and its expiry moved.

        Atomic: one statement decides and writes.
        Prevents: A pauses, its lock expires, B acquires, A renews by key alone, and both believe.
        Cancellation: the outcome is unknown.
        Raises: what the driver raises, unwrapped.
        """
        ...

    async def release(self, key: str, owner: str) -> bool:
        """
        Give *key* back, if *owner* still holds it. The key's last token is kept.

        Returns:
            Whether *owner* held a live lock.

        Atomic: one statement decides and writes.
        Prevents: A releases after its lock expired, and frees the one that B holds.
        Cancellation: the outcome is unknown.
        Raises: what the driver raises, unwrapped.
        """
        ...


@final
@dataclass(frozen=True, slots=True)
class Claim:
    """One lock to renew, in a call that carries many. The owner is left out of its `repr`."""

    key: str
    owner: str
    ttl_ms: int

    def __repr__(self) -> str:
        return f"Claim(key={self.key!r}, ttl_ms={self.ttl_ms})"


@final
@dataclass(frozen=True, slots=True)
class LockRecord:
    """
    A live lock, as a store lists it. The owner is left out of its `repr`.

    Attributes:
        key: The key that is locked.
        owner: The id of the acquisition.
        token: Its fencing token.
        expires_in_ms: What is left of it on the store's clock, in milliseconds.
    """

    key: str
    owner: str
    token: int
    expires_in_ms: int

    @property
    def instance(self) -> str:
        """The name of the instance that holds the lock, as its owner begins with it."""
        return self.owner.rpartition(":")[0]

    def __repr__(self) -> str:
        return (
            f"LockRecord(key={self.key!r}, instance={self.instance!r}, token={self.token}, "
            f"expires_in_ms={self.expires_in_ms})"
        )


@final
@dataclass(frozen=True, slots=True)
class Finding:
    """
    Something that a start-up check found.

    Attributes:
        code: A stable name, such as `"table-missing"`.
        fatal: Whether locks cannot work, or would not be safe, with it.
        message: What was found, and on what.
        remedy: What to do about it.
    """

    code: str
    fatal: bool
    message: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.message} {self.remedy} [{self.code}]"


@runtime_checkable
class RenewsMany(Protocol):
    """A store that renews many locks in one call."""

    async def renew_many(self, claims: Sequence[Claim]) -> Sequence[bool | None]:
        """
        Renew each of *claims*, as `renew` would.

        Returns:
            One answer a claim, in their order: True (renewed), False (refused), or None where this call
            could not tell (its row was locked by somebody else); the engine asks for those one by one.

        Atomic: each claim by itself.
        Prevents: ten thousand leases that need ten thousand calls, and one stuck row that stops them all.
        """
        ...


@runtime_checkable
class ListsLocks(Protocol):
    """A store that can tell who holds what."""

    async def list_locks(self, prefix: str = "") -> Sequence[LockRecord]:
        """List the live locks whose key begins with *prefix*, sorted by key. A look, not a lock."""
        ...


@runtime_checkable
class ChecksServer(Protocol):
    """A store that can tell whether its server, table and rights will do."""

    async def check(self) -> Sequence[Finding]:
        """Look at the server once, without writing. Returns what was found; raises what the driver raises."""
        ...


@runtime_checkable
class QueuesWaiters(Protocol):
    """
    A store that keeps a queue beside a lock: whoever releases the lock grants it to the head, in the same step.

    A grant is what `acquire` would have answered had the head asked at that moment: a token that grows, a fresh ttl, an
    owner that is recorded. From then on the head is the owner, for every method: `acquire` and `acquire_queued` answer
    `Acquired` with its token, `renew` and `release` answer True. The rest of the queue stays behind it.

    Only a release grants. A lock that expired is whoever asks' first, and its queue is gone with it: those who stood in
    it find that out when they ask again. Nobody is granted a lock for whom it would come too late: a place that was not
    asked for again within its `place_ms` is skipped, and one whose owner released is taken out.
    """

    async def acquire_queued(self, key: str, owner: str, ttl_ms: int, place_ms: int) -> Acquired | Held:
        """
        Take *key* as `acquire` does; where another owner holds it, stand in its queue.

        Args:
            key: As for `acquire`.
            owner: As for `acquire`. Asked again, it keeps its place, with what was asked last.
            ttl_ms: As for `acquire`; of a lock that is granted later, it counts from the moment of the grant.
            place_ms: How long the place is kept without being asked for again, in whole milliseconds on the store's
                clock; refused as a ttl is.

        Returns:
            `Acquired`, or `Held`: from now on a release may grant the lock to *owner*, of which `granted` tells. A
            store that cannot queue it now (a full server, no subscription) answers `Held` as well; a waiter polls.

        Atomic: one step decides, and either takes the lock or takes the place.
        Prevents: the process that released a lock, or is nearest to the server, takes it again and again while others
            starve; a waiter in the queue of a lock that nobody holds any more.
        Cancellation: the outcome is unknown: the engine sends a release, which frees the lock or the place. `release`
            answers False to an owner that waits, and takes it out of the queue; the holder's lock stays as it is.
        Raises: what the driver raises, unwrapped.
        """
        ...

    async def granted(self, key: str, owner: str) -> Acquired:
        """
        Return when a release has granted *key* to *owner*, who stands in its queue; at once where that has happened.

        The engine calls it after `acquire_queued` has answered `Held`, and goes on to ask now and then while it waits:
        a lost message costs one poll, never the lock. So it need not be durable, and may wait for ever.

        Returns:
            What `acquire_queued` would answer. The engine counts the lock's ttl from the sending of the last
            `acquire_queued` that was answered `Held`: the grant came after it. It tells a message that is late by more
            than a ttl apart by itself.

        Cancellation: it stops to listen; the place stays.
        Raises: what the driver raises, unwrapped. The waiter polls.
        """
        ...


@runtime_checkable
class WakesWaiters(Protocol):
    """A store that can tell a waiter of a release before its next poll."""

    async def released(self, key: str) -> None:
        """Return at the next release of *key*, or any time before it. A lost wake-up costs one poll, no more."""
        ...


def check_acquire_reply(reply: object) -> Acquired | Held:
    """
    Refuse a reply of `acquire` that the contract does not allow.

    Raises:
        StoreReplyError: It is neither `Acquired` nor `Held`, or its token is no fencing token. A reply that
            cannot be read is never a grant.
    """
    if isinstance(reply, Held):
        return reply
    if not isinstance(reply, Acquired):
        raise StoreReplyError(
            f"The store's acquire() returned a {type(reply).__name__}; it must return Acquired(token) or Held()."
        )
    if type(reply.token) is not int:
        raise StoreReplyError(
            f"The store's acquire() returned a token of type {type(reply.token).__name__}; it must be an int. "
            "A driver that reads a bigint as text needs int(token) in the store."
        )
    if not 1 <= reply.token <= MAX_TOKEN:
        raise StoreReplyError("The store's acquire() returned a token outside 1 to 2**53 - 1; no fence can use it.")
    return reply
