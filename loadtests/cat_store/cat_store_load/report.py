"""The tables for people, and the JSON document for everything else."""

import platform
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any, Final

from cat_store_load.books import Rule
from cat_store_load.figures import BlockFigures, Times
from cat_store_load.outcome import Outcome, Wanted
from cat_store_load.verdict import Fact

__all__ = ["HEAD", "block_line", "closing", "document"]

HEAD: Final = (
    f"{'block':<10} {'keys':<4} {'requests':>8} {'failed':>6} {'409':>5} {'replays':>7}"
    f" {'orders':>6} {'p50 ms':>7} {'p95 ms':>7} {'p99 ms':>7} {'reads p95':>9} {'CPU ms':>6}"
)
"""What stands above the lines of the blocks. The times are those of orders; CPU is the replicas', a request."""

_SHOWN: Final = 3
"""How many findings of a rule, and kinds of errors of the log, are shown."""


def block_line(block: BlockFigures) -> str:
    """Write the line of a block."""
    cpu = "-" if block.cpu_ms is None else f"{block.cpu_ms:.1f}"
    return (
        f"{block.block:<10} {'yes' if block.keys else 'no':<4} {block.requests:>8} {block.failed:>6}"
        f" {block.in_flight:>5} {block.replays:>7} {_times(block.orders)} {block.reads.p95_ms:>9.0f} {cpu:>6}"
    )


def _times(times: Times) -> str:
    return f"{times.requests:>6} {times.p50_ms:>7.0f} {times.p95_ms:>7.0f} {times.p99_ms:>7.0f}"


def closing(outcome: Outcome, facts: Sequence[Fact]) -> str:
    """Write what has to hold, what was found, and the line that tells whether the run passed."""
    width = max(len(fact.name) for fact in facts)
    lines = [f"{'ok' if fact.holds else 'NO':<3} {fact.name:<{width}}  {fact.text}" for fact in facts]
    lines += _findings(outcome)
    lines += [f"log {count:>5} x {told}" for told, count in sorted(outcome.alarms.items())[:_SHOWN]]
    broken = [fact.name for fact in facts if not fact.holds]
    lines.append("FAIL: " + ", ".join(broken) if broken else "PASS: every fact holds.")
    return "\n".join(lines)


def _findings(outcome: Outcome) -> Iterable[str]:
    """Show some of each rule: one that was broken a thousand times hides no other."""
    for rule in Rule:
        found = [finding for finding in outcome.books.findings if finding.rule is rule]
        yield from (f"!   {rule.value}: {finding.text}" for finding in found[:_SHOWN])
        if len(found) > _SHOWN:
            yield f"!   {rule.value}: {len(found) - _SHOWN} more, which the report has"


def document(wanted: Wanted, outcome: Outcome, facts: Sequence[Fact]) -> dict[str, Any]:
    """Put everything into a document that JSON can hold."""
    books = asdict(outcome.books)
    books["findings"] = [{"rule": found.rule.name, "text": found.text} for found in outcome.books.findings]
    return {
        "passed": all(fact.holds for fact in facts),
        "facts": [asdict(fact) for fact in facts],
        "wanted": asdict(wanted),
        "machine": {"system": platform.system(), "python": platform.python_version()},
        "control": asdict(outcome.control),
        "pairs": [{"without_keys": asdict(without), "with_keys": asdict(with_)} for without, with_ in outcome.pairs],
        "storm": asdict(outcome.storm),
        "troubles": [asdict(trouble) for trouble in outcome.troubles],
        "books": books,
        "duplicates_without_keys": outcome.duplicates_without_keys,
        "settled": outcome.settled,
        "history": outcome.history,
        "log": outcome.alarms,
    }
