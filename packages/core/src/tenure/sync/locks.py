"""Locks for threads: the facade over one store, opened in the loop thread at its first use."""

import contextvars
import os
import threading
import weakref
from collections.abc import Sequence
from functools import partial
from types import TracebackType
from typing import Any, Final, Self, cast, final

from tenure._ambient import Ambient
from tenure._durations import Duration, to_ms, to_seconds
from tenure._keys import check_key
from tenure._startup import StartupCheck
from tenure.config import TenureConfig, open_store
from tenure.errors import ConfigurationError, LeaseStateError
from tenure.instrumentation import Hook
from tenure.locks import Phase, Statistics
from tenure.store import Finding, ListsLocks, LockRecord
from tenure.sync._engine import Engine, Guarded, Opening
from tenure.sync._loop_thread import loop_thread, refuse_running_loop
from tenure.sync.lease import Lease

__all__ = ["Hold", "Locks", "StoreFactory", "ambient_locks"]

StoreFactory = Opening
"""Makes a store on the event loop where it is used: a store, or an asynchronous context manager that gives one."""

_LISTING_S: Final = 10.0
"""How long a listing may take, in seconds."""

_ambient: Ambient["Locks"] = Ambient()

_all: "weakref.WeakSet[Locks]" = weakref.WeakSet()


