"""What the observer knows of one grant, and what its holder may believe about it."""

from dataclasses import dataclass
from typing import final

from simulation.life import Life
from simulation.network import Call
from tenure import Lease

__all__ = ["MARGIN", "Grant"]

MARGIN = 0.01
"""The share of a ttl that a holder keeps for clocks of other rates: written here again, not read from the engine."""


@final
@dataclass(slots=True, eq=False)
class Grant:
    """
    One acquisition that the engine made a lease of.

    Attributes:
        label: The owner's name in the trace: its random id would differ from run to run.
        deadline: How long its holder may trust it, on the holder's clock, as the observer counts it.
        confirmed_at: The true time at which the last call that was confirmed was sent.
        missed_s: What the holder's clock had missed by then.
        told_at: The true time at which its loss was told.
        ended_at: The true time at which its loss was told, or its release was sent.
        given_back: Whether its holder gave it back.
        seen_ended: Whether it was once seen not to be held.
    """

    key: str
    owner: str
    label: str
    token: int
    ttl_ms: int
    life: Life
    lease: Lease
    deadline: float
    confirmed_at: float
    missed_s: float
    told_at: float | None = None
    ended_at: float | None = None
    given_back: bool = False
    seen_ended: bool = False

    @property
    def ended(self) -> bool:
        return self.told_at is not None or self.given_back

    def confirm(self, call: Call, ttl_ms: int) -> None:
        """Take note of a renewal that the store confirmed in time."""
        if self.life.clock.now() < self.deadline:
            self.deadline = max(self.deadline, call.sent_on_clock + ttl_ms / 1000 * (1 - MARGIN))
            self.confirmed_at = max(self.confirmed_at, call.sent_at)
            self.missed_s = call.missed_s

    def told_by(self) -> float:
        """Tell the latest true time at which its loss may be told: a life that did not run is told afterwards."""
        life = self.life
        return max(life.clock.true_time_of(self.deadline), life.resumed_at + life.late_looks_s)
