"""
Calls that travel together: one that is alone goes at once, and what comes while it is under way goes in the next group.

A `Line` leads to one place, a server or a node of a cluster. What carries its groups there stands beside it, one for
each client: `redis_connection`, `redis_cluster`, `glide`.
"""

import asyncio
import copy
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol, final

from tenure_valkey.runner import Script

__all__ = ["CHUNK", "Carrier", "Line", "Pending", "ask_all"]

CHUNK: Final = 128
"""Calls that somebody with a thousand of them puts in line at a time: whoever has one waits behind as many."""

_FEWEST: Final = 32
"""
Of more calls than these that wait where several groups may be under way, each takes its share: while the server works
on one, the client works on the next. All in one group, the two would take turns.
"""

_SEE_OUT_S: Final = 0.25
"""
How long a cancelled caller waits for the answer of what is under way, in seconds. Where the server answers it is the
time of a call; elsewhere the connection is of no use, and the next group goes over a new one.
"""

_MOST_CALLS: Final = 512
_MOST_BYTES: Final = 1 << 20
"""A group ends with the call that exceeds it: responses to be kept may be large, and are copied to be sent."""


@final
class Pending:
    """
    A call in line, or under way.

    Args:
        script: What to run.
        keys: Its keys.
        args: Its arguments.
        packed: The call as it goes over the wire, where the carrier sends it so.

    Attributes:
        size: How many bytes it takes, or nearly.
        answer: Done with its reply or its error; cancelled by whoever gave it up.
        trip: The group that it left in, None before.
    """

    __slots__ = ("answer", "args", "keys", "packed", "script", "size", "trip")

    answer: asyncio.Future[Any]

    def __init__(self, script: Script, keys: Sequence[bytes], args: Sequence[bytes], packed: bytes = b"") -> None:
        self.script = script
        self.keys = keys
        self.args = args
        self.packed = packed
        self.size = len(packed) or sum(map(len, args))
        self.trip: _Trip | None = None

    def reply(self, reply: Any) -> None:
        """Answer the call, unless it was given up."""
        if not self.answer.done():
            self.answer.set_result(reply)

    def fail(self, error: Exception) -> None:
        """Answer the call with an error that is its own, unless it was given up."""
        if not self.answer.done():
            self.answer.set_exception(error)


class Carrier(Protocol):
    """What takes groups to one place, and brings their answers."""

    async def ready(self) -> None:
        """Get ready to send. Raises what stands in the way; then nothing was sent, and all who wait are told."""
        ...

    async def carry(self, calls: Sequence[Pending]) -> None:
        """Send *calls* and answer each. Raises what ends the whole group: the calls without an answer get it."""
        ...

    async def rest(self) -> None:
        """Nobody waits any more."""
        ...

    def forget(self) -> None:
        """The event loop is another one, or the process a child: what belongs to the old one is not touched."""
        ...