@final
class Locks:
    """
    Leases on keys of one store, for threads.

        locks = Locks("valkey://cache:6379", ttl="30s")

        with locks.hold("invoices", wait=2) as lease:
            ...

    It may be used as soon as it is made, from any thread: its store is opened at the first use, on an event loop in a
    daemon thread, where every lease is renewed whatever the threads do. A module of an application may keep one for as
    long as the process runs; what it holds is given back when the process ends. Where its end is known, use `with`:

        with Locks("postgresql+asyncpg://app@db/shop") as locks: ...

    A child of a fork (gunicorn, Celery's prefork pool, multiprocessing) holds nothing of its parent's, and opens a
    store of its own at its first use; the parent's goes on.

    Args:
        store: The store's URL; or a callable that makes the store, called on the loop where it is used. What it
            returns is entered and left, where it is an asynchronous context manager, as an opened store is.
        ttl: How long a lease lives without a renewal, so how soon another instance takes over after a crash.
            Seconds, a `timedelta`, or a string such as "30s".
        instance: This process's name, for people who look at the locks; by default its host and pid.
        store_timeout: How long a store call may take; at most the ttl.
        drain: How long closing waits for guarded bodies to end. A thread cannot be cancelled: after that its lease is
            lost, and its body runs on without.
        startup_check: "warn" fails on what makes locks unsafe and warns of the rest, "strict" fails on everything
            found, False does not look.
        hooks: Who hears of events, in the loop thread: a hook that blocks delays renewals, and one that calls this
            `Locks` is refused. By default the log.
        environment: "production" refuses a store in memory; by default the variable TENURE_ENVIRONMENT.
        allow_in_memory: Accept one all the same.

    Raises:
        ConfigurationError: A value, or a relation between two, is wrong; or a store was passed that is made already.
    """

    def __init__(  # noqa: PLR0913 -- all but the store have defaults, and are given by name
        self,
        store: str | StoreFactory,
        *,
        ttl: Duration = 30,
        instance: str | None = None,
        store_timeout: Duration | None = None,
        drain: Duration = 10,
        startup_check: StartupCheck = "warn",
        hooks: Sequence[Hook] | None = None,
        environment: str | None = None,
        allow_in_memory: bool = False,
    ) -> None:
        _refuse_made_store(store)
        self._opening: Opening = (
            store
            if callable(store)
            else partial(open_store, store, allow_in_memory=allow_in_memory, environment=environment)
        )
        self._options: dict[str, Any] = {
            "ttl": ttl,
            "instance": instance,
            "store_timeout": store_timeout,
            "drain": drain,
            "startup_check": startup_check,
        }
        TenureConfig(store="", **self._options)  # refuses here and now what would be refused at the first use
        self._options["hooks"] = hooks
        self._ttl_s = to_ms(ttl, name="ttl") / 1000
        self._engine: Engine | None = None
        self._opens = threading.Lock()
        self._closed = False
        self._entered = False
        self._before: Locks | None = None
        _all.add(self)
        # It counts as entered from now on, but in this context no more than elsewhere.
        contextvars.copy_context().run(_ambient.enter, self)

    @classmethod
    def from_config(cls, config: TenureConfig, *, hooks: Sequence[Hook] | None = None) -> Self:
        """
        Make one of settings, such as those of the environment: `Locks.from_config(TenureConfig.from_env())`.

        Args:
            config: The settings.
            hooks: Who hears of events, in the loop thread; by default the log.
        """
        return cls(
            config.store,
            ttl=config.ttl,
            instance=config.instance,
            store_timeout=config.store_timeout,
            drain=config.drain,
            startup_check=config.startup_check,
            hooks=hooks,
            environment=config.environment,
            allow_in_memory=config.allow_in_memory,
        )

    @property
    def ttl_s(self) -> float:
        """The ttl, in seconds."""
        return self._ttl_s

    # --------------------------------------------------------------------------------- acquiring

    def try_acquire(self, key: str, *, ttl: Duration | None = None) -> Lease | None:
        """
        Take *key* if it is free.

        Args:
            key: 1 to 500 characters of any Unicode, compared exactly.
            ttl: This lease's own ttl; by default that of the `Locks`.

        Returns:
            The lease, which is renewed until it is released; or None where another owner holds the key.

        Raises:
            ConfigurationError: The key or the ttl is wrong; nothing was sent. Or the store cannot be opened.
            LeaseStateError: The `Locks` is closed, this thread holds the key already, or an event loop runs in this
                thread; nothing was sent.
            StoreTimeoutError: The store did not answer in time. A release is sent behind the call.
            StoreReplyError: The store's answer is none that the contract allows. A release is sent behind it.
            Exception: What the store's driver raised. A release is sent behind the call.
        """
        return self.engine(check_key(key)).take(key, wait=None, ttl=ttl)

    def acquire(self, key: str, *, wait: Duration = 0, ttl: Duration | None = None) -> Lease:
        """
        Take *key*, waiting for it if need be.

        A wait that is interrupted (KeyboardInterrupt in the main thread) is abandoned, and nothing stays locked.

        Args:
            key: 1 to 500 characters of any Unicode, compared exactly.
            wait: How long to keep trying; 0 tries once, `float("inf")` for ever. Threads of one process wait in the
                order in which they came.
            ttl: This lease's own ttl; by default that of the `Locks`.

        Returns:
            The lease, which is renewed until it is released.

        Raises:
            LockNotAcquiredError: Another owner held the key for all of the wait.
            Exception: As `try_acquire`.
        """
        return cast("Lease", self.engine(check_key(key)).take(key, wait=wait, ttl=ttl))

    def hold(
        self,
        key: str,
        *,
        wait: Duration = 0,
        ttl: Duration | None = None,
        max_hold: Duration | None = None,
    ) -> "Hold":
        """
        Run the body of a `with` under a lease on *key*.

            with locks.hold("invoices", wait=2) as lease:
                for invoice in due():
                    lease.raise_unless_held()
                    send(invoice, fence=lease.token)

        A thread cannot be stopped: when the lease is lost the body runs on, and `LeaseLostError` is raised at its
        end. Look at the lease at each point of use, and let what is written carry its token. The lease is given back
        when the body ends, however it ends, and never hides the body's exception.

        Args:
            key: 1 to 500 characters of any Unicode, compared exactly.
            wait: How long to keep trying for the key; 0 tries once.
            ttl: This lease's own ttl; by default that of the `Locks`.
            max_hold: The longest time for which the lease is renewed; then it is lost, whatever the body does.

        Returns:
            A context manager, to be entered once.

        Raises:
            LockNotAcquiredError: When it is entered: another owner held the key for all of the wait.
            LeaseLostError: When it is left: the lease was lost while the body ran.
            Exception: When it is entered, as `try_acquire`.
        """
        options = {"wait": wait, "ttl": ttl, "max_hold": max_hold}
        to_seconds(wait, name="wait")
        return Hold(self, check_key(key), options)

    # ---------------------------------------------------------------------------- start and close

    def open(self) -> Self:
        """
        Open the store now, rather than at the first use: a start fails where its store is set up wrong.

        Raises:
            ConfigurationError: The start-up check found what makes locks impossible or unsafe; the ttl is too short
                for the store; two jobs share a key; or gevent or eventlet has replaced threads.
            LeaseStateError: It is closed; or an event loop runs in this thread.
            Exception: What the store's driver raised.
        """
        self.engine()
        return self

    def engine(self, key: str | None = None) -> Engine:
        """Return what is open in this process, opened at the first call; it refuses as `Engine.refuse`. For recipes."""
        engine = self.engine_of_tick()
        engine.refuse(key)
        return engine

    def engine_of_tick(self) -> Engine:
        """Return the same for a job, whose tick is skipped rather than refused while this shuts down. For recipes."""
        engine = self._engine
        if engine is None or not engine.is_here:
            return self._open()
        if engine.inner.phase is Phase.CLOSED:
            engine.refuse()
        return engine

    def _open(self) -> Engine:
        # Before the lock: a hook that hears of the opening, in the loop thread, would wait for who waits for it.
        refuse_running_loop()
        with self._opens:
            engine = self._engine
            if engine is not None and engine.is_here:  # another thread was first
                return engine
            if self._closed:
                raise LeaseStateError("This Locks is closed: leases are taken while it is open. Make a new one.")
            thread = loop_thread()
            opening = partial(Engine.open, thread, self._opening, **self._options)
            engine = self._engine = Engine.opened(thread, opening)
            thread.closes[engine.close_at_exit] = None
        return engine

    def close(self) -> None:
        """
        Hand everything back, and close the store.

        New work is refused; guarded bodies get `drain` seconds to end; jobs hand their leases back; every other lease
        is lost (CLOSED) and released. Closing twice does nothing, and neither does closing in a child what its parent
        opened. Called inside of a guard of this thread's own, it waits for that guard in vain.
        """
        self._closed = True
        _ambient.leave(self, self._before)
        engine = self._engine
        if engine is not None and engine.is_here:
            engine.thread.closes.pop(engine.close_at_exit, None)
            engine.close()

    def __enter__(self) -> Self:
        """
        Open the store, and make this the `Locks` of decorators that name none; raises as `open` does.

        Raises:
            LeaseStateError: It was entered before.
        """
        if self._entered:
            raise LeaseStateError("This Locks was entered before: a Locks is entered once. Make a new one.")
        self.open()
        self._entered = True
        self._before = _ambient.enter(self)
        return self

    def __exit__(self, *_: object) -> None:
        """Hand everything back; see `close`."""
        self.close()

    # --------------------------------------------------------------------------------- for people

    def list_locks(self, prefix: str = "") -> Sequence[LockRecord]:
        """
        List the live locks of the store whose key begins with *prefix*, sorted by key. A look, not a lock.

        Raises:
            ConfigurationError: The store cannot list its locks.
            StoreTimeoutError: It did not answer within ten seconds.
            Exception: What the store's driver raised.
        """
        engine = self.engine()
        store = engine.inner.store
        if not isinstance(store, ListsLocks):
            raise ConfigurationError(f"{type(store).__name__} cannot list its locks: it has no list_locks().")
        listing = store.list_locks
        return engine.run(lambda: engine.thread.calls.call("list_locks", listing(prefix), timeout_s=_LISTING_S))

    def check(self) -> Sequence[Finding]:
        """
        Look at the store's server once, for at most three seconds, without writing; for a health check.

        Returns:
            What was found, "store-unreachable" for a server that does not answer. Nothing for a store that cannot tell.

        Raises:
            ConfigurationError: The store cannot work as it is set up.
        """
        engine = self.engine()
        return engine.run(engine.inner.check)

    def statistics(self) -> Statistics:
        """Return what was done so far in this process, for a look; the numbers are of one moment."""
        return self.engine().inner.statistics()

    def __repr__(self) -> str:
        engine = self._engine
        if engine is not None and engine.is_here:
            return repr(engine.inner)
        return f"<Locks, {'closed' if self._closed else 'opens at its first use'}>"


