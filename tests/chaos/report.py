"""The report of a run: Markdown for people, JSON for everything else."""

import json
import platform
from collections.abc import Sequence
from pathlib import Path

from chaos.outcome import Outcome
from chaos.scenarios import SCENARIOS

_READING = (
    "Times are of a shared machine: a limit allows for twice the longest stall measured in the same run, which is in",
    "the last column. A zero stands with its N, and with the rate that it bounds at 95 %. A control is known to be",
    "wrong, and had to fail in the same run.",
)


def write_report(outcomes: Sequence[Outcome], to: Path, *, size: str, at: str) -> None:
    """
    Write `<to>.md` and `<to>.json`.

    Args:
        outcomes: Of the scenarios that ran, in their order.
        to: The path, without its suffix.
        size: "quick" or "full".
        at: The day, as it is to be printed.
    """
    to.parent.mkdir(parents=True, exist_ok=True)
    machine = {"python": platform.python_version(), "platform": platform.system()}
    document = {"size": size, "at": at, "machine": machine, "outcomes": [outcome.as_dict() for outcome in outcomes]}
    to.with_suffix(".json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    to.with_suffix(".md").write_text(_markdown(outcomes, size, at, machine), encoding="utf-8")


def _markdown(outcomes: Sequence[Outcome], size: str, at: str, machine: dict[str, str]) -> str:
    passed = sum(outcome.ok and not outcome.skipped for outcome in outcomes)
    skipped = sum(outcome.skipped is not None for outcome in outcomes)
    lines = [
        f"# Failover suite: the {size} run of {at}",
        "",
        f"{passed} of {len(outcomes)} passed, {skipped} skipped. {machine['platform']}, Python {machine['python']}.",
        "",
        *_READING,
    ]
    claims = {found.id: found.claims for found in SCENARIOS}
    for scenario in dict.fromkeys(outcome.scenario for outcome in outcomes):
        of_it = [outcome for outcome in outcomes if outcome.scenario == scenario]
        lines += ["", f"## {scenario}: {of_it[0].title}", "", f"Puts to the test: {claims.get(scenario, '')}.", ""]
        lines += [
            "| store | n | result | figures | zeros, limits, controls | time, stall |",
            "| --- | --- | --- | --- | --- | --- |",
        ]
        lines += [_row(outcome) for outcome in of_it]
    return "\n".join(lines) + "\n"


def _row(outcome: Outcome) -> str:
    result = f"skipped: {outcome.skipped}" if outcome.skipped else "ok" if outcome.ok else "**failed**"
    figures = "<br>".join(
        f"{name} {value:.3f}" if isinstance(value, float) else f"{name} {value}"
        for name, value in outcome.figures.items()
    )
    claims = "<br>".join(map(str, (*outcome.zeros, *outcome.limits, *outcome.controls, *outcome.broken)))
    spent = f"{outcome.seconds:.0f} s, {outcome.stall_s * 1000:.0f} ms"
    return f"| {outcome.store} | {outcome.n} | {result} | {figures} | {claims} | {spent} |"
