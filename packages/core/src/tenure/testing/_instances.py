"""
Several instances in one process, on one store and one clock: for tests of an application's own jobs.

Each is a `Locks` with its own view of the clock and its own way to the store, so that one can be paused, cut off or
killed while the others go on.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import Any, Final, ParamSpec, TypeVar, final

from tenure._durations import Duration
from tenure.clock import Clock, sleep_until
from tenure.errors import ConfigurationError, LeaseStateError
from tenure.events import Event
from tenure.instrumentation import Hook, default_hooks, tell
from tenure.locks import Locks, Phase, ambient
from tenure.memory import InMemoryLockStore
from tenure.testing._parked import parked
from tenure.testing._process_clock import ProcessClock
from tenure.testing._spans import span_s
from tenure.testing.clock import ManualClock
from tenure.testing.faults import FaultyStore

__all__ = ["Instance", "InstanceKilledError", "Instances", "instances"]

_P = ParamSpec("_P")
_R = TypeVar("_R")


class InstanceKilledError(RuntimeError):
    """What was run by an instance ended because the test killed the instance."""

    __module__ = "tenure.testing"


class InstanceStore(FaultyStore):
    """One instance's way to the store: nothing goes out of a paused process, and nothing comes in."""

    def __init__(self, inner: Any, *, clock: Clock | None = None, seed: int = 0) -> None:
        super().__init__(inner, clock=clock, seed=seed)
        self.runs = asyncio.Event()
        self.runs.set()

    async def _pass(self, method: str, *args: Any, **options: Any) -> Any:
        await self._while_paused()
        try:
            return await super()._pass(method, *args, **options)
        finally:
            await self._while_paused()

    async def _while_paused(self) -> None:
        while not self.runs.is_set():
            with parked():
                await self.runs.wait()


