"""
The idempotency machine: what a record of a request allows, call by call.

Theory
------
A client that got no answer repeats its request under the same key. The record of a key tells the repeat what became of
the first one:

    ABSENT      nothing is known; also a record whose time has ended
    IN_FLIGHT   an execution is believed alive: its owner keeps extending the record's lock
    ABANDONED   an execution began, its lock ran out, and its outcome is unknown. Derived from time, never written: a
                process that dies writes nothing
    COMPLETED   the outcome is known, and immutable until its retention ends

    ABSENT ----acquire---> IN_FLIGHT ----complete--> COMPLETED
      ^                     |  ^   |                    |
      |<------release-------+  |   +--lock ends--> ABANDONED
      |                        +-------acquire----------+ |      one attempt more
      |<---------------- grace or retention ends ---------+------+

- Anyone may acquire; only the recorded owner may extend, complete and release; only acquire changes the owner.
- A record with another fingerprint answers MISMATCH in every state but ABSENT, before anything else is looked at: the
  same key with another payload is a mistake of the client's, also after a crash.
- acquire and complete are safe to repeat by their owner: a lost reply is asked for again. The first completion wins.
- release means "this execution is known to have had no effect", and nothing else. After an earlier attempt whose
  outcome is unknown the record stays, ABANDONED and without an owner: what is not known of the first attempt is not
  known of the key. Nothing but time removes COMPLETED.
- An execution may prove its effect in the transaction that has it. Such a record is never released and never begun
  again: only its response can be lost.
- A late owner whose record nobody took over may still extend and complete it; one that was replaced may not, and is
  told so: STALE, nothing written.

The rules stand in this file and nowhere else. It reads no clock, knows no event loop and does no I/O: whether a lock or
a retention has ended is the store's to say, in one atomic step with what follows from it.
"""

import enum
from dataclasses import dataclass
from typing import Final, final

__all__ = ["TRANSITIONS", "Answer", "Caller", "IdempotencyCall", "RecordState", "Verdict", "judge", "state_at"]


@final
class RecordState(enum.Enum):
    """What is known of a request."""

    ABSENT = "absent"
    IN_FLIGHT = "in flight"
    ABANDONED = "abandoned"
    COMPLETED = "completed"


@final
class IdempotencyCall(enum.Enum):
    """What can be asked of a record."""

    ACQUIRE = "acquire"
    EXTEND = "extend"
    COMPLETE = "complete"
    RELEASE = "release"


@final
class Caller(enum.Enum):
    """Who asks: the recorded owner, or somebody else. On an absent record everyone is somebody else."""

    OWNER = "owner"
    OTHER = "other"


@final
class Answer(enum.Enum):
    """What the record answers."""

    ACQUIRED = "acquired"
    IN_FLIGHT = "in flight"
    ABANDONED = "abandoned"
    MISMATCH = "mismatch"
    COMPLETED = "completed"
    YES = "yes"
    NO = "no"
    STORED = "stored"
    STALE = "stale"
    GONE = "gone"


@final
@dataclass(frozen=True, slots=True)
class Verdict:
    """
    What follows from a call.

    Attributes:
        answer: What the caller is told.
        state: The state after the call.
        writes: Whether the record changes at all. A completion that is repeated stores nothing: the first one wins.
        new_attempt: Whether the caller becomes the owner of one attempt more.
    """

    answer: Answer
    state: RecordState
    writes: bool = False
    new_attempt: bool = False


_ABSENT, _IN_FLIGHT, _ABANDONED, _COMPLETED = RecordState
_ACQUIRE, _EXTEND, _COMPLETE, _RELEASE = IdempotencyCall
_OWNER, _OTHER = Caller

