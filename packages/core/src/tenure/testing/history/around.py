"""A store whose calls are written down: each before it is sent, and again before its caller goes on."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, cast

from tenure.errors import StoreReplyError
from tenure.store import (
    Acquired,
    ChecksServer,
    Claim,
    Finding,
    Held,
    ListsLocks,
    LockRecord,
    LockStore,
    QueuesWaiters,
    Reach,
    RenewsMany,
    WakesWaiters,
    check_acquire_reply,
    check_key,
    check_owner,
    check_ttl_ms,
)

__all__ = ["RecordingStore", "recording_store"]

Result = Literal["ok", "no", "unknown"]


@dataclass(frozen=True, slots=True)
class _Placed:
    """An `acquire_queued` that was answered `Held`: until when a grant that follows it can be believed in."""

    call: int
    ttl_ms: int
    lasts_until: float
    doubtful: bool


class Writes(Protocol):
    """What a recorded store needs of its recorder."""

    def now(self) -> float:
        """Read the history's clock, in seconds."""
        ...

    def invoked(self, op: str, key: str, owner: str, ttl_ms: int | None, place_ms: int | None = None) -> int:
        """Write down that a call is about to be sent; return its number."""
        ...

    def granted(self, call: int, claim: Claim, reply: Acquired) -> None:
        """Write down that an acquire was granted."""
        ...

    def returned(self, call: int, result: Result, error: str | None = None) -> None:
        """Write down how a call ended."""
        ...


class RecordingStore:
    """
    A `LockStore` around another one, made by `HistoryRecorder.around`.

    An `acquire_queued` that was answered `Held` stays open: a release may grant the lock to its owner from then on. It
    ends with the grant, when that is heard, or as unknown with the next call of its owner.

    An answer that the contract does not allow is recorded as unknown, and passed on as it is: what to make of it is
    its caller's to decide.
    """

    def __init__(self, inner: Any, recorder: Writes) -> None:
        self.inner = inner
        self._recorder = recorder
        # By key and owner, the last `acquire_queued` that was answered `Held`, and is open.
        self._placed: dict[tuple[str, str], _Placed] = {}
        # Grants that were heard of while their owner was asking again: they count from the answer on, if at all.
        self._heard: dict[tuple[str, str], Acquired] = {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.inner!r})"

    @property
    def reach(self) -> Reach:
        """As far as the inner store's."""
        reach: Reach = getattr(self.inner, "reach", "cluster")
        return reach

    async def acquire(self, key: str, owner: str, ttl_ms: int) -> Acquired | Held:
        """Acquire, and write it down."""
        _check(key, owner)
        check_ttl_ms(ttl_ms)
        self._end_place(key, owner)
        call = self._recorder.invoked("acquire", key, owner, ttl_ms)
        reply = await self._taken(call, Claim(key, owner, ttl_ms), self.inner.acquire(key, owner, ttl_ms))
        if type(reply) is Held:
            self._recorder.returned(call, "no")
        return reply

    async def renew(self, key: str, owner: str, ttl_ms: int) -> bool:
        """Renew, and write it down."""
        _check(key, owner)
        check_ttl_ms(ttl_ms)
        call = self._recorder.invoked("renew", key, owner, ttl_ms)
        renewed: bool = await self._answer([call], self.inner.renew(key, owner, ttl_ms))
        return renewed

    async def release(self, key: str, owner: str) -> bool:
        """Release, and write it down."""
        _check(key, owner)
        self._end_place(key, owner)
        call = self._recorder.invoked("release", key, owner, None)
        released: bool = await self._answer([call], self.inner.release(key, owner))
        return released

    async def _taken(self, call: int, claim: Claim, asking: Any) -> Acquired | Held:
        """Wait for what may take a key, and write down a grant, and what is no answer."""
        try:
            reply: Acquired | Held = await asking
        except GeneratorExit:
            raise
        except BaseException as error:
            self._recorder.returned(call, "unknown", type(error).__name__)
            raise
        self._note_reply(call, claim, reply)
        return reply

    def _note_reply(self, call: int, claim: Claim, reply: object) -> None:
        """Write down a grant, or that an answer is none; a refusal is its caller's to write down."""
        try:
            allowed = check_acquire_reply(reply)
        except StoreReplyError as error:
            self._recorder.returned(call, "unknown", type(error).__name__)
            return
        if isinstance(allowed, Acquired):
            self._recorder.granted(call, claim, allowed)

    def _end_place(self, key: str, owner: str) -> "_Placed | None":
        """Write down the end of a wait in the queue: what became of it, its owner's next call tells."""
        place = self._placed.pop((key, owner), None)
        if place is not None:
            self._recorder.returned(place.call, "unknown")
        self._heard.pop((key, owner), None)
        return place

    async def _answer(self, calls: list[int], asking: Any, *, many: bool = False) -> Any:
        """Wait for what was asked in *calls*, and write down its answers."""
        try:
            reply = await asking
        except GeneratorExit:
            # The loop is gone, and whatever this call did is not known to anybody: it stays open.
            raise
        except BaseException as error:
            for call in calls:
                self._recorder.returned(call, "unknown", type(error).__name__)
            raise
        readable = not many or (isinstance(reply, Sequence) and len(reply) == len(calls))
        answers: Sequence[Any] = [reply] if not many else reply if readable else [reply] * len(calls)
        for call, answer in zip(calls, answers, strict=True):
            if type(answer) is bool and readable:
                self._recorder.returned(call, "ok" if answer else "no")
            else:
                told = many and readable and answer is None
                self._recorder.returned(call, "unknown", None if told else StoreReplyError.__name__)
        return reply