@final
class Instance:
    """
    One process of the application, as `instances()` makes it.

    Attributes:
        name: Its name, which the store has in front of its owners.
        locks: Its `Locks`, entered.
        store: Its way to the store, for faults of the test's own: `shop.store.on("renew").lose_reply()`.
        events: What its `Locks` told, in order; nothing after its death.
    """

    def __init__(
        self, name: str, store: InMemoryLockStore, clock: Clock, *, hooks: Sequence[Hook], seed: int, **settings: Any
    ) -> None:
        self.name: Final = name
        self.events: Final[list[Event]] = []
        self._memory = store
        self._clock = ProcessClock(clock)
        self._road = InstanceStore(store, clock=clock, seed=seed)
        self.store: Final[FaultyStore] = self._road
        self._hooks = (self.events.append, *hooks)
        self._works: set[asyncio.Task[Any]] = set()
        self._dead = False
        self.locks: Final = Locks(
            self._road,
            instance=name,
            hooks=[self._tell],
            clock=self._clock,
            rng=random.Random(f"{seed} {name}"),  # noqa: S311 - replayable, not secret
            **settings,
        )

    def __repr__(self) -> str:
        state = "killed" if self._dead else "paused" if self.is_paused else self.locks.phase.value
        return f"<Instance {self.name!r}, {state}>"

    @property
    def is_paused(self) -> bool:
        """Whether it is paused now."""
        return not self._road.runs.is_set()

    async def call(self, function: Callable[_P, Awaitable[_R]], *args: _P.args, **kwargs: _P.kwargs) -> _R:
        """
        Call *function* as this instance does: job decorators and `@locked` find its `Locks`.

        Raises:
            LeaseStateError: The instance is paused, or its end has come.
            InstanceKilledError: The instance was killed while it ran.
            Exception: What *function* raised.
        """
        self._refuse_unless_running()
        work: asyncio.Task[_R] = self._spawn(self._run(function, args, kwargs))
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError:
            work.cancel()
            await asyncio.wait([work])
            raise
        if self._dead and work.cancelled():
            raise InstanceKilledError(f"{self.name} was killed while it ran this.")
        return work.result()

    async def _run(self, function: Callable[..., Awaitable[_R]], args: tuple[Any, ...], kwargs: dict[str, Any]) -> _R:
        with ambient.within(self.locks):
            return await function(*args, **kwargs)

    def pause(self) -> None:
        """
        Have nothing of it run: it sends nothing, hears nothing, and its clock stands still until `resume()`.

        The test's own code still runs, also where it is under a lease of this instance.
        """
        self._refuse_unless_running()
        self._clock.stop()
        self._road.runs.clear()

    async def resume(self) -> None:
        """Have it go on. What is overdue runs first: it learns of leases that it lost before anything else."""
        self._clock.go_on()
        self._road.runs.set()
        await _settle(self._clock.shared)

    def cut(self, *, hang: bool = False) -> None:
        """
        Cut it off from the store until `heal()`; it goes on.

        Args:
            hang: Its calls have no answer, until the clock says that they took too long. By default they fail at once,
                with `tenure.testing.FaultError`.
        """
        faults = self._road.on("*")
        if hang:
            faults.hang()
        else:
            faults.lose_request()

    async def heal(self) -> None:
        """Lift `cut()`, and every fault that was set on `store`."""
        self._road.heal()
        await _settle(self._clock.shared)

    async def kill(self) -> None:
        """
        End it as `kill -9` does: nothing is released, and what `call()` ran is stopped. Twice does nothing more.

        Its `Locks` is closed when this returns. No hook hears of it: a dead process tells nothing.
        """
        if self._dead:
            return
        self._dead = True
        nowhere = FaultyStore(self._memory)
        nowhere.down()
        self._road.inner = nowhere
        await self._end()

    async def stop(self) -> None:
        """Shut it down in good order, as on SIGTERM: leases are handed back. Twice does nothing more."""
        await self.locks.close()

    async def start(self) -> None:
        """Enter its `Locks`; `instances()` does."""
        # In a task of its own: the test's context keeps no ambient Locks, where the last of several would be meant.
        await asyncio.get_running_loop().create_task(self.locks.__aenter__())

    async def leave(self) -> None:
        """End what is left of it at the end of the test; `instances()` does."""
        await self._end()
        await self._road.aclose()

    async def _end(self) -> None:
        # Nothing may wait for a clock that nobody moves any more.
        self._clock.go_on()
        self._road.runs.set()
        self._road.heal()
        works = [work for work in self._works if work is not asyncio.current_task()]
        for work in works:
            work.cancel()
        if works:
            await asyncio.wait(works)
        await self.locks.close()

    def _spawn(self, work: Any) -> "asyncio.Task[Any]":
        task = asyncio.get_running_loop().create_task(work)
        self._works.add(task)
        task.add_done_callback(self._works.discard)
        return task

    def _tell(self, event: Event) -> None:
        if not self._dead:
            tell(self._hooks, event)

    def _refuse_unless_running(self) -> None:
        if self._dead:
            raise LeaseStateError(f"{self.name} was killed: start another with `await shops.start()`.")
        if self.is_paused:
            raise LeaseStateError(f"{self.name} is paused, and runs nothing: `await resume()` first.")


@final
class Instances:
    """
    The instances of a test, in the order in which they were started; indexed and iterated like a list.

    Attributes:
        clock: The clock that they share with the store.
        store: The store that they meet in.
    """

    def __init__(self, store: InMemoryLockStore, clock: Clock, make: Callable[[str], Instance]) -> None:
        self.store: Final = store
        self.clock: Final = clock
        self._make = make
        self._all: list[Instance] = []

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Instance]:
        return iter(tuple(self._all))

    def __getitem__(self, index: int) -> Instance:
        return self._all[index]

    async def advance(self, duration: Duration) -> None:
        """
        Let *duration* pass for the store and for every instance; returns when all that fell due has been done.

        Args:
            duration: Seconds (any fraction), a `timedelta`, or a string such as "30s".
        """
        if isinstance(self.clock, ManualClock):
            await self.clock.advance(duration)
        else:
            await sleep_until(self.clock, self.clock.now() + span_s(duration, name="duration"))

    async def start(self, name: str | None = None) -> Instance:
        """
        Start one more: a replica that comes up, or that comes back.

        Args:
            name: Its name; that of one that ended may come again. By default a new one.

        Raises:
            ConfigurationError: The name is no instance's name, or that of one that runs.
        """
        name = f"instance-{len(self._all) + 1}" if name is None else name
        if any(one.name == name and one.locks.phase is Phase.OPEN for one in self._all):
            raise ConfigurationError(f"An instance called {name!r} runs already: two could not be told apart.")
        one = self._make(name)
        await one.start()
        self._all.append(one)
        return one

    async def holder(self, key: str) -> str | None:
        """
        Ask the store who holds *key*; a job's lease is `<key>:owner`.

        Returns:
            The instance's name, also of one that is dead, until the lease has expired; None where nobody holds it.
        """
        records = await self.store.list_locks(key)
        return next((record.instance for record in records if record.key == key), None)


