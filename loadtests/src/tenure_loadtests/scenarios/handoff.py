"""Hand-over: how soon after a release the next waiter, in this process or another, has the key."""

from collections.abc import Sequence
from itertools import pairwise

from tenure_loadtests.contenders.catalogue import Entry
from tenure_loadtests.figures import quantile
from tenure_loadtests.scenarios.contract import Column, Comparison, Measured, Plan, Setting, Stage
from tenure_loadtests.scenarios.shared_key import Turn, take_turns
from tenure_loadtests.scenarios.usage import client_s, foreign_cores, server_s
from tenure_loadtests.worker.protocol import ProtocolError

__all__ = ["HandoffScenario", "handovers_s", "overlaps"]

_BODY_S = (0.010, 0.030)
"""Long enough that every waiter waits, and drawn at random so that no poll is in step with it."""


class HandoffScenario:
    """A holder releases; from its call until the next acquire returns."""

    name = "handoff"
    title = "Hand-over between two processes"
    note = (
        "Waiters in two processes, half in each, beside one that holds the key for 10 to 30 ms and asks again once "
        "another has had it. The time is from the call of release to the return of the next acquire. Only hand-overs "
        "to one that waited already count."
    )
    columns: Sequence[Column] = (
        Column("p50_ms", "p50 ms", 2),
        Column("p99_ms", "p99 ms", 2),
        Column("handovers", "hand-overs"),
        Column("client_us", "CPU µs client"),
        Column("server_us", "CPU µs server"),
        Column("overlaps", "overlaps"),
    )

    def comparisons(self, setting: str) -> Sequence[Comparison]:
        """The latency, and what it costs."""
        del setting
        return (Comparison("p50_ms", "p50"), Comparison("client_us", "client CPU"))

    def rounds(self, plan: Plan) -> int:
        """As many as the run has."""
        return plan.rounds

    def settings(self, plan: Plan) -> Sequence[Setting]:
        """2, 16 and 64 waiters."""
        del plan
        return [Setting(f"{waiters} waiters", waiters + 1) for waiters in (2, 16, 64)]

    def includes(self, entry: Entry, setting: Setting) -> bool:
        """Everybody who can wait."""
        return self.name in entry.takes_part and entry.can_serve(setting.tasks)

    def measure(self, stage: Stage, entry: Entry, setting: Setting, plan: Plan) -> Measured:
        """Two processes, one key."""
        seconds = 1.5 if plan.quick else 4.0
        turns, usages = take_turns(stage, entry, setting.tasks, seconds, body_s=_BODY_S, hand_on=True)
        handovers = sorted(handovers_s(turns))
        if not handovers:
            raise ProtocolError(f"{entry.name} handed nothing over within {seconds:g} s")
        return Measured(
            {
                "p50_ms": quantile(handovers, 0.5) * 1e3,
                "p99_ms": quantile(handovers, 0.99) * 1e3,
                "handovers": len(handovers),
                "client_us": client_s(usages) / len(turns) * 1e6,
                "server_us": server_s(usages) / len(turns) * 1e6,
                "overlaps": overlaps(turns),
            },
            foreign_cores(usages),
        )


def handovers_s(turns: Sequence[Turn]) -> list[float]:
    """From each release's call to the next acquire's return, where that one had asked before the release."""
    return [after.acquired - before.gives_back for before, after in pairwise(turns) if after.asked < before.gives_back]


def overlaps(turns: Sequence[Turn]) -> int:
    """How often one had the key before the one before it had called release: none, ever."""
    return sum(after.acquired < before.gives_back for before, after in pairwise(turns))
