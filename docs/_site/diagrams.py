"""
The machines as pictures: drawn from their tables, so that a picture cannot say something else than the program.

    python docs/_site/diagrams.py        writes docs/theory/*.svg
"""

import math
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from tenure import _election_machine as election
from tenure import _idempotency_machine as idempotency
from tenure import _lease_machine as lease

FOLDER = Path(__file__).resolve().parents[1] / "theory"

WIDTH, HEIGHT = 132, 40
STYLE = """<style>
  .state { fill: #e0f2f1; stroke: #00796b; stroke-width: 1.5 }
  .edge { fill: none; stroke: #546e7a; stroke-width: 1.4 }
  text { font: 13px system-ui, sans-serif; fill: #263238; text-anchor: middle }
  .label { font-size: 12px; fill: #37474f; paint-order: stroke; stroke: #fff; stroke-width: 4px }
  .head { fill: #546e7a }
  @media (prefers-color-scheme: dark) {
    .state { fill: #004d40; stroke: #4db6ac } .edge { stroke: #b0bec5 } .head { fill: #b0bec5 }
    text { fill: #eceff1 } .label { fill: #eceff1; stroke: #20242b }
  }
</style>"""


class Machine(NamedTuple):
    """A machine's edges, and where its states stand."""

    title: str
    edges: dict[tuple[str, str], list[str]]
    places: dict[str, tuple[int, int]]
    bends: Mapping[tuple[str, str], int] = MappingProxyType({})


def machines() -> dict[str, Machine]:
    """Read each machine's table."""
    leases, elections, records = defaultdict(list), defaultdict(list), defaultdict(list)
    for (state, event), after in lease.TRANSITIONS.items():
        if state is lease.LeaseState.HELD:
            leases[state.value, after.value].append(event.value)
    leases["held", "lost"].insert(0, "deadline")  # rule R4, which stands before the table
    for (candidate, happened), next_one in election.TRANSITIONS.items():
        if happened is not election.CandidateEvent.STOP or candidate is election.CandidateState.LEADING:
            elections[candidate.value, next_one.value].append(happened.value)
    for (record, call, caller), verdict in idempotency.TRANSITIONS.items():
        if verdict.writes:
            new = " again" if verdict.new_attempt and record is not idempotency.RecordState.ABSENT else ""
            who = (
                "" if record is idempotency.RecordState.ABSENT else "owner: " if caller.value == "owner" else "other: "
            )
            records[record.value, verdict.state.value].append(f"{who}{call.value}{new}")
    records["in flight", "abandoned"].append("lock ends")
    for ends, what in (("abandoned", "grace ends"), ("completed", "retention ends")):
        records[ends, "absent"].append(what)
    return {
        "lease": Machine("A lease", leases, {"held": (120, 130), "lost": (470, 60), "released": (470, 200)}),
        "election": Machine(
            "A candidate of an election",
            elections,
            {
                "idle": (90, 90),
                "campaigning": (330, 90),
                "leading": (610, 90),
                "resting": (470, 240),
                "stopped": (760, 240),
            },
        ),
        "record": Machine(
            "A record of a request",
            records,
            {"absent": (90, 260), "in flight": (440, 140), "abandoned": (440, 400), "completed": (800, 260)},
            {
                ("completed", "absent"): 430,
                ("in flight", "abandoned"): 150,
                ("abandoned", "in flight"): 150,
            },
        ),
    }


def draw(machine: Machine) -> str:
    """Draw one machine."""
    width = max(x for x, _ in machine.places.values()) + 130
    height = max(y for _, y in machine.places.values()) + 80
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    marker = 'id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto"'
    head = '<path class="head" d="M0 0 L8 4 L0 8 z"/>'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{machine.title}">',
        STYLE,
        f"<defs><marker {marker}>{head}</marker></defs>",
    ]
    for (start, end), events in machine.edges.items():
        parts.append(_edge(machine, start, end, events))
    for name, (x, y) in machine.places.items():
        parts.append(
            f'<rect class="state" x="{x - WIDTH // 2}" y="{y - HEIGHT // 2}" width="{WIDTH}" height="{HEIGHT}" rx="9"/>'
            f'<text x="{x}" y="{y + 5}">{name.upper()}</text>'
        )
    return "\n".join([*parts, "</svg>", ""])


def _edge(machine: Machine, start: str, end: str, events: list[str]) -> str:
    (x, y), (to_x, to_y) = machine.places[start], machine.places[end]
    if start == end:
        path = f"M{x - 26} {y - 20} C{x - 44} {y - 62} {x + 44} {y - 62} {x + 26} {y - 20}"
        return f'<path class="edge" d="{path}" marker-end="url(#head)"/>{_label(x, y - 56, [", ".join(events)])}'
    there_and_back = (end, start) in machine.edges
    from_x, from_y = _border(x, y, to_x, to_y)
    at_x, at_y = _border(to_x, to_y, x, y)
    length = math.hypot(at_x - from_x, at_y - from_y)
    bend = machine.bends.get((start, end), 34 if there_and_back else 0)
    middle_x = (from_x + at_x) / 2 - bend * (at_y - from_y) / length
    middle_y = (from_y + at_y) / 2 + bend * (at_x - from_x) / length
    path = f"M{from_x:.0f} {from_y:.0f} Q{middle_x:.0f} {middle_y:.0f} {at_x:.0f} {at_y:.0f}"
    label_x, label_y = (from_x + at_x + 2 * middle_x) / 4, (from_y + at_y + 2 * middle_y) / 4
    return f'<path class="edge" d="{path}" marker-end="url(#head)"/>{_label(label_x, label_y, events)}'


def _border(x: float, y: float, to_x: float, to_y: float) -> tuple[float, float]:
    """Where the line from one state's middle to another's leaves the first."""
    across, down = to_x - x, to_y - y
    share = min(
        (WIDTH / 2 + 3) / abs(across) if across else math.inf, (HEIGHT / 2 + 3) / abs(down) if down else math.inf
    )
    return x + across * share, y + down * share


def _label(x: float, y: float, lines: list[str]) -> str:
    top = y - 7.5 * (len(lines) - 1) + 4
    return "".join(
        f'<text class="label" x="{x:.0f}" y="{top + 15 * at:.0f}">{line}</text>' for at, line in enumerate(lines)
    )


def main() -> None:
    """Write them all."""
    for name, machine in machines().items():
        (FOLDER / f"{name}.svg").write_text(draw(machine), encoding="utf-8")


if __name__ == "__main__":
    main()
