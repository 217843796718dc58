"""An instance: what a process of an application does with tenure, from its start to its shutdown."""

import asyncio
import contextlib
import random
from collections.abc import Callable
from typing import Final, final

from simulation.clocks import HolderClock
from simulation.ends import LockEnd, QueueEnd, RecordEnd
from simulation.life import Life
from simulation.network import NetworkError
from simulation.scene import Scene
from simulation.workloads.election import LeadershipOrder, candidate
from simulation.workloads.jobs import Jobs
from simulation.workloads.locks import work
from simulation.workloads.requests import Requests
from tenure import ConfigurationError, Locks, TenureError
from tenure.events import Event, LeaseAcquired, LeaseLost, LeaseReleased, RenewalFailed
from tenure.idempotency import Idempotency

__all__ = ["Instances"]

_SECRET: Final = b"the same on every instance"


@final
class Instances:
    """
    Starts instances, and starts them again.

    Args:
        scene: The run.
        jobs: The job, where the run has one.
        requests: The requests, where it has them.
    """

    def __init__(self, scene: Scene, jobs: Jobs | None, requests: Requests | None) -> None:
        self._scene = scene
        self._jobs = jobs
        self._requests = requests
        self._starts = 0
        self.every_life: list[Life] = []
        self.running: dict[Life, asyncio.Task[None]] = {}
        self._stop: dict[Life, asyncio.Event] = {}

    def start(self, index: int) -> Life:
        """Start instance number *index*."""
        scene, plan = self._scene, self._scene.plan
        self._starts += 1
        rate, monotonic, name = plan.rates[index], plan.monotonic[index], f"i{index + 1}"
        origin = scene.rng.uniform(1e3, 1e5)
        clock = HolderClock(scene.loop, rate=rate, monotonic=monotonic, origin=origin)
        life = Life(name, self._starts, scene.loop, clock)
        if rate < 1 - 0.01:
            scene.fired["clock beyond the margin"] += 1
        elif rate != 1:
            scene.fired["slow clock" if rate < 1 else "fast clock"] += 1
        scene.lives[name] = life
        self.every_life.append(life)
        self._stop[life] = asyncio.Event()
        scene.journal.say(name, f"starts, rate {rate:.4f}{', monotonic' if monotonic else ''}")
        scene.journal.note("started", name, by="nemesis")
        self.running[life] = life.spawn(self._live(life))
        return life

    def stop(self, life: Life) -> None:
        """Have *life* shut down, as after SIGTERM."""
        life.closing = True
        self._scene.journal.say(life.name, "is told to shut down")
        self._stop[life].set()

    async def _live(self, life: Life) -> None:
        rng = random.Random(f"life {self._scene.plan.seed} {life.number}")
        while not life.closing:
            try:
                await self._serve(life, rng)
            except (TenureError, NetworkError) as error:
                if isinstance(error, ConfigurationError) and "round trips" not in str(error):
                    raise
                # The start-up measures a network that is slow now, or a store that is away: it is tried again.
                self._scene.journal.saw(f"a start failed: {type(error).__name__}")
                self._scene.journal.say(life.name, f"cannot start: {error}")
                await life.sleep(self._scene.plan.ttl_s / 3)

    async def _serve(self, life: Life, rng: random.Random) -> None:
        scene, plan = self._scene, self._scene.plan
        life.locks = None
        locks = self._make_locks(life, rng)
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(locks)
            if "requests" in plan.workloads:
                life.idempotency = await stack.enter_async_context(self._make_idempotency(life, rng))
            life.locks = locks
            if "election" in plan.workloads:
                await stack.enter_async_context(candidate(scene, life, rng))
            if self._jobs is not None:
                self._jobs.declare(life, rng)
            workers = []
            if "locks" in plan.workloads:
                for number in range(plan.workers):
                    seed = f"worker {plan.seed} {life.number} {number}"
                    workers.append(life.spawn(work(scene, life, random.Random(seed))))
            await self._stop[life].wait()
        await self._wind_up(life, workers)

    async def _wind_up(self, life: Life, workers: list["asyncio.Task[None]"]) -> None:
        """See that a shutdown leaves nothing behind: what the application itself still does is waited for."""
        scene = self._scene
        for task in list(life.user_tasks):
            task.cancel()
        rest = [*workers, *life.user_tasks]
        if rest:
            await asyncio.wait(rest)
        await asyncio.sleep(0)
        assert life.locks is not None
        held = life.locks.statistics().held
        if held:
            scene.journal.broke("leftover", f"{life.name} has shut down, and keeps {held} leases")
        left = [task for task in life.tasks if not task.done() and task is not asyncio.current_task()]
        if left:
            names = ", ".join(sorted(task.get_coro().__qualname__ for task in left))  # type: ignore[union-attr]
            scene.journal.broke("leftover", f"{life.name} has shut down, and leaves tasks: {names}")
        scene.journal.say(life.name, "has shut down")

    def _make_locks(self, life: Life, rng: random.Random) -> Locks:
        scene, plan = self._scene, self._scene.plan
        hooks: list[Callable[[Event], None]] = [self._hook(life), LeadershipOrder(scene, life)]
        if self._jobs is not None:
            hooks.append(self._jobs.heard)
        end = QueueEnd if plan.queue else LockEnd
        return Locks(
            end(scene.network, scene.journal, scene.watch, life),
            ttl=plan.ttl_s,
            instance=life.name,
            store_timeout=plan.store_timeout_s,
            drain=plan.ttl_s / 4,
            hooks=hooks,
            clock=life.clock,
            rng=random.Random(rng.random()),
        )

    def _make_idempotency(self, life: Life, rng: random.Random) -> Idempotency:
        scene, plan = self._scene, self._scene.plan
        assert self._requests is not None
        return Idempotency(
            RecordEnd(scene.network, scene.journal, scene.watch, life),
            lock_ttl=plan.ttl_s,
            store_timeout=plan.store_timeout_s,
            completion_deadline=3 * plan.ttl_s,
            drain=plan.ttl_s / 4,
            instance=life.name,
            secret=_SECRET,
            hooks=[self._requests.heard],
            clock=life.clock,
            rng=random.Random(rng.random()),
        )

    def _hook(self, life: Life) -> Callable[[Event], None]:
        scene = self._scene

        def hear(event: Event) -> None:
            if isinstance(event, LeaseAcquired):
                grant = scene.watch.began(life, event)
                scene.journal.say(life.name, f"holds {event.key} as {grant.label}, token {event.token}")
            elif isinstance(event, LeaseLost):
                scene.journal.say(life.name, f"lost {event.key}, token {event.token}: {event.reason.value}")
                scene.watch.lost(life, event)
            elif isinstance(event, LeaseReleased):
                scene.watch.given_back(life, event)
            elif isinstance(event, RenewalFailed):
                scene.journal.saw("a renewal failed, and is tried again")

        def guarded(event: Event) -> None:
            # An engine logs what its hooks raise, and goes on: here it is a mistake of the observer's own.
            try:
                hear(event)
            except Exception as error:  # noqa: BLE001 -- see above
                scene.journal.broke("observer", f"{type(error).__name__}: {error}")

        return guarded
