"""`python -m chaos.soak --minutes 60`: soak the stores side by side, and write the report."""

import argparse
import asyncio
import datetime as dt
import sys
import tempfile
import time
from pathlib import Path

from chaos.outcome import Outcome
from chaos.report import write_report
from chaos.soak.cell import Cell
from chaos.soak.conductor import TITLE, Conductor, Plan
from chaos.soak.faults import KINDS


async def soak(store: str, plan: Plan, directory: Path) -> Outcome:
    """Soak one store; an exception is an outcome, too."""
    began = time.monotonic()
    try:
        async with Cell(store, directory / store, plan.seed, sample_s=min(5.0, plan.sample_s)) as cell:
            conductor = Conductor(cell, plan)
            await conductor.run()
            return conductor.outcome()
    except Exception as error:  # noqa: BLE001 -- the other stores go on
        outcome = Outcome("C29", TITLE, store, 0, seconds=time.monotonic() - began)
        outcome.broken.append(f"{type(error).__name__}: {error}")
        return outcome


async def soak_all(stores: list[str], plan: Plan, directory: Path) -> list[Outcome]:
    """Soak several stores side by side."""
    return list(await asyncio.gather(*(soak(store, plan, directory) for store in stores)))


def plan_of(minutes: float, seed: int) -> Plan:
    """
    Plan a run: a fault every 5 to 15 s, or so often that each kind comes in a shorter run.

    Windows are long, for what grows with the age of a lease to be seen, and short enough for a checker's memory.
    """
    lasts_s = 60 * minutes
    pause_s = (5.0, 15.0) if minutes >= 10 else (1.0, 4.0)
    return Plan(lasts_s, max(20.0, min(300.0, lasts_s / 4)), pause_s, min(30.0, lasts_s / 60), seed)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="chaos.soak", description="Mixed faults at random.")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1, help="what the faults are drawn from")
    parser.add_argument("--store", action="append", default=[], choices=list(KINDS), help="may be given again")
    parser.add_argument("--report", type=Path, default=None, help="write the report to this path, .md and .json")
    parser.add_argument("--histories", type=Path, default=None, help="where the histories of broken windows are kept")
    return parser.parse_args()


def main() -> int:
    """Run what was asked for; 1 where a claim did not hold."""
    options = parse()
    plan = plan_of(options.minutes, options.seed)
    with tempfile.TemporaryDirectory(prefix="tenure-soak-") as scratch:
        directory = options.histories or Path(scratch)
        outcomes = asyncio.run(soak_all(options.store or ["postgres", "valkey"], plan, directory))
    for outcome in outcomes:
        print(outcome.line(), flush=True)
    if options.report:
        today = dt.datetime.now(dt.UTC).date().isoformat()  # noqa: TID251 -- the day on a report
        write_report(outcomes, options.report, size=f"{options.minutes:g}-minute soak", at=today)
    return 0 if all(outcome.ok for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
