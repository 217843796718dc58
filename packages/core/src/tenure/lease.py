"""The lease: a handle on one acquisition of a key, and the scope that stops its work when it is lost."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from types import TracebackType
from typing import Any, Final, Protocol, Self, final

from tenure import context
from tenure._keeper import Keeper
from tenure._kept import Kept
from tenure._lease_machine import LeaseEvent
from tenure.clock import Clock, Timer
from tenure.errors import LeaseLostError, LeaseStateError, LossReason
from tenure.store import Ending

__all__ = ["Lease", "LeaseScope", "LostSignal"]


@final
class LostSignal:
    """
    The signal that a lease is lost.

    It compares the clock whenever it is read, so it is right on the very next line after a pause or a blocked
    event loop, before any timer had a chance to run.
    """

    __slots__ = ("_lease",)

    def __init__(self, lease: "Lease") -> None:
        self._lease = lease

    @property
    def is_set(self) -> bool:
        """Whether the lease is lost, as of now."""
        return self.reason is not None

    @property
    def reason(self) -> LossReason | None:
        """How the loss was found out, or None where the lease is held or was given back."""
        return self._lease._kept.reason

    async def wait(self) -> LossReason | None:
        """
        Wait until the lease ends.

        Returns:
            The reason of the loss, or None where the lease was given back instead.
        """
        kept = self._lease._kept
        if kept.reason is None and not kept.released and not self._lease._ended:
            ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

            def resolve(_: LossReason | None) -> None:
                if not ended.done():
                    ended.set_result(None)

            kept.watch(resolve)
            try:
                await ended
            finally:
                kept.unwatch(resolve)
        return kept.reason

    def raise_if_set(self) -> None:
        """
        Raise if the lease is lost, as of now.

        Raises:
            LeaseLostError: It is.
        """
        reason = self.reason
        if reason is not None:
            raise LeaseLostError(self._lease.key, self._lease.token, reason)

    def __repr__(self) -> str:
        reason = self.reason
        return f"<LostSignal {'not set' if reason is None else reason.value}>"


_GONE: Final = frozenset({LossReason.REFUSED, LossReason.CLOSED, LossReason.FORKED})
"""Losses after which there is nothing to give back: the store has it no more, or somebody else sees to it."""


class GivesBack(Protocol):
    """What a lease needs to be given back: the store call behind it, shielded and bounded."""

    def __call__(self, kept: Kept, *, wait: bool, trusted: bool) -> Coroutine[Any, Any, bool | None]:
        """Give *kept* back, *trusted* where it is held; with *wait*, until the store answered or time is up."""
        ...


@final
class Lease:
    """
    One acquisition of a key.

    Got from `Locks.try_acquire`, `Locks.acquire` or `Locks.hold`; never made by hand. It is renewed until it is
    released, is lost, or its `Locks` closes. It never becomes held again: the next acquisition is a new lease
    with a greater token.

    Attributes:
        key: The key, as it was asked for.
        token: The fencing token: greater than every token that the key had before, below 2**53.
        after: How the lease before this one ended, "released" or "expired", where the store knows.
    """

    __slots__ = (
        "__weakref__",
        "_before",
        "_ended",
        "_give_back",
        "_kept",
        "_lent",
        "after",
        "key",
        "token",
    )

    key: Final[str]
    token: Final[int]
    after: Final[Ending | None]

    def __init__(self, kept: Kept, after: Ending | None, give_back: GivesBack, *, lent: bool = False) -> None:
        self._kept = kept
        self._give_back = give_back
        self._lent = lent
        self._ended = False
        self._before: Lease | None = None
        self.key = kept.claim.key
        self.token = kept.token
        self.after = after

    @property
    def lost(self) -> LostSignal:
        """The signal that the lease is lost."""
        # Made for whoever asks: kept here it would be a cycle, which the collector finds once for each lease.
        return LostSignal(self)

    @property
    def held(self) -> bool:
        """Whether the lease may be believed in, as of now: the clock is compared at each reading."""
        return not self._ended and self._kept.held

    def raise_unless_held(self) -> None:
        """
        Raise if the guarded work must not go on, as of now.

        Raises:
            LeaseLostError: The lease is lost.
            LeaseStateError: It was given back, or its guard was left (a task that outlives its guard).
        """
        self.lost.raise_if_set()
        if not self.held:
            raise LeaseStateError(
                f"The lease on {self.key!r} (fencing token {self.token}) was given back: nothing may be done under "
                "it any more. Finish the work, and the tasks that it started, before the guard is left."
            )

    async def release(self) -> bool:
        """
        Give the lease back. From the call on nothing is held, whatever the store answers.

        The call is shielded: however often the caller is cancelled meanwhile, the release is sent and waited
        for, within bounds; the cancellation is raised afterwards.

        Returns:
            Whether the store still had this lease. False for one that is lost, and for a second release.

        Raises:
            LeaseStateError: The lease belongs to a guard that gives it back itself (a job decorator).
            StoreTimeoutError: The store did not answer in time; the lock is free once its ttl has passed.
            Exception: What the store raised; the lock is free once its ttl has passed.
        """
        if self._lent:
            raise LeaseStateError(
                f"The lease on {self.key!r} is given back by the guard that took it: leave the guard."
            )
        if not self.held:
            await give_back_quietly(self)
            return False
        return bool(await self._give_back(self._kept, wait=True, trusted=True))

    async def __aenter__(self) -> Self:
        """Make the lease the current one; raises as `raise_unless_held` does."""
        self.raise_unless_held()
        self._before = context.enter(self)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Give the lease back; what the body raised is never hidden."""
        context.leave(self._before)
        self._before = None
        await give_back_quietly(self)

    def lend(self) -> "Lease":
        """Make a handle for one guard: it reads as ended once the guard is left, although the lease goes on."""
        return Lease(self._kept, self.after, self._give_back, lent=True)

    def end_loan(self) -> None:
        """End a handle made by `lend`."""
        self._ended = True

    def __repr__(self) -> str:
        state = "held" if self.held else self.lost.reason.value if self.lost.reason else "ended"
        return f"<Lease {self.key!r} token={self.token} {state}>"


