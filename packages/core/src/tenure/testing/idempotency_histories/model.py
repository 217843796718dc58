"""One record as the machine says it must be, call by call: what stores are compared with."""

from dataclasses import dataclass
from typing import Any, final

from tenure._idempotency_machine import Answer, Caller, IdempotencyCall, RecordState, Verdict, judge, state_at
from tenure.idempotency_store import Abandoned, Acquired, AcquireReply, Completed, Completion, InFlight, Mismatch

__all__ = ["Ask", "RecordModel", "Reply"]

Reply = AcquireReply | Completion | bool
"""What a call may answer."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """
    One call on a record.

    Attributes:
        call: Which.
        owner: By whom.
        payload: The fingerprint that an acquire brings.
        takeover: As of `acquire`.
        span_ms: The lock that is asked for, or the retention.
        grace_ms: The grace that an acquire asks for.
        response: What a completion stores.
    """

    call: IdempotencyCall
    owner: str
    payload: str
    takeover: bool
    span_ms: int
    grace_ms: int
    response: bytes

    async def send(self, store: Any, key: str) -> Reply:
        """Ask *store*."""
        reply: Reply
        match self.call:
            case IdempotencyCall.ACQUIRE:
                reply = await store.acquire(
                    key, self.owner, self.payload, self.span_ms, self.grace_ms, takeover=self.takeover
                )
            case IdempotencyCall.EXTEND:
                reply = await store.extend(key, self.owner, self.span_ms)
            case IdempotencyCall.COMPLETE:
                reply = await store.complete(key, self.owner, self.response, self.span_ms)
            case IdempotencyCall.RELEASE:
                reply = await store.release(key, self.owner)
        return reply


@dataclass(slots=True)
class _Record:
    """What is known of a key. Times in milliseconds since the histories began."""

    owner: str
    payload: str
    attempt: int
    lock_ends: int
    grace_ms: int
    expires: int
    response: bytes | None = None


@final
class RecordModel:
    """The record of one key."""

    def __init__(self) -> None:
        self._record: _Record | None = None

    @property
    def owner(self) -> str | None:
        """Who is recorded, whether its time has ended or not."""
        return self._record.owner if self._record else None

    def answer(self, ask: Ask, now_ms: int) -> Reply:
        """Say what *ask* is answered at *now_ms*, and keep what it writes."""
        record = self._at(now_ms)
        verdict = self._judge(record, ask, now_ms)
        reply = _reply(record, verdict, now_ms)
        if verdict.writes:
            self._record = _written(record, verdict, ask, now_ms)
        return reply

    def _at(self, now_ms: int) -> _Record | None:
        if self._record is not None and self._record.expires <= now_ms:
            self._record = None
        return self._record

    @staticmethod
    def _judge(record: _Record | None, ask: Ask, now_ms: int) -> Verdict:
        if record is None:
            return judge(RecordState.ABSENT, ask.call, Caller.OTHER)
        state = state_at(
            now_ms, completed=record.response is not None, lock_ends=record.lock_ends, expires=record.expires
        )
        return judge(
            state,
            ask.call,
            Caller.OWNER if record.owner == ask.owner else Caller.OTHER,
            same_fingerprint=record.payload == ask.payload,
            takeover=ask.takeover,
            first=record.attempt == 1,
        )


def _reply(record: _Record | None, verdict: Verdict, now_ms: int) -> Reply:
    match verdict.answer:
        case Answer.YES | Answer.NO:
            return verdict.answer is Answer.YES
        case Answer.STORED | Answer.STALE | Answer.GONE:
            return Completion(verdict.answer.value)
        case Answer.ACQUIRED:
            return Acquired((record.attempt if record else 0) + verdict.new_attempt)
        case _:
            assert record is not None, "what is absent can only be acquired"
            return _refusal(record, verdict, now_ms)


def _refusal(record: _Record, verdict: Verdict, now_ms: int) -> AcquireReply:
    match verdict.answer:
        case Answer.MISMATCH:
            return Mismatch(verdict.state)
        case Answer.IN_FLIGHT:
            return InFlight(record.lock_ends - now_ms)
        case Answer.ABANDONED:
            return Abandoned(record.attempt)
        case _:
            assert record.response is not None, "what is completed has its response"
            return Completed(record.response, record.owner)


def _written(record: _Record | None, verdict: Verdict, ask: Ask, now_ms: int) -> _Record | None:
    ends = now_ms + ask.span_ms
    if verdict.new_attempt:
        attempt = 1 if record is None else record.attempt + 1
        return _Record(ask.owner, ask.payload, attempt, ends, ask.grace_ms, ends + ask.grace_ms)
    if verdict.state is RecordState.ABSENT:
        return None
    assert record is not None, "what is absent can only be acquired"
    if verdict.state is RecordState.COMPLETED:
        record.response, record.expires = ask.response, ends
    elif verdict.state is RecordState.ABANDONED:
        record.owner, record.lock_ends, record.expires = "", now_ms, now_ms + record.grace_ms
    else:
        record.lock_ends = max(record.lock_ends, ends)
        record.expires = record.lock_ends + record.grace_ms
    return record