@final
class Line:
    """
    Calls to one place, first come first served.

    Args:
        carrier: What takes them there.
        abreast: How many groups may be under way at once.
        most_calls: How many calls a group may have.
        can_give_up: Whether a group that is given up is not carried out later: glide goes on with one.
    """

    def __init__(
        self, carrier: Carrier, *, abreast: int = 1, most_calls: int = _MOST_CALLS, can_give_up: bool = True
    ) -> None:
        self._carrier = carrier
        self._can_give_up = can_give_up
        self._abreast = abreast
        self._most_calls = most_calls
        self._calls: deque[Pending] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def ask(self, call: Pending) -> Any:
        """
        Send *call* with whatever else waits, and return its reply.

        Cancelled before it was sent, it is taken out. Under way, it ends when its answer has come, or after a moment;
        whoever cancels twice does not wait. What is asked after it, as the release that follows an acquire, comes after
        it in any case. A group that nobody waits for any more is given up then, and holds up nobody. What a client goes
        on with all the same is waited for, for as long as that takes.

        Raises: what came in place of a reply.
        """
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._move_to(loop)
        call.answer = loop.create_future()
        self._calls.append(call)
        if len(self._tasks) < self._abreast:
            self._start(loop)
        try:
            return await call.answer
        except asyncio.CancelledError:
            await _see_out((call,))
            raise

    async def ask_many(self, calls: Sequence[Pending]) -> list[Any]:
        """Send *calls*, some at a time; return a reply or an exception for each. Cancelled as `ask`."""
        answers: list[Any] = []
        for start in range(0, len(calls), CHUNK):
            chunk = calls[start : start + CHUNK]
            loop = asyncio.get_running_loop()
            if loop is not self._loop:
                self._move_to(loop)
            for call in chunk:
                call.answer = loop.create_future()
            self._calls.extend(chunk)
            if len(self._tasks) < self._abreast:
                self._start(loop)
            try:
                for call in chunk:
                    try:
                        answers.append(await call.answer)
                    except Exception as error:  # noqa: BLE001 -- whatever a client raises stands in its call's place
                        answers.append(error)
            except asyncio.CancelledError:
                await _see_out(chunk)
                raise
        return answers

    def _move_to(self, loop: asyncio.AbstractEventLoop) -> None:
        # What an older loop left behind will never be answered: its tasks stopped with it.
        self._loop, self._calls, self._tasks = loop, deque(), set()
        self._carrier.forget()

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._tasks.add(loop.create_task(self._travel(loop)))

    async def _travel(self, loop: asyncio.AbstractEventLoop) -> None:
        tasks = self._tasks
        try:
            while self._calls:
                await self._travel_once()
                if not self._calls:
                    await self._carrier.rest()
        finally:
            tasks.discard(asyncio.current_task(loop))
            # Cancelled, by a program that cancels all its tasks, and whoever came meanwhile is not.
            if self._calls and loop is self._loop and not loop.is_closed() and len(tasks) < self._abreast:
                self._start(loop)

    async def _travel_once(self) -> None:
        try:
            await self._carrier.ready()
        except Exception as error:  # noqa: BLE001 -- whatever a client raises: each who waits gets it
            stranded, self._calls = self._calls, deque()
            _fail(stranded, error)
            return
        task = asyncio.current_task()
        assert task is not None
        trip = _Trip(task, can_give_up=self._can_give_up)
        calls = trip.calls = self._take(trip)
        try:
            if calls:
                await self._carrier.carry(calls)
        except Exception as error:  # noqa: BLE001 -- as above
            _fail(calls, error)
        except asyncio.CancelledError:
            if not trip.given_up:
                for call in calls:
                    call.answer.cancel()
                raise
        finally:
            if trip.given_up:
                task.uncancel()
            trip.end()

    def _take(self, trip: "_Trip") -> list[Pending]:
        waiting, size = self._calls, 0
        taken: list[Pending] = []
        most = min(self._most_calls, max(_FEWEST, -(-len(waiting) // self._abreast)))
        while waiting and len(taken) < most and size < _MOST_BYTES:
            call = waiting.popleft()
            if not call.answer.done():
                call.trip = trip
                taken.append(call)
                size += call.size
        return taken


@final
class _Trip:
    """
    A group that is under way, until each of its calls has an answer.

    Args:
        task: What carries it.
        can_give_up: As the line's.

    Attributes:
        calls: Its calls.
        given_up: Whether it was given up; its task goes on with the next one.
        over: Done when it has ended.
    """

    __slots__ = ("_task", "calls", "can_give_up", "given_up", "over")

    def __init__(self, task: "asyncio.Task[None]", *, can_give_up: bool) -> None:
        self._task = task
        self.can_give_up = can_give_up
        self.calls: Sequence[Pending] = ()
        self.given_up = False
        self.over: asyncio.Future[None] = task.get_loop().create_future()

    def end(self) -> None:
        if not self.over.done():
            self.over.set_result(None)

    def give_up_if_deserted(self) -> None:
        if (
            self.can_give_up
            and not (self.over.done() or self.given_up)
            and all(call.answer.done() for call in self.calls)
        ):
            self.given_up = True
            self._task.cancel()


async def ask_all(calls: Iterable[tuple[Line, Pending]]) -> list[Any]:
    """Send each of *calls* by its line, on all lines at the same time; return a reply or an exception for each."""
    parts: dict[Line, list[tuple[int, Pending]]] = {}
    for place, (line, call) in enumerate(calls):
        parts.setdefault(line, []).append((place, call))
    if len(parts) == 1:
        [(line, part)] = parts.items()
        return await line.ask_many([call for _, call in part])
    asked = await asyncio.gather(*(line.ask_many([call for _, call in part]) for line, part in parts.items()))
    answers: dict[int, Any] = {}
    for part, replies in zip(parts.values(), asked, strict=True):
        answers.update(zip((place for place, _ in part), replies, strict=True))
    return [answers[place] for place in range(len(answers))]


async def _see_out(calls: Sequence[Pending]) -> None:
    """Take out the calls that have not left, and wait for the others, for a moment."""
    for call in calls:
        if not call.answer.cancel() and not call.answer.cancelled():
            call.answer.exception()  # looked at here: whoever asked has left
    trips = {call.trip for call in calls if call.trip is not None and not call.trip.over.done()}
    if not trips:
        return
    within_s = _SEE_OUT_S if all(trip.can_give_up for trip in trips) else None
    try:
        await asyncio.wait([trip.over for trip in trips], timeout=within_s)
    finally:
        for trip in trips:
            trip.give_up_if_deserted()


def _fail(calls: Iterable[Pending], error: Exception) -> None:
    for call in calls:
        if not call.answer.done():
            call.answer.set_exception(_own(error))


def _own(error: Exception) -> Exception:
    # One error that is raised in many tasks would gather the tracebacks, and the notes, of all of them.
    try:
        own = copy.copy(error)
    except Exception:  # noqa: BLE001 -- an error whose class cannot be made from its args is shared
        return error
    own.__cause__, own.__suppress_context__ = error.__cause__, error.__suppress_context__
    return own
