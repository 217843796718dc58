"""The command line: `cat-store-load`."""

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cat_store.demo.options import STORES
from cat_store_load.crowd import CrowdError, check_locust
from cat_store_load.figures import BlockFigures
from cat_store_load.outcome import RECORDS, Wanted
from cat_store_load.report import HEAD, block_line, closing, document
from cat_store_load.verdict import facts_of

__all__ = ["main"]

_FAILED: Final = 1
_COULD_NOT: Final = 2

_LIMIT: Final = 1.5

_LEAST_USERS: Final = 10
_LEAST_S: Final = 15
"""A replica is killed, is started again and another one is paused within this time, in seconds."""

_PLACES: Final = {"database": "the shop's database", "valkey": "Valkey"}


@dataclass(frozen=True, slots=True)
class _Options:
    wanted: Wanted
    limit: float | None
    report: Path | None
    answers: Path | None


def main(arguments: Sequence[str] | None = None) -> int:
    """
    Load the cat store and look at its books.

    Returns:
        0 where every fact holds, 1 where one does not, 2 where the run could not be carried out.
    """
    try:
        options = _read(arguments)
        check_locust()
    except (ValueError, CrowdError) as error:
        return _could_not(str(error))
    try:
        return _carry_out(options)
    except KeyboardInterrupt:
        return 130  # as a shell reports SIGINT


def _carry_out(options: _Options) -> int:
    # Imported here: help and a wrong option need neither the shop nor the test bed.
    from cat_store.demo.journal import NotSeenError
    from cat_store_load.course import run
    from cat_store_load.settling import NotSettledError
    from tenure_testbed import NotReachedError, ServerError

    wanted = options.wanted
    _say(
        f"{wanted.users} users at three replicas; locks in {STORES[wanted.store]}; records of keys in "
        f"{_PLACES[wanted.records]}. Starting the shop."
    )
    _say(HEAD)

    def say(block: BlockFigures) -> None:
        _say(block_line(block))

    with tempfile.TemporaryDirectory(prefix="cat-store-load-", ignore_cleanup_errors=True) as scratch:
        try:
            outcome = asyncio.run(run(wanted, options.answers or Path(scratch), say))
        except (CrowdError, NotSettledError, ServerError, NotReachedError, NotSeenError) as error:
            return _could_not(str(error))
    facts = facts_of(outcome, limit=options.limit)
    if options.report is not None:
        text = json.dumps(document(wanted, outcome, facts), indent=1, ensure_ascii=False)
        options.report.write_text(f"{text}\n", encoding="utf-8")
    _say(closing(outcome, facts))
    return 0 if all(fact.holds for fact in facts) else _FAILED


def _read(arguments: Sequence[str] | None) -> _Options:
    options = _parser().parse_args(arguments)
    users = options.users or (20 if options.quick else 200)
    seconds = options.seconds or (15 if options.quick else 60)
    if users < _LEAST_USERS or seconds < _LEAST_S:
        raise ValueError(
            f"--users is at least {_LEAST_USERS} and --seconds at least {_LEAST_S}: fewer meet nothing that could go "
            "wrong."
        )
    pairs = (1 if options.quick else 3) if options.pairs is None else options.pairs
    think_s = (1.0 if options.quick else 6.0) if options.think is None else options.think
    if pairs < 1 or think_s <= 0:
        raise ValueError("--pairs is at least 1, and --think is more than 0.")
    for path in (options.report and options.report.parent, options.answers):
        if path is not None and not path.is_dir():
            raise ValueError(f"{path} is no directory.")
    return _Options(
        Wanted(
            users=users,
            seconds=seconds,
            pairs=pairs,
            think_s=think_s,
            store=options.store,
            records=options.records,
            seed=options.seed,
        ),
        None if options.quick and options.limit is None else options.limit or _LIMIT,
        options.report,
        options.answers,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="cat-store-load", description=__doc__)
    parser.add_argument("--users", type=int, help="how many users there are (200)")
    parser.add_argument("--seconds", type=int, help="how long the storm is, and all calm blocks together (60)")
    parser.add_argument("--pairs", type=int, help="how many pairs of calm blocks, without and with keys (3)")
    parser.add_argument("--think", type=float, help="the mean pause of a user between two things, in seconds (6)")
    parser.add_argument("--quick", action="store_true", help="20 users for 15 seconds, one pair, times not judged")
    parser.add_argument("--store", choices=sorted(STORES), default="postgres", help="where the locks are (%(default)s)")
    parser.add_argument(
        "--records", choices=RECORDS, default="database", help="where the records of keys are (%(default)s)"
    )
    parser.add_argument(
        "--limit", type=float, help="how many times as long an order with a key may take, at the p95 (1.5)"
    )
    parser.add_argument("--seed", type=int, default=7, help="what the users' choices follow from (%(default)s)")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write everything that was measured as JSON")
    parser.add_argument("--answers", type=Path, metavar="DIRECTORY", help="keep every answer in this directory")
    return parser


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _could_not(message: str) -> int:
    sys.stderr.write(f"cat-store-load: {message}\n")
    return _COULD_NOT
