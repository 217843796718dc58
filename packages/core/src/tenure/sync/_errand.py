"""
Errands: what a thread has the loop thread do, and how it waits for it.

Each is one task there and one lock here that the thread waits for. A plain `Errand` is a call. A `Stay` is a guard:
its task enters an asynchronous guard, lets the thread have its turn, and leaves the guard when the thread has ended
its body. So every rule of a guard stands in one place, the asynchronous one; a thread only cannot be cancelled, and
hears of a loss at the body's end instead.

A thread may stop waiting at any moment (KeyboardInterrupt). It then abandons the errand: what was not granted yet is
cancelled, and what was is given back.
"""

import _thread
import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar, cast, final

from tenure._kept import this_process
from tenure.errors import LeaseLostError, LeaseStateError, LossReason
from tenure.lease import Lease
from tenure.sync._loop_thread import LoopThread, refuse_running_loop

__all__ = ["Bell", "Errand", "Stay"]

_T = TypeVar("_T")


@final
class Bell:
    """Wakes one thread that waits. Rung twice before it wakes, it has rung once."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        # The bare lock: a signal interrupts the wait for it, and it costs a tenth of a threading.Condition.
        self._lock = _thread.allocate_lock()
        self._lock.acquire()

    def ring(self, *_: object) -> None:
        """Wake who waits, or who will."""
        if self._lock.locked():
            self._lock.release()

    def wait(self, timeout_s: float = -1) -> None:
        """Wait until it rings, for at most *timeout_s* seconds."""
        self._lock.acquire(timeout=timeout_s)


class Errand(Generic[_T]):
    """
    A call in the loop thread, which the calling thread waits for.

    Args:
        thread: The loop thread.
        work: Makes the coroutine to run there.
        among: Those under way, which it joins until it is over.
        undo: What to do with the result, in the loop thread, where the caller has stopped waiting for it.
        goes_on: Whether it is carried out to its end where the caller has stopped waiting, rather than cancelled.
    """

    def __init__(
        self,
        thread: LoopThread,
        work: Callable[[], Coroutine[Any, Any, _T]],
        among: "dict[Errand[Any], None]",
        *,
        undo: Callable[[_T], object] | None = None,
        goes_on: bool = False,
    ) -> None:
        self._thread = thread
        self._work = work
        self._among = among
        self._undo = undo
        self._goes_on = goes_on
        self._bell = Bell()
        self._task: asyncio.Task[None] | None = None
        self._value: _T | None = None
        self._error: BaseException | None = None
        self._over = False
        self._abandoned = False
        self._closed = False

    # ------------------------------------------------------------------------- in the calling thread

    def run(self, *, within_s: float = -1) -> _T:
        """
        Have it done, and wait for its end.

        Args:
            within_s: For how long to wait, in seconds; -1 for as long as it takes.

        Raises:
            LeaseStateError: An event loop runs in the calling thread; or the `Locks` was closed meanwhile.
            Exception: What the work raised.
        """
        refuse_running_loop()
        try:
            self._thread.post(self._begin)
            self._bell.wait(within_s)
            return self._read()
        except BaseException:
            self.abandon()
            raise

    def abandon(self) -> None:
        """Wait for it no more: it is cancelled, or what it brought is given back."""
        if self._over and self._value is None and self._error is None:
            return  # it failed, and said so
        with contextlib.suppress(LeaseStateError):  # where the loop is closed everything was given back
            self._thread.post(self._abandon)

    def _read(self) -> _T:
        error, self._error = self._error, None
        if error is None:
            return cast("_T", self._value)
        try:
            if self._closed and isinstance(error, asyncio.CancelledError):
                raise LeaseStateError(
                    "This Locks was closed while a thread was waiting for it. Close it after what uses it has ended."
                )
            raise error
        finally:
            del error  # its traceback holds this frame: a cycle for each error that is raised

    # --------------------------------------------------------------------------- in the loop thread

    def _begin(self) -> None:
        self._among[self] = None
        self._task = self._thread.calls.spawn(self._carry())

    async def _carry(self) -> None:
        try:
            self._value = await self._work()
        except BaseException as error:  # noqa: BLE001 -- raised in the thread that waits for it
            self._error = error
        finally:
            self._among.pop(self, None)
            self._over = True
            if self._abandoned:
                self._take_back()
            self._bell.ring()

    def _abandon(self) -> None:
        self._abandoned = True
        if self._over:
            self._take_back()
        elif self._task is not None and not self._goes_on:
            self._task.cancel()

    def _take_back(self) -> None:
        value, self._value = self._value, None
        if value is not None and self._undo is not None:
            self._undo(value)

    def end(self) -> None:
        """End it, for its `Locks` is closed."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()


class _BodyError(Exception):
    """Says in the loop thread that the body has raised; the error itself stays in the thread that raised it."""


@final
class Stay(Errand[Any]):
    """
    A guard in the loop thread, for a body that runs in the calling thread.

    Args:
        thread: The loop thread.
        work: Makes the coroutine that enters the guard, awaits `turn()` inside, and leaves it.
        among: As for `Errand`.
    """

    def __init__(
        self, thread: LoopThread, work: "Callable[[Stay], Coroutine[Any, Any, Any]]", among: "dict[Errand[Any], None]"
    ) -> None:
        super().__init__(thread, lambda: work(self), among)
        self.lease: Lease | None = None
        self._left: asyncio.Future[None] | None = None
        self._has_left = False
        self._failed = False

    # ------------------------------------------------------------------------- in the calling thread

    def enter(self) -> Lease | None:
        """
        Enter the guard.

        Returns:
            Its lease; None where the work came to its end without giving the body a turn.

        Raises:
            Exception: As `run`.
        """
        super().run()
        return self.lease

    def _read(self) -> Any:
        # With the turn given, what went wrong since is said at the body's end.
        return super()._read() if self.lease is None else None

    def leave(self, *, failed: bool) -> None:
        """
        Leave the guard, and wait until its lease is given back.

        Args:
            failed: Whether the body has raised: then its error goes out, and none of the guard's.

        Raises:
            LeaseLostError: The lease was lost while the body ran.
        """
        lease = self.lease
        assert lease is not None
        if self._thread.pid != this_process():
            if failed:
                return
            raise LeaseLostError(lease.key, lease.token, LossReason.FORKED)
        self._thread.post(self._leave, failed)
        if not self._over:
            self._bell.wait()
        if not failed:
            super()._read()

    # --------------------------------------------------------------------------- in the loop thread

    async def turn(self, lease: Lease) -> None:
        """Let the thread run its body under *lease*; returns when it has ended, and not before, however cancelled."""
        cancelled: asyncio.CancelledError | None = None
        self.lease = lease
        self._bell.ring()
        while not (self._has_left or self._closed):
            self._left = self._thread.loop.create_future()
            try:
                await self._left
            except asyncio.CancelledError as error:
                cancelled = error
        if self._failed:
            raise _BodyError
        if cancelled is not None:
            raise cancelled

    def _leave(self, failed: bool) -> None:
        self._has_left, self._failed = True, failed
        if self._left is not None and not self._left.done():
            self._left.set_result(None)

    def end(self) -> None:
        """End it, as `Errand.end`; the body runs on, under a lease that is lost, and hears of it at its own end."""
        if self.lease is None:
            super().end()
            return
        self._closed = True
        if self._left is not None and not self._left.done():
            self._left.set_result(None)

    def _abandon(self) -> None:
        if self.lease is None:
            super()._abandon()
        else:
            self._leave(True)
