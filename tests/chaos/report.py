"""The report of a run: Markdown for people, JSON for everything else."""

import json
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chaos.outcome import Outcome
from chaos.scenario import Scenario
from chaos.scenarios import SCENARIOS

_READING = (
    "Times are of a shared machine: a limit allows for twice the longest stall measured in the same run, which is in",
    "the last column. A zero stands with its N, and with the rate that it bounds at 95 %. A control is known to be",
    "wrong, and had to fail in the same run.",
)


def write_report(outcomes: Sequence[Outcome], to: Path, *, size: str, at: str) -> None:
    """
    Write `<to>.md` and `<to>.json`. Where there is a report of the same size, what was not run this time stays in it.

    Args:
        outcomes: Of the scenarios that ran.
        to: The path, without its suffix.
        size: "quick" or "full".
        at: The day, as it is to be printed.
    """
    to.parent.mkdir(parents=True, exist_ok=True)
    found = {(one["scenario"], one["store"]): one for one in _written(to.with_suffix(".json"), size)}
    for outcome in outcomes:
        found[outcome.scenario, outcome.store] = outcome.as_dict() | {"at": at}
    order = {(scenario.id, store): place for place, (scenario, store) in enumerate(_cases())}
    rows = sorted(found.values(), key=lambda one: order.get((one["scenario"], one["store"]), len(order)))
    machine = {"platform": platform.system(), "python": f"Python {platform.python_version()}"}
    document = {"size": size, "machine": machine, "outcomes": rows}
    to.with_suffix(".json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    to.with_suffix(".md").write_text(_markdown(rows, size, machine), encoding="utf-8")


def _cases() -> list[tuple[Scenario, str]]:
    return [(found, store) for found in SCENARIOS for store in found.stores]


def _written(path: Path, size: str) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    document = json.loads(path.read_text(encoding="utf-8"))
    written: list[dict[str, Any]] = document["outcomes"] if document["size"] == size else []
    return written


def _markdown(outcomes: Sequence[dict[str, Any]], size: str, machine: dict[str, str]) -> str:
    skipped = sum(outcome["skipped"] is not None for outcome in outcomes)
    passed = sum(outcome["ok"] for outcome in outcomes) - skipped
    days = sorted({outcome["at"] for outcome in outcomes})
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    lines = [
        f"# Failover suite: the {size} run",
        "",
        f"{passed} of {len(outcomes)} passed, {skipped} skipped; {when}; {' '.join(machine.values())}.",
        "",
        *_READING,
    ]
    claims = {found.id: found.claims for found in SCENARIOS}
    for scenario in dict.fromkeys(outcome["scenario"] for outcome in outcomes):
        of_it = [outcome for outcome in outcomes if outcome["scenario"] == scenario]
        lines += [
            "",
            f"## {scenario}: {of_it[0]['title']}",
            "",
            f"Puts to the test: {claims.get(scenario, 'all of them, at random')}.",
            "",
        ]
        lines += ["| store | n | result | figures | zeros, limits, controls | time, stall |"]
        lines += ["| --- | --- | --- | --- | --- | --- |"]
        lines += [_row(outcome) for outcome in of_it]
    return "\n".join(lines) + "\n"


def _row(outcome: dict[str, Any]) -> str:
    result = f"skipped: {outcome['skipped']}" if outcome["skipped"] else "ok" if outcome["ok"] else "**failed**"
    figures = "<br>".join(f"{name} {_shown(value)}" for name, value in outcome["figures"].items())
    claims = "<br>".join([*outcome["claims"], *outcome["broken"]])
    spent = f"{outcome['seconds']:.0f} s, {outcome['stall_s'] * 1000:.0f} ms"
    return f"| {outcome['store']} | {outcome['n']} | {result} | {figures} | {claims} | {spent} |"


def _shown(value: Any) -> str:
    if not isinstance(value, dict) or "n" not in value:
        return str(value)
    if not value["n"]:
        return "none"
    return f"p50 {value['p50']} s, p99 {value['p99']} s, max {value['max']} s (n={value['n']})"
