"""The engine: begins executions, keeps their records alive, and stores what became of them."""

import asyncio
import os
import random
import socket
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final, Literal, Self, TypeVar, cast, final

from tenure import _startup
from tenure._acquirer import shielded
from tenure._backoff import Backoff
from tenure._durations import Duration, to_ms, to_seconds
from tenure._keeper import Keeper
from tenure._keys import MAX_INSTANCE_LENGTH, check_fingerprint, check_instance, check_key
from tenure._lease_machine import RENEWALS_PER_TTL
from tenure._startup import StartupCheck
from tenure.clock import Clock, SystemClock, sleep_until
from tenure.errors import (
    InFlightError,
    KeyReusedError,
    LeaseStateError,
    NoEffectError,
    OutcomeUnknownError,
    ResponseNotStoredError,
)
from tenure.events import (
    Event,
    ExtensionFailed,
    IdempotencyClosed,
    IdempotencyOutcome,
    IdempotencyStarted,
    RecordOutcome,
    RenewalFailed,
    StoreFinding,
)
from tenure.idempotency.arguments import check_choice, check_secret, taking_context
from tenure.idempotency.codec import JSON, Codec, decode_stored
from tenure.idempotency.envelope import Sealer, digest
from tenure.idempotency.execution import Execution, IdempotencyContext
from tenure.idempotency.recorder import Recorder, Replay, Ticket
from tenure.idempotency_store import Abandoned, Acquired, AcquireReply, IdempotencyStore, InFlight, Mismatch
from tenure.instrumentation import Hook, default_hooks, tell
from tenure.locks import Phase
from tenure.store import Finding, Reach

__all__ = ["Idempotency"]

_T = TypeVar("_T")

OnAbandoned = Literal["rerun", "refuse"]
OnError = Literal["release", "abandon"]

_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 1.0
"""The pauses of a caller that waits for an execution in flight, in seconds."""

_MAX_WAITING: Final = 100
"""Callers of a process that wait; one more is told at once. A storm of repeats must not become a storm of polls."""