@contextlib.asynccontextmanager
async def instances(  # noqa: PLR0913 -- all but the number have defaults, and are given by name
    number: int,
    *,
    ttl: Duration = "30s",
    names: Sequence[str] | None = None,
    clock: Clock | None = None,
    drain: Duration = 0,
    hooks: Sequence[Hook] | None = None,
    seed: int = 0,
) -> AsyncIterator[Instances]:
    """
    Start several instances of an application in one process, on one store in memory and one clock.

        @on_one_instance("reports:weekly")
        async def export() -> str:
            return "exported"

        async with instances(3, ttl="30s") as shops:
            assert [await shop.call(export) for shop in shops] == ["exported", None, None]
            await shops[0].kill()
            assert await shops[1].call(export) is None  # the lease of the dead one lives on in the store
            await shops.advance("30s")
            assert await shops[1].call(export) == "exported"

    What happens to an instance, as a test says it:

    - `await shop.kill()`, as `kill -9`: its keys are held until their ttl has passed.
    - `await shop.stop()`, as SIGTERM in a rolling deploy: its keys are handed back.
    - `shop.pause()` and `await shop.resume()`, as SIGSTOP or a VM that is suspended: its keys expire, and it finds out
      when it goes on.
    - `shop.cut()` and `await shop.heal()`, as a broken network: its keys expire, and it finds out at its deadline.

    Time stands still until `advance()`. All is in one process, so a test takes milliseconds. What it cannot show is
    what a pause does between two lines of a job, and what a death does in the middle of one: the job of a killed
    instance is cancelled, and its `finally` runs.

    Args:
        number: How many, 1 or more.
        ttl: The ttl of their leases.
        names: Their names; by default instance-1, instance-2 and so on.
        clock: The clock of the store and of all of them; by default a `ManualClock`, which only `advance()` moves.
        drain: How long `stop()` waits for guarded bodies before it cancels them, on that clock.
        hooks: Who hears of the events of all of them; by default the log.
        seed: Where their jitter, and faults by chance, come from: the same seed, the same run.

    Raises:
        ConfigurationError: The number is less than 1, or the names are not as many, or two are the same.
    """
    names = [f"instance-{at}" for at in range(1, number + 1)] if names is None else list(names)
    if number < 1 or len(names) != number or len(set(names)) != number:
        raise ConfigurationError(
            f"instances({number}) was given {len(names)} names, {len(set(names))} of them different: give one for each "
            "of at least one instance, or none."
        )
    shared: Clock = ManualClock() if clock is None else clock
    store = InMemoryLockStore(shared)
    told = tuple(default_hooks() if hooks is None else hooks)

    def make(name: str) -> Instance:
        return Instance(name, store, shared, hooks=told, seed=seed, ttl=ttl, drain=drain)

    started = Instances(store, shared, make)
    try:
        for name in names:
            await started.start(name)
        yield started
    finally:
        for one in started:
            await one.leave()


async def _settle(clock: Clock) -> None:
    if isinstance(clock, ManualClock):
        await clock.settle()
    else:
        await asyncio.sleep(0)