async def give_back_quietly(lease: Lease) -> bool:
    """
    Give *lease* back at the end of its guard, without raising.

    A lease that is lost is given back too, unless the store refused it: the store may still have it, and only now
    has its holder stopped. Nobody waits for that, for the store may be what hangs.

    Returns:
        False where the store says that a lease that was trusted is not ours any more; True otherwise.
    """
    kept = lease._kept
    if lease._lent or kept.released or kept.reason in _GONE:
        return True
    trusted = kept.held
    try:
        answer = await lease._give_back(kept, wait=trusted or kept.reason is LossReason.MAX_HOLD, trusted=trusted)
    except Exception:  # noqa: BLE001 -- reported as an event; a failed release must not hide how the body ended
        return True
    return answer is not False or not trusted


@final
class LeaseScope:
    """
    Runs a body under leases: cancelled when one of them is lost, and told why.

    The handshake is that of `asyncio.timeout`: a loss cancels the task, and the scope's end takes that one
    cancellation back and raises `LeaseLostError` in its place; a cancellation from outside wins. A body that
    swallows the cancellation, or that ends after a loss that no timer could report, still meets the error at the
    scope's end. An error of the body's own goes out as it is.

    Args:
        clock: The holder's clock.
        keeper: Who ends an overdue lease.
        leases: The leases to watch; the last is the current one inside.
        give_back: Which of them to give back at the end, in this order.
        max_hold_s: The longest time that the body may take, in seconds, or None.
    """

    def __init__(
        self,
        clock: Clock,
        keeper: Keeper,
        leases: Sequence[Lease],
        *,
        give_back: Sequence[Lease],
        max_hold_s: float | None = None,
    ) -> None:
        self._clock = clock
        self._keeper = keeper
        self.leases = leases
        self._to_give_back = give_back
        self._max_hold_s = max_hold_s
        self._timer: Timer | None = None
        self.task: asyncio.Task[Any] | None = None
        self._cancelling = 0
        self._lost: Lease | None = None
        self._watchers: list[tuple[Lease, Callable[[LossReason | None], None]]] = []
        self._before: Lease | None = None

    async def __aenter__(self) -> Lease:
        """Watch the leases; raises LeaseLostError where one is lost already."""
        for lease in self.leases:
            lease.raise_unless_held()
        self.task = asyncio.current_task()
        if self.task is None:
            raise LeaseStateError("A lease guards a task: enter it inside one (asyncio.run, create_task).")
        self._cancelling = self.task.cancelling()
        for lease in self.leases:
            watcher = self._watcher_of(lease)
            lease._kept.watch(watcher)
            self._watchers.append((lease, watcher))
        if self._max_hold_s is not None:
            self._timer = self._clock.call_at(self._clock.now() + self._max_hold_s, self._overdue)
        self._before = context.enter(self.leases[-1])
        return self.leases[-1]

    def _watcher_of(self, lease: Lease) -> Callable[[LossReason | None], None]:
        def watcher(reason: LossReason | None) -> None:
            if reason is not None and self._lost is None and self.task is not None:
                self._lost = lease
                self.task.cancel()

        return watcher

    def cut_short(self) -> None:
        """Cancel the body because its `Locks` closes; its leases go on until it has ended, so that it may clean up."""
        if self._lost is None and self.task is not None:
            self._lost = self.leases[-1]
            self.task.cancel()

    def _overdue(self) -> None:
        self._keeper.end(self.leases[-1]._kept, LeaseEvent.OVERDUE)

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Give back what is to be given back, and raise LeaseLostError where a lease was lost."""
        context.leave(self._before)
        if self._timer is not None:
            self._timer.cancel()
        for lease, watcher in self._watchers:
            lease._kept.unwatch(watcher)
        outside, undelivered = await self._take_cancellation_back(exc_type)
        # A loss that no timer could report: the process did not run, and the body's last line came first.
        lost = self._lost or next((lease for lease in self.leases if lease.lost.is_set), None)
        # A body that was cut short held its lease to the end, and the lease has no reason of its own.
        error = None if lost is None else LeaseLostError(lost.key, lost.token, lost.lost.reason or LossReason.CLOSED)
        for lease in self._to_give_back:
            if not await give_back_quietly(lease) and error is None:
                error = LeaseLostError(lease.key, lease.token, LossReason.REFUSED)
        if outside and undelivered is not None:
            raise undelivered
        if error is None or outside:
            return
        if exc_type is None or (self._lost is not None and issubclass(exc_type, asyncio.CancelledError)):
            raise error from exc

    async def _take_cancellation_back(
        self, exc_type: type[BaseException] | None
    ) -> tuple[bool, asyncio.CancelledError | None]:
        """
        Take back the cancellation that a loss sent.

        Returns:
            Whether somebody else cancelled the task too; and the cancellation, if the body ended before it came.
        """
        if self._lost is None or self.task is None:
            return False, None
        outside = self.task.uncancel() > self._cancelling
        if exc_type is None or not issubclass(exc_type, asyncio.CancelledError):
            # The body ended before the cancellation reached it (or swallowed it). Before Python 3.13 uncancel()
            # does not take back one that was not delivered: it would hit the next await of an innocent.
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError as undelivered:
                return outside, undelivered
        return outside, None
