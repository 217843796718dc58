"""A store whose calls are written down: each before it is sent, and again before its caller goes on."""

from collections.abc import Sequence
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


class Writes(Protocol):
    """What a recorded store needs of its recorder."""

    def invoked(self, op: str, key: str, owner: str, ttl_ms: int | None) -> int:
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

    An answer that the contract does not allow is recorded as unknown, and passed on as it is: what to make of it is
    its caller's to decide.
    """

    def __init__(self, inner: Any, recorder: Writes) -> None:
        self.inner = inner
        self._recorder = recorder

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
        call = self._recorder.invoked("acquire", key, owner, ttl_ms)
        try:
            reply: Acquired | Held = await self.inner.acquire(key, owner, ttl_ms)
        except GeneratorExit:
            raise
        except BaseException as error:
            self._recorder.returned(call, "unknown", type(error).__name__)
            raise
        try:
            check_acquire_reply(reply)
        except StoreReplyError as error:
            self._recorder.returned(call, "unknown", type(error).__name__)
            return reply
        if isinstance(reply, Acquired):
            self._recorder.granted(call, Claim(key, owner, ttl_ms), reply)
        else:
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
        call = self._recorder.invoked("release", key, owner, None)
        released: bool = await self._answer([call], self.inner.release(key, owner))
        return released

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


_CAPABILITIES: dict[type, type[RecordingStore]] = {
    RenewsMany: _Renewing,
    ListsLocks: _Listing,
    ChecksServer: _Checking,
    WakesWaiters: _Waking,
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
