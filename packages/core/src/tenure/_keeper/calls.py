"""
Store calls, each a task of its own, and the moments until which they are waited for.

A call that hangs delays nobody, then: not the other calls, not a deadline, not a caller that is cancelled. No
`asyncio.timeout` stands around one, for it does not bound a driver that answers no cancellation. Who asks waits for a
future of his own; one timer stands at the first of all the moments at which somebody has waited long enough.
"""

import asyncio
import heapq
import logging
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable
from typing import Any, Final, Generic, TypeVar, final

from tenure.clock import Alarm, Clock, ObservesCalls, wait_until
from tenure.errors import LeaseStateError, StoreReplyError, StoreTimeoutError

__all__ = ["Call", "Calls"]

_T = TypeVar("_T")

_FEW: Final = 64
"""Entries that count no more are swept out of the heap once they outnumber those that do, and these."""

_STRAGGLERS_S = 1.0
"""How long closing waits for calls that it cancelled, in seconds of real time; a driver may not answer at all."""

_ROUNDS = 2
"""How often closing cancels what is left: the calls that are late, and what goes behind those."""

_TURNS = 3
"""Turns of the event loop that a waiter needs to hear of a call's end, and to send something behind it."""

_log = logging.getLogger("tenure")


@final
class Call(Generic[_T]):
    """
    A store call that somebody waits for.

    Attributes:
        operation: The store method, for errors.
        timeout_s: How long it may take, in seconds.
        until: When its time is up, in seconds on the holder's clock.
        over: Resolved when it has ended, or its time is up. Whoever waits for it may be cancelled, and it with him.
        task: The call itself.
    """

    __slots__ = ("operation", "over", "task", "timeout_s", "until")

    def __init__(
        self, operation: str, timeout_s: float, until: float, over: "asyncio.Future[None]", task: "asyncio.Task[_T]"
    ) -> None:
        self.operation = operation
        self.timeout_s = timeout_s
        self.until = until
        self.over = over
        self.task = task


@final
class _Patience:
    """
    The moments until which calls are waited for, the earliest first.

    Those of calls that have ended are passed over, and swept out when they are most: nearly every call ends long before
    its time is up, and a thousand may do so in a second.
    """

    __slots__ = ("_calls", "_heap", "_sweep_at")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, asyncio.Future[None]]] = []
        self._calls = 0
        self._sweep_at = _FEW

    def __len__(self) -> int:
        return len(self._heap)

    def put(self, over: "asyncio.Future[None]", until: float) -> None:
        """Resolve *over* at *until*, unless it is done before."""
        self._calls += 1
        heapq.heappush(self._heap, (until, self._calls, over))
        if len(self._heap) > self._sweep_at:
            self._heap = [entry for entry in self._heap if not entry[2].done()]
            heapq.heapify(self._heap)
            self._sweep_at = _FEW + 2 * len(self._heap)

    def end(self, now: float) -> float:
        """Resolve what is due at *now*. Returns the next moment, or never."""
        heap = self._heap
        while heap and (heap[0][0] <= now or heap[0][2].done()):
            over = heapq.heappop(heap)[2]
            if not over.done():
                over.set_result(None)
        return heap[0][0] if heap else float("inf")


