# ruff: noqa: SLF001 -- the files of one package are friends
"""The lease of a thread: a handle on one acquisition of a key, to be looked at from any thread."""

import time
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final, Self, final

from tenure import context
from tenure import lease as asynchronous
from tenure.errors import LossReason
from tenure.store import Ending
from tenure.sync._errand import Bell
from tenure.sync._loop_thread import refuse_running_loop

if TYPE_CHECKING:
    from tenure.sync._engine import Engine

__all__ = ["Lease", "LostSignal", "current_lease"]

_LOOK_S: Final = 1.0
"""How often a thread that waits for a loss compares the clock by itself, in seconds: the loop thread may not run."""

_START_S: Final = 0.02
"""
The start that the loop thread has over one that waits for a loss, in seconds: it tells an expiry as an expiry. A thread
that reads the clock first takes it for a stall of the process.
"""


@final
class LostSignal:
    """
    The signal that a lease is lost, to be waited for as a `threading.Event` is.

    It compares the clock whenever it is read, so it is right on the very next line after a pause of the process, or
    after code that held the interpreter's lock past the deadline.
    """

    __slots__ = ("_lease",)

    def __init__(self, lease: "Lease") -> None:
        self._lease = lease

    def is_set(self) -> bool:
        """Whether the lease is lost, as of now."""
        return self.reason is not None

    @property
    def reason(self) -> LossReason | None:
        """How the loss was found out, or None where the lease is held or was given back."""
        return self._lease._inner.lost.reason

    def wait(self, timeout: float | None = None) -> bool:
        """
        Wait until the lease ends: in a thread that stops the work of another, or between two steps of the work.

        Args:
            timeout: How long to wait at most, in seconds; None waits until the lease ends.

        Returns:
            Whether it is lost. False where the time is up, and where the lease was given back instead.

        Raises:
            LeaseStateError: An event loop runs in the calling thread.
        """
        lease, until = self._lease, None if timeout is None else time.monotonic() + timeout
        if not lease.held:
            return self.is_set()
        refuse_running_loop()
        bell = Bell()
        lease._bells[bell] = None
        lease._engine.thread.post(lease._inner._kept.watch, bell.ring)
        try:
            while lease.held:
                left_s = _LOOK_S if until is None else min(_LOOK_S, until - time.monotonic())
                if left_s <= 0:
                    break
                # Past the deadline as it stands, where the loss is certain even if the loop thread does not run.
                bell.wait(min(left_s, lease.remaining + _START_S))
        finally:
            del lease._bells[bell]
            lease._engine.thread.post(lease._inner._kept.unwatch, bell.ring)
        return self.is_set()

    def raise_if_set(self) -> None:
        """
        Raise if the lease is lost, as of now.

        Raises:
            LeaseLostError: It is.
        """
        self._lease._inner.lost.raise_if_set()

    def __repr__(self) -> str:
        reason = self.reason
        return f"<LostSignal {'not set' if reason is None else reason.value}>"


