"""
The reference model of an idempotency record: what every call on one key must be answered.

What a call means in each state stands in `tenure._idempotency_machine`, and is read from there; here is what a record
keeps, and which states it may be in about now.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, final

from tenure._idempotency_machine import Answer, Caller, IdempotencyCall, RecordState, Verdict, judge
from tenure.idempotency_store import Abandoned, Acquired, Completed, Completion, InFlight, Mismatch
from tenure.testing.state_machines.possible import Branch
from tenure.testing.state_machines.spans import NEVER, Moment, Span

__all__ = ["Record", "RecordAsk", "record_branches"]


@final
@dataclass(frozen=True, slots=True)
class RecordAsk:
    """
    A call on one key.

    Attributes:
        call: Which.
        owner: By whom.
        span_ms: The lock that is asked for, or the retention.
        grace_ms: The grace that an acquire asks for.
        payload: The fingerprint that an acquire brings.
        takeover: As of `acquire`.
        response: What a completion stores.
        label: What the owner is called in a failure: the owner itself is never shown.
    """

    call: IdempotencyCall
    owner: str
    span_ms: int = 0
    grace_ms: int = 0
    payload: str = ""
    takeover: bool = True
    response: bytes = b""
    label: str = field(default="", compare=False)

    def __str__(self) -> str:
        match self.call:
            case IdempotencyCall.ACQUIRE:
                takes = "" if self.takeover else ", takeover=False"
                return f"acquire({self.label}, {_short(self.payload)}, {self.span_ms}, {self.grace_ms}{takes})"
            case IdempotencyCall.EXTEND:
                return f"extend({self.label}, {self.span_ms})"
            case IdempotencyCall.COMPLETE:
                return f"complete({self.label}, {len(self.response)} bytes, {self.span_ms})"
            case IdempotencyCall.RELEASE:
                return f"release({self.label})"


@final
@dataclass(frozen=True, slots=True)
class Record:
    """
    What is kept of a key.

    Attributes:
        owner: Whose the last attempt is; empty after the release of a later attempt than the first.
        payload: The fingerprint.
        attempt: How many executions began.
        lock_ends: When the lock ends.
        grace_ms: How long after it the record is kept.
        response: The outcome, or None.
        retained: When the outcome is forgotten.
    """

    owner: str
    payload: str
    attempt: int
    lock_ends: Span
    grace_ms: int
    response: bytes | None = None
    retained: Span = NEVER

    @property
    def expires(self) -> Span:
        """When the record ends."""
        return self.lock_ends.plus(self.grace_ms) if self.response is None else self.retained


def record_branches(record: Record | None, ask: RecordAsk, moment: Moment) -> Sequence[Branch[Record | None]]:
    """List every way in which *ask* may end on *record*."""
    return [_branch(kept, state, ask, moment) for state, kept in _states(record, moment)]


def _states(record: Record | None, moment: Moment) -> Iterator[tuple[RecordState, Record | None]]:
    """Every state that a call at *moment* may find the record in, and what is then known of it."""
    if record is None or moment.may_follow(record.expires):
        yield RecordState.ABSENT, None
    if record is None or not moment.may_precede(record.expires):
        return
    if record.response is not None:
        yield RecordState.COMPLETED, replace(record, retained=moment.before(record.retained))
        return
    if record.owner and moment.may_precede(record.lock_ends):
        yield RecordState.IN_FLIGHT, replace(record, lock_ends=moment.before(record.lock_ends))
    if not record.owner or moment.may_follow(record.lock_ends):
        kept = moment.before(record.expires).plus(-record.grace_ms)
        yield RecordState.ABANDONED, replace(record, lock_ends=moment.behind(kept) if record.owner else kept)


def _branch(record: Record | None, state: RecordState, ask: RecordAsk, moment: Moment) -> Branch[Record | None]:
    caller = Caller.OWNER if record is not None and record.owner == ask.owner else Caller.OTHER
    verdict = judge(
        state,
        ask.call,
        caller,
        same_fingerprint=record is None or record.payload == ask.payload,
        takeover=ask.takeover,
        first=record is None or record.attempt == 1,
    )
    after = _written(record, verdict, ask, moment) if verdict.writes else record
    if verdict.answer is Answer.IN_FLIGHT:
        assert record is not None, "what is absent is not in flight"
        least, most = moment.left_ms(record.lock_ends)
        # A store whose clock counts whole milliseconds may tell one less.
        admits = partial(_is_in_flight, least=max(1.0, least - 1), most=most)
        return Branch(f"InFlight({least:.1f} to {most:.1f} ms left)", admits, lambda _: after)
    expected = _reply(record, verdict)
    shown = _shown(expected)
    return Branch(shown, partial(_equals, expected=expected), lambda _: after)


def _reply(record: Record | None, verdict: Verdict) -> object:
    match verdict.answer:
        case Answer.YES | Answer.NO:
            return verdict.answer is Answer.YES
        case Answer.STORED | Answer.STALE | Answer.GONE:
            return Completion(verdict.answer.value)
        case Answer.ACQUIRED:
            return Acquired((record.attempt if record else 0) + verdict.new_attempt)
        case Answer.MISMATCH:
            return Mismatch(verdict.state)
        case _:
            assert record is not None, "what is absent can only be acquired"
            if record.response is None:
                return Abandoned(record.attempt)
            return Completed(record.response, record.owner)


def _written(record: Record | None, verdict: Verdict, ask: RecordAsk, moment: Moment) -> Record | None:
    ends = moment.after(ask.span_ms)
    if verdict.new_attempt:
        attempt = 1 if record is None else record.attempt + 1
        return Record(ask.owner, ask.payload, attempt, ends, ask.grace_ms)
    if verdict.state is RecordState.ABSENT:
        return None
    assert record is not None, "what is absent can only be acquired"
    if verdict.state is RecordState.COMPLETED:
        return replace(record, response=ask.response, retained=ends)
    if verdict.state is RecordState.ABANDONED:
        return replace(record, owner="", lock_ends=moment.after(0))
    return replace(record, lock_ends=record.lock_ends.or_later(ends))


def _equals(reply: Any, *, expected: object) -> bool:
    if isinstance(reply, Completed) and type(reply.response) is not bytes:
        return False
    if isinstance(reply, Acquired | Abandoned) and type(reply.attempt) is not int:
        return False
    return type(reply) is type(expected) and bool(reply == expected)


def _is_in_flight(reply: object, *, least: float, most: float) -> bool:
    if not isinstance(reply, InFlight) or type(reply.expires_in_ms) is not int:
        return False
    return least <= reply.expires_in_ms <= most


def _shown(reply: object) -> str:
    if isinstance(reply, Completed):
        return f"Completed({len(reply.response)} bytes, and who completed it)"
    return repr(reply)


def _short(payload: str) -> str:
    return repr(payload if len(payload) <= 20 else f"{payload[:8]}...{payload[-1]}")
