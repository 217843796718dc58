"""
The calls that are grouped: how each kind is asked alone and together, and how its answers are read.

What is asked together is one statement for many callers. It may be unable to tell about some of them, because another
session has their row locked: these get `ALONE` for an answer, and ask again by themselves.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Final, Protocol, final

from tenure.store import Acquired, Claim, Held
from tenure_postgres.errors import TokensExhaustedError
from tenure_postgres.statements import LockStatements

__all__ = ["ALONE", "Acquisitions", "Call", "Kind", "ManyRenewals", "Releases", "Renewals"]

ALONE: Final = object()
"""The answer "this statement cannot tell": the caller asks again, alone, on a connection of the pool."""

_MOST: Final = 500
"""
Calls in one statement: enough that the commit they share costs each of them nothing, and few enough that none waits
long for the others. It is as many as the engine renews in one call.
"""


@final
class Call:
    """
    One caller's question.

    Attributes:
        key: The key; empty where `claims` are asked about.
        owner: The owner.
        ttl_ms: The ttl, in whole milliseconds; 0 where there is none.
        claims: What is renewed together, as the caller gave it.
        answer: What its caller waits for.
        place: Its place among the calls of its lane, by arrival.
    """

    __slots__ = ("answer", "claims", "key", "owner", "place", "ttl_ms")

    def __init__(self, key: str, owner: str, ttl_ms: int, claims: Sequence[Claim] = ()) -> None:
        self.key = key
        self.owner = owner
        self.ttl_ms = ttl_ms
        self.claims = claims
        self.answer: asyncio.Future[Any]
        self.place: int


Rows = Sequence[Any]
"""What the driver returned: each can be read by name and by place."""

Statement = tuple[Any, ...]
"""A statement's text and its arguments."""


class Kind(Protocol):
    """One kind of call."""

    most: int
    """How many go into one statement."""

    def alone(self, call: Call, row_wait: str) -> Statement:
        """One call, which may wait for its row for *row_wait*."""
        ...

    def together(self, calls: Sequence[Call], row_wait: str) -> Statement:
        """Calls on keys that differ; it waits for no row, and for another session's insert as long as *row_wait*."""
        ...

    def read_alone(self, rows: Rows, call: Call) -> Any:
        """What *call* gets for an answer, or an exception to raise."""
        ...

    def read_together(self, rows: Rows, calls: Sequence[Call]) -> Sequence[Any]:
        """What each of *calls* gets: an answer, an exception to raise, or `ALONE`."""
        ...


@final
class Acquisitions:
    """`acquire`."""

    most = _MOST

    def __init__(self, sql: LockStatements) -> None:
        self._sql = sql

    def alone(self, call: Call, row_wait: str) -> Statement:
        """One statement for one row."""
        return self._sql.acquire, call.key, call.owner, call.ttl_ms, row_wait

    def together(self, calls: Sequence[Call], row_wait: str) -> Statement:
        """One statement for all of them."""
        return (
            self._sql.acquire_many,
            [call.key for call in calls],
            [call.owner for call in calls],
            [call.ttl_ms for call in calls],
            row_wait,
        )

    def read_alone(self, rows: Rows, call: Call) -> Any:  # noqa: ARG002 -- the same for all
        """Its answer."""
        [row] = rows
        if row["token"] is not None:
            return Acquired(row["token"], row["after"])
        if row["expires_in_ms"] is None and row["exhausted"]:
            return TokensExhaustedError()
        return Held(row["expires_in_ms"])

    def read_together(self, rows: Rows, calls: Sequence[Call]) -> Sequence[Any]:
        """Their answers."""
        answers: list[Any] = [ALONE] * len(calls)
        places: dict[str, int] = {}
        for place, key, token, after, expires_in_ms in rows:
            if key is not None:
                places = places or {call.key: at for at, call in enumerate(calls)}
                answers[places[key]] = Acquired(token, None)
            elif token is not None:
                answers[place - 1] = Acquired(token, after)
            elif after is None:
                answers[place - 1] = Held(expires_in_ms)
            else:
                answers[place - 1] = TokensExhaustedError()
        return answers


class _OfOneOwner:
    """What renewals and releases share: an answer is whether the owner still held the lock."""

    most = _MOST

    def __init__(self, sql: LockStatements) -> None:
        self._sql = sql

    def read_alone(self, rows: Rows, call: Call) -> Any:  # noqa: ARG002 -- the same for all
        """Its answer."""
        return bool(rows)

    def read_together(self, rows: Rows, calls: Sequence[Call]) -> Sequence[Any]:
        """Their answers."""
        return _answers_by_place(rows, len(calls), ALONE)


@final
class Renewals(_OfOneOwner):
    """`renew`."""

    def alone(self, call: Call, row_wait: str) -> Statement:
        """One statement for one row."""
        return self._sql.renew, call.key, call.owner, call.ttl_ms, row_wait

    def together(self, calls: Sequence[Call], row_wait: str) -> Statement:  # noqa: ARG002 -- it waits for nothing
        """One statement for all of them."""
        return (
            self._sql.renew_many,
            [call.key for call in calls],
            [call.owner for call in calls],
            [call.ttl_ms for call in calls],
        )


@final
class Releases(_OfOneOwner):
    """`release`."""

    def alone(self, call: Call, row_wait: str) -> Statement:
        """One statement for one row."""
        return self._sql.release, call.key, call.owner, row_wait

    def together(self, calls: Sequence[Call], row_wait: str) -> Statement:  # noqa: ARG002 -- it waits for nothing
        """One statement for all of them."""
        return self._sql.release_many, [call.key for call in calls], [call.owner for call in calls]


@final
class ManyRenewals:
    """`renew_many`: a group that its caller made. It travels as it is, and is answered as a whole."""

    most = 1

    def __init__(self, sql: LockStatements) -> None:
        self._sql = sql

    def alone(self, call: Call, row_wait: str) -> Statement:  # noqa: ARG002 -- it waits for nothing
        """One statement for one row."""
        claims = call.claims
        return (
            self._sql.renew_many,
            [claim.key for claim in claims],
            [claim.owner for claim in claims],
            [claim.ttl_ms for claim in claims],
        )

    def together(self, calls: Sequence[Call], row_wait: str) -> Statement:
        """One statement for all of them."""
        [call] = calls
        return self.alone(call, row_wait)

    def read_alone(self, rows: Rows, call: Call) -> Any:
        """Its answer."""
        return _answers_by_place(rows, len(call.claims), None)

    def read_together(self, rows: Rows, calls: Sequence[Call]) -> Sequence[Any]:
        """Their answers."""
        [call] = calls
        return [self.read_alone(rows, call)]


def _answers_by_place(rows: Rows, count: int, unknown: Any) -> list[Any]:
    """True for each place that was done, False for each that was refused, *unknown* for the rest."""
    done: Sequence[int] | None
    [(done, refused)] = rows
    if done is not None and len(done) == count:
        return [True] * count
    answers = [unknown] * count
    for places, answer in ((done, True), (refused, False)):
        for place in places or ():
            answers[place - 1] = answer
    return answers
