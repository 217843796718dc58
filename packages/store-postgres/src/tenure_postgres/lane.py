"""
A lane: one connection on which calls travel in groups.

A call that is alone goes out at once, as the statement for one row. Whatever arrives while an answer is awaited
travels together in the next statement, in the order of arrival, so that many calls share a round trip, a plan and a
commit. Nobody notices it:

- Each caller gets its own answer, or its own error. When the server refuses a statement, nothing has happened: it is
  asked again in halves, until the call that it refuses stands alone.
- A key is once in a statement at most; who asks for it again waits for the next one.
- A row that another session has locked is skipped. Its caller asks again alone, on a connection of the pool, where it
  may wait for as long as `lock_timeout` says. A call that travels alone waits a moment for its row, then does the same.
- A caller that is cancelled before its call was sent is taken out. After that it waits for the end of the statement,
  so that the release that goes behind it cannot overtake it. A statement that nobody waits for any more is given up,
  on the server as well.
- A statement that is not answered holds up nobody for longer than a moment: whoever came after it goes to the pool.

There is one task while calls are under way in groups. Where the last call was alone, the next one that finds the lane
idle is sent by its caller itself: it would gain nothing from a task but two turns of the loop.
"""

import asyncio
import copy
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, final

import asyncpg  # type: ignore[import-untyped]  # it ships no types
from sqlalchemy.ext.asyncio import AsyncEngine

from tenure_postgres.connection import Session, sqlstate_of
from tenure_postgres.lane_connection import LaneConnection
from tenure_postgres.lock_calls import ALONE, Call, Kind
from tenure_postgres.store_engine import StoreEngine

__all__ = ["Lane"]

_ROW_WAIT_MS: Final = 10
"""
How long a statement of the lane may wait for another session, in milliseconds: about a commit. All calls behind it
wait as long, so what takes longer is waited for on a connection of the pool.
"""

_STUCK_S: Final = 1.0
"""
After how long without an answer those who wait for the lane go to the pool, in seconds. A connection whose other end
is gone tells nobody; the next one may be fine.
"""

_PATIENCE_S: Final = 5.0
"""
How long a cancelled caller waits for the end of a statement that others wait for too, in seconds. As long as
statements may take on an engine for locks: what takes longer does not end, and is given up for all.
"""

_FEWEST: Final = 128
"""
Of more calls than these that wait, half travel at once: while the server works on them, the client works on the others.
All in one group would take turns with the server. Fewer than these save too little of that to pay for a statement.
"""

_ROW_LOCKED: Final = "55P03"
_OF_THE_SESSION: Final = frozenset({"26000", "42P05"})
"""Prepared statements that a pooler lost: no call is to blame, and none would fare better alone."""


_GIVEN_UP: Final = "The server did not answer, and the statement was given up; its outcome is unknown."
_LOOP_ENDED: Final = (
    "The task that carried the call was cancelled, as at the end of an event loop; its outcome is unknown."
)


class _Group:
    """
    Calls that travel together.

    Attributes:
        kind: Their kind.
        calls: The calls.
        leaving: What their cancelled callers wait for.
        first_left_at: When the first of them was cancelled, in seconds on the loop's clock.
        given_up: Whether the statement is being given up.
    """

    __slots__ = ("calls", "first_left_at", "given_up", "kind", "leaving")

    def __init__(self, kind: Kind, calls: Sequence[Call]) -> None:
        self.kind = kind
        self.calls = calls
        self.leaving: list[asyncio.Future[None]] = []
        self.first_left_at = float("inf")
        self.given_up = False


