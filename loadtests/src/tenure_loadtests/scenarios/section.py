"""A contended section: sixteen tasks in two processes want one key all the time."""

from collections import Counter
from collections.abc import Sequence

from tenure_loadtests.contenders.catalogue import Entry
from tenure_loadtests.figures import jain, quantile
from tenure_loadtests.scenarios.contract import Column, Comparison, Measured, Plan, Setting, Stage
from tenure_loadtests.scenarios.handoff import overlaps
from tenure_loadtests.scenarios.shared_key import PROCESSES, take_turns
from tenure_loadtests.scenarios.usage import client_s, foreign_cores, server_s
from tenure_loadtests.worker.protocol import ProtocolError

__all__ = ["SectionScenario"]

_CONTENDERS = 16
_BODY_S = 0.001


class SectionScenario:
    """Sections a second, and who gets them."""

    name = "section"
    title = "A contended section"
    note = (
        "Sixteen tasks in two processes hold one key for a millisecond each and ask again at once. Jain's index is 1 "
        "where all had as many turns, and 1/16 where one had them all; a lock without order looks fast because the "
        "one that releases takes it again."
    )
    columns: Sequence[Column] = (
        Column("sections_per_s", "sections/s"),
        Column("jain", "Jain", 2),
        Column("fewest", "fewest turns"),
        Column("most", "most turns"),
        Column("wait_p99_ms", "wait p99 ms"),
        Column("client_us", "CPU µs client"),
        Column("server_us", "CPU µs server"),
        Column("overlaps", "overlaps"),
    )

    def comparisons(self, setting: str) -> Sequence[Comparison]:
        """How many sections, and what each costs."""
        del setting
        return (Comparison("sections_per_s", "sections/s", True), Comparison("client_us", "client CPU"))

    def rounds(self, plan: Plan) -> int:
        """As many as the run has."""
        return plan.rounds

    def settings(self, plan: Plan) -> Sequence[Setting]:
        """One."""
        del plan
        return [Setting(f"{_CONTENDERS} contenders", _CONTENDERS)]

    def includes(self, entry: Entry, setting: Setting) -> bool:
        """Everybody who can wait."""
        del setting
        return self.name in entry.takes_part

    def measure(self, stage: Stage, entry: Entry, setting: Setting, plan: Plan) -> Measured:
        """Two processes, one key."""
        seconds = 1.5 if plan.quick else 4.0
        turns, usages = take_turns(stage, entry, setting.tasks, seconds, body_s=(_BODY_S, _BODY_S), hand_on=False)
        if not turns:
            raise ProtocolError(f"{entry.name} had no turn within {seconds:g} s")
        had = Counter(turn.who for turn in turns)
        each = [had[process, who] for process in range(PROCESSES) for who in range(setting.tasks // PROCESSES)]
        waits = sorted(turn.acquired - turn.asked for turn in turns)
        return Measured(
            {
                "sections_per_s": len(turns) / seconds,
                "jain": jain(each),
                "fewest": min(each),
                "most": max(each),
                "wait_p99_ms": quantile(waits, 0.99) * 1e3,
                "client_us": client_s(usages) / len(turns) * 1e6,
                "server_us": server_s(usages) / len(turns) * 1e6,
                "overlaps": overlaps(turns),
            },
            foreign_cores(usages),
        )
