"""
The benchmark's command line.

    bench                                   everything; an hour and a half on a quiet machine
    bench --quick --only cycle              a look at one scenario
    bench --contenders tenure,floor         those whose names begin so
    bench report bench.json                 the tables, the chart and the check of an earlier run
    bench guard                             the regression guard: a pass or a fail within a minute and a half
    bench list                              who can take part, and in what
"""

import argparse
import fnmatch
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tenure_loadtests.contenders.catalogue import CATALOGUE, Entry
from tenure_loadtests.driver.environments import Environments
from tenure_loadtests.driver.machine import describe_machine, on_one_processor
from tenure_loadtests.driver.rounds import Rounds
from tenure_loadtests.driver.servers import Servers
from tenure_loadtests.guard.watch import GUARD_PLAN, guard, limits_file
from tenure_loadtests.records import RecordError, RunRecord
from tenure_loadtests.report.publish import publish
from tenure_loadtests.scenarios.catalogue import SCENARIOS
from tenure_loadtests.scenarios.contract import Plan

__all__ = ["choose_contenders", "main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code: 0 passed, 1 failed, 2 misused."""
    options = _parser().parse_args(arguments)
    try:
        code: int = options.run(options)
    except (RecordError, _MisuseError) as error:
        print(error, file=sys.stderr)
        return 2
    return code


class _MisuseError(Exception):
    """The arguments name nothing that there is; the text says what there is."""


def choose_contenders(words: str) -> list[Entry]:
    """
    The contenders whose names begin with, or match, one of *words*; all of them where there is no word.

    Args:
        words: Names, beginnings or patterns, with commas between: `tenure,peer.valkey,*.advisory`.

    Raises:
        _MisuseError: One of them fits nobody.
    """
    patterns = [word.strip() for word in words.split(",") if word.strip()]
    if not patterns:
        return list(CATALOGUE.values())
    chosen = [
        entry
        for entry in CATALOGUE.values()
        if any(entry.name.startswith(pattern) or fnmatch.fnmatch(entry.name, pattern) for pattern in patterns)
    ]
    idle = [one for one in patterns if not any(e.name.startswith(one) or fnmatch.fnmatch(e.name, one) for e in chosen)]
    if idle:
        raise _MisuseError(f"No contender is called {', '.join(idle)}: `bench list` names all of them.")
    return chosen


def _run(options: argparse.Namespace) -> int:
    names = [word for word in options.only.split(",") if word] or list(SCENARIOS)
    unknown = [name for name in names if name not in SCENARIOS]
    if unknown:
        raise _MisuseError(f"There is no scenario {', '.join(unknown)}: there is {', '.join(SCENARIOS)}.")
    entries = choose_contenders(options.contenders)
    with Servers() as servers:
        plan = Plan(
            rounds=options.rounds or (1 if options.quick else 5),
            quick=options.quick,
            cell_s=0.4 if options.quick else 1.0,
            minutes=options.minutes,
            tries=1 if options.quick or servers.named else 3,
        )
        record = RunRecord(machine=describe_machine(), plan=asdict(plan))
        rounds = Rounds(servers, Environments(), plan, record, _tell)
        # A run is long: what ends it early, from outside as well, leaves what was measured so far.
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            for name in names:
                rounds.run(SCENARIOS[name], entries)
        except KeyboardInterrupt:
            _tell("Interrupted: what was measured so far is written.")
        finally:
            signal.signal(signal.SIGTERM, before)
        record.versions["servers"] = servers.versions()
    return publish(record, Path(options.out), check=options.check)


def _guard(options: argparse.Namespace) -> int:
    def run(contenders: Sequence[str], settings: Sequence[str]) -> RunRecord:
        record = RunRecord(machine=describe_machine(), plan=asdict(GUARD_PLAN))
        with on_one_processor(), Servers() as servers:
            rounds = Rounds(servers, Environments(), GUARD_PLAN, record, _tell)
            rounds.run(SCENARIOS["cycle"], [CATALOGUE[name] for name in contenders], only=settings)
        return record

    return guard(run, Path(options.limits) if options.limits else limits_file(), record=options.record)


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _report(options: argparse.Namespace) -> int:
    path = Path(options.file)
    return publish(RunRecord.read(path), Path(options.out) if options.out else path.parent, check=options.check)


def _list(_: argparse.Namespace) -> int:
    for scenario in SCENARIOS.values():
        print(f"{scenario.name:12} {scenario.title}")
    print()
    for entry in CATALOGUE.values():
        print(f"{entry.name:36} {', '.join(sorted(entry.takes_part))}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench", description="What a lease costs, beside floors and peers.")
    parser.set_defaults(run=_run)
    parser.add_argument("--only", default="", metavar="SCENARIO", help="scenarios, with commas between")
    parser.add_argument("--contenders", default="", metavar="NAMES", help="names, beginnings or patterns, with commas")
    parser.add_argument("--rounds", type=int, default=0, help="rounds; 5, or 1 with --quick")
    parser.add_argument("--quick", action="store_true", help="a look: one round, short cells, small settings")
    parser.add_argument("--minutes", type=float, default=1.0, help="how long leases are held")
    parser.add_argument("--out", default="bench-results", metavar="DIR", help="where the files go")
    parser.add_argument("--check", action="store_true", help="fail where a promised ratio is missed")
    commands = parser.add_subparsers(metavar="COMMAND")
    report = commands.add_parser("report", help="render an earlier run again")
    report.add_argument("file", metavar="FILE.json")
    report.add_argument("--out", default="", metavar="DIR", help="where the files go; beside the record")
    report.add_argument("--check", action="store_true", help="fail where a promised ratio is missed")
    report.set_defaults(run=_report)
    watch = commands.add_parser("guard", help="a pass or a fail within a minute and a half")
    watch.add_argument("--limits", default="", metavar="FILE.json", help="the ratios that are expected")
    watch.add_argument("--record", action="store_true", help="expect from now on what is measured now")
    watch.set_defaults(run=_guard)
    commands.add_parser("list", help="who can take part, and in what").set_defaults(run=_list)
    return parser
