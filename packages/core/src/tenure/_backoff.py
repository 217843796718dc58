"""Waiting before the next try: longer each time, and never in step with the others."""

import random
from dataclasses import dataclass, field

_GROWTH = 2.0


@dataclass(slots=True)
class Backoff:
    """
    Delays that double up to a cap, each drawn at random from its upper half.

    The upper half, not all of it: a draw near zero would let one waiter ask the store in a tight loop.

    Attributes:
        base_s: The first delay, in seconds.
        cap_s: The longest delay, in seconds.
        rng: Where the jitter comes from; a seeded one makes a simulation repeatable.
    """

    base_s: float
    cap_s: float
    rng: random.Random = field(default_factory=random.Random)
    _tries: int = 0

    def next_s(self) -> float:
        """Draw the next delay, in seconds: from half of the current step to all of it."""
        step = min(self.cap_s, self.base_s * _GROWTH**self._tries)
        if step < self.cap_s:
            self._tries += 1
        return step * (0.5 + self.rng.random() / 2)

    def reset(self) -> None:
        """Begin again with the shortest delay, after a success."""
        self._tries = 0
