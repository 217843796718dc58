"""
Random histories: the same calls on several stores side by side, and on the machine itself.

Contract cases show what somebody thought of. A history shows the rest: a few owners and two payloads on one key, time
that passes, and every store must answer every call as the machine does. Prior art: Jepsen's histories, and Hypothesis's
stateful tests; here many keys share each pause, so that thousands of calls on a real server take half a minute.
"""

import asyncio
import random
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

from tenure.errors import ConfigurationError
from tenure.idempotency_store import Acquired, Completed, IdempotencyStore, InFlight
from tenure.testing.idempotency_histories.drawing import PARTS, History
from tenure.testing.idempotency_histories.model import Ask, Reply

__all__ = ["HistoriesReport", "idempotency_histories"]

_LATE_IN_A_ROW = 2
"""So many ticks that come too late, one after the other, are no accident: the unit is doubled."""

_MOST_DOUBLED = 4
_MOST_A_TICK = 3
_LATE_SHARE = 4
"""A tick may take this part of a unit: a quarter, which leaves a twelfth between its last call and the next end."""


@final
@dataclass(frozen=True, slots=True)
class HistoriesReport:
    """
    What a run of histories was.

    Attributes:
        seed: Give it again, and the same calls are drawn.
        calls: How many calls each store was asked.
        answers: How many times each answer was given, by its name: what the histories came by. "Acquired again" is
            an acquisition of a later attempt than the first.
        unit_ms: The unit of time that they ran with at last.
    """

    seed: int
    calls: int
    answers: Mapping[str, int]
    unit_ms: int


async def idempotency_histories(  # noqa: PLR0913 -- options of one call, each with a default
    stores: Mapping[str, IdempotencyStore],
    *,
    calls: int = 2000,
    seed: int | None = None,
    keys: int = 40,
    advance_time: Callable[[float], Awaitable[None]] | None = None,
    unit_ms: int = 900,
) -> HistoriesReport:
    """
    Drive *stores* through the same random histories, and compare every answer with the machine's.

    Keys and owners are drawn, so that a server may be shared; what is left on it ends within eight units.

    Args:
        stores: The stores, by the names that a difference is to be told with.
        calls: How many calls each of them is asked.
        seed: Of what is drawn; a random one if None. It is in the report, and in the message of a difference.
        keys: How many histories run interleaved, each on a key of its own.
        advance_time: Moves the clock of all stores by so many seconds. Without it the time is waited for: half a
            minute for 2000 calls on 40 keys.
        unit_ms: The time between two rounds of calls, a multiple of 6. A round that takes longer than a quarter of
            it says nothing: it is not counted, and histories on new keys follow it; after two in a row, with twice
            the unit, four times it at most. In real time a seed repeats a run only as far as its first such round.

    Returns:
        What was run. That it returns means that no answer differed.

    Raises:
        AssertionError: A store answered otherwise than the machine. The message tells the first difference and the
            history that led to it.
        TimeoutError: The stores were too slow for the unit, also for four times it.
        ConfigurationError: An option is out of range.
    """
    if not stores or calls < 1 or keys < 1 or unit_ms < PARTS or unit_ms % PARTS:
        raise ConfigurationError(
            f"Histories take a store, a call and a key at least, and a unit that is a multiple of {PARTS} ms."
        )
    seed = secrets.randbits(32) if seed is None else seed
    run = _Run(stores, seed, keys, advance_time, unit_ms)
    await run.play(calls)
    return HistoriesReport(seed, run.asked, run.answers, run.unit_ms)


@dataclass(slots=True)
class _Turn:
    """One call of one history, and what each store answered."""

    history: History
    ask: Ask
    expected: Reply
    now_ms: int
    replies: dict[str, Any] = field(default_factory=dict)