class _Renewing(RecordingStore):
    async def renew_many(self, claims: Sequence[Claim]) -> Sequence[bool | None]:
        """Renew many, and write each of them down as a call of its own."""
        claims = list(claims)
        for claim in claims:
            _check(claim.key, claim.owner)
            check_ttl_ms(claim.ttl_ms)
        calls = [self._recorder.invoked("renew", claim.key, claim.owner, claim.ttl_ms) for claim in claims]
        replies: Sequence[bool | None] = await self._answer(calls, self.inner.renew_many(claims), many=True)
        return replies


class _Listing(RecordingStore):
    async def list_locks(self, prefix: str = "") -> Sequence[LockRecord]:
        """List the live locks; a look is not recorded."""
        locks: Sequence[LockRecord] = await self.inner.list_locks(prefix)
        return locks


class _Checking(RecordingStore):
    async def check(self) -> Sequence[Finding]:
        """Check the server; a look is not recorded."""
        findings: Sequence[Finding] = await self.inner.check()
        return findings


class _Waking(RecordingStore):
    async def released(self, key: str) -> None:
        """Wait for a release; a wait is not recorded."""
        await self.inner.released(key)


class _Queueing(RecordingStore):
    async def acquire_queued(self, key: str, owner: str, ttl_ms: int, place_ms: int) -> Acquired | Held:
        """Acquire or queue, and write it down as an acquire, whose outcome is open while it has its place."""
        _check(key, owner)
        check_ttl_ms(ttl_ms)
        check_ttl_ms(place_ms)
        before, sent_at = self._end_place(key, owner), self._recorder.now()
        call = self._recorder.invoked("acquire", key, owner, ttl_ms, place_ms)
        asking = self.inner.acquire_queued(key, owner, ttl_ms, place_ms)
        reply = await self._taken(call, Claim(key, owner, ttl_ms), asking)
        if type(reply) is Held:
            # Longer than a ttl since the look before: a grant may have come and gone, and its message may be late.
            doubtful = before is not None and (before.doubtful or self._recorder.now() >= before.lasts_until)
            self._placed[key, owner] = _Placed(call, ttl_ms, sent_at + ttl_ms / 1000, doubtful)
            self._note_grant(key, owner, self._heard.pop((key, owner), None))
        return reply

    async def granted(self, key: str, owner: str) -> Acquired:
        """Wait for a grant, and write it down as the answer of the last `acquire_queued`."""
        reply: Acquired = await self.inner.granted(key, owner)
        if (key, owner) in self._placed:
            self._note_grant(key, owner, reply)
        else:
            self._heard[key, owner] = reply
        return reply

    def _note_grant(self, key: str, owner: str, granted: object) -> None:
        place = self._placed[key, owner]
        sound = not place.doubtful and self._recorder.now() < place.lasts_until
        if sound and granted is not None and not isinstance(granted, Held):
            del self._placed[key, owner]
            self._note_reply(place.call, Claim(key, owner, place.ttl_ms), granted)


_CAPABILITIES: dict[type, type[RecordingStore]] = {
    RenewsMany: _Renewing,
    ListsLocks: _Listing,
    ChecksServer: _Checking,
    WakesWaiters: _Waking,
    QueuesWaiters: _Queueing,
}

_made: dict[frozenset[type], type[RecordingStore]] = {}


def recording_store(store: LockStore, recorder: Writes) -> LockStore:
    """Wrap *store* in the class that has exactly its capabilities: `isinstance` asks the class."""
    offered = frozenset(one for one in _CAPABILITIES if isinstance(store, one))
    if offered not in _made:
        parts = [part for one, part in _CAPABILITIES.items() if one in offered]
        body = {"__module__": RecordingStore.__module__}
        _made[offered] = type(RecordingStore.__name__, (*parts, RecordingStore), body)
    return cast("LockStore", _made[offered](store, recorder))


def _check(key: str, owner: str) -> None:
    """Refuse what every store refuses before any call: nothing is sent, so nothing is recorded."""
    check_key(key)
    check_owner(owner)
