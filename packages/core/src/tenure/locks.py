"""Locks: the facade over one store. Takes keys, keeps the leases, hands everything back at the end."""

import asyncio
import contextlib
import enum
import os
import random
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, Self, TypeVar, final

from tenure import _startup, context
from tenure._acquirer import Acquirer, shielded
from tenure._ambient import Ambient
from tenure._claims import Claims, ambient_claims
from tenure._durations import Duration, to_ms, to_seconds
from tenure._keeper import Keeper
from tenure._kept import this_process
from tenure._keys import MAX_INSTANCE_LENGTH, check_instance, check_key
from tenure._lease_machine import LeaseEvent
from tenure._startup import StartupCheck
from tenure.clock import Clock, SystemClock
from tenure.errors import LeaseStateError, LockNotAcquiredError
from tenure.events import (
    AcquireRefused,
    Event,
    LeaseAcquired,
    LeaseLost,
    LeaseReleased,
    LocksClosed,
    LocksStarted,
    StoreFinding,
)
from tenure.instrumentation import Hook, default_hooks, hears_of, tell
from tenure.lease import Lease, LeaseScope
from tenure.store import Finding, LockStore

__all__ = ["Locks", "Phase", "Statistics", "ambient_locks"]

_UNWIND_S = 1.0
"""How long closing waits, in seconds, for bodies that it cancelled to run their cleanup under their leases."""

_COUNTED: Final = (LeaseAcquired, AcquireRefused, LeaseReleased, LeaseLost)

ambient: Ambient["Locks"] = Ambient()


def ambient_locks() -> "Locks":
    """Return the `Locks` that is entered here; see `tenure._ambient`."""
    return ambient.get()


@final
class Phase(enum.Enum):
    """Where a `Locks` stands, or an `Idempotency`."""

    NEW = "not started"
    OPEN = "open"
    DRAINING = "shutting down"
    CLOSED = "closed"


class Part(Protocol):
    """Something that runs on a `Locks` and must hand its leases back before the store's client closes."""

    async def hand_back(self) -> None:
        """Stop, and give every lease back. Must not raise for a store that fails."""
        ...


_P = TypeVar("_P", bound=Part)


@final
@dataclass(frozen=True, slots=True)
class Statistics:
    """
    What a `Locks` did so far.

    Attributes:
        held: Leases held now.
        waiting: Callers that wait for a key now.
        guarded: Bodies that run under a lease now.
        acquired: Leases granted.
        refused: Callers told that the key is another's.
        released: Leases given back.
        lost: Leases lost.
        renewals: Renewals sent, counted by lease.
        renewals_failed: Renewals that ended without an answer.
    """

    held: int
    waiting: int
    guarded: int
    acquired: int
    refused: int
    released: int
    lost: int
    renewals: int
    renewals_failed: int


