"""
Checks the files of a history: `python -m tenure.testing.history FILE...`.

It prints what the history holds and what is wrong with it. The exit code is 0 for a history that breaks no rule, 1 for
one that breaks some, and 2 where nothing can be said: a file cannot be read, or an assumption does not hold.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence

from tenure.testing.history.checking import check_history
from tenure.testing.history.report import RULES, HistoryReport
from tenure.testing.history.vocabulary import HistoryError

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the files that are named on the command line, print the report, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tenure.testing.history",
        description="Check the history of a run against the rules H1 to H10.",
        epilog="Exit code: 0 nothing is wrong, 1 a rule is broken, 2 nothing can be said.",
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="a history, one JSON object on a line")
    parser.add_argument("--json", action="store_true", help="print the report as one JSON object")
    parser.add_argument(
        "--started-before", action="store_true", help="keys may have been locked before the history began"
    )
    asked = parser.parse_args(arguments)
    try:
        report = check_history(asked.files, starts_empty=not asked.started_before)
    except (HistoryError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    text = json.dumps(report.as_dict()) if asked.json else _table(report)
    sys.stdout.write(f"{text}\n")
    if report.violations:
        return 1
    return 0 if report.ok else 2


def _table(report: HistoryReport) -> str:
    """Lay the report out for a terminal."""
    numbers = Counter(violation.rule for violation in report.violations)
    lines = [f"{name:<36} {number:>12}" for name, number in report.counts.items()]
    lines += [f"{name:<36} {seconds:>12.6f} s" for name, seconds in report.figures.items()]
    lines.append("")
    lines += [f"{'holds' if one.holds else 'BROKEN':<8} {one.name}" for one in report.assumptions]
    lines.append("")
    lines += [f"{rule:<4} {numbers[rule] or 'ok':>7}  {says}" for rule, says in RULES.items()]
    return "\n".join([*lines, "", str(report)])


if __name__ == "__main__":
    sys.exit(main())