@final
class _Run:
    """One run of histories, with one unit of time."""

    def __init__(
        self,
        stores: Mapping[str, IdempotencyStore],
        seed: int,
        keys: int,
        advance_time: Callable[[float], Awaitable[None]] | None,
        unit_ms: int,
    ) -> None:
        self.unit_ms = unit_ms
        self.asked = 0
        self.answers: Counter[str] = Counter()
        self._stores = stores
        self._seed = seed
        self._rng = random.Random(seed)  # noqa: S311 -- repeated by its seed, and no secret
        self._keys = keys
        self._advance_time = advance_time
        self._longest_unit_ms = unit_ms * _MOST_DOUBLED
        self._late_in_a_row = 0
        self._begin()

    def _begin(self) -> None:
        """Begin histories on new keys, now."""
        self._histories = [History(number, self._rng, self.unit_ms) for number in range(self._keys)]
        self._now_ms = 0
        self._began_at = asyncio.get_running_loop().time()

    async def play(self, calls: int) -> None:
        """Ask so many calls."""
        while self.asked < calls:
            await self._pass(self._rng.choice([1, 1, 1, 2, 3]))
            turns = self._draw(calls - self.asked)
            purges = self._rng.random() < 0.3
            await asyncio.gather(
                *(self._drive(name, batch) for batch in turns for name in self._stores),
                *(self._purge(name) for name in self._stores if purges),
            )
            if self._is_late():
                self._begin_anew()
                continue
            self._late_in_a_row = 0
            for batch in turns:
                for turn in batch:
                    self._compare(turn)

    def _begin_anew(self) -> None:
        """Leave histories whose records may have ended before they were looked at: their answers say nothing."""
        self._late_in_a_row += 1
        if self._late_in_a_row % _LATE_IN_A_ROW == 0:
            if self.unit_ms == self._longest_unit_ms:
                raise TimeoutError(
                    f"A round of calls took more than a quarter of {self.unit_ms} ms, again and again: the stores are "
                    "too slow for their histories to say anything. Give a greater unit_ms, or fewer keys."
                )
            self.unit_ms *= 2
        self._begin()

    def _draw(self, most: int) -> list[list[_Turn]]:
        """Draw the calls of one tick: a few on each key."""
        batches = []
        for history in self._histories:
            count = min(self._rng.randint(1, _MOST_A_TICK), most)
            batches.append([_Turn(history, *history.ask(self._now_ms), self._now_ms) for _ in range(count)])
            most -= count
        return batches

    async def _pass(self, units: int) -> None:
        self._now_ms += units * self.unit_ms
        if self._advance_time is not None:
            await self._advance_time(units * self.unit_ms / 1000)
        else:
            await asyncio.sleep(self._began_at + self._now_ms / 1000 - asyncio.get_running_loop().time())

    def _is_late(self) -> bool:
        if self._advance_time is not None:
            return False
        late_ms = (asyncio.get_running_loop().time() - self._began_at) * 1000 - self._now_ms
        return late_ms > self.unit_ms / _LATE_SHARE

    async def _drive(self, name: str, batch: Sequence[_Turn]) -> None:
        """Ask one store the calls on one key, one after the other."""
        for turn in batch:
            try:
                turn.replies[name] = await turn.ask.send(self._stores[name], turn.history.key)
            except Exception as error:  # noqa: BLE001 -- whatever a store raises is the difference
                turn.replies[name] = error

    async def _purge(self, name: str) -> None:
        purged = await self._stores[name].purge(1000)
        if type(purged) is not int or not 0 <= purged <= 1000:
            raise AssertionError(f"purge(1000) of {name!r} gave {purged!r}; it must be a count from 0 to 1000.")

    def _compare(self, turn: _Turn) -> None:
        """Require each store to have answered as the machine does."""
        self.asked += 1
        self.answers[_name(turn.expected)] += 1
        for name, reply in turn.replies.items():
            if not self._agrees(reply, turn.expected):
                cause = reply if isinstance(reply, BaseException) else None
                raise AssertionError(self._message(turn, name)) from cause
        turn.history.tell(turn.ask, turn.expected, turn.now_ms)

    def _agrees(self, reply: object, expected: Reply) -> bool:
        if isinstance(reply, InFlight) and isinstance(expected, InFlight):
            # A real tick has taken its time on both sides of the difference.
            tolerance = 1 if self._advance_time else self.unit_ms / _LATE_SHARE
            left_ms = reply.expires_in_ms
            return type(left_ms) is int and left_ms >= 1 and abs(left_ms - expected.expires_in_ms) <= tolerance
        if isinstance(reply, Completed) and type(reply.response) is not bytes:
            return False
        return type(reply) is type(expected) and reply == expected

    def _message(self, turn: _Turn, name: str) -> str:
        history = turn.history
        replies = "; ".join(f"{other!r} gave {reply!r}" for other, reply in turn.replies.items())
        before = "\n".join(f"  {line}" for line in history.told[-40:]) or "  (nothing)"
        return (
            f"History {history.number} of seed {self._seed} parts at its call {len(history.told) + 1}: at "
            f"{turn.now_ms} ms, {history.shown(turn.ask)} must give {turn.expected!r}, and {name!r} does not "
            f"({replies}; an outcome shows neither its response nor its owner). What led to it:\n{before}"
        )


def _name(reply: Reply) -> str:
    if isinstance(reply, Acquired):
        return "Acquired" if reply.attempt == 1 else "Acquired again"
    return str(reply) if isinstance(reply, bool) else getattr(reply, "name", type(reply).__name__)