@final
class Lane:
    """
    Calls of some kinds, one statement at a time.

    Args:
        engine: The engine that makes the connection.
        store_engine: The store's use of it, and where calls go that have to wait.
        kinds: The kinds of calls that travel here.
        enter: Refuses an event loop that is new here, while another one has connections of the store.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        store_engine: StoreEngine,
        kinds: Sequence[Kind],
        enter: Callable[[asyncio.AbstractEventLoop], None],
    ) -> None:
        self._pool = store_engine
        self._connection = LaneConnection(engine, store_engine.connections)
        self._row_wait = f"{min(_ROW_WAIT_MS, store_engine.lock_timeout_ms)}ms"
        self._enter = enter
        self._waiting: dict[Kind, list[Call]] = {kind: [] for kind in kinds}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._serving: asyncio.Task[None] | None = None
        self._lent = False
        self._crowded = True
        self._given_back: asyncio.Future[None] | None = None
        self._under_way: _Group | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._sent_at = 0.0
        self._arrived = 0

    @property
    def in_use(self) -> bool:
        """Whether it has a connection, or calls under way."""
        return self._connection.is_open or self._serving is not None or self._lent

    async def ask(self, kind: Kind, call: Call) -> Any:
        """
        Ask one call, together with what else there is.

        Returns:
            What the kind answers.

        Cancellation: the outcome is unknown if the call was sent; it has ended by then.

        Raises:
            LeaseStateError: The store is closed, or used in two event loops.
            Exception: As `Connections.run`, a copy of its own.
        """
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._enter(loop)
            self._loop = loop
        idle = self._serving is None and not self._lent
        if idle and not self._crowded and (session := self._connection.at_hand()) is not None:
            answer = await self._ask_at_once(session, kind, call, loop)
            return await self._ask_alone(kind, call) if answer is ALONE else answer
        call.answer = loop.create_future()
        call.place = self._arrived = self._arrived + 1
        self._waiting[kind].append(call)
        if idle:
            self._serving = loop.create_task(self._serve(loop))
        try:
            answer = await call.answer
        except asyncio.CancelledError:
            await self._leave(call)
            raise
        if answer is ALONE:
            return await self._ask_alone(kind, call)
        return answer

    async def aclose(self) -> None:
        """Close the connection once what is under way has ended, or after a moment. May be called again."""
        if self._loop is (loop := asyncio.get_running_loop()):
            if self._lent:
                self._given_back = self._given_back or loop.create_future()
                await asyncio.wait({self._given_back}, timeout=_STUCK_S)
            if self._serving is not None:
                await asyncio.wait({self._serving}, timeout=_STUCK_S)
        await self._connection.aclose()

    async def _ask_at_once(self, session: Session, kind: Kind, call: Call, loop: asyncio.AbstractEventLoop) -> Any:
        """Ask on the idle connection, in the caller's own task: two turns of the loop less than through the lane's."""
        self._pool.refuse_closed()
        self._lent, self._sent_at = True, loop.time()
        if self._watch is None:
            self._watch = loop.call_later(_STUCK_S, self._look)
        try:
            try:
                rows = await session.fetch(*kind.alone(call, self._row_wait))
            except BaseException as error:
                if sqlstate_of(error) == _ROW_LOCKED:
                    return ALONE
                # Cancelled as well: nobody else waits for the statement, which is given up on the server, too.
                await self._close_if_in_doubt(session, error)
                raise
            answer = kind.read_alone(rows, call)
        finally:
            self._lent = False
            if self._given_back is not None:
                self._given_back.set_result(None)
                self._given_back = None
            if any(self._waiting.values()):
                self._serving = loop.create_task(self._serve(loop))
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def _close_if_in_doubt(self, session: Session, error: BaseException) -> None:
        """Close the session if *error* leaves its state in doubt."""
        usable = False
        try:
            usable = await self._pool.connections.settle(session, error)
        finally:
            if not usable:
                self._connection.drop()

    async def _ask_alone(self, kind: Kind, call: Call) -> Any:
        rows = await self._pool.run(*kind.alone(call, self._pool.lock_timeout))
        answer = kind.read_alone(rows, call)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def _leave(self, call: Call) -> None:
        """See to a cancelled caller's call: it is over, was not sent yet, or its end has to be waited for."""
        if call.answer.done() and not call.answer.cancelled():
            call.answer.exception()  # looked at, so that asyncio does not complain that nobody did
        group = self._under_way
        if group is None or call not in group.calls:
            return  # what was not sent is left out when its turn comes: nobody waits for its answer
        assert self._loop is not None
        group.first_left_at = min(group.first_left_at, self._loop.time())
        ended = self._loop.create_future()
        group.leaving.append(ended)
        if all(other.answer.done() for other in group.calls):
            self._give_up(group)
        while not ended.done():
            with suppress(asyncio.CancelledError):  # the first one is raised when the statement has ended
                await asyncio.wait((ended,))

    def _give_up(self, group: _Group) -> None:
        if not group.given_up and self._serving is not None:
            group.given_up = True
            self._serving.cancel()

    # ------------------------------------------------------------------------------------------ the task of the lane

    async def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        self._sent_at = loop.time()
        if self._watch is None:
            self._watch = loop.call_later(_STUCK_S, self._look)
        try:
            while any(self._waiting.values()):
                await self._carry_next(loop)
        except BaseException:
            self._refuse_waiting(ConnectionError(_LOOP_ENDED))
            raise
        finally:
            self._serving = None

    async def _carry_next(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            self._pool.refuse_closed()
            session = await self._connection.ready()
        except Exception as error:  # noqa: BLE001 -- each caller gets it
            self._refuse_waiting(error)
            return
        group = self._take()
        if group is None:
            return
        self._under_way, self._sent_at = group, loop.time()
        try:
            await self._send(session, group.kind, group.calls)
        except asyncio.CancelledError as error:
            if not group.given_up:  # the loop ends, and cancels every task
                self._connection.drop()
                _answer_with(ConnectionError(_LOOP_ENDED), group.calls)
                raise
            _forget_cancellation()
            await self._settle(session, group, error, TimeoutError(_GIVEN_UP))
        except Exception as error:  # noqa: BLE001 -- each caller gets it
            await self._settle(session, group, error, error)
        finally:
            self._under_way = None
            for ended in group.leaving:
                ended.set_result(None)

    def _take(self) -> _Group | None:
        """Take what travels next: of the kind whose first call came first, each key once."""
        kinds = [kind for kind, calls in self._waiting.items() if calls]
        if not kinds:
            return None  # all went to the pool while the connection was opened
        kind = min(kinds, key=lambda kind: self._waiting[kind][0].place)
        waiting = [call for call in self._waiting[kind] if not call.answer.done()]
        most = min(kind.most, max(_FEWEST, len(waiting) // 2))
        taken, left = waiting[:most], waiting[most:]
        if len({call.key for call in taken}) < len(taken):
            taken, again = _each_key_once(taken)
            left = again + left
        self._waiting[kind] = left
        self._crowded = len(taken) > 1
        return _Group(kind, taken) if taken else None

    async def _send(self, session: Session, kind: Kind, calls: Sequence[Call]) -> None:
        """
        Ask *calls* and hand out the answers; in halves, where the server refuses them together.

        Raises:
            Exception: The outcome of those without an answer is unknown, or the session is of no use.
        """
        alone = len(calls) == 1
        try:
            if alone:
                [call] = calls
                rows = await session.fetch(*kind.alone(call, self._row_wait))
                answers: Sequence[Any] = [kind.read_alone(rows, call)]
            else:
                rows = await session.fetch(*kind.together(calls, self._row_wait))
                answers = kind.read_together(rows, calls)
        except asyncpg.PostgresError as error:
            if alone and sqlstate_of(error) == _ROW_LOCKED:
                answers = [ALONE]
            elif alone or sqlstate_of(error) in _OF_THE_SESSION or session.is_lost_by(error):
                raise
            else:
                half = len(calls) // 2
                await self._send_part(session, kind, calls[:half])
                await self._send_part(session, kind, calls[half:])
                return
        for call, answer in zip(calls, answers, strict=True):
            future = call.answer
            if future.done():
                continue  # its caller was cancelled
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)

    async def _send_part(self, session: Session, kind: Kind, calls: Sequence[Call]) -> None:
        try:
            await self._send(session, kind, calls)
        except asyncpg.PostgresError as error:
            if session.is_lost_by(error):
                raise
            _answer_with(error, calls)

    async def _settle(self, session: Session, group: _Group, error: BaseException, told: Exception) -> None:
        """Close the session if *error* leaves it in doubt, and only then let the callers hear of it."""
        group.given_up = True  # it is over: nobody has to cancel it any more
        try:
            await self._close_if_in_doubt(session, error)
        finally:
            _answer_with(told, group.calls)

    def _refuse_waiting(self, error: Exception) -> None:
        """Nothing was sent, and nothing can be: all who wait by now hear of it."""
        for kind, calls in self._waiting.items():
            self._waiting[kind] = []
            _answer_with(error, calls)

    # ---------------------------------------------------------------------------------------------- what never answers

    def _look(self) -> None:
        """Look after a statement that is not answered; called every `_STUCK_S` seconds while the lane is busy."""
        self._watch = None
        if (self._serving is None and not self._lent) or self._loop is None:
            return
        now, group = self._loop.time(), self._under_way
        if now - self._sent_at >= _STUCK_S:
            for kind, calls in self._waiting.items():
                self._waiting[kind] = []
                for call in calls:
                    if not call.answer.done():
                        call.answer.set_result(ALONE)
        if group is not None and now - group.first_left_at >= _PATIENCE_S:
            self._give_up(group)
        self._watch = self._loop.call_later(_STUCK_S, self._look)


def _forget_cancellation() -> None:
    """Take the cancellation back by which the lane gave a statement up: its task goes on."""
    task = asyncio.current_task()
    assert task is not None
    task.uncancel()


def _each_key_once(calls: Sequence[Call]) -> tuple[list[Call], list[Call]]:
    """Part *calls* into the first of each key, and the others."""
    first: dict[str, Call] = {}
    again = [call for call in calls if first.setdefault(call.key, call) is not call]
    return list(first.values()), again


def _answer_with(error: BaseException, calls: Sequence[Call]) -> None:
    """Let each of *calls* that has no answer end in an *error* of its own."""
    for call in calls:
        if not call.answer.done():
            call.answer.set_exception(_own(error))


def _own(error: BaseException) -> BaseException:
    """Copy an error: callers that share one would add notes to each other's, and a traceback that grows with each."""
    try:
        own = copy.copy(error)
    except Exception:  # noqa: BLE001 -- an error that cannot be copied is better than none
        return error
    own.__cause__, own.__suppress_context__ = error.__cause__, error.__suppress_context__
    if notes := getattr(error, "__notes__", None):
        own.__notes__ = list(notes)
    return own.with_traceback(error.__traceback__)
