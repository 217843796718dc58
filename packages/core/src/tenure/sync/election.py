# ruff: noqa: SLF001 -- the files of one package are friends
"""Leader election for threads: a lease that one process holds for as long as its leading thread runs."""

import asyncio
import contextvars
import logging
import threading
from collections.abc import Callable
from typing import Final, Self, final

from tenure import election
from tenure import lease as asynchronous
from tenure._durations import Duration, to_ms
from tenure._keys import check_key
from tenure.clock import wait_until
from tenure.errors import LeaseStateError
from tenure.sync import lease as threaded
from tenure.sync._engine import Engine
from tenure.sync.lease import Lease
from tenure.sync.locks import Locks

__all__ = ["LeaderElection"]

_log: Final = logging.getLogger("tenure")


@final
class LeaderElection:
    """
    Runs `lead(lease)` in one process at a time, in a thread of its own, for as long as that process lives.

        def feed(lease: Lease) -> None:
            while lease.held:
                for alert in alerts(timeout=1):
                    lease.raise_unless_held()
                    store(alert, fence=lease.token)

        with LeaderElection(locks, "inventory:warehouse-feed", feed):
            serve()

    Every process campaigns, every third of a ttl. `lead` runs in the one that was elected. A thread cannot be stopped,
    so `lead` has to look: once `lease.held` is False (the lease was lost, this process steps down, or it shuts down)
    it returns, within the `drain` of its `Locks`. Only then is the lease given back; a lead that takes longer is left
    to run on without, and logged. `lease.lost.wait(timeout)` pauses, and is woken by either end.

    A `lead` that returns or raises frees the lease, and this process rests while the others campaign.

    Args:
        locks: The `Locks` to use; closing it ends the election.
        key: The election's key, 1 to 500 characters; no job's and no other election's.
        lead: What the leader does. Whatever it does on the group's behalf should carry `lease.token`.
        ttl: The lease's ttl; by default that of the `Locks`.

    Raises:
        ConfigurationError: The key or the ttl is wrong.
    """

    def __init__(self, locks: Locks, key: str, lead: Callable[[Lease], object], *, ttl: Duration | None = None) -> None:
        self.key = check_key(key)
        if ttl is not None:
            to_ms(ttl, name="ttl")
        self._locks = locks
        self._lead = lead
        self._ttl = ttl
        self._engine: Engine | None = None
        self._inner: election.LeaderElection | None = None

    @property
    def is_leader(self) -> bool:
        """Whether this process leads, as of now: the clock is compared at each reading."""
        return self._inner is not None and self._inner.is_leader

    def leader(self) -> str | None:
        """
        Ask the store who leads.

        Returns:
            The leader's instance name, or None where nobody leads. By the time it is read it may be another.

        Raises:
            ConfigurationError: The store cannot list its locks.
            LeaseStateError: The election was not entered, or in another process.
        """
        engine, inner = self._entered()
        return engine.run(inner.leader)

    def step_down(self) -> None:
        """
        Stop leading, and let the others campaign first. Does nothing in a process that does not lead.

        It waits for `lead` to return; called by `lead` itself it is refused, for that would wait for itself: return.

        Raises:
            LeaseStateError: `lead` called it; or the election was not entered, or in another process.
        """
        engine, inner = self._entered()
        under = threaded.current_lease()
        if under is not None and under.key == self.key and under.held:
            raise LeaseStateError(f"The lead of {self.key!r} called step_down(), and would wait for itself: return.")
        engine.run(inner.step_down, goes_on=True)

    def _entered(self) -> tuple[Engine, election.LeaderElection]:
        if self._inner is None or self._engine is None or not self._engine.is_here:
            raise LeaseStateError("This LeaderElection was not entered in this process: use `with` on it first.")
        return self._engine, self._inner

    def __enter__(self) -> Self:
        """
        Start to campaign.

        Raises:
            ConfigurationError: A job or another election uses the key.
            LeaseStateError: The `Locks` is not open, or the election was entered before.
        """
        if self._inner is not None:
            raise LeaseStateError("This LeaderElection was entered before. Make a new one.")
        engine = self._engine = self._locks.engine()

        async def begin() -> election.LeaderElection:
            inner = election.LeaderElection(engine.inner, self.key, self._lead_in_thread, ttl=self._ttl)
            return await inner.__aenter__()

        self._inner = engine.run(begin, undo=lambda inner: engine.inner.spawn(inner.hand_back()))
        return self

    def __exit__(self, *_: object) -> None:
        """Step down, and campaign no more; in a child of the process that entered it, nothing is to be done."""
        engine, inner = self._engine, self._inner
        if engine is not None and inner is not None and engine.is_here:
            engine.run(inner.hand_back, goes_on=True)

    # --------------------------------------------------------------------------- in the loop thread

    async def _lead_in_thread(self, own: asynchronous.Lease) -> None:
        engine = self._engine
        assert engine is not None
        # Lent: it ends when the lead is to, although the lease goes on until the thread has ended.
        lease = Lease(own.lend(), engine)
        term = _Term(engine, self._lead, lease)
        try:
            await asyncio.wait([term.ended])
        except asyncio.CancelledError:
            lease.end_loan()
            clock = engine.inner.clock
            if not await wait_until(clock, term.ended, when=clock.now() + engine.inner._drain_s):
                _log.warning('The lead of "%s" did not return in time; it runs on without its lease', self.key)
            raise
        finally:
            lease.end_loan()
        term.ended.result()


@final
class _Term:
    """One term of a leader: its thread, and a future of the loop that tells of its end."""

    def __init__(self, engine: Engine, lead: Callable[[Lease], object], lease: Lease) -> None:
        self._engine = engine
        self._lead = lead
        self._lease = lease
        self.ended: asyncio.Future[None] = engine.thread.loop.create_future()
        # A daemon, as all that runs for a lease: what is left of it at the end of the process is not waited for.
        threading.Thread(
            target=contextvars.Context().run, args=(self._run,), name=f"lead {lease.key}", daemon=True
        ).start()

    def _run(self) -> None:
        error: BaseException | None = None
        threaded.enter(self._lease)
        try:
            self._lead(self._lease)
        except BaseException as raised:  # noqa: BLE001 -- told to the election, which logs it
            error = raised
        try:
            self._engine.thread.post(self._end, error)
        except LeaseStateError:
            _log.debug("A lead ended after the end of its process's leases")

    def _end(self, error: BaseException | None) -> None:
        if self.ended.done():
            return
        if error is None:
            self.ended.set_result(None)
            return
        # What ends a thread must not end the loop's: a SystemExit of the lead is a failure of the lead.
        self.ended.set_exception(error if isinstance(error, Exception) else RuntimeError(type(error).__name__))
        self.ended.exception()  # looked at here, for nobody may await it any more
