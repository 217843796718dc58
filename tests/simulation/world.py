"""The world: builds a run from its seed, runs it, and says what came of it."""

import asyncio
import gc
import logging
import random
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

from simulation.instance import Instances
from simulation.journal import START_S, Journal, Violation
from simulation.life import Life, State, held_back, make_task
from simulation.nemesis import Nemesis
from simulation.network import Call, Network
from simulation.observers.effects import Effects
from simulation.observers.leases import LeaseWatch
from simulation.plan import Plan, draw_plan
from simulation.resource import Resource
from simulation.scene import Scene
from simulation.server import Server
from simulation.workloads.jobs import Jobs
from simulation.workloads.requests import Requests
from tenure.store import Acquired
from tenure.testing import DeadlockError, VirtualTimeLoop

__all__ = ["Outcome", "run_seed"]

_LATE_SHARE = 0.05
"""How many writes are late where requests may be: by up to two ttls, so that they meet a fence."""

_KEPT_AT_SHUTDOWN_S = 1.1
"""A job's lease whose run has only just started is kept for the rest of a second, and a bit for the way."""


@final
@dataclass(frozen=True, slots=True)
class Outcome:
    """
    What came of a run.

    Attributes:
        plan: What it was made of.
        journal: What happened.
        fired: How often each fault met somebody.
        virtual_s: How much virtual time went by.
    """

    plan: Plan
    journal: Journal
    fired: Counter[str]
    virtual_s: float

    @property
    def violations(self) -> list[Violation]:
        """What must not have happened."""
        return self.journal.violations

    @property
    def ok(self) -> bool:
        """Whether nothing did."""
        return not self.journal.violations


class _Watchers:
    """Shows every call to the observers of leases and of requests."""

    def __init__(self, watch: LeaseWatch, effects: Effects) -> None:
        self._watch = watch
        self._effects = effects

    def sent(self, call: Call) -> None:
        self._watch.sent(call)

    def performed(self, call: Call, reply: Any, *, repeated: bool) -> None:
        self._watch.performed(call, reply, repeated=repeated)
        self._effects.performed(call, reply)

    def granted_by_release(self, key: str, owner: str, granted: Acquired, *, lost: bool) -> None:
        self._watch.granted_by_release(key, owner, granted, lost=lost)


def run_seed(seed: int) -> Outcome:
    """Run the execution of *seed*."""
    plan = draw_plan(seed)
    # Outermost: what is thrown away when the loop closes may warn too.
    with warnings.catch_warnings(), _quiet(), _loop_of(seed) as loop:
        scene = _build(plan, loop)
        _hear_warnings(scene.journal)
        run = _Run(scene)
        loop.set_exception_handler(lambda _, context: run.unseen(context))
        try:
            loop.run_until_complete(run.play())
        except DeadlockError as error:
            scene.journal.broke("deadlock", str(error))
        except Exception as error:
            error.add_note(f"The simulation itself failed, in seed {seed}.")
            raise
        finally:
            virtual_s = scene.journal.now - START_S
            run.bury()
        return Outcome(plan, scene.journal, scene.fired + scene.network.fired, virtual_s)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the engine's log out of the way: with a fault at every second step, it has much to say."""
    loggers = [logging.getLogger(name) for name in ("tenure", "asyncio")]
    before = [logger.disabled for logger in loggers]
    # What is collected when is nobody's to choose, and costs as much as all the rest.
    collecting = gc.isenabled()
    gc.disable()
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    finally:
        for logger, disabled in zip(loggers, before, strict=True):
            logger.disabled = disabled
        if collecting:
            gc.enable()


def _hear_warnings(journal: Journal) -> None:
    """Take a coroutine that nobody awaited for what it is: a mistake. Inside `warnings.catch_warnings`."""

    def hear(message: Warning | str, *_: Any) -> None:
        if not journal.muted:
            journal.warned(str(message))

    warnings.simplefilter("always")
    warnings.showwarning = hear  # type: ignore[assignment]  # it is called with more than is looked at


@contextmanager
def _loop_of(seed: int) -> Iterator[VirtualTimeLoop]:
    loop = VirtualTimeLoop(seed, hold_back=held_back)
    loop.set_task_factory(make_task)  # type: ignore[arg-type]  # its options differ between the versions of Python
    try:
        yield loop
    finally:
        loop.close()


def _build(plan: Plan, loop: VirtualTimeLoop) -> Scene:
    journal = Journal(loop)
    watch, effects = LeaseWatch(journal, plan), Effects(journal)
    server = Server(loop, lambda text: journal.broke("model", text))
    network_rng = random.Random(f"network {plan.seed}")
    network = Network(loop, plan, network_rng, server, _Watchers(watch, effects))
    late = _LATE_SHARE if plan.on("request late") else 0.0
    return Scene(
        plan=plan,
        loop=loop,
        rng=random.Random(f"scene {plan.seed}"),
        journal=journal,
        server=server,
        network=network,
        watch=watch,
        effects=effects,
        resource=Resource(network, journal, late, 2 * plan.ttl_s),
    )


