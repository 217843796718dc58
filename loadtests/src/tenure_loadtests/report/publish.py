"""The files of a run: the record, the tables with their check, the chart."""

import sys
from pathlib import Path

from tenure_loadtests.records import RunRecord
from tenure_loadtests.report.chart import ChartUnavailableError, draw
from tenure_loadtests.report.check import check_promises, render_check
from tenure_loadtests.report.tables import render

__all__ = ["publish"]


def publish(record: RunRecord, folder: Path, *, check: bool) -> int:
    """
    Write what a run left, and print its tables.

    Args:
        record: The run.
        folder: Where `bench.json`, `tables.md` and `bench.png` go.
        check: Whether a promise that is missed, or was not measured, fails.

    Returns:
        The exit code.
    """
    folder.mkdir(parents=True, exist_ok=True)
    record.write(folder / "bench.json")
    outcomes = check_promises(record)
    text = f"{render(record)}\n{render_check(outcomes)}\n"
    (folder / "tables.md").write_text(text, encoding="utf-8")
    print(text)
    try:
        draw(record, folder / "bench.png")
    except ChartUnavailableError as error:
        print(f"No chart: {error}", file=sys.stderr)
    if not check:
        return 0
    failed = [one for one in outcomes if one.failed]
    print(f"check: FAIL: {len(failed)} of {len(outcomes)} promises" if failed else "check: pass")
    return 1 if failed else 0
