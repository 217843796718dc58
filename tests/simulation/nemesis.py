"""Who brings the faults: pauses, crashes, an absent store, clocks that step, cancellations."""

import random
from collections.abc import Callable
from typing import final

from simulation.instance import Instances
from simulation.life import Life, State
from simulation.network import Call
from simulation.scene import Scene

__all__ = ["Nemesis"]


@final
class Nemesis:
    """
    Brings those faults of a plan that do not belong to a call.

    Attributes:
        stepped_back_s: By how much the store's clock was set back in all: so much longer may a lock live.
    """

    def __init__(self, scene: Scene, instances: Instances) -> None:
        self._scene = scene
        self._instances = instances
        self._rng = random.Random(f"nemesis {scene.plan.seed}")
        self._paused: dict[Life, bool] = {}
        self._over = False
        self.stepped_back_s = 0.0
        faults: dict[str, Callable[[], None]] = {
            "store down": self._store_down,
            "store clock forward": self._step_forward,
            "store clock back": self._step_back,
            "lost tail": self._lose_tail,
            "cut off": self._cut_off,
            "pause": self._pause,
            "suspend": self._suspend,
            "suspend of a monotonic clock": self._suspend_monotonic,
            "crash": self._crash,
            "restart": self._restart,
            "cancel": self._cancel,
        }
        self._faults = [fault for kind, fault in faults.items() if scene.plan.on(kind)]

    async def torment(self, until: float) -> None:
        """Bring one fault after the other, until the true time is *until*."""
        scene, rng, ttl_s = self._scene, self._rng, self._scene.plan.ttl_s
        snapshots = scene.plan.on("lost tail")
        # Cancellations are many and cheap: one at every await takes a good few of them.
        pause = ttl_s * (0.5 if self._faults else 1.0)
        while scene.loop.time() < until:
            await scene.wait_until(min(until, scene.loop.time() + rng.expovariate(1 / pause)))
            if scene.loop.time() >= until:
                break
            if snapshots:
                scene.server.take_snapshot()
            if self._faults:
                rng.choice(self._faults)()
            scene.watch.look_around()

    def end(self) -> None:
        """Heal everything: the store is back, the paused go on, the dead are started again."""
        self._over = True
        self._scene.network.heal()
        self._scene.resource.heal()
        for life in list(self._paused):
            self._go_on(life)
        for index, life in enumerate(list(self._scene.lives.values())):
            if life.state is State.DEAD or (life.closing and self._instances.running[life].done()):
                self._instances.start(index)

    def _later(self, seconds: float, callback: Callable[..., object], *args: object) -> None:
        self._scene.network.later(seconds, callback, *args)

    def _say(self, fault: str, what: str) -> None:
        self._scene.fired[fault] += 1
        self._scene.journal.say("nemesis", f"{fault}: {what}")

    # ------------------------------------------------------------------------------------- the store

    def _store_down(self) -> None:
        network, ttl_s = self._scene.network, self._scene.plan.ttl_s
        if network.down:
            return
        network.down, network.down_refuses = True, self._rng.random() < 0.5
        # Counted where a call meets it.
        self._scene.journal.say("nemesis", "store down")
        self._later(ttl_s * self._rng.choice((0.1, 0.5, 1.5)) * self._rng.random(), self._store_up)

    def _store_up(self) -> None:
        self._scene.network.down = False
        self._scene.journal.say("nemesis", "store up")

    def _step_forward(self) -> None:
        step_s = self._scene.plan.ttl_s * self._rng.choice((0.3, 3)) * self._rng.random()
        self._scene.server.clock.offset_s += step_s
        self._scene.watch.stepped_forward_at = self._scene.loop.time()
        self._say("store clock forward", f"{step_s:.3f} s")

    def _step_back(self) -> None:
        step_s = self._scene.plan.ttl_s * self._rng.random() / 2
        self._scene.server.clock.offset_s -= step_s
        self.stepped_back_s += step_s
        self._say("store clock back", f"{step_s:.3f} s")

    def _lose_tail(self) -> None:
        scene = self._scene
        if scene.server.lose_tail(self._rng.choice((1, 2, 3))):
            scene.watch.tail_lost_at = scene.effects.tail_lost_at = scene.loop.time()
            self._say("lost tail", "an older state is promoted")

    # --------------------------------------------------------------------------------- the instances

    def _pick(self, condition: Callable[[Life], bool]) -> Life | None:
        lives = [life for life in self._scene.lives.values() if life.running and condition(life)]
        return self._rng.choice(lives) if lives else None

    def _cut_off(self) -> None:
        life = self._pick(lambda _: True)
        if life is None or self._scene.network.cut_off:
            return
        # Counted where a call meets it.
        self._scene.journal.say("nemesis", f"{life.name} is cut off from the store")
        self._scene.network.cut_off.add(life.name)
        self._later(self._scene.plan.ttl_s * self._rng.choice((0.5, 1.5, 2.5)), self._mend, life.name)

    def _mend(self, name: str) -> None:
        self._scene.network.cut_off.discard(name)
        self._scene.journal.say("nemesis", f"{name} reaches the store again")

    def _pause(self) -> None:
        life = self._pick(lambda _: True)
        if life is None:
            return
        if self._rng.random() < 0.5:
            self._hold_back(life, "pause", suspended=False)
            return

        # For longer than what it asks for lasts, mostly: the answer is there when it goes on, and comes too late.
        seconds = self._scene.plan.ttl_s * self._rng.uniform(0.5, 2.5)
        awaited = self._rng.choice((("acquire", "acquire_queued", "begin"), ("renew", "renew_many", "extend")))

        def lie_in_wait(call: Call) -> None:
            if call.life is life and call.op in awaited and life.running:
                self._scene.network.ambush = None
                self._hold_back(life, "pause", suspended=False, seconds=seconds)

        self._scene.network.ambush = lie_in_wait

    def _suspend(self) -> None:
        life = self._pick(lambda one: not one.clock.monotonic)
        if life is not None:
            self._hold_back(life, "suspend", suspended=True)

    def _suspend_monotonic(self) -> None:
        life = self._pick(lambda one: one.clock.monotonic)
        if life is not None:
            self._hold_back(life, "suspend of a monotonic clock", suspended=True)

    def _hold_back(self, life: Life, fault: str, *, suspended: bool, seconds: float | None = None) -> None:
        if seconds is None:
            seconds = self._scene.plan.ttl_s * self._rng.choice((0.3, 1, 3)) * self._rng.random()
        self._say(fault, f"{life.name} for {seconds:.3f} s")
        self._scene.journal.note("paused", life.name, by="nemesis")
        life.pause()
        if suspended:
            life.clock.suspend()
        self._paused[life] = suspended
        self._later(seconds, self._go_on, life)

    def _go_on(self, life: Life) -> None:
        suspended = self._paused.pop(life, None)
        if suspended is None or life.state is State.DEAD:
            return
        if suspended:
            life.clock.wake(self._rng.random())
        life.late_looks_s = 1.0 if suspended else 0.0
        life.resume()
        self._scene.journal.say("nemesis", f"{life.name} goes on")
        self._scene.journal.note("resumed", life.name, by="nemesis")
        self._scene.watch.resumed(life)

    def _crash(self) -> None:
        life = self._pick(lambda one: not one.closing)
        if life is None:
            return
        self._say("crash", life.name)
        self._scene.journal.note("died", life.name, by="nemesis")
        life.crash()
        self._later(self._scene.plan.ttl_s * 1.5 * self._rng.random(), self._start_again, life)

    def _restart(self) -> None:
        life = self._pick(lambda one: one.up)
        if life is None:
            return
        self._say("restart", life.name)
        self._instances.stop(life)
        ended = self._instances.running[life]
        ended.add_done_callback(lambda _: self._later(0.01, self._start_again, life))

    def _start_again(self, life: Life) -> None:
        # Whoever was started meanwhile, by the end of the faults, is not started twice.
        if not self._scene.stopping and self._scene.lives[life.name] is life:
            self._instances.start(int(life.name[1:]) - 1)

    def _cancel(self) -> None:
        """Cancel some task of the application's, wherever it stands, soon: several, for each meets one await."""
        for _ in range(4):
            self._later(self._scene.plan.ttl_s / 2 * self._rng.random(), self._cancel_one)

    def _cancel_one(self) -> None:
        tasks = [task for life in self._scene.lives.values() if life.up for task in life.user_tasks]
        if tasks and not self._over:
            self._rng.choice(tasks).cancel()
            self._say("cancel", "a task of the application's")
