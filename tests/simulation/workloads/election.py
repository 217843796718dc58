"""An election, whose leader writes to a fenced resource for as long as it leads."""

import random
from typing import Final, final

from simulation.life import Life
from simulation.scene import Scene
from tenure import LeaderElection, Lease
from tenure.events import Event, LeadershipAcquired, LeadershipLost

__all__ = ["KEY", "LeadershipOrder", "candidate"]

KEY: Final = "election"


@final
class LeadershipOrder:
    """A hook that judges the order of an instance's events: acquired, then lost, and only for one that led."""

    def __init__(self, scene: Scene, life: Life) -> None:
        self._scene = scene
        self._life = life
        self._token: int | None = None

    def __call__(self, event: Event) -> None:
        """Judge *event*."""
        journal = self._scene.journal
        if isinstance(event, LeadershipAcquired):
            if self._token is not None:
                journal.broke("order", f"{self._life.name} is told to lead while it leads")
            self._token = event.token
            journal.say(self._life.name, f"leads, token {event.token}")
        elif isinstance(event, LeadershipLost):
            if self._token != event.token:
                journal.broke("order", f"{self._life.name} is told to stop leading, and did not lead")
            self._token = None
            journal.say(
                self._life.name, f"leads no more: {'stood down' if event.reason is None else event.reason.value}"
            )
            journal.saw("a leadership lost" if event.reason else "a leader stood down")


def candidate(scene: Scene, life: Life, rng: random.Random) -> LeaderElection:
    """Make the candidate of a life."""
    assert life.locks is not None
    scene.asked_keys.add(KEY)

    async def lead(lease: Lease) -> None:
        while True:
            await life.sleep(scene.plan.ttl_s * rng.uniform(0.1, 0.4))
            grant = scene.watch.guarded(lease)
            if scene.watch.believes(grant):
                scene.journal.note("believes", life.name, key=KEY, token=lease.token)
                scene.resource.write(grant, scene.write_draw())
            drawn = rng.random()
            if drawn < 0.03:
                return
            if drawn < 0.05:
                scene.journal.saw("a lead that failed")
                raise RuntimeError("The lead failed.")

    return LeaderElection(life.locks, KEY, lead)
