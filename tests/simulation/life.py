"""
A life: one start of an instance, to its end by a shutdown or by a crash.

Whatever a life runs (its tasks, the engine's, their callbacks and timers) runs in contexts that name it. So the loop
can hold it back as a whole: a life that is paused does not run and hears nothing, while its requests are on their way
and the store's clock goes on. A life that crashed is held back for good: nothing is released, and no `finally` runs.
"""

import asyncio
import contextvars
import enum
from collections.abc import Callable, Coroutine
from typing import Any, final

from simulation.clocks import HolderClock
from tenure import Locks
from tenure.idempotency import Idempotency
from tenure.testing import VirtualTimeLoop

__all__ = ["LIFE", "Life", "State", "held_back", "make_task"]

LIFE: contextvars.ContextVar["Life | None"] = contextvars.ContextVar("simulation_life", default=None)


class State(enum.Enum):
    """Where a life stands."""

    RUNNING = "running"
    PAUSED = "paused"
    DEAD = "dead"


@final
class Life:
    """
    One start of an instance.

    Attributes:
        name: The instance's name.
        number: Which start of it, across all instances.
        clock: Its clock.
        state: Whether it runs.
        resumed_at: The true time at which it last went on after a pause.
        closing: Whether it is shutting down: from then on its leases end because it says so.
        user_tasks: Tasks of the application's code, which may be cancelled at any moment.
    """

    def __init__(self, name: str, number: int, loop: VirtualTimeLoop, clock: HolderClock) -> None:
        self.name = name
        self.number = number
        self.loop = loop
        self.clock = clock
        self.state = State.RUNNING
        self.resumed_at = 0.0
        self.late_looks_s = 0.0
        self.closing = False
        self.locks: Locks | None = None
        self.idempotency: Idempotency | None = None
        self.user_tasks: dict[asyncio.Task[Any], None] = {}
        self.tasks: list[asyncio.Task[Any]] = []
        self._prune_at = 200
        self._context = contextvars.copy_context()
        self._context.run(LIFE.set, self)

    @property
    def running(self) -> bool:
        """Whether its code runs now."""
        return self.state is State.RUNNING

    @property
    def up(self) -> bool:
        """Whether requests and ticks can be given to it."""
        return self.state is not State.DEAD and self.locks is not None and not self.closing

    def spawn(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """Run *work* as a part of this life."""
        return self.loop.create_task(work, context=self._context.copy())

    def spawn_user(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """Run *work* as the application's code."""
        task = self.spawn(work)
        self.user_tasks[task] = None
        task.add_done_callback(self._user_task_ended, context=self._context)
        return task

    def _user_task_ended(self, task: "asyncio.Task[Any]") -> None:
        self.user_tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.loop.call_exception_handler({"message": "user code", "exception": error})

    def added(self, task: "asyncio.Task[Any]") -> None:
        """Keep *task* alive: the tasks of a life that crashed must not be collected, which runs their `finally`."""
        self.tasks.append(task)
        if len(self.tasks) > self._prune_at:
            self.tasks = [one for one in self.tasks if not one.done()]
            self._prune_at = 200 + 2 * len(self.tasks)

    def pause(self) -> None:
        """Stop running, as after SIGSTOP."""
        self.state = State.PAUSED

    def resume(self) -> None:
        """Go on."""
        self.state = State.RUNNING
        self.resumed_at = self.loop.time()
        self.loop.let_go()

    def crash(self) -> None:
        """End here and now."""
        self.state = State.DEAD

    async def sleep(self, seconds: float) -> None:
        """Sleep, on the life's own clock."""
        woken: asyncio.Future[None] = self.loop.create_future()

        def wake() -> None:
            if not woken.done():
                woken.set_result(None)

        timer = self.clock.call_at(self.clock.now() + seconds, wake)
        try:
            await woken
        finally:
            timer.cancel()


def held_back(context: contextvars.Context) -> bool:
    """Tell whether what runs in *context* belongs to a life that does not run; for the loop."""
    life = context.get(LIFE)
    return life is not None and life.state is not State.RUNNING


def make_task(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], **options: Any) -> "asyncio.Task[Any]":
    """Make a task that its life knows of; a task factory."""
    context: contextvars.Context | None = options.get("context")
    get: Callable[[contextvars.ContextVar[Life | None]], Life | None] = (
        (lambda variable: variable.get()) if context is None else context.get
    )
    task = asyncio.Task(work, loop=loop, **options)
    life = get(LIFE)
    if life is not None:
        life.added(task)
    return task
