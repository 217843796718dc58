"""The figures in docs/guarantees.md, taken from the report of the last full run: `python -m chaos.guarantees`."""

import json
import re
import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[2] / "docs"
_CELL = re.compile(r"<!-- (C\d+) -->.*?<!-- / -->")


def filled(text: str, outcomes: list[dict[str, Any]]) -> str:
    """Put into each cell `<!-- C1 -->…<!-- / -->` of *text* what its scenario found, or nothing if it did not run."""
    return _CELL.sub(lambda cell: f"<!-- {cell[1]} -->{_figures(cell[1], outcomes)}<!-- / -->", text)


def _figures(scenario: str, outcomes: list[dict[str, Any]]) -> str:
    found = [one for one in outcomes if one["scenario"] == scenario and not one["skipped"]]
    zeros: dict[str, list[int]] = {}
    times: dict[str, float] = {}
    for outcome in found:
        for zero in outcome["zeros"]:
            count, of = zeros.get(zero["what"], (0, 0))
            zeros[zero["what"]] = [count + zero["count"], of + zero["of"]]
        for limit in outcome["limits"]:
            times[limit["what"]] = max(times.get(limit["what"], 0.0), limit["value_s"])
    stores = ", ".join(dict.fromkeys(outcome["store"] for outcome in found))
    parts = [f"{what}: {count} of {of}" for what, (count, of) in zeros.items()]
    parts += [f"{what} {value:.2f} s" for what, value in times.items()]
    return f"{'; '.join(parts)} ({stores})" if parts else ""


def main() -> int:
    """Write the figures into the document."""
    document = DOCS / "guarantees.md"
    outcomes = json.loads((DOCS / "failover-suite.json").read_text(encoding="utf-8"))["outcomes"]
    document.write_text(filled(document.read_text(encoding="utf-8"), outcomes), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
