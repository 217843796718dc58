# ruff: noqa: SLF001 -- the files of one package are friends
"""What a `Locks` has open in one process: the store, the asynchronous `Locks` on it, and the threads' errands there."""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Self, TypeVar, final

from tenure import context, locks
from tenure import lease as asynchronous
from tenure._durations import Duration
from tenure._kept import this_process
from tenure.errors import LeaseStateError
from tenure.locks import Phase
from tenure.store import LockStore
from tenure.sync import lease as threaded
from tenure.sync._errand import Errand, Stay
from tenure.sync._loop_thread import LoopThread
from tenure.sync.lease import Lease

__all__ = ["Engine", "Opening"]

_T = TypeVar("_T")

Opening = Callable[[], LockStore | AbstractAsyncContextManager[LockStore]]
"""Makes the store; called in the loop thread."""

_STORE_CLOSES_S: Final = 5.0
"""How long closing waits for the store's client to close, in seconds; a driver may not answer at all."""

_EXIT_DRAIN_S: Final = 1.0
"""How long the end of the process waits for guarded bodies, in seconds: those that are left are of daemon threads."""

_EXIT_S: Final = 10.0
"""How long the end of the process waits for one `Locks` to close, in seconds; what is not given back expires."""

_here = threading.local()

_log = logging.getLogger("tenure")


def _this_thread() -> object:
    """Return what stands for the calling thread: unlike its id, no later thread gets it again."""
    try:
        return _here.itself
    except AttributeError:
        _here.itself = object()
        return _here.itself


