"""Spans of time: what is promised at a moment, when a process did not run, and when a fault was on."""

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, final

__all__ = ["Fault", "FaultTimes", "Pauses", "Run", "Runs"]


@final
@dataclass(frozen=True, slots=True)
class Run:
    """
    What is promised, as a `run` event says it. Seconds, and a share for the margin.

    Attributes:
        topology: What it was run on.
        ttl_s: The ttl of its leases, where a call says no other.
        retry_s: How long a contender pauses between two tries.
        call_timeout_s: How long a call may take.
        margin: The share of a ttl that a holder gives up early.
        stall_s: What a slow machine is allowed, on top of every limit in time.
        overlap_s: How long two running holders may overlap.
        takeover_s: Within what a dead holder's key is another's; None where that is not promised.
        late_expiry_s: By how much a lock may outlive its ttl: what a server's clock was set back.
    """

    topology: str = ""
    ttl_s: float = 0.0
    retry_s: float = 0.0
    call_timeout_s: float = math.inf
    margin: float = 0.01
    stall_s: float = 0.0
    overlap_s: float = 0.0
    takeover_s: float | None = None
    late_expiry_s: float = 0.0


@final
class Runs:
    """The `run` events of a history: each replaces the one before it, for what is later."""

    def __init__(self) -> None:
        self._at: list[float] = []
        self._runs: list[Run] = []

    def __len__(self) -> int:
        return len(self._runs)

    @property
    def first_at(self) -> float:
        """When something was promised first; infinite where nothing ever was."""
        return self._at[0] if self._at else math.inf

    def add(self, event: Mapping[str, Any]) -> None:
        """Take a `run` event, not earlier than the last one."""
        self._at.append(event["at"])
        self._runs.append(
            Run(**{name: value for name, value in event.items() if name not in ("what", "at", "process")})
        )

    def at(self, when: float) -> Run:
        """Return what is promised at *when*; before the first promise, the first."""
        if len(self._runs) == 1:
            return self._runs[0]
        if not self._runs:
            return Run()
        return self._runs[max(0, bisect_right(self._at, when) - 1)]


@final
class Pauses:
    """When one process did not run, as far as somebody saw to it."""

    def __init__(self) -> None:
        self._starts: list[float] = []
        self._ends: list[float] = []

    def __len__(self) -> int:
        return len(self._starts)

    @property
    def is_open(self) -> bool:
        """Whether the last pause has not ended."""
        return bool(self._ends) and self._ends[-1] == math.inf

    def begin(self, at: float) -> None:
        """Begin a pause, unless one is on."""
        if not self.is_open:
            self._starts.append(at)
            self._ends.append(math.inf)

    def end(self, at: float) -> bool:
        """End the pause that is on; return whether one was."""
        if not self.is_open:
            return False
        self._ends[-1] = at
        return True

    def within(self, begins: float, ends: float) -> Iterator[tuple[float, float]]:
        """Iterate over the pauses, as far as they lie between two moments."""
        # Pauses of a process follow each other, so their ends are in order too.
        for index in range(bisect_right(self._ends, begins), len(self._starts)):
            if self._starts[index] >= ends:
                return
            yield max(begins, self._starts[index]), min(ends, self._ends[index])

    def running_s(self, begins: float, ends: float) -> float:
        """How long the process ran between two moments, in seconds; 0.0 where the second is not later."""
        if ends <= begins:
            return 0.0
        if not self._starts or ends == math.inf:
            return ends - begins
        return ends - begins - sum(stop - start for start, stop in self.within(begins, ends))

    def running(self, begins: float, ends: float) -> Iterator[tuple[float, float]]:
        """Iterate over the spans between two moments in which the process ran."""
        for start, stop in self.within(begins, ends):
            if begins < start:
                yield begins, start
            begins = stop
        if begins < ends:
            yield begins, ends


@final
@dataclass(slots=True)
class Fault:
    """One fault: its name and kind, and from when until when it was on."""

    name: str
    kind: str
    began: float
    healed: float = math.inf


@final
class FaultTimes:
    """All faults of a history, for one question: until when was the last one on that met a span of time?"""

    def __init__(self, faults: list[Fault]) -> None:
        ordered = sorted(faults, key=lambda fault: fault.began)
        self._began = [fault.began for fault in ordered]
        self._healed: list[float] = []
        latest = -math.inf
        for fault in ordered:
            latest = max(latest, fault.healed)
            self._healed.append(latest)

    def last_heal(self, begins: float, ends: float) -> float:
        """When the last fault was healed that was on between two moments; minus infinity where none was."""
        index = bisect_right(self._began, ends) - 1
        return self._healed[index] if index >= 0 and self._healed[index] >= begins else -math.inf
