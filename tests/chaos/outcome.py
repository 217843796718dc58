"""What a scenario found: figures, zeros with their N, limits with what the machine took, controls that failed."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, final

_CONFIDENCE = 3.0
"""No bad one in N trials bounds the rate at 3/N, at 95 % (the rule of three)."""

STALLS = 2
"""How many measured stalls a limit allows for: the process that acts and the one that answers may each be hit once."""


@final
@dataclass(frozen=True, slots=True)
class Times:
    """A sample of durations, in seconds."""

    n: int
    p50: float
    p99: float
    max: float

    @classmethod
    def of(cls, sample: Sequence[float]) -> "Times":
        """Summarise *sample*; the p99 of fewer than a hundred is their maximum."""
        ordered = sorted(sample)
        if not ordered:
            return cls(0, math.nan, math.nan, math.nan)
        return cls(len(ordered), ordered[len(ordered) // 2], ordered[math.ceil(len(ordered) * 0.99) - 1], ordered[-1])

    def __str__(self) -> str:
        return f"p50 {self.p50:.3f} s, p99 {self.p99:.3f} s, max {self.max:.3f} s (n={self.n})"


@final
@dataclass(frozen=True, slots=True)
class Zero:
    """A claim that something never happened, with the number of times that it could have."""

    what: str
    count: int
    of: int

    @property
    def ok(self) -> bool:
        """Whether it never happened, and could have."""
        return self.count == 0 and self.of > 0

    def __str__(self) -> str:
        bound = f" (<{100 * _CONFIDENCE / self.of:.2g} % at 95 %)" if self.ok and self.of > _CONFIDENCE else ""
        return f"{self.what}: {self.count} of {self.of}{bound}"


@final
@dataclass(frozen=True, slots=True)
class Limit:
    """A duration that had to stay within a limit, but for the machine's own stalls, measured in the same run."""

    what: str
    value_s: float
    limit_s: float
    stall_s: float

    @property
    def ok(self) -> bool:
        """Whether it did."""
        return self.value_s <= self.limit_s + STALLS * self.stall_s

    def __str__(self) -> str:
        sign = "<=" if self.value_s <= self.limit_s else ("<= with the machine's stalls" if self.ok else "EXCEEDS")
        return f"{self.what}: {self.value_s:.3f} s {sign} {self.limit_s:.3f} s"


@final
@dataclass(frozen=True, slots=True)
class Control:
    """Something known to be wrong that ran beside the claim, and had to fail: without it, a zero proves nothing."""

    what: str
    failed: int
    of: int

    @property
    def ok(self) -> bool:
        """Whether it failed, as it had to."""
        return self.failed > 0

    def __str__(self) -> str:
        return f"control {self.what}: failed {self.failed} of {self.of}" + ("" if self.ok else ", THOUGH IT HAS TO")


@final
@dataclass(slots=True)
class Outcome:
    """Everything that one scenario found on one store."""

    scenario: str
    title: str
    store: str
    n: int
    seconds: float = 0.0
    stall_s: float = 0.0
    figures: dict[str, Any] = field(default_factory=dict)
    zeros: list[Zero] = field(default_factory=list)
    limits: list[Limit] = field(default_factory=list)
    controls: list[Control] = field(default_factory=list)
    history: dict[str, Any] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)
    skipped: str | None = None

    @property
    def ok(self) -> bool:
        """Whether every claim held and every control failed."""
        claims: tuple[Zero | Limit | Control, ...] = (*self.zeros, *self.limits, *self.controls)
        return not self.broken and all(claim.ok for claim in claims)

    def line(self) -> str:
        """Say it in one line."""
        state = "skip" if self.skipped else "ok  " if self.ok else "FAIL"
        parts = [
            *([self.skipped] if self.skipped else []),
            *(f"{name} {_short(value)}" for name, value in self.figures.items()),
            *map(str, self.zeros),
            *map(str, self.limits),
            *map(str, self.controls),
            *self.broken,
        ]
        return f"{state} {self.scenario:<4} {self.store:<15} n={self.n:<5} {'; '.join(parts)} [{self.seconds:.0f} s]"

    def as_dict(self) -> dict[str, Any]:
        """Make it a JSON object."""
        return {
            "scenario": self.scenario,
            "title": self.title,
            "store": self.store,
            "n": self.n,
            "ok": self.ok,
            "skipped": self.skipped,
            "seconds": round(self.seconds, 1),
            "stall_s": round(self.stall_s, 4),
            "figures": {name: _plain(value) for name, value in self.figures.items()},
            "zeros": [{"what": one.what, "count": one.count, "of": one.of} for one in self.zeros],
            "limits": [
                {"what": one.what, "value_s": round(one.value_s, 4), "limit_s": round(one.limit_s, 4), "ok": one.ok}
                for one in self.limits
            ],
            "controls": [{"what": one.what, "failed": one.failed, "of": one.of} for one in self.controls],
            "claims": [str(one) for one in (*self.zeros, *self.limits, *self.controls)],
            "history": self.history,
            "broken": self.broken,
        }


def _short(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def _plain(value: Any) -> Any:
    if isinstance(value, Times):
        if value.n == 0:
            return {"n": 0}
        return {"n": value.n, "p50": round(value.p50, 4), "p99": round(value.p99, 4), "max": round(value.max, 4)}
    return round(value, 4) if isinstance(value, float) else value