@final
class _Run:
    """One execution: the faults, the calm after them, the shutdown, and what must be true then."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._jobs = Jobs(scene) if "jobs" in scene.plan.workloads else None
        self._requests = Requests(scene) if "requests" in scene.plan.workloads else None
        self._instances = Instances(scene, self._jobs, self._requests)
        self._nemesis = Nemesis(scene, self._instances)

    async def play(self) -> None:
        """Play it."""
        scene, plan = self._scene, self._scene.plan
        scene.journal.say("world", f"seed {plan.seed}: {', '.join(plan.workloads)}; faults: {', '.join(plan.faults)}")
        for index in range(plan.instances):
            self._instances.start(index)
        beside = []
        if self._jobs is not None:
            beside.append(scene.loop.create_task(self._jobs.fire()))
        if self._requests is not None:
            beside.append(scene.loop.create_task(self._requests.arrive()))
        self._phase("faults")
        await self._nemesis.torment(scene.loop.time() + plan.fault_s)
        self._nemesis.end()
        scene.calm = True
        self._phase("calm")
        await self._calm()
        scene.stopping = True
        self._phase("shutdown")
        await self._shut_down(beside)

    def _phase(self, name: str) -> None:
        self._scene.journal.say("world", f"phase: {name}")
        if name != "shutdown":  # in which nothing is granted: no phase for the history
            self._scene.journal.note("phase", "world", name=name)

    @property
    def _longest_lock_s(self) -> float:
        """How long a lock can outlive its holder: a ttl, by the store's clock, which may have been set back."""
        return self._scene.plan.ttl_s + self._nemesis.stepped_back_s

    async def _calm(self) -> None:
        """Let everything come to rest, and see that every key is to be had again, and every request answered."""
        scene, ttl_s = self._scene, self._scene.plan.ttl_s
        since = scene.loop.time()
        # Two ttls, and a retry: a candidate that stood down rests for half a ttl and asks a little later than that.
        until = since + self._longest_lock_s + 1.7 * ttl_s / min(scene.plan.rates)
        while scene.loop.time() < until:
            await scene.wait_until(min(until, scene.loop.time() + ttl_s / 3))
            scene.watch.look_around()
        for key in sorted(scene.asked_keys):
            never = float("-inf")
            had_at = max(scene.watch.granted_at.get(key, never), scene.watch.believed_at.get(key, never))
            if had_at < since:
                scene.journal.broke("liveness", f'nobody got "{key}" since the faults are over')
        if self._requests is not None:
            await self._see_requests_answered(until + ttl_s)

    async def _see_requests_answered(self, until: float) -> None:
        assert self._requests is not None
        while self._requests.unanswered and self._scene.loop.time() < until:
            await self._scene.wait_until(self._scene.loop.time() + self._scene.plan.ttl_s / 4)
        for key in sorted(set(self._requests.unanswered.values())):
            self._scene.journal.broke("liveness", f"{key} is not answered, and the faults are over")

    async def _shut_down(self, beside: list["asyncio.Task[None]"]) -> None:
        scene, plan, ttl_s = self._scene, self._scene.plan, self._scene.plan.ttl_s
        living = [life for life, task in self._instances.running.items() if not task.done() and life.running]
        for life in living:
            self._instances.stop(life)
        ends = [self._instances.running[life] for life in living]
        _, late = await asyncio.wait([*ends, *beside], timeout=5 * ttl_s)
        if late:
            scene.journal.broke("leftover", f"{len(late)} instances and workloads do not end")
        scene.watch.look_around()
        for grant in scene.watch.kept():
            scene.journal.broke("leftover", f'{grant.label} still believes to hold "{grant.key}" after its shutdown')
        await scene.wait_until(scene.loop.time() + _KEPT_AT_SHUTDOWN_S)
        if not (plan.on("request late") or plan.on("request repeated")):
            self._see_nothing_locked("handed back", "everybody has shut down, and was not handed back")
        await scene.wait_until(scene.loop.time() + self._longest_lock_s)
        self._see_nothing_locked("orphan", "everybody has shut down a ttl ago, and still locked is")

    def _see_nothing_locked(self, rule: str, what: str) -> None:
        # A slot is claimed for good: it is not to be run again.
        held = [key for key in self._scene.server.live_keys() if "@" not in key]
        if held:
            self._scene.journal.broke(rule, f"{what}: {', '.join(held)}")

    def unseen(self, context: dict[str, Any]) -> None:
        """See an error that nobody looked at."""
        error = context.get("exception")
        self._scene.journal.broke("error", f"nobody looks at {type(error).__name__}: {error or context['message']}")

    def bury(self) -> None:
        """End what is left of the lives that crashed, unseen: their tasks would be destroyed while they are pending."""
        scene = self._scene
        scene.journal.muted = True
        scene.network.torn_down = True
        for life in self._instances.every_life:
            life.clock.stop()
            life.state = State.RUNNING
        scene.loop.let_go()
        scene.loop.run_until_complete(_bury(self._instances.every_life))


async def _bury(lives: list[Life]) -> None:
    this = asyncio.current_task()
    for _ in range(20):
        left = [task for life in lives for task in life.tasks if not task.done()]
        left += [task for task in asyncio.all_tasks() if task is not this and task not in left]
        if not left:
            break
        for task in left:
            task.cancel()
        await asyncio.wait(left, timeout=10)
    # The loop has some turns left, in which nobody is to begin anything.
    for life in lives:
        life.state = State.DEAD