@final
class Engine:
    """
    The opened half of a `Locks`, in one process.

    Args:
        thread: The loop thread.
        inner: The asynchronous `Locks`, which is entered.
        stack: What closes the store.
    """

    def __init__(self, thread: LoopThread, inner: locks.Locks, stack: contextlib.AsyncExitStack) -> None:
        self.thread = thread
        self.inner = inner
        self._stack = stack
        self._pid = this_process()
        self._errands: dict[Errand[Any], None] = {}
        # By key, whose it is: the asynchronous rule looks at tasks, and here each call is a task of its own.
        self._holders: dict[str, tuple[asynchronous.Lease, object]] = {}

    @classmethod
    async def open(cls, thread: LoopThread, opening: Opening, **options: Any) -> Self:
        """Open the store and enter a `Locks` on it; in the loop thread."""
        async with contextlib.AsyncExitStack() as stack:
            opened = opening()
            if isinstance(opened, AbstractAsyncContextManager):
                store: LockStore = await stack.enter_async_context(opened)
            else:
                store = opened
            inner = locks.Locks(store, **options)
            await inner.__aenter__()
            # It is not what the asynchronous decorators are to find: it lives on another loop than they do.
            locks.ambient.leave(inner, None)
            return cls(thread, inner, stack.pop_all())

    @classmethod
    def opened(cls, thread: LoopThread, opening: Callable[[], Coroutine[Any, Any, Self]]) -> Self:
        """Have it opened in the loop thread, and wait for it; closed again where the wait is interrupted."""

        def close(engine: Self) -> None:
            thread.calls.spawn(engine._close())

        return Errand(thread, opening, {}, undo=close).run()

    @property
    def is_here(self) -> bool:
        """Whether this process opened it, rather than the parent of this one."""
        return self._pid == this_process()

    # ------------------------------------------------------------------------- in the calling thread

    def run(
        self,
        work: Callable[[], Coroutine[Any, Any, _T]],
        *,
        undo: Callable[[_T], object] | None = None,
        goes_on: bool = False,
    ) -> _T:
        """Have *work* done in the loop thread, and wait for it; see `Errand`."""
        return Errand(self.thread, work, self._errands, undo=undo, goes_on=goes_on).run()

    def take(self, key: str, *, wait: Duration | None, ttl: Duration | None) -> Lease | None:
        """Take *key*; with a *wait* of None, try it once and return None where it is another's."""
        self.refuse(key)
        thread = _this_thread()

        async def taking() -> asynchronous.Lease | None:
            if wait is None:
                taken = await self.inner.try_acquire(key, ttl=ttl)
            else:
                taken = await self.inner.acquire(key, wait=wait, ttl=ttl)
            if taken is not None:
                self._note(taken, thread)
            return taken

        lease = self.run(taking, undo=self._give_back)
        return None if lease is None else Lease(lease, self)

    def stay(self, guard: "Callable[[Guarded], Coroutine[Any, Any, Any]]") -> "Guarded":
        """Make a stay in *guard*, which is a coroutine that awaits `turn()` under its lease."""
        return Guarded(self, guard)

    def refuse(self, key: str | None = None) -> None:
        """
        Refuse what cannot be taken, before anything is sent.

        Raises:
            LeaseStateError: The `Locks` is closed, or shuts down; or this thread holds *key* already.
        """
        phase = self.inner.phase
        if phase is not Phase.OPEN:
            under = context.current_lease()
            # A body that runs on while the rest is shut down may take what it needs to end.
            if not (phase is Phase.DRAINING and under is not None and under.held):
                raise LeaseStateError(
                    f"This Locks is {phase.value}: leases are taken while it is open. Make a new one."
                )
        held, thread = self._holders.get(key or "", (None, None))
        if held is not None and thread is _this_thread() and held.held:
            raise LeaseStateError(
                f"This thread holds {key!r} already (fencing token {held.token}): it would wait for itself. "
                "Pass the lease on, or read it with current_lease()."
            )

    def close(self) -> None:
        """Hand everything back, and close the store; carried out to its end even where the wait is interrupted."""
        Errand(self.thread, self._close, {}, goes_on=True).run()

    def close_at_exit(self) -> None:
        """Close it because the process ends: soon, and without an error."""
        self.inner._drain_s = min(self.inner._drain_s, _EXIT_DRAIN_S)
        with contextlib.suppress(Exception):
            Errand(self.thread, self._close, {}, goes_on=True).run(within_s=_EXIT_S)

    # --------------------------------------------------------------------------- in the loop thread

    def _note(self, lease: asynchronous.Lease, thread: object) -> None:
        """Take note of who holds a key, until its lease ends."""
        self._holders[lease.key] = (lease, thread)
        lease._kept.watch(lambda _: self.forget(lease))

    def note_guard(self, lease: asynchronous.Lease, thread: object) -> None:
        """Take note of whose body runs under *lease*, until `forget`."""
        self._holders[lease.key] = (lease, thread)

    def forget(self, lease: asynchronous.Lease) -> None:
        """Take note that nobody holds *lease*."""
        noted, _ = self._holders.get(lease.key, (None, None))
        if noted is lease:
            del self._holders[lease.key]

    def _give_back(self, lease: asynchronous.Lease | None) -> None:
        if lease is not None:
            self.inner.spawn(asynchronous.give_back_quietly(lease))

    async def _close(self) -> None:
        await self.inner.close()
        for errand in list(self._errands):
            errand.end()
        closing = self.thread.calls.spawn(self._stack.aclose())
        await asyncio.wait([closing], timeout=_STORE_CLOSES_S)
        if not closing.done():
            _log.warning("The store's client did not close in time; it is left to its driver's own time-outs.")
        else:
            closing.result()


@final
class Guarded:
    """
    A guard of the asynchronous library around a body of the calling thread.

    Args:
        engine: Where its lease is taken.
        guard: Makes the coroutine that enters the guard and awaits `turn()` inside.
    """

    def __init__(self, engine: Engine, guard: "Callable[[Guarded], Coroutine[Any, Any, Any]]") -> None:
        self.locks = engine.inner
        self._engine = engine
        self._thread = _this_thread()
        self._stay = Stay(engine.thread, lambda _: guard(self), engine._errands)
        self._before: Any = None

    def enter(self) -> Lease | None:
        """Enter it. Returns the lease, which is the current one now; None where there is no body to run."""
        stay = self._stay
        try:
            inner = stay.enter()
            if inner is None:
                return None
            lease = Lease(inner, self._engine)
            self._before = threaded.enter(lease)
        except BaseException:
            stay.abandon()
            raise
        return lease

    def leave(self, *, failed: bool) -> None:
        """Leave it; raises LeaseLostError where the lease was lost and the body has not *failed*."""
        threaded.leave(self._before)
        self._stay.leave(failed=failed)

    async def turn(self, lease: asynchronous.Lease | None) -> None:
        """Let the calling thread run its body; in the loop thread, inside of the guard."""
        assert lease is not None
        self._engine.note_guard(lease, self._thread)
        try:
            await self._stay.turn(lease)
        finally:
            self._engine.forget(lease)
