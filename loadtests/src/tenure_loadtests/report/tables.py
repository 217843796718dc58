"""The tables of a record: for each scenario, setting and server, who took part, beside floor and best peer."""

from collections.abc import Iterator, Mapping, Sequence

from tenure_loadtests.contenders.catalogue import CATALOGUE, Entry
from tenure_loadtests.figures import median, ratio_within_rounds, spread
from tenure_loadtests.records import RunRecord
from tenure_loadtests.report.markdown import number, table
from tenure_loadtests.scenarios.catalogue import SCENARIOS
from tenure_loadtests.scenarios.contract import Comparison, Scenario

__all__ = ["best_peer", "render", "speedup"]

_SERVERS: Mapping[str, str] = {
    "postgres": "PostgreSQL, durable",
    "valkey": "Valkey",
    "cluster": "Valkey cluster",
    "memory": "in memory",
}


def render(record: RunRecord) -> str:
    """The whole report, in Markdown."""
    parts = [_head(record)]
    for name in record.scenarios():
        scenario = SCENARIOS[name]
        parts.append(f"## {scenario.title}\n\n{scenario.note}")
        parts.extend(_tables(record, scenario))
    parts.append(_absent(record))
    parts.append(_versions(record))
    return "\n\n".join(part for part in parts if part) + "\n"


def best_peer(record: RunRecord, scenario: Scenario, setting: str, server: str) -> str | None:
    """The Python peer that wins this row in this run, by the median; None where none took part."""
    compared = scenario.comparisons(setting)
    if not compared:
        return None
    found: dict[str, float] = {}
    for name in record.contenders(scenario.name, setting):
        entry = CATALOGUE[name]
        middle = median(record.by_round(scenario.name, setting, name, compared[0].figure).values())
        if entry.role == "peer" and entry.in_python and entry.server == server and middle is not None:
            found[name] = middle
    if not found:
        return None
    choose = max if compared[0].more_is_better else min
    return choose(found, key=lambda name: found[name])


def speedup(
    record: RunRecord, scenario: str, setting: str, comparison: Comparison, pair: tuple[str, str]
) -> float | None:
    """How many times as good the first of a *pair* is as the second, the median over rounds: above 1 is better."""
    own, others = (record.by_round(scenario, setting, name, comparison.figure) for name in pair)
    return ratio_within_rounds(own, others) if comparison.more_is_better else ratio_within_rounds(others, own)


def _tables(record: RunRecord, scenario: Scenario) -> Iterator[str]:
    for setting in record.settings(scenario.name):
        names = record.contenders(scenario.name, setting)
        for server, title in _SERVERS.items():
            entries = [CATALOGUE[name] for name in names if CATALOGUE[name].server == server]
            if entries:
                entries.sort(key=lambda entry: list(CATALOGUE).index(entry.name))
                yield f"### {setting}, {title}\n\n{_table(record, scenario, setting, server, entries)}"


def _table(record: RunRecord, scenario: Scenario, setting: str, server: str, entries: Sequence[Entry]) -> str:
    best = best_peer(record, scenario, setting, server)
    columns = [column for column in scenario.columns if _known(record, scenario, setting, entries, column.figure)]
    compared = scenario.comparisons(setting)
    head = ["contender", *(column.heading for column in columns)]
    for one in compared:
        head += [f"× floor, {one.word}", f"× best peer, {one.word}"]
    rows = []
    for entry in entries:
        row = [entry.name + (" (best peer)" if entry.name == best else "")]
        for column in columns:
            middle = median(record.by_round(scenario.name, setting, entry.name, column.figure).values())
            row.append(number(None if middle is None else middle * column.scale, column.digits))
        for one in compared:
            for other in (entry.floor_of(scenario.name), best):
                pair = None if not other else (entry.name, other)
                row.append(number(None if pair is None else speedup(record, scenario.name, setting, one, pair), 2))
        rows.append([*row, *_noise(record, scenario, setting, entry.name)])
    return table([*head, "spread", "others' cores", "tries"], rows)


def _known(record: RunRecord, scenario: Scenario, setting: str, entries: Sequence[Entry], figure: str) -> bool:
    return any(record.by_round(scenario.name, setting, entry.name, figure) for entry in entries)


def _noise(record: RunRecord, scenario: Scenario, setting: str, contender: str) -> list[str]:
    figure = next((one.figure for one in scenario.comparisons(setting)), scenario.columns[0].figure)
    wide = spread(record.by_round(scenario.name, setting, contender, figure).values())
    cells = [
        cell
        for cell in record.cells
        if (cell.scenario, cell.setting, cell.contender) == (scenario.name, setting, contender)
    ]
    return [
        "–" if wide is None else f"{wide:.0%}",
        number(max(cell.foreign_cores for cell in cells), 2),
        number(max(cell.tries for cell in cells)),
    ]


def _head(record: RunRecord) -> str:
    machine, plan = record.machine, record.plan
    return (
        f"# Benchmark\n\nOn {machine['when']}: {machine['processors']} processors ({machine['processor']}), "
        f"{machine['memory']}, kernel {machine['kernel']}, Python {machine['python']}; load before the run "
        f"{machine['load_before']}. {plan['rounds']} rounds, cells of {plan['cell_s']:g} s.\n\n"
        "Each contender is a process of its own, one is active at a time, and they take turns cell by cell and round "
        "by round. A figure is the median over the rounds, a ratio the median of the ratios within a round: “× floor” "
        "and “× best peer” are above 1 where a contender is better. “Spread” is how far its rounds lie apart, “others' "
        "cores” the greatest number of processors that foreign processes kept busy, and a cell in which that was more "
        f"than {plan['quiet_cores']:g} was run again, up to {plan['tries']} times."
    )


def _absent(record: RunRecord) -> str:
    if not record.absences:
        return ""
    where: dict[tuple[str, str], list[str]] = {}
    for one in record.absences:
        where.setdefault((one.contender, one.reason), []).append(f"{one.scenario}, {one.setting}")
    rows = [
        [contender, "; ".join(dict.fromkeys(places)), reason.replace("|", "\\|")]
        for (contender, reason), places in where.items()
    ]
    return "## Who did not take part\n\n" + table(["contender", "where", "reason"], rows, numbers=False)


def _versions(record: RunRecord) -> str:
    rows = [
        [name, ", ".join(f"{what} {version}" for what, version in sorted(versions.items()))]
        for name, versions in record.versions.items()
    ]
    return "## Versions\n\n" + table(["contender", "versions"], rows, numbers=False) if rows else ""