TRANSITIONS: Final[dict[tuple[RecordState, IdempotencyCall, Caller], Verdict]] = {
    (_ABSENT, _ACQUIRE, _OTHER): Verdict(Answer.ACQUIRED, _IN_FLIGHT, writes=True, new_attempt=True),
    (_ABSENT, _EXTEND, _OTHER): Verdict(Answer.NO, _ABSENT),
    (_ABSENT, _COMPLETE, _OTHER): Verdict(Answer.GONE, _ABSENT),
    (_ABSENT, _RELEASE, _OTHER): Verdict(Answer.NO, _ABSENT),
    (_IN_FLIGHT, _ACQUIRE, _OWNER): Verdict(Answer.ACQUIRED, _IN_FLIGHT, writes=True),
    (_IN_FLIGHT, _ACQUIRE, _OTHER): Verdict(Answer.IN_FLIGHT, _IN_FLIGHT),
    (_IN_FLIGHT, _EXTEND, _OWNER): Verdict(Answer.YES, _IN_FLIGHT, writes=True),
    (_IN_FLIGHT, _EXTEND, _OTHER): Verdict(Answer.NO, _IN_FLIGHT),
    (_IN_FLIGHT, _COMPLETE, _OWNER): Verdict(Answer.STORED, _COMPLETED, writes=True),
    (_IN_FLIGHT, _COMPLETE, _OTHER): Verdict(Answer.STALE, _IN_FLIGHT),
    (_IN_FLIGHT, _RELEASE, _OWNER): Verdict(Answer.YES, _ABSENT, writes=True),
    (_IN_FLIGHT, _RELEASE, _OTHER): Verdict(Answer.NO, _IN_FLIGHT),
    (_ABANDONED, _ACQUIRE, _OWNER): Verdict(Answer.ACQUIRED, _IN_FLIGHT, writes=True),
    (_ABANDONED, _ACQUIRE, _OTHER): Verdict(Answer.ACQUIRED, _IN_FLIGHT, writes=True, new_attempt=True),
    (_ABANDONED, _EXTEND, _OWNER): Verdict(Answer.YES, _IN_FLIGHT, writes=True),
    (_ABANDONED, _EXTEND, _OTHER): Verdict(Answer.NO, _ABANDONED),
    (_ABANDONED, _COMPLETE, _OWNER): Verdict(Answer.STORED, _COMPLETED, writes=True),
    (_ABANDONED, _COMPLETE, _OTHER): Verdict(Answer.STALE, _ABANDONED),
    (_ABANDONED, _RELEASE, _OWNER): Verdict(Answer.YES, _ABSENT, writes=True),
    (_ABANDONED, _RELEASE, _OTHER): Verdict(Answer.NO, _ABANDONED),
    (_COMPLETED, _ACQUIRE, _OWNER): Verdict(Answer.COMPLETED, _COMPLETED),
    (_COMPLETED, _ACQUIRE, _OTHER): Verdict(Answer.COMPLETED, _COMPLETED),
    (_COMPLETED, _EXTEND, _OWNER): Verdict(Answer.NO, _COMPLETED),
    (_COMPLETED, _EXTEND, _OTHER): Verdict(Answer.NO, _COMPLETED),
    (_COMPLETED, _COMPLETE, _OWNER): Verdict(Answer.STORED, _COMPLETED),
    (_COMPLETED, _COMPLETE, _OTHER): Verdict(Answer.STALE, _COMPLETED),
    (_COMPLETED, _RELEASE, _OWNER): Verdict(Answer.NO, _COMPLETED),
    (_COMPLETED, _RELEASE, _OTHER): Verdict(Answer.NO, _COMPLETED),
}
"""Every state under every call by every caller. An absent record has no owner, so it knows only others."""


def state_at(now: float, *, completed: bool, lock_ends: float, expires: float) -> RecordState:
    """
    Derive the state of a stored record at *now*.

    Args:
        now: On the store's clock, in any unit.
        completed: Whether an outcome is stored.
        lock_ends: When the lock of the execution ends, in the same unit.
        expires: When the grace or the retention ends, in the same unit.
    """
    if now >= expires:
        return _ABSENT
    if completed:
        return _COMPLETED
    return _IN_FLIGHT if now < lock_ends else _ABANDONED


def judge(  # noqa: PLR0913 -- what a record and a call say, by name
    state: RecordState,
    call: IdempotencyCall,
    caller: Caller,
    *,
    same_fingerprint: bool = True,
    takeover: bool = True,
    first: bool = True,
    effect: bool = False,
) -> Verdict:
    """
    Judge one call on a record.

    Args:
        state: The state of the record, as of now on the store's clock.
        call: What is asked.
        caller: Who asks.
        same_fingerprint: With ACQUIRE, whether the payload is the recorded one.
        takeover: With ACQUIRE, whether an abandoned execution may be begun again.
        first: Whether the recorded attempt is the first one.
        effect: Whether the effect of the recorded attempt is committed.
    """
    if state is _ABSENT:
        return TRANSITIONS[state, call, _OTHER]
    if call is _ACQUIRE and not same_fingerprint:
        return Verdict(Answer.MISMATCH, state)
    if call is _ACQUIRE and state is _ABANDONED and caller is _OTHER and (effect or not takeover):
        return Verdict(Answer.ABANDONED, state)
    verdict = TRANSITIONS[state, call, caller]
    if call is _RELEASE and verdict.writes and effect:
        return Verdict(Answer.NO, state)
    if call is _RELEASE and verdict.writes and not first:
        return Verdict(Answer.YES, _ABANDONED, writes=True)
    return verdict