@final
class Idempotency:
    """
    Carries out once what comes twice. See the package for an example.

    Entering it checks the store and starts the keeper; leaving it refuses new work, waits for executions and for
    completions that are being tried again, and stops. The store's client may be closed only after that.

    Args:
        store: Where the instances meet.
        lock_ttl: How long an execution is believed alive without an extension, so how soon a repeat may run after a
            crash. Seconds, a `timedelta`, or a string such as "30s". It is extended every third of that.
        retention: How long an outcome is kept. A repeat that comes later is a new request: publish the number.
        grace: How long the record of a crashed execution is kept after its lock has ended; by default the retention.
        on_abandoned: What a repeat of an execution of unknown outcome gets. "rerun": it runs, and is told that it is
            the second attempt (at least once). "refuse": `OutcomeUnknownError` (at most once).
        max_execution: How long an execution's lock is extended, or None for as long as it runs. After it a repeat may
            run beside it: a hung function does not block its key for ever.
        completion_deadline: How long the completion is tried again where the store fails.
        store_timeout: How long a store call may take; at most the lock's ttl.
        drain: How long leaving waits for what is under way.
        instance: This process's name; by default its host and pid.
        sealer: Encrypts what is stored, such as `tenure.ext.sealing.AesGcmSealer`.
        secret: At least 16 bytes, the same on every instance. Fingerprints, downstream keys and the names of records in
            logs are then keyed hashes that nobody without it can guess back.
        startup_check: "warn" fails on what makes records unsafe and warns of the rest, "strict" fails on everything
            found, False does not look.
        hooks: Who hears of events; by default the log.
        clock: The holder's clock, for tests.
        rng: Where jitter comes from, for simulations.

    Raises:
        ConfigurationError: A duration, the instance's name, the secret, or a relation between them is wrong.
    """

    def __init__(  # noqa: PLR0913 -- all but the store have defaults, and are given by name
        self,
        store: IdempotencyStore,
        *,
        lock_ttl: Duration = 30,
        retention: Duration = "24h",
        grace: Duration | None = None,
        on_abandoned: OnAbandoned = "rerun",
        max_execution: Duration | None = None,
        completion_deadline: Duration = "10m",
        store_timeout: Duration | None = None,
        drain: Duration = 10,
        instance: str | None = None,
        sealer: Sealer | None = None,
        secret: bytes | None = None,
        startup_check: StartupCheck = "warn",
        hooks: Sequence[Hook] | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
    ) -> None:
        _startup.refuse_no_idempotency_store(store)
        self.store = store
        lock_ttl_ms = to_ms(lock_ttl, name="lock_ttl")
        self.lock_ttl_s = lock_ttl_ms / 1000
        self.retention_ms = to_ms(retention, name="retention")
        self.instance = check_instance(instance or f"{socket.gethostname()}-{os.getpid()}"[-MAX_INSTANCE_LENGTH:])
        self.secret = check_secret(secret)
        self.clock: Clock = clock or SystemClock()
        self.phase = Phase.NEW
        self._on_abandoned = check_choice("on_abandoned", on_abandoned, ("rerun", "refuse"))
        self._max_execution = max_execution if max_execution is None else to_ms(max_execution, name="max_execution")
        self._completion_deadline_s = to_seconds(completion_deadline, name="completion_deadline")
        self._drain_s = to_seconds(drain, name="drain")
        self._startup_check: StartupCheck = startup_check
        self._hooks = tuple(default_hooks() if hooks is None else hooks)
        self._rng = rng or random.Random()  # noqa: S311 -- jitter, not a secret
        self._keeper = Keeper(self.clock, self._hear, self._rng)
        self._recorder = Recorder(
            store,
            self._keeper,
            self.clock,
            self.emit,
            self._rng,
            instance=self.instance,
            lock_ttl_ms=lock_ttl_ms,
            grace_ms=self.retention_ms if grace is None else to_ms(grace, name="grace"),
            store_timeout_s=_startup.store_timeout_s(store_timeout, self.lock_ttl_s),
            sealer=sealer,
            secret=secret,
        )
        self._pid = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running: set[Execution] = set()
        self._one_ended = asyncio.Event()
        self._waiting = 0

    # ------------------------------------------------------------------------------------- running

    async def run(  # noqa: PLR0913 -- options of one call, each with a default
        self,
        key: str,
        fingerprint: str,
        fn: Callable[[], Awaitable[_T]] | Callable[[IdempotencyContext], Awaitable[_T]],
        *,
        wait: Duration = 0,
        retention: Duration | None = None,
        on_abandoned: OnAbandoned | None = None,
        on_error: OnError = "release",
        codec: Codec = JSON,
    ) -> _T:
        """
        Run *fn* once for *key*, and return what the first run returned.

        Args:
            key: 1 to 500 characters: what is to be done, and for whom ("charge:order-4711").
            fingerprint: A digest of what it is done with; see `fingerprint()`. The key with another one is refused.
            fn: An async function without an argument, or with one: the `IdempotencyContext`.
            wait: How long to wait for a run in flight, rather than to raise at once.
            retention: How long this outcome is kept.
            on_abandoned: What to do about an execution of unknown outcome; by default as the `Idempotency` says.
            on_error: What an exception of *fn* means. "release": it had no effect, and may be repeated. "abandon":
                nobody knows; right for a function that calls something that is not to be called twice. `NoEffectError`
                always releases, `OutcomeUnknownError` always abandons, and so do a cancellation and a crash.
            codec: How the result is stored. The first caller gets what a repeat gets: what was decoded again.

        Raises:
            InFlightError: It runs elsewhere, for longer than the wait.
            KeyReusedError: The key belongs to another fingerprint.
            OutcomeUnknownError: It began before, nobody knows how it ended, and it is not to be begun again.
            ResponseNotStoredError: It was carried out, and its result was not kept.
            SealError: The stored result cannot be opened.
            ConfigurationError: An argument is wrong; nothing was sent.
            LeaseStateError: The `Idempotency` is not open.
            StoreError: The store did not answer in time, or answered what it must not: a stored result that the codec
                cannot decode is one. Nothing ran.
            Exception: What the store's driver raised before *fn* ran, or what *fn* raised.
        """
        guarded = taking_context(fn)
        check_choice("on_error", on_error, ("release", "abandon"))
        begun = await self.begin(key, fingerprint, wait=wait, retention=retention, on_abandoned=on_abandoned)
        if isinstance(begun, Replay):
            return cast("_T", decode_stored(codec, begun.payload))
        try:
            value = await guarded(begun.context)
        except BaseException as error:
            await _settle_failed(begun, error, on_error)
            raise
        return cast("_T", await _settle_returned(begun, value, codec))

    async def begin(  # noqa: PLR0913 -- options of one call, each with a default
        self,
        key: str,
        fingerprint: str,
        *,
        wait: Duration = 0,
        retention: Duration | None = None,
        on_abandoned: OnAbandoned | None = None,
        max_execution: Duration | None = None,
    ) -> Execution | Replay:
        """
        Begin an execution, for a caller that settles it itself; `run` is the shorter way.

        Returns:
            An `Execution`, which the caller settles whatever happens; or a `Replay` of what was completed before.

        Raises: as `run`, but for what *fn* raises.
        """
        check_key(key)
        check_fingerprint(fingerprint)
        wait_s = to_seconds(wait, name="wait")
        retention_ms = self.retention_ms if retention is None else to_ms(retention, name="retention")
        policy = (
            self._on_abandoned
            if on_abandoned is None
            else check_choice("on_abandoned", on_abandoned, ("rerun", "refuse"))
        )
        max_ms = self._max_execution if max_execution is None else to_ms(max_execution, name="max_execution")
        self.refuse_unless_open()
        owner, name = self._recorder.draw_owner(), self._recorder.name_of(key)
        try:
            reply, sent_at = await self._ask(key, owner, fingerprint, takeover=policy == "rerun", wait_s=wait_s)
        except Exception as error:
            self.emit(RecordOutcome(name, IdempotencyOutcome.STORE_ERROR, error=type(error).__name__))
            raise
        if not isinstance(reply, Acquired):
            return self._answer(key, fingerprint, name, reply)
        ticket = Ticket(key, owner, fingerprint, reply.attempt, name)
        again = reply.attempt > 1
        self.emit(
            RecordOutcome(name, IdempotencyOutcome.TAKEN_OVER if again else IdempotencyOutcome.ACQUIRED, reply.attempt)
        )
        execution = Execution(
            ticket,
            self._recorder,
            sent_at=sent_at,
            secret=self.secret or b"",
            retention_ms=retention_ms,
            completion_deadline_s=self._completion_deadline_s,
            max_execution_s=None if max_ms is None else max_ms / 1000,
            ended=self._forget,
        )
        self._running.add(execution)
        return execution

    def fingerprint(self, *parts: bytes | str) -> str:
        """
        Digest what a request is made of, for `run` and `begin`.

        Args:
            parts: Bytes or text, in an order that never changes. ("ab", "c") and ("a", "bc") are not the same.

        Returns:
            64 hexadecimal characters: HMAC-SHA-256 under the `Idempotency`'s secret.
        """
        return digest(self.secret or b"", ("fingerprint", *parts))

    async def _ask(
        self, key: str, owner: str, fingerprint: str, *, takeover: bool, wait_s: float
    ) -> tuple[AcquireReply, float]:
        """Ask for the record, and ask again while it is in flight and there is time."""
        until = self.clock.now() + wait_s
        pauses = Backoff(_FIRST_PAUSE_S, min(_LONGEST_PAUSE_S, self.lock_ttl_s / RENEWALS_PER_TTL), self._rng)
        while True:
            reply, sent_at = await self._recorder.acquire(key, owner, fingerprint, takeover=takeover)
            now = self.clock.now()
            if not isinstance(reply, InFlight) or now >= until or self._waiting >= _MAX_WAITING:
                return reply, sent_at
            self._waiting += 1
            try:
                pause_s = min(pauses.next_s(), reply.expires_in_ms / 1000)
                await sleep_until(self.clock, min(now + pause_s, until))
            finally:
                self._waiting -= 1
            self.refuse_unless_open()

    def _answer(self, key: str, fingerprint: str, name: str, reply: AcquireReply) -> Replay:
        """Answer a request that may not begin."""

        def say(outcome: IdempotencyOutcome, size: int | None = None) -> None:
            self.emit(RecordOutcome(name, outcome, size=size))

        match reply:
            case InFlight(expires_in_ms=expires_in_ms):
                say(IdempotencyOutcome.IN_FLIGHT)
                raise InFlightError(expires_in_ms / 1000)
            case Mismatch():
                say(IdempotencyOutcome.MISMATCH)
                raise KeyReusedError
            case Abandoned(effect_committed=True):
                say(IdempotencyOutcome.REFUSED)
                raise ResponseNotStoredError
            case Abandoned(attempt=attempt):
                say(IdempotencyOutcome.REFUSED)
                raise OutcomeUnknownError(attempt)
            case _:
                assert not isinstance(reply, Acquired)
                kept, payload = self._recorder.open(key, fingerprint, reply)
                say(IdempotencyOutcome.REPLAYED, len(payload))
                if not kept:
                    raise ResponseNotStoredError(payload)
                return Replay(payload)

    # ---------------------------------------------------------------------------- start and close

    async def __aenter__(self) -> Self:
        """
        Check the store, and start.

        Raises:
            LeaseStateError: It was entered before; make a new one for a new start.
            ConfigurationError: The start-up check found what makes records impossible or unsafe, or the lock's ttl is
                too short for the store.
        """
        if self.phase is not Phase.NEW:
            raise LeaseStateError(
                f"This Idempotency is {self.phase.value}: an Idempotency is entered once. Make a new one."
            )
        self._pid, self._loop = os.getpid(), asyncio.get_running_loop()
        for finding in await _startup.check_server(self.store, self._keeper, self._startup_check):
            self.emit(StoreFinding(finding.code, finding.message, finding.remedy))
        round_trip_s = await _startup.measure_round_trip_s(self.store, self._keeper, self.clock)
        _startup.refuse_short_ttl(self.lock_ttl_s, round_trip_s)
        self.phase = Phase.OPEN
        reach: Reach = getattr(self.store, "reach", "cluster")
        self.emit(IdempotencyStarted(self.instance, type(self.store).__name__, reach))
        return self

    async def __aexit__(self, *_: object) -> None:
        """Wait for what is under way, and stop; see `close`."""
        await self.close()

    async def close(self) -> None:
        """
        Stop, in phases.

        New work is refused; executions, and completions that are tried again, get `drain` seconds to end; what has not
        ended then is left as it is: its lock runs out, and a repeat is told. Closing twice does nothing.
        """
        if self.phase is not Phase.OPEN:
            return
        self.phase = Phase.DRAINING
        await shielded(self._keeper.spawn(self._close()))

    async def _close(self) -> None:
        try:
            await self._all_ended(self.clock.now() + self._drain_s)
        finally:
            unsettled = len(self._running)
            await self._keeper.close()
            self.phase = Phase.CLOSED
            self.emit(IdempotencyClosed(self.instance, unsettled))

    async def _all_ended(self, until: float) -> None:
        await self._keeper.wait_while(lambda: bool(self._running), self._one_ended, until)

    def refuse_unless_open(self) -> None:
        """
        Refuse a call that comes too early, too late, or from a process or an event loop of another's.

        Raises:
            LeaseStateError: It does; nothing was sent.
        """
        if self.phase is not Phase.OPEN:
            raise LeaseStateError(
                f"This Idempotency is {self.phase.value}: requests run inside `async with idempotency:`, while it is "
                "open."
            )
        if self._pid != os.getpid():
            raise LeaseStateError(
                "This Idempotency was started by the parent of this process: make and enter one after the fork."
            )
        if asyncio.get_running_loop() is not self._loop:
            raise LeaseStateError(
                "This Idempotency was entered on another event loop: make and enter one on this loop."
            )

    async def check(self) -> Sequence[Finding]:
        """
        Look at the store's server once, for at most three seconds, without writing; for a health check.

        Returns:
            What was found, "store-unreachable" for a server that does not answer. Nothing for a store that cannot tell.

        Raises:
            ConfigurationError: The store cannot work as it is set up.
        """
        return await _startup.look_at_server(self.store, self._keeper)

    def spawn(self, work: Coroutine[Any, Any, _T]) -> "asyncio.Task[_T]":
        """Run an adapter's own work as a task of the keeper."""
        return self._keeper.spawn(work)

    def emit(self, event: Event) -> None:
        """Tell the hooks of *event*."""
        tell(self._hooks, event)

    @property
    def running(self) -> int:
        """How many executions have begun here and are not settled, those included whose completion is tried again."""
        return len(self._running)

    def _forget(self, execution: Execution) -> None:
        self._running.discard(execution)
        self._one_ended.set()

    def _hear(self, event: Event) -> None:
        """Translate what the keeper says of leases: here they are locks of executions, under keys that are secrets."""
        if isinstance(event, RenewalFailed):
            self.emit(ExtensionFailed(self._recorder.name_of(event.key), event.token, event.error))
        # A loss is reported by its execution, which knows whether it matters; a late extension is one that came.

    def __repr__(self) -> str:
        return f"<Idempotency {self.instance!r} on {type(self.store).__name__}, {self.phase.value}>"


async def _settle_failed(execution: Execution, error: BaseException, on_error: OnError) -> None:
    """Settle an execution whose function raised."""
    policy = execution.context.settlement or on_error
    if isinstance(error, NoEffectError):
        policy = "release"
    elif isinstance(error, OutcomeUnknownError) or not isinstance(error, Exception):
        policy = "abandon"
    if policy == "release":
        await execution.release()
    else:
        execution.abandon()


async def _settle_returned(execution: Execution, value: Any, codec: Codec) -> Any:
    """Settle an execution whose function returned, and return what a repeat would get."""
    settlement = execution.context.settlement
    if settlement == "release":
        await execution.release()
        return value
    if settlement == "abandon":
        execution.abandon()
        return value
    try:
        stored = codec.encode(value)
    except Exception:  # noqa: BLE001 -- whatever a codec raises: the function had its effect
        await execution.leave_tombstone()
        return value
    await execution.complete(stored)
    return codec.decode(stored)
