"""
Everything that may be true of one key, after what its calls were answered.

A reference model says what each call must be answered. Where two answers are right, because a lock ends about now, or
because nobody knows what became of a cancelled call, it keeps every state that explains the answers so far; the next
answers leave those which explain them too, and no state left is the finding. Calls that overlap are right if some order
of them is. Prior art: the non-deterministic models of etcd's robustness tests, and Wing and Gong's search.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar, final

from tenure.testing.state_machines.spans import Moment

__all__ = ["UNSEEN", "Branch", "Call", "Possible"]

StateT = TypeVar("StateT")
AskT = TypeVar("AskT")

_TOLD = 40
"""Lines of its key's history that a failure shows."""


@final
class _Unseen:
    def __repr__(self) -> str:
        return "(its reply was lost)"


UNSEEN: Final = _Unseen()
"""The answer of a call that was carried out, and whose answer nobody saw."""


@final
@dataclass(frozen=True)
class Branch(Generic[StateT]):
    """
    One way in which a call may end.

    Attributes:
        expects: The answer, in words.
        admits: Whether an answer is that one.
        then: The state after it; `UNSEEN` is what it is given where nobody saw the answer.
    """

    expects: str
    admits: Callable[[Any], bool]
    then: Callable[[Any], StateT]


@final
@dataclass(frozen=True)
class Call(Generic[AskT]):
    """A call on one key: what was asked, when, and the answer."""

    ask: AskT
    moment: Moment
    reply: Any


@final
@dataclass(frozen=True)
class _World(Generic[StateT, AskT]):
    """One state that explains every answer, and what was sent and may still be carried out."""

    state: StateT
    under_way: tuple[tuple[AskT, Moment], ...] = ()


@final
class Possible(Generic[StateT, AskT]):
    """
    The states that one key may be in.

    Args:
        label: What the key is called in a failure.
        state: What it is in at first.
        branches: The reference model: every way in which a call on a state may end.
        late_ms: How long after it was given up a call may still be carried out. 0 is "never": it was, or it was not.
    """

    def __init__(
        self,
        label: str,
        state: StateT,
        branches: Callable[[StateT, AskT, Moment], Sequence[Branch[StateT]]],
        *,
        late_ms: float = 0,
    ) -> None:
        self.told: list[str] = []
        self._label = label
        self._branches = branches
        self._late_ms = late_ms
        self._worlds: frozenset[_World[StateT, AskT]] = frozenset({_World(state)})

    @property
    def states(self) -> list[StateT]:
        """Every state that explains the answers so far."""
        return list({world.state for world in self._worlds})

    @property
    def under_way(self) -> int:
        """How many calls were given up that may still be carried out."""
        return max(len(world.under_way) for world in self._worlds)

    def answered(self, call: Call[AskT]) -> None:
        """
        Take note of a call and its answer.

        Raises:
            AssertionError: No state allows that answer.
        """
        line = f"{call.moment.sent:>10.1f} ms  {call.ask} -> {call.reply!r}"
        after = frozenset(one for world in self._worlds for one in self._step(world, call))
        if not after:
            self._fail(f"{call.ask} at {call.moment.sent:.1f} ms gave {call.reply!r}", self._expected(call))
        self._worlds = after
        self.told.append(line)

    def answered_at_once(self, calls: Sequence[Call[AskT]]) -> None:
        """
        Take note of calls that overlapped.

        Raises:
            AssertionError: There is no order of them in which every one has the answer that it got.
        """
        shown = "; ".join(f"{call.ask} -> {call.reply!r}" for call in calls)
        after = frozenset(one for world in self._worlds for one in self._orders(world, list(calls)))
        if not after:
            self._fail(f"{len(calls)} calls at once gave {shown}", "what they give in some order")
        self._worlds = after
        self.told.append(f"{calls[0].moment.sent:>10.1f} ms  at once: {shown}")

    def given_up(self, ask: AskT, moment: Moment) -> None:
        """Take note of a call that was given up: it was carried out, or was not, or will be."""
        if self._late_ms:
            self._worlds = frozenset(_World(world.state, (*world.under_way, (ask, moment))) for world in self._worlds)
        else:
            unseen = Call(ask, moment, UNSEEN)
            self._worlds |= frozenset(one for world in self._worlds for one in self._step(world, unseen))
        self.told.append(f"{moment.sent:>10.1f} ms  {ask} -> (given up)")

    def _orders(self, world: _World[StateT, AskT], calls: list[Call[AskT]]) -> Iterator[_World[StateT, AskT]]:
        if not calls:
            yield world
        for place, call in enumerate(calls):
            rest = calls[:place] + calls[place + 1 :]
            for after in self._step(world, call):
                yield from self._orders(after, rest)

    def _step(self, world: _World[StateT, AskT], call: Call[AskT]) -> Iterator[_World[StateT, AskT]]:
        for before in self._overtaken(world, call.moment):
            for branch in self._branches(before.state, call.ask, call.moment):
                if call.reply is UNSEEN or branch.admits(call.reply):
                    yield _World(branch.then(call.reply), before.under_way)

    def _overtaken(self, world: _World[StateT, AskT], moment: Moment) -> Iterator[_World[StateT, AskT]]:
        """Carry out, before a call, any of those that are still under way."""
        alive = tuple(late for late in world.under_way if late[1].answered + self._late_ms >= moment.sent)
        yield _World(world.state, alive)
        for place, (ask, sent) in enumerate(alive):
            rest = alive[:place] + alive[place + 1 :]
            for branch in self._branches(world.state, ask, sent.until(moment)):
                yield from self._overtaken(_World(branch.then(UNSEEN), rest), moment)

    def _expected(self, call: Call[AskT]) -> str:
        words = {
            branch.expects: None
            for world in self._worlds
            for before in self._overtaken(world, call.moment)
            for branch in self._branches(before.state, call.ask, call.moment)
        }
        return " or ".join(sorted(words))

    def _fail(self, seen: str, expected: str) -> None:
        before = "\n".join(f"  {line}" for line in self.told[-_TOLD:]) or "  (nothing)"
        raise AssertionError(
            f"On the key {self._label}: {seen}; it must be {expected}. What led to it on this key:\n{before}"
        )
