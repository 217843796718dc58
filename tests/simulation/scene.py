"""What everyone in a run shares."""

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import final

from simulation.journal import Journal
from simulation.life import Life
from simulation.network import Network
from simulation.observers.effects import Effects
from simulation.observers.leases import LeaseWatch
from simulation.plan import Plan
from simulation.resource import Resource
from simulation.server import Server
from tenure.testing import VirtualTimeLoop

__all__ = ["Scene"]


@final
@dataclass(slots=True)
class Scene:
    """
    The parts of a run.

    Attributes:
        lives: The latest start of each instance, by name.
        fired: How often each fault met somebody.
        calm: Whether the faults are over.
        stopping: Whether the workloads are to end.
    """

    plan: Plan
    loop: VirtualTimeLoop
    rng: random.Random
    journal: Journal
    server: Server
    network: Network
    watch: LeaseWatch
    effects: Effects
    resource: Resource
    lives: dict[str, Life] = field(default_factory=dict)
    fired: Counter[str] = field(default_factory=Counter)
    asked_keys: set[str] = field(default_factory=set)
    calm: bool = False
    stopping: bool = False

    def lives_up(self) -> list[Life]:
        """Name the lives that requests and ticks can be given to, paused ones too: a load balancer cannot see that."""
        return [life for life in self.lives.values() if life.up]

    def write_draw(self) -> tuple[float, float]:
        """Draw whether a write is late, and how much."""
        return self.rng.random(), self.rng.random()

    async def wait_until(self, when: float) -> None:
        """Wait in the world, until the true time is *when*."""
        if when > self.loop.time():
            await asyncio.sleep(when - self.loop.time())
