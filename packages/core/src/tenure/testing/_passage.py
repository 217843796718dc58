"""A store call on its way through the faults that were set for it."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, final

from tenure.clock import Clock, sleep_until, wait_until
from tenure.testing._parked import parked
from tenure.testing.errors import FaultError

__all__ = ["Call", "Fault", "Passage", "Rule"]


@final
@dataclass(frozen=True, slots=True, repr=False)
class Call:
    """
    A call of a store method, as a fault's predicate sees it.

    Attributes:
        method: `"acquire"`, `"renew"`, …
        number: The how manyth call of this method it is, from 1.
        args: What was passed by position. It holds owners, so it is left out of the `repr`.
        options: What was passed by name.
    """

    method: str
    number: int
    args: tuple[Any, ...]
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str | None:
        """The key, where the method takes one."""
        return self.args[0] if self.args and isinstance(self.args[0], str) else None

    def __repr__(self) -> str:
        return f"Call({self.method!r}, number={self.number})"


@dataclass(slots=True)
class Rule:
    """
    A fault, and the calls that meet it.

    Attributes:
        times_left: How many more calls it may meet; None until it is lifted.
        lets_pass: How many calls it lets pass first.
        fired: How many calls it met. A fault that never fired has proven nothing: assert on it.
    """

    kind: str
    method: str
    fault: "Fault"
    meets: Callable[[Call], bool]
    times_left: int | None
    lets_pass: int
    fired: int = 0

    def lift(self) -> None:
        """Let no further call meet it."""
        self.times_left = 0

    def takes(self, call: Call) -> bool:
        """Decide whether *call* meets the fault, and count it if so."""
        if self.times_left == 0 or self.method not in (call.method, "*") or not self.meets(call):
            return False
        if self.lets_pass > 0:
            self.lets_pass -= 1
            return False
        if self.times_left is not None:
            self.times_left -= 1
        self.fired += 1
        return True


class Road(Protocol):
    """What a passage needs of its store."""

    clock: Clock
    REFUSALS: ClassVar[Mapping[str, Callable[[Call], Any]]]
    """What each method answers when the store says no; the other methods have no such answer."""

    async def execute(self, call: Call) -> Any:
        """Make the call on the inner store."""
        ...

    def run_beside(self, work: Awaitable[Any]) -> "asyncio.Task[Any]":
        """Run *work* whether or not the caller stays."""
        ...

    def until_healed(self) -> "asyncio.Future[None]":
        """Return a future that `heal()` resolves."""
        ...

    def met(self, kind: str) -> None:
        """Take note of a fault that a call met."""
        ...


@dataclass(slots=True)
class Passage:
    """One call. Each fault that it meets ends it, or lets it go on to the next one and at last to the store."""

    call: Call
    road: Road
    rules: Iterator[Rule] = field(repr=False)

    async def go_on(self) -> Any:
        """Meet the next fault, or the store."""
        for rule in self.rules:
            if rule.takes(self.call):
                self.road.met(rule.kind)
                return await rule.fault(self)
        return await self.road.execute(self.call)

    async def rest(self, span_s: float) -> None:
        """Wait on the faults' clock."""
        with parked():
            await sleep_until(self.road.clock, self.road.clock.now() + span_s)


Fault = Callable[[Passage], Awaitable[Any]]
"""What becomes of a call: returns the reply or raises, and goes on where the call still reaches the store."""


def lost(what: str, call: Call) -> FaultError:
    """The error of a connection that broke while the call was under way."""
    return FaultError(f"FaultyStore: the {what} of {call.method}() was lost, as the test asked.")


def slow_request(span_s: float) -> Fault:
    """The call reaches the store late."""

    async def fault(passage: Passage) -> Any:
        await passage.rest(span_s)
        return await passage.go_on()

    return fault


def slow_reply(span_s: float) -> Fault:
    """The store has long done it when the caller hears."""

    async def fault(passage: Passage) -> Any:
        reply = await passage.go_on()
        await passage.rest(span_s)
        return reply

    return fault


async def lose_request(passage: Passage) -> Any:
    """Nothing happened, and the caller cannot know."""
    raise lost("request", passage.call)


async def lose_reply(passage: Passage) -> Any:
    """It happened, and the caller cannot know."""
    await passage.go_on()
    raise lost("reply", passage.call)


def fail(error: Exception | Callable[[], Exception]) -> Fault:
    """The driver raises."""

    async def fault(_: Passage) -> Any:
        raise error if isinstance(error, Exception) else error()

    return fault


async def refuse(passage: Passage) -> Any:
    """The store says no, without having looked."""
    answer = passage.road.REFUSALS.get(passage.call.method)
    return await passage.go_on() if answer is None else answer(passage.call)


def answer(reply: object) -> Fault:
    """The store does it, and answers something else."""

    async def fault(passage: Passage) -> Any:
        await passage.go_on()
        return reply

    return fault


def hang(ignore_cancellation_s: float) -> Fault:
    """The request is swallowed: no answer, no error. After `heal()`, the broken connection shows."""

    async def fault(passage: Passage) -> Any:
        healed, clock = passage.road.until_healed(), passage.road.clock
        with parked():
            try:
                await asyncio.wait([healed])  # not `await healed`: a cancellation would end that future too
            except asyncio.CancelledError:
                # A driver that waits for a server's leave before it gives up (5 to 40 seconds, of those
                # that were measured): whoever cancelled it waits as long, and cannot hurry it.
                patient_until = clock.now() + ignore_cancellation_s
                while not healed.done() and clock.now() < patient_until:
                    with suppress(asyncio.CancelledError):
                        await wait_until(clock, healed, when=patient_until)
                raise
        raise lost("request", passage.call)

    return fault


def execute_late(after_s: float | None) -> Fault:
    """The server is frozen: the request waits in its buffers, and runs once it thaws, wanted or not."""

    async def fault(passage: Passage) -> Any:
        road = passage.road
        healed: asyncio.Future[None] = road.until_healed()
        begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def thaw() -> Any:
            with parked():
                if after_s is None:
                    await asyncio.wait([healed])
                else:
                    await wait_until(road.clock, healed, when=road.clock.now() + after_s)
            if not begun.done():
                begun.set_result(None)
            return await passage.go_on()

        late = road.run_beside(thaw())
        with parked():
            await begun
        return await asyncio.shield(late)

    return fault
