"""`python -m chaos`: run scenarios, print a line for each, write the report, exit with 1 where a claim did not hold."""

import argparse
import datetime as dt
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from chaos.cases import Case, run_all
from chaos.report import write_report
from chaos.scenarios import SCENARIOS


def chosen(options: argparse.Namespace, directory: Path) -> Iterator[Case]:
    """Go through the scenarios and stores that were asked for, in order."""
    for found in SCENARIOS:
        if options.only and found.id not in options.only:
            continue
        if found.docker and not options.docker and not options.only:
            continue
        stores = found.quick_stores if options.quick and not options.store else found.stores
        for store in stores:
            if not options.store or store in options.store:
                yield Case(found.id, store, not options.quick, options.n, directory / f"{found.id}-{store}")


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="chaos", description="The failover suite of tenure.")
    parser.add_argument("--quick", action="store_true", help="the short run: within ten minutes")
    parser.add_argument("--only", action="append", default=[], metavar="C11", help="a scenario; may be given again")
    parser.add_argument("--store", action="append", default=[], help="a store; may be given again")
    parser.add_argument("--n", type=int, default=None, help="repeat the fault so many times")
    parser.add_argument("--jobs", type=int, default=2, help="so many scenarios side by side (2)")
    parser.add_argument("--docker", action="store_true", help="those that need a container engine, too")
    parser.add_argument(
        "--report",
        type=Path,
        default=None,
        help="write the report to this path, .md and .json, or renew what stands there",
    )
    parser.add_argument("--histories", type=Path, default=None, help="keep the histories in this directory")
    parser.add_argument("--list", action="store_true", help="say what there is")
    return parser.parse_args()


def main() -> int:
    """Run what was asked for."""
    options = parse()
    if options.list:
        for found in SCENARIOS:
            print(f"{found.id:<4} {found.title} ({', '.join(found.stores)}; {found.quick} or {found.full} times)")
        return 0
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tenure-chaos-") as scratch:
        cases = list(chosen(options, options.histories or Path(scratch)))
        outcomes = []
        for outcome in run_all(cases, jobs=options.jobs):
            outcomes.append(outcome)
            print(outcome.line(), flush=True)
            if options.report:  # after each: what has been found is not lost with a run that is cut off
                today = dt.datetime.now(dt.UTC).date().isoformat()  # noqa: TID251 -- the day on a report
                write_report([outcome], options.report, size="quick" if options.quick else "full", at=today)
    if not outcomes:
        print("Nothing of that name. Ask for --list.", file=sys.stderr)
        return 2
    failed = [outcome for outcome in outcomes if not outcome.ok]
    skipped = sum(outcome.skipped is not None for outcome in outcomes)
    print(
        f"{len(outcomes) - len(failed) - skipped} passed, {skipped} skipped, {len(failed)} failed, "
        f"in {time.monotonic() - started:.0f} s"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
