"""What a checker found: violations by rule, the assumptions that it stands on, and the figures beside the zeros."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

__all__ = ["RULES", "Assumption", "HistoryReport", "Violation"]

RULES: Final[Mapping[str, str]] = {
    "H1": "no two owners of a key have one token",
    "H2": "a grant that was asked for after another one returned has the greater token",
    "H3": "no two running processes believe in leases on one key at a time",
    "H4": "no accepted write has a token below that of an accepted earlier one",
    "H5": "nobody renews or releases what is another's by then",
    "H6": "the key of a dead holder is taken over in time",
    "H7": "a key is refused only for as long as somebody may hold it",
    "H8": "losses are signalled, and calls end, in time",
    "H9": "after the last fault, what is asked for is granted in time",
    "H10": "an effect is committed once, and a replay is the first answer",
}
"""The rules, and what each says."""

_SHOWN = 10
"""Violations of one rule in the text of a report: the rest looks like them."""


@final
@dataclass(frozen=True, slots=True)
class Violation:
    """
    Something that must not have happened.

    Attributes:
        rule: "H1" to "H10".
        text: What happened, to whom, and what would have been right.
        at: When, in seconds on the history's clock.
        key: The key, resource or record.
    """

    rule: str
    text: str
    at: float
    key: str

    def __str__(self) -> str:
        return f"{self.rule} at {self.at:.6f} on {self.key!r}: {self.text}"


@final
@dataclass(frozen=True, slots=True)
class Assumption:
    """
    Something that the rules rely on. Where it does not hold, a history without a violation proves nothing.

    Attributes:
        name: What is assumed.
        problems: How it is broken, one sentence each; empty where it holds.
    """

    name: str
    problems: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether it holds."""
        return not self.problems


@final
@dataclass(frozen=True, slots=True)
class HistoryReport:
    """
    The outcome of `check_history`.

    Attributes:
        violations: What must not have happened, by time.
        assumptions: What the rules rely on, and how it holds.
        counts: How much of everything there was; a zero beside a rule says what it was a zero of.
        figures: The longest and latest of what the rules bound, in seconds.
    """

    violations: Sequence[Violation]
    assumptions: Sequence[Assumption]
    counts: Mapping[str, int]
    figures: Mapping[str, float]

    @property
    def ok(self) -> bool:
        """Whether nothing is violated, and every assumption holds."""
        return not self.violations and all(one.holds for one in self.assumptions)

    @property
    def broken_rules(self) -> tuple[str, ...]:
        """The rules that are violated, in their order."""
        broken = {one.rule for one in self.violations}
        return tuple(rule for rule in RULES if rule in broken)

    def raise_if_broken(self) -> None:
        """
        Raise unless the report is ok.

        Raises:
            AssertionError: It is not. The message is the report.
        """
        if not self.ok:
            raise AssertionError(str(self))

    def as_dict(self) -> dict[str, Any]:
        """Return the report as what JSON can hold."""
        return {
            "ok": self.ok,
            "violations": [
                {"rule": one.rule, "text": one.text, "at": one.at, "key": one.key} for one in self.violations
            ],
            "assumptions": [
                {"name": one.name, "holds": one.holds, "problems": list(one.problems)} for one in self.assumptions
            ],
            "counts": dict(self.counts),
            "figures": dict(self.figures),
        }

    def __str__(self) -> str:
        numbers = Counter(one.rule for one in self.violations)
        verdict = "ok" if self.ok else "broken" if numbers else "not to be judged: an assumption does not hold"
        counts = self.counts
        head = (
            f"History of {counts.get('events', 0)} events by {counts.get('processes', 0)} processes on "
            f"{counts.get('keys', 0)} keys, with {counts.get('grants', 0)} grants: {verdict}."
        )
        lines = [head]
        lines += [f"  {one.name}: {problem}" for one in self.assumptions for problem in one.problems[:_SHOWN]]
        for rule in self.broken_rules:
            lines.append(f"  {rule}, {RULES[rule]}: {numbers[rule]} times not")
            mine = [one for one in self.violations if one.rule == rule]
            lines += [f"    at {one.at:.6f} on {one.key!r}: {one.text}" for one in mine[:_SHOWN]]
            if len(mine) > _SHOWN:
                lines.append(f"    and {len(mine) - _SHOWN} more")
        return "\n".join(lines)