@final
class Locks:
    """
    Leases on keys of one store.

        async with Locks(store, ttl=30, instance="shop-1") as locks:
            async with locks.hold("invoices", wait=2) as lease:
                ...

    Entering it checks the store and starts the keeper; leaving it refuses new work, lets guarded bodies end, steps
    down from elections, and gives every lease back. The store's client may be closed only after that.

    Args:
        store: Where the instances meet.
        ttl: How long a lease lives without a renewal, so how soon another instance takes over after a crash.
            Seconds, a `timedelta`, or a string such as "30s". Choose it well above the store's round trip and the
            longest pause of the event loop that is to be survived.
        instance: This process's name, for people who look at the locks; by default its host and pid.
        store_timeout: How long a store call may take; at most the ttl.
        drain: How long leaving waits for guarded bodies to end before it cancels them.
        startup_check: "warn" fails on what makes locks unsafe and warns of the rest, "strict" fails on everything
            found, False does not look.
        hooks: Who hears of events; by default the log.
        clock: The holder's clock, for tests.
        rng: Where jitter comes from, for simulations.

    Raises:
        ConfigurationError: A duration, the instance's name, or a relation between them is wrong.
    """

    def __init__(  # noqa: PLR0913 -- all but the store have defaults, and are given by name
        self,
        store: LockStore,
        *,
        ttl: Duration = 30,
        instance: str | None = None,
        store_timeout: Duration | None = None,
        drain: Duration = 10,
        startup_check: StartupCheck = "warn",
        hooks: Sequence[Hook] | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
    ) -> None:
        _startup.refuse_no_store(store)
        self.store = store
        self.ttl_ms = to_ms(ttl, name="ttl")
        self.instance = check_instance(instance or f"{socket.gethostname()}-{os.getpid()}"[-MAX_INSTANCE_LENGTH:])
        self.clock: Clock = clock or SystemClock()
        self.rng = rng or random.Random()  # noqa: S311 -- jitter, not a secret
        self.phase = Phase.NEW
        self.claims = Claims()
        self._drain_s = to_seconds(drain, name="drain")
        self._startup_check: StartupCheck = startup_check
        self._hooks = tuple(default_hooks() if hooks is None else hooks)
        self._hears = tuple(hears_of(hook) for hook in self._hooks)
        self._keeper = Keeper(self.clock, self.emit, self.rng)
        self.acquirer = Acquirer(
            store,
            self._keeper,
            self.clock,
            self.emit,
            self.rng,
            unheard=self.unheard,
            instance=self.instance,
            store_timeout_s=_startup.store_timeout_s(store_timeout, self.ttl_s),
        )
        self._round_trip_s = 0.0
        self._pid = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._guards: dict[LeaseScope, None] = {}
        self._guard_left = asyncio.Event()
        self._parts: dict[Any, Any] = {}
        self._joined: list[Part] = []
        self._ambient_before: Locks | None = None
        self._counts: dict[type[Event], int] = dict.fromkeys(_COUNTED, 0)

    @property
    def ttl_s(self) -> float:
        """The ttl, in seconds."""
        return self.ttl_ms / 1000

    # --------------------------------------------------------------------------------- acquiring

    async def try_acquire(self, key: str, *, ttl: Duration | None = None) -> Lease | None:
        """
        Take *key* if it is free.

        Args:
            key: 1 to 500 characters of any Unicode, compared exactly.
            ttl: This lease's own ttl; by default that of the `Locks`.

        Returns:
            The lease, which is renewed until it is released; or None where another owner holds the key.

        Cancellation: the acquire's outcome is unknown; an owner-checked release is sent behind it.

        Raises:
            ConfigurationError: The key or the ttl is wrong; nothing was sent.
            LeaseStateError: The `Locks` is not open, or this task holds the key already; nothing was sent.
            StoreTimeoutError: The store did not answer in time. A release is sent behind the call.
            StoreReplyError: The store's answer is none that the contract allows. A release is sent behind it.
            Exception: What the store's driver raised. A release is sent behind the call.
        """
        ttl_ms = self._check(key, ttl)
        lease, waited_s = await self.acquirer.take(key, ttl_ms, wait_s=0.0, refuse_unless_open=self.refuse_unless_open)
        if lease is None and not self.unheard(AcquireRefused):
            self.emit(AcquireRefused(key, waited_s))
        return lease

    async def acquire(self, key: str, *, wait: Duration = 0, ttl: Duration | None = None) -> Lease:
        """
        Take *key*, waiting for it if need be.

        Args:
            key: 1 to 500 characters of any Unicode, compared exactly.
            wait: How long to keep trying; 0 tries once, `float("inf")` for ever. Between tries the caller pauses,
                longer each time and never in step with others, and is woken by a release where the store can.
            ttl: This lease's own ttl; by default that of the `Locks`.

        Returns:
            The lease, which is renewed until it is released. Its loss sets `lease.lost` and cancels nothing; see
            `hold` for a body that is cancelled.

        Raises:
            LockNotAcquiredError: Another owner held the key for all of the wait.
            Exception: As `try_acquire`.
        """
        wait_s = to_seconds(wait, name="wait")
        ttl_ms = self._check(key, ttl)
        lease, waited_s = await self.acquirer.take(
            key, ttl_ms, wait_s=wait_s, refuse_unless_open=self.refuse_unless_open
        )
        if lease is None:
            if not self.unheard(AcquireRefused):
                self.emit(AcquireRefused(key, waited_s))
            raise LockNotAcquiredError(key, waited_s if wait_s else 0.0)
        return lease

    @contextlib.asynccontextmanager
    async def hold(
        self,
        key: str,
        *,
        wait: Duration = 0,
        ttl: Duration | None = None,
        max_hold: Duration | None = None,
    ) -> AsyncIterator[Lease]:
        """
        Run the body of an `async with` under a lease on *key*.

        The body is cancelled when the lease is lost, and `LeaseLostError` is raised in place of the cancellation.
        The lease is given back when the body ends, however it ends; the release is shielded from cancellation,
        bounded in time, and never hides the body's exception.

        Args:
            key: 1 to 500 characters of any Unicode, compared exactly.
            wait: How long to keep trying for the key; 0 tries once.
            ttl: This lease's own ttl; by default that of the `Locks`.
            max_hold: The longest time that the body may take; then it is cancelled and the lease given back.

        Raises:
            LockNotAcquiredError: Another owner held the key for all of the wait.
            LeaseLostError: The lease was lost while the body ran.
            Exception: As `try_acquire`.
        """
        max_hold_s = None if max_hold is None else to_ms(max_hold, name="max_hold") / 1000
        lease = await self.acquire(key, wait=wait, ttl=ttl)
        async with self.guard([lease], give_back=[lease], max_hold_s=max_hold_s):
            yield lease

    @contextlib.asynccontextmanager
    async def guard(
        self, leases: Sequence[Lease], *, give_back: Sequence[Lease], max_hold_s: float | None = None
    ) -> AsyncIterator[Lease]:
        """Run a body under leases that were taken already; for recipes. See `LeaseScope`."""
        scope = LeaseScope(self.clock, self._keeper, leases, give_back=give_back, max_hold_s=max_hold_s)
        self._guards[scope] = None
        try:
            async with scope as lease:
                yield lease
        finally:
            self._guards.pop(scope, None)
            self._guard_left.set()

    def _check(self, key: str, ttl: Duration | None) -> int:
        """Refuse what cannot be taken, before anything is sent. Returns the ttl in milliseconds."""
        check_key(key)
        ttl_ms = self.ttl_ms if ttl is None else to_ms(ttl, name="ttl")
        self.refuse_unless_open()
        if ttl is not None:  # that of the `Locks` was looked at when it was entered
            _startup.refuse_short_ttl(ttl_ms / 1000, self._round_trip_s)
        return ttl_ms

    # ---------------------------------------------------------------------------- start and close

    async def __aenter__(self) -> Self:
        """
        Check the store, and start.

        Raises:
            LeaseStateError: It was entered before; make a new `Locks` for a new start.
            ConfigurationError: The start-up check found what makes locks impossible or unsafe; the ttl is too short
                for the store; or two jobs share a key.
        """
        if self.phase is not Phase.NEW:
            raise LeaseStateError(f"This Locks is {self.phase.value}: a Locks is entered once. Make a new one.")
        self._pid, self._loop = this_process(), asyncio.get_running_loop()
        self.claims.check_all(ambient_claims)
        for finding in await _startup.check_server(self.store, self._keeper, self._startup_check):
            self.emit(StoreFinding(finding.code, finding.message, finding.remedy))
        self._round_trip_s = await _startup.measure_round_trip_s(self.store, self._keeper, self.clock)
        _startup.refuse_short_ttl(self.ttl_s, self._round_trip_s)
        self.phase = Phase.OPEN
        self._ambient_before = ambient.enter(self)
        self.emit(LocksStarted(self.instance, type(self.store).__name__, getattr(self.store, "reach", "cluster")))
        return self

    async def __aexit__(self, *_: object) -> None:
        """Hand everything back; see `close`."""
        await self.close()

    async def close(self) -> None:
        """
        Hand everything back, in phases.

        New work is refused; guarded bodies get `drain` seconds to end, and are then cancelled; elections step down
        and jobs hand their leases back; every other lease is lost (CLOSED) and released. Only after this may the
        store's client close. Closing twice does nothing.
        """
        if self.phase is not Phase.OPEN:
            return
        self.phase = Phase.DRAINING
        try:
            await shielded(self._keeper.spawn(self._close(asyncio.current_task())))
        finally:
            ambient.leave(self, self._ambient_before)

    async def _close(self, caller: "asyncio.Task[Any] | None") -> None:
        try:
            await self._guards_end(caller, self._drain_s)
            for scope in list(self._guards):
                scope.cut_short()
            await self._guards_end(caller, _UNWIND_S)
            await self.together(part.hand_back() for part in list(self._joined))
            await self._release_all()
            await self._keeper.close()
        finally:
            self.phase = Phase.CLOSED
            self.emit(LocksClosed(self.instance))

    async def _guards_end(self, caller: "asyncio.Task[Any] | None", within_s: float) -> None:
        """Wait until no body runs under a guard, other than the one that closes."""

        def busy() -> bool:
            return any(scope.task is not caller for scope in self._guards)

        await self._keeper.wait_while(busy, self._guard_left, self.clock.now() + within_s)

    async def _release_all(self) -> None:
        self._keeper.ending = True
        ending = list(self._keeper)
        for kept in ending:
            self._keeper.end(kept, LeaseEvent.CLOSED)
        # An error is reported as an event, and the lock expires.
        await self.together(self.acquirer.release(kept, trusted=False) for kept in ending)

    # ------------------------------------------------------------------------------- for recipes

    def lead_guard(self, lease: Lease) -> LeaseScope:
        """Run a leader's work under its lease. Closing does not wait for it to end: a leader works until stopped."""
        return LeaseScope(self.clock, self._keeper, [lease], give_back=[lease])

    def join(self, part: Part) -> None:
        """Have *part* hand its leases back when this closes."""
        self._joined.append(part)

    def leave(self, part: Part) -> None:
        """Have it do so no more."""
        with contextlib.suppress(ValueError):
            self._joined.remove(part)

    def refuse_unless_open(self) -> None:
        """
        Refuse a call that comes too early, too late, or from a process or an event loop of another's.

        Raises:
            LeaseStateError: It does; nothing was sent.
        """
        if self.phase is not Phase.OPEN and not self._is_ending():
            raise LeaseStateError(
                f"This Locks is {self.phase.value}: leases are taken inside `async with locks:`, while it is open."
            )
        if self._pid != this_process():
            raise LeaseStateError(
                "This Locks was started by the parent of this process, and a child holds nothing: "
                "make and enter a Locks after the fork."
            )
        if asyncio.get_running_loop() is not self._loop:
            raise LeaseStateError("This Locks was entered on another event loop: make and enter one on this loop.")

    def _is_ending(self) -> bool:
        """Whether the caller is a body that runs on while the rest is shut down: it may take what it needs to end."""
        under = context.current_lease()
        return self.phase is Phase.DRAINING and under is not None and under.held

    def part(self, kind: Callable[["Locks"], _P]) -> _P:
        """Return the one *kind* of part on this `Locks`, made at the first call; closing tells it to hand back."""
        if kind not in self._parts:
            self._parts[kind] = kind(self)
            self.join(self._parts[kind])
        part: _P = self._parts[kind]
        return part

    def spawn(self, work: Any) -> "asyncio.Task[Any]":
        """Run a recipe's own work as a task of the keeper."""
        return self._keeper.spawn(work)

    async def together(self, works: Iterable[Coroutine[Any, Any, Any]]) -> None:
        """Run *works* side by side as tasks of the keeper, and wait for their ends, however they end."""
        await self._keeper.together(works)

    async def check(self) -> Sequence[Finding]:
        """
        Look at the store's server once, for at most three seconds, without writing; for a health check.

        Returns:
            What was found, "store-unreachable" for a server that does not answer. Nothing for a store that cannot tell.

        Raises:
            ConfigurationError: The store cannot work as it is set up.
        """
        return await _startup.look_at_server(self.store, self._keeper)

    def emit(self, event: Event) -> None:
        """Count *event*, and tell the hooks of it."""
        if type(event) in self._counts:
            self._counts[type(event)] += 1
        tell(self._hooks, event)

    def unheard(self, kind: type[Event]) -> bool:
        """Count an event of *kind* and return True, where no hook would hear of it: then it need not be built."""
        for hears in self._hears:
            if hears(kind):
                return False
        self._counts[kind] += 1
        return True

    def statistics(self) -> Statistics:
        """Return what was done so far, for a look; the numbers are of one moment."""
        return Statistics(
            held=len(self._keeper),
            waiting=self.acquirer.waiting,
            guarded=len(self._guards),
            acquired=self._counts[LeaseAcquired],
            refused=self._counts[AcquireRefused],
            released=self._counts[LeaseReleased],
            lost=self._counts[LeaseLost],
            renewals=self._keeper.renewals,
            renewals_failed=self._keeper.renewals_failed,
        )

    def __repr__(self) -> str:
        return f"<Locks {self.instance!r} on {type(self.store).__name__}, {self.phase.value}>"