class Calls:
    """
    Runs the calls of one owner of a store, and whatever else has to go on beside his callers.

    Args:
        clock: The holder's clock.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # Dicts for their order, so that a seed repeats a run.
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._patience = _Patience()
        self._times_up = Alarm(clock, self._end_waits)
        self._closing = False
        self._observer = clock if isinstance(clock, ObservesCalls) else None

    def start(self, call: Awaitable[_T]) -> "asyncio.Task[_T]":
        """Start a store call as a task of its own, kept alive until it ends."""
        # A coroutine as it is: in another one, it would never be awaited where the task is cancelled before its start.
        task = self.spawn(call if isinstance(call, Coroutine) else _as_coroutine(call))
        if self._observer is not None:
            self._observer.store_call_started(task)
        return task

    def spawn(self, work: Coroutine[Any, Any, _T]) -> "asyncio.Task[_T]":
        """Run *work* beside everything else, kept alive until it ends or the keeper closes."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._forget)
        return task

    async def together(self, works: Iterable[Coroutine[Any, Any, Any]]) -> None:
        """Run *works* side by side and wait for their ends, however they end."""
        tasks = [self.spawn(work) for work in works]
        if tasks:
            await asyncio.wait(tasks)

    async def wait_while(self, busy: Callable[[], bool], one_ended: asyncio.Event, until: float) -> None:
        """Wait until nothing is *busy*, looked at whenever *one_ended* is set, or until *until*, in seconds."""
        while busy() and self._clock.now() < until:
            one_ended.clear()
            ended = self.spawn(one_ended.wait())
            try:
                await wait_until(self._clock, ended, when=until)
            finally:
                ended.cancel()

    def _forget(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.pop(task, None)
        if not task.cancelled():
            task.exception()  # looked at here, so that an abandoned call's late error is not reported as unseen

    def ask(self, operation: str, call: Awaitable[_T], *, now: float, timeout_s: float) -> Call[_T]:
        """
        Start a store call that is waited for, for at most *timeout_s* seconds. For each goes a `read` or a `give_up`.

        Args:
            operation: The store method, for the error.
            call: The call.
            now: The time, in seconds on the holder's clock.
            timeout_s: How long to wait, in seconds.

        Returns:
            The call. Wait for its `over`, a future of the caller's own: a cancellation ends the waiting, and not the
            call, so that a driver which does not answer one holds nobody.
        """
        loop = asyncio.get_running_loop()
        over: asyncio.Future[None] = loop.create_future()
        carrying = _carry(call, over)
        carrying.send(None)
        task = loop.create_task(carrying)
        self._tasks[task] = None
        if self._observer is not None:
            self._observer.store_call_started(task)
        until = now + timeout_s
        self._patience.put(over, until)
        if until < self._times_up.at:
            self._times_up.set(until)
        return Call(operation, timeout_s, until, over, task)

    def read(self, asked: Call[_T]) -> _T:
        """
        Read the answer of a call whose `over` is done.

        Raises:
            StoreTimeoutError: Time is up; the outcome is unknown.
            StoreReplyError: The call cancelled itself; the outcome is unknown.
            LeaseStateError: The keeper was closed meanwhile; the outcome is unknown.
            Exception: What the store raised.
        """
        task = asked.task
        if not task.done():
            asked.until = self._clock.now()
            raise StoreTimeoutError(asked.operation, asked.timeout_s)
        self._tasks.pop(task, None)
        if not task.cancelled():
            return task.result()
        if self._closing:
            raise LeaseStateError(
                f"This was closed while the store's {asked.operation}() was under way; its outcome is unknown. Close "
                "after what uses it has ended."
            )
        raise StoreReplyError(f"The store's {asked.operation}() cancelled itself; its outcome is unknown.")

    def give_up(
        self, asked: Call[_T], behind: Callable[["asyncio.Task[_T]"], Coroutine[Any, Any, None]] | None = None
    ) -> None:
        """Wait no more for a call. *behind* is carried out once it has ended or was cancelled; it gets its task."""
        self.spawn(self._settle(asked, behind))

    async def call(
        self,
        operation: str,
        call: Awaitable[_T],
        *,
        timeout_s: float,
        behind: Callable[["asyncio.Task[_T]"], Coroutine[Any, Any, None]] | None = None,
    ) -> _T:
        """
        Run a store call, and wait for it for at most *timeout_s* seconds.

        Args:
            operation: The store method, for the error.
            call: The call.
            timeout_s: How long to wait, in seconds.
            behind: What to do behind a call whose outcome is unknown to the caller (time is up, the caller was
                cancelled, an error), once the call has ended or was given up. It gets the call's task.

        Raises:
            Exception: As `read`.
        """
        asked = self.ask(operation, call, now=self._clock.now(), timeout_s=timeout_s)
        try:
            await asked.over
            return self.read(asked)
        except BaseException:
            self.give_up(asked, behind)
            raise

    async def _settle(
        self, asked: Call[_T], behind: Callable[["asyncio.Task[_T]"], Coroutine[Any, Any, None]] | None
    ) -> None:
        """See a call to its end that nobody waits for: until its time is up by itself, then cancelled, not for ever."""
        task = asked.task
        task.add_done_callback(self._forget)
        if not task.done() and self._clock.now() < asked.until:
            await wait_until(self._clock, task, when=asked.until)
        if not task.done():
            task.cancel()
            await asyncio.wait([task], timeout=_STRAGGLERS_S)
        if behind is not None:
            await behind(task)
            if not task.done():
                # A driver that goes on with what it was told to leave: what that comes to is followed up as well.
                await asyncio.wait([task])
                await behind(task)

    def _end_waits(self) -> None:
        self._times_up.set(self._patience.end(self._clock.now()))

    async def end_calls(self) -> None:
        """Let what is under way end, and cancel what does not."""
        self._closing = True
        await self._others_end()
        # More than once, for an end begins something: behind a cancelled acquire goes a release, which is waited for.
        for _ in range(_ROUNDS):
            for task in self._others():
                task.cancel()
            await self._others_end()
        self._times_up.call_off()
        if self._others():
            _log.warning("A store call did not end when it was cancelled; it is left to its driver's own time-outs.")

    def _others(self) -> "list[asyncio.Task[Any]]":
        this = asyncio.current_task()
        return [task for task in self._tasks if task is not this and not task.done()]

    async def _others_end(self) -> None:
        """Wait for every other task, and for what they begin as they end; not for long."""
        loop = asyncio.get_running_loop()
        until = loop.time() + _STRAGGLERS_S
        for _ in range(_TURNS):
            while (others := self._others()) and loop.time() < until:
                await asyncio.wait(others, timeout=until - loop.time())
            await asyncio.sleep(0)


async def _as_coroutine(call: Awaitable[_T]) -> _T:
    return await call


@final
class _Begun:
    """Hands control back once: to whoever makes a coroutine go to its first line before a task has it."""

    def __await__(self) -> Generator[None, None, None]:
        yield


_BEGUN = _Begun()


async def _carry(call: Awaitable[_T], over: "asyncio.Future[None]") -> _T:
    """
    Carry a call out, and resolve *over* at its end: the waiter is woken a turn sooner than by a callback of the task.

    It is begun before its task starts: cancelled before that, it would never be inside, and *over* never resolved.
    """
    started = False
    try:
        await _BEGUN
        started = True
        return await call
    finally:
        if not started and isinstance(call, Coroutine):
            call.close()
        if not over.done():
            over.set_result(None)
