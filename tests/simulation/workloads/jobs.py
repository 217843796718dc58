"""Jobs, which every instance is told to run at every tick, a little earlier or later than the others."""

import random
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, final

from simulation.life import Life
from simulation.network import NetworkError
from simulation.scene import Scene
from tenure import LeaseLostError, TenureError, current_lease, on_one_instance, without_overlapping
from tenure.events import Event, JobSkipped

__all__ = ["Jobs"]

Job = Callable[[int], Coroutine[Any, Any, Any]]


@final
class Jobs:
    """The job of a run, declared anew in each life, and the scheduler that fires its ticks everywhere."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self.kind = scene.rng.choice(("sticky", "sticky", "loose", "slotted"))
        self._jobs: dict[Life, Job] = {}
        self._runs_of_slot: Counter[int] = Counter()
        self._slot_ran_at: dict[int, float] = {}
        self._active: dict[int, tuple[Life, Any]] = {}
        self._runs = 0

    def declare(self, life: Life, rng: random.Random) -> None:
        """Declare the job of a life."""
        locks, at_least = life.locks, round(self._scene.plan.ttl_s / 10, 3)

        async def run(tick: int) -> None:
            await self._run(life, tick, rng)

        if self.kind == "sticky":
            overlapping = without_overlapping(at_least=at_least, locks=locks)(run)
            self._jobs[life] = on_one_instance("job", locks=locks)(overlapping)
            self._scene.asked_keys.update({"job", "job:owner"})
        elif self.kind == "loose":
            self._jobs[life] = without_overlapping("job", at_least=at_least, locks=locks)(run)
            self._scene.asked_keys.add("job")
        else:
            self._jobs[life] = on_one_instance("job", locks=locks, slot=lambda tick: tick)(run)
            self._scene.asked_keys.add("job:owner")

    async def fire(self) -> None:
        """Fire the ticks, on every instance that is up."""
        scene, tick = self._scene, 0
        while not scene.stopping:
            for life in scene.lives_up():
                # Skewed as the clocks of several machines are.
                scene.network.later(0.05 * scene.rng.random(), self._tick, life, tick)
                if self.kind == "slotted" and scene.rng.random() < 0.2:
                    # A slot is what a tick that is fired again, and late, is told by.
                    scene.network.later(scene.plan.ttl_s * scene.rng.random(), self._tick, life, tick)
            tick += 1
            await scene.wait_until(scene.loop.time() + scene.plan.ttl_s * scene.rng.uniform(0.35, 0.65))

    def _tick(self, life: Life, tick: int) -> None:
        if life.up and life in self._jobs:
            life.spawn_user(self._call(life, tick))

    async def _call(self, life: Life, tick: int) -> None:
        try:
            await self._jobs[life](tick)
        except LeaseLostError:
            self._scene.journal.saw("a run cancelled by its loss")
        except (TenureError, NetworkError) as error:
            self._scene.journal.saw(f"a tick failed: {type(error).__name__}")

    async def _run(self, life: Life, tick: int, rng: random.Random) -> None:
        scene, lease = self._scene, current_lease()
        assert lease is not None
        self._runs += 1
        number = self._runs
        grant = scene.watch.guarded(lease)
        scene.journal.say(life.name, f"runs tick {tick} under token {lease.token}")
        self._judge_slot(tick)
        if self.kind != "slotted":
            # Slots are ran one by one and may overlap: a slot is what they exclude.
            for other_life, other in self._active.values():
                if other_life.running and other is not grant and scene.watch.believes(other):
                    scene.watch.judge_overlap("a second run begins under", other, grant)
        self._active[number] = (life, grant)
        scene.journal.note("enter", life.name, key=lease.key, token=lease.token)
        try:
            for _ in range(rng.randrange(1, 4)):
                await life.sleep(scene.plan.ttl_s * rng.uniform(0.02, 0.4))
                scene.watch.guarded(lease)
                if scene.watch.believes(grant):
                    scene.resource.write(grant, scene.write_draw())
        finally:
            self._active.pop(number, None)
            scene.journal.note("exit", life.name, key=lease.key, token=lease.token)

    def _judge_slot(self, tick: int) -> None:
        if self.kind != "slotted":
            return
        scene, now = self._scene, self._scene.journal.now
        self._runs_of_slot[tick] += 1
        if self._runs_of_slot[tick] > 1 and self._slot_ran_at[tick] > scene.watch.tail_lost_at:
            scene.journal.broke("slot", f"slot {tick} is run a second time")
        self._slot_ran_at[tick] = now

    def heard(self, event: Event) -> None:
        """Count why ticks were skipped; a hook."""
        if isinstance(event, JobSkipped):
            self._scene.journal.saw(f"a tick skipped: {event.reason.value}")
