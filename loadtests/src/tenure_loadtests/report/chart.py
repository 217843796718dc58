"""The chart: throughput at many tasks, hand-over, and what held leases cost, as bars."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from tenure_loadtests.contenders.catalogue import CATALOGUE, Role
from tenure_loadtests.figures import median
from tenure_loadtests.records import RunRecord

__all__ = ["ChartUnavailableError", "Panel", "draw", "panels"]

_COLOURS: Final[Mapping[Role, str]] = {"tenure": "#0b7a75", "floor": "#9aa5b1", "peer": "#d98e04", "limit": "#5b5f97"}
_INCHES_A_BAR = 0.26


class ChartUnavailableError(Exception):
    """There is nothing to draw, or nothing to draw with; the text says which."""


@dataclass(frozen=True, slots=True)
class Panel:
    """
    One panel.

    Attributes:
        title: What it shows.
        unit: What stands below the axis.
        bars: The contenders and their medians, the best at the top.
    """

    title: str
    unit: str
    bars: Sequence[tuple[str, float]]


_WANTED: Final = (
    (
        "cycle",
        "256 tasks",
        "cycles_per_s",
        "Acquire + release at 256 tasks, {}",
        "cycles a second (more is better)",
        True,
    ),
    ("cycle", "1 task", "p50_us", "Acquire + release alone, {}", "µs, p50 (less is better)", False),
    ("handoff", "2 waiters", "p50_ms", "Hand-over with 2 waiters, {}", "ms, p50 (less is better)", False),
    ("held", "10 000 leases", "client_s_per_min", "10 000 held leases, {}", "CPU s a minute (less is better)", False),
)
_SERVERS: Final = {"postgres": "PostgreSQL", "valkey": "Valkey"}


def panels(record: RunRecord) -> list[Panel]:
    """What there is to draw of a record."""
    found = []
    for scenario, setting, figure, title, unit, more_is_better in _WANTED:
        for server, word in _SERVERS.items():
            bars = [
                (name, middle)
                for name in record.contenders(scenario, setting)
                if CATALOGUE[name].server == server
                and (middle := median(record.by_round(scenario, setting, name, figure).values())) is not None
            ]
            if bars:
                bars.sort(key=lambda bar: bar[1], reverse=more_is_better)
                found.append(Panel(title.format(word), unit, bars))
    return found


def draw(record: RunRecord, path: Path) -> None:
    """
    Draw the chart as a PNG.

    Raises:
        ChartUnavailableError: No scenario of the chart was run, or matplotlib is not installed.
    """
    shown = panels(record)
    if not shown:
        raise ChartUnavailableError("none of its scenarios was run.")
    try:
        # The drawing surface without a screen.
        figures: Any = import_module("matplotlib.figure")
    except ImportError:
        raise ChartUnavailableError("matplotlib is not installed.") from None
    rows = [shown[number : number + 2] for number in range(0, len(shown), 2)]
    heights = [max(len(panel.bars) for panel in row) * _INCHES_A_BAR + 1.1 for row in rows]
    figure = figures.Figure(figsize=(15, sum(heights) + 0.4), layout="constrained")
    axes = figure.subplots(len(rows), 2, squeeze=False, gridspec_kw={"height_ratios": heights})
    for row, places in zip(rows, axes, strict=True):
        for place in places[len(row) :]:
            place.axis("off")
        for panel, place in zip(row, places, strict=False):
            _draw_panel(panel, place)
    patches: Any = import_module("matplotlib.patches")
    legend = [patches.Patch(color=colour, label=role) for role, colour in _COLOURS.items()]
    figure.legend(handles=legend, loc="outside lower center", ncols=len(legend), frameon=False, fontsize=9)
    figure.savefig(path, dpi=110)


def _draw_panel(panel: Panel, place: Any) -> None:
    names = [name.partition(".")[2] if name.startswith("peer.") else name for name, _ in panel.bars]
    values = [value for _, value in panel.bars]
    place.barh(range(len(values)), values, color=[_COLOURS[CATALOGUE[name].role] for name, _ in panel.bars])
    place.set_yticks(range(len(values)), names, fontsize=8)
    place.invert_yaxis()
    if max(values) > 20 * max(min(values), 1e-9):
        place.set_xscale("log")
    place.set_title(panel.title, fontsize=11, loc="left")
    place.set_xlabel(panel.unit, fontsize=8)
    for number, value in enumerate(values):
        place.annotate(f" {value:,.0f}" if value >= 100 else f" {value:.3g}", (value, number), va="center", fontsize=7)
    place.margins(x=0.12)
    for side in ("top", "right"):
        place.spines[side].set_visible(False)