@final
class Hold:
    """A guard around the body of a `with`; made by `Locks.hold`."""

    def __init__(self, locks: Locks, key: str, options: dict[str, Any]) -> None:
        if options["max_hold"] is not None:
            to_ms(options["max_hold"], name="max_hold")
        self._locks = locks
        self._key = key
        self._options = options
        self._guarded: Guarded | None = None

    def __enter__(self) -> Lease:
        """Take the key; raises as `Locks.hold` says."""
        if self._guarded is not None:
            raise LeaseStateError("This hold was entered before: call hold() for each `with`.")
        self._guarded = self._locks.engine(self._key).stay(self._guard)
        return cast("Lease", self._guarded.enter())

    async def _guard(self, guarded: Guarded) -> None:
        async with guarded.locks.hold(self._key, **self._options) as lease:
            await guarded.turn(lease)

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Give the lease back; raises LeaseLostError where it was lost and the body did not raise."""
        assert self._guarded is not None
        self._guarded.leave(failed=exc_type is not None)


def ambient_locks() -> Locks:
    """
    Return the `Locks` that is meant where none is named: the innermost entered one, or the process's only one.

    Raises:
        LeaseStateError: There is none.
        ConfigurationError: There are several, none of them entered in this context.
    """
    try:
        return _ambient.get()
    except LeaseStateError:
        raise LeaseStateError(
            "There is no Locks: make one (tenure.sync.Locks), or name one in the decorator (locks=)."
        ) from None
    except ConfigurationError:
        raise ConfigurationError(
            "There are several Locks in this process, none of them entered in this thread: name the one that is meant "
            "in the decorator (locks=)."
        ) from None


def _refuse_made_store(store: object) -> None:
    """Refuse a store that exists: its client belongs to the loop on which it was made, or first used."""
    if isinstance(store, str):
        return
    if not callable(store) or (not isinstance(store, type) and hasattr(store, "acquire")):
        raise ConfigurationError(
            f"A {type(store).__name__} was passed, and a Locks for threads uses its store on an event loop of its own. "
            "Pass the store's URL, or a callable that makes the store; it is called on that loop."
        )


def _forget_parent() -> None:
    """Replace what another thread of the parent may have had: nobody in the child would ever let go of it."""
    for locks in list(_all):
        locks._opens = threading.Lock()  # noqa: SLF001 -- this module's own class


if hasattr(os, "register_at_fork"):  # pragma: no branch -- where there is none, nothing forks
    os.register_at_fork(after_in_child=_forget_parent)