@final
class Lease:
    """
    One acquisition of a key.

    Got from `Locks.try_acquire`, `Locks.acquire` or `Locks.hold`; never made by hand. The loop thread renews it until
    it is released, is lost, or its `Locks` closes, whatever the thread that took it does. It never becomes held again:
    the next acquisition is a new lease with a greater token.

    It may be handed to another thread, looked at there, and released there.

    Attributes:
        key: The key, as it was asked for.
        token: The fencing token: greater than every token that the key had before, below 2**53.
        after: How the lease before this one ended, "released" or "expired", where the store knows.
    """

    __slots__ = ("__weakref__", "_before", "_bells", "_engine", "_inner", "after", "key", "token")

    key: Final[str]
    token: Final[int]
    after: Final[Ending | None]

    def __init__(self, inner: asynchronous.Lease, engine: "Engine") -> None:
        self._inner = inner
        self._engine = engine
        self._before: _Before | None = None
        self._bells: dict[Bell, None] = {}
        self.key = inner.key
        self.token = inner.token
        self.after = inner.after

    @property
    def held(self) -> bool:
        """
        Whether the lease may be believed in, as of now: the clock is compared at each reading.

        Nothing interrupts a thread whose lease is lost. Look here, or call `raise_unless_held`, at the point of use:
        before each step that only the holder may take.
        """
        return self._inner.held

    @property
    def lost(self) -> LostSignal:
        """The signal that the lease is lost."""
        return LostSignal(self)

    @property
    def deadline(self) -> float:
        """
        Until when the lease is believed in without another renewal: each that the store confirms moves it.

        In seconds on the holder's clock (`tenure.clock.SystemClock().now()`), which is no wall clock.
        """
        return self._inner._kept.term.trusted_until

    @property
    def remaining(self) -> float:
        """What is left until the deadline, in seconds; 0.0 where the lease is not held."""
        return max(0.0, self.deadline - self._engine.inner.clock.now()) if self.held else 0.0

    def raise_unless_held(self) -> None:
        """
        Raise if the guarded work must not go on, as of now.

        Raises:
            LeaseLostError: The lease is lost.
            LeaseStateError: It was given back, or its guard was left (a thread that outlives its guard).
        """
        self._inner.raise_unless_held()

    def release(self) -> bool:
        """
        Give the lease back. Once it returns nothing is held, whatever the store answers.

        A caller that is interrupted (KeyboardInterrupt) stops waiting; the release is sent all the same.

        Returns:
            Whether the store still had this lease. False for one that is lost, for a second release, and in a child of
            the process that holds it.

        Raises:
            LeaseStateError: The lease belongs to a guard that gives it back itself (a job decorator); or an event
                loop runs in the calling thread.
            StoreTimeoutError: The store did not answer in time; the lock is free once its ttl has passed.
            Exception: What the store raised; the lock is free once its ttl has passed.
        """
        if not self._engine.is_here:
            return False
        return self._engine.run(self._inner.release, goes_on=True)

    def end_loan(self) -> None:
        """End a handle on a lease that was lent; who waits for its end is woken."""
        self._inner.end_loan()
        for bell in list(self._bells):
            bell.ring()

    def __enter__(self) -> Self:
        """Make the lease the current one; raises as `raise_unless_held` does."""
        self.raise_unless_held()
        self._before = enter(self)
        return self

    def __exit__(self, *_: object) -> None:
        """Give the lease back; what the body raised is never hidden, and a loss is not raised here (see `hold`)."""
        before, self._before = self._before, None
        assert before is not None
        leave(before)
        if self._engine.is_here:
            self._engine.run(lambda: asynchronous.give_back_quietly(self._inner), goes_on=True)

    def __repr__(self) -> str:
        return repr(self._inner)


_Before = tuple[Lease | None, asynchronous.Lease | None]
"""The lease that was current before a guard, as both halves of the library see it."""

_current: ContextVar[Lease | None] = ContextVar("tenure_sync_current_lease", default=None)


def current_lease() -> Lease | None:
    """
    Return the innermost lease that the calling code runs under, or None outside of any guard.

    A guard is `hold()`, `with lease`, `@locked` or a job decorator. The lease is found by everything that the guarded
    code calls. A new thread has a context of its own and finds none; started with the context of its maker it does:

        Thread(target=contextvars.copy_context().run, args=(work,))

    In a thread that outlives its guard the lease reads as ended: `held` is False, and `raise_unless_held()` raises.
    """
    return _current.get()


def enter(lease: Lease) -> _Before:
    """Make *lease* the current one, for `tenure.current_lease` too; returns what was before it, for `leave`."""
    before = (_current.get(), context.current_lease())
    _current.set(lease)
    context.enter(lease._inner)
    return before


def leave(before: _Before) -> None:
    """Make the lease before the guard the current one again."""
    _current.set(before[0])
    context.leave(before[1])
