"""The promises, held against a record."""

from collections.abc import Sequence
from dataclasses import dataclass

from tenure_loadtests.contenders.catalogue import CATALOGUE
from tenure_loadtests.figures import median, ratio_within_rounds
from tenure_loadtests.records import RunRecord
from tenure_loadtests.report.markdown import number, table
from tenure_loadtests.report.promises import BEST_PEER, PROMISES, Promise
from tenure_loadtests.report.tables import best_peer
from tenure_loadtests.scenarios.catalogue import SCENARIOS

__all__ = ["Outcome", "check_promises", "render_check"]

_NEVER = frozenset({"overlaps", "lost", "missing", "not_once"})
"""What must not happen in any round: the worst round counts, not the one in the middle."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """
    How a promise came out.

    Attributes:
        promise: The promise.
        against: Whose figure it was divided by; empty for none, or where there was nobody.
        value: The ratio or the figure, or None where it was not measured.
    """

    promise: Promise
    against: str
    value: float | None

    @property
    def kept(self) -> bool:
        """Whether it was measured, and within its limit."""
        if self.value is None:
            return False
        return (
            self.value >= self.promise.limit if self.promise.bound == "at least" else self.value <= self.promise.limit
        )

    @property
    def failed(self) -> bool:
        """Whether it fails the check: what was not measured was not kept."""
        return self.promise.required and not self.kept

    @property
    def word(self) -> str:
        """What the table says."""
        if self.value is None:
            return "not measured"
        if self.kept:
            return "pass"
        return "FAIL" if self.promise.required else "missed (reported only)"


def check_promises(record: RunRecord, promises: Sequence[Promise] = PROMISES) -> list[Outcome]:
    """How each of *promises* came out in a run; only those of scenarios that were run."""
    run = set(record.scenarios())
    return [_outcome(record, promise) for promise in promises if promise.scenario in run]


def render_check(outcomes: Sequence[Outcome]) -> str:
    """The table of the promises; empty where none was looked at."""
    if not outcomes:
        return ""
    rows = [
        [
            f"{one.promise.scenario}, {one.promise.setting}",
            one.promise.contender,
            one.promise.figure + (f" ÷ that of {one.against or one.promise.against}" if one.promise.against else ""),
            f"{one.promise.bound} {one.promise.limit:g}",
            number(one.value, 2),
            one.word,
        ]
        for one in outcomes
    ]
    head = ["where", "contender", "figure", "promised", "measured", ""]
    return "## What is promised\n\n" + table(head, rows, numbers=False)


def _outcome(record: RunRecord, promise: Promise) -> Outcome:
    own = record.by_round(promise.scenario, promise.setting, promise.contender, promise.figure)
    if promise.against is None:
        return Outcome(
            promise, "", max(own.values(), default=None) if promise.figure in _NEVER else median(own.values())
        )
    against = promise.against
    if against == BEST_PEER:
        server = CATALOGUE[promise.contender].server
        against = best_peer(record, SCENARIOS[promise.scenario], promise.setting, server) or ""
    others = record.by_round(promise.scenario, promise.setting, against, promise.figure)
    return Outcome(promise, against, ratio_within_rounds(own, others))
