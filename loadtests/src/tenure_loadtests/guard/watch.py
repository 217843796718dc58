"""The guard's run: the pairs of the file, three short rounds, and once more for what lay outside of its band."""

from collections.abc import Callable, Sequence
from pathlib import Path

from tenure_loadtests.contenders.catalogue import CATALOGUE
from tenure_loadtests.driver.environments import folder_of_loadtests
from tenure_loadtests.guard.limits import Limit, Verdict, judge, read_limits, recorded, write_limits
from tenure_loadtests.records import RunRecord
from tenure_loadtests.report.markdown import number, table
from tenure_loadtests.scenarios.contract import Plan

__all__ = ["GUARD_PLAN", "guard", "limits_file", "render_verdicts"]

GUARD_PLAN = Plan(rounds=3, cell_s=0.3, quiet_cores=float("inf"), tries=1)
"""CPU time is what it measures, so that a busy machine is no reason to run a cell again."""

Run = Callable[[Sequence[str], Sequence[str]], RunRecord]
"""Runs the cycle of some contenders in some settings."""


def limits_file() -> Path:
    """The committed file."""
    return folder_of_loadtests() / "guard.json"


def guard(run: Run, path: Path, *, record: bool) -> int:
    """
    Run the guard, and print how it came out; the last line is a pass or a fail.

    Args:
        run: Runs contenders.
        path: The file with the limits.
        record: Whether what is measured becomes what is expected, instead of being judged.

    Returns:
        The exit code: 0 passed or recorded, 1 failed.

    Raises:
        RecordError: The file cannot be read, or nothing could be recorded.
    """
    limits = read_limits(path)
    measured = run(*_needed(limits))
    if record:
        write_limits(path, recorded(measured, limits))
        print(f"guard: recorded {len(limits)} ratios in {path}")
        return 0
    verdicts = judge(measured, limits)
    outside = [one.limit for one in verdicts if not one.passed]
    if outside:
        # Something may have happened to the machine in the one minute: a regression is still there in the next.
        again = {one.limit: one for one in judge(run(*_needed(outside)), outside)}
        verdicts = [again.get(one.limit, one) for one in verdicts]
    print(render_verdicts(verdicts))
    for one in verdicts:
        if one.outdated:
            print(f"{one.limit.contender} is far better than its limit: bench guard --record")
    failed = [one for one in verdicts if not one.passed]
    if failed:
        names = ", ".join(f"{one.limit.contender} ({one.limit.setting}, {one.limit.figure})" for one in failed)
        print(f"guard: FAIL: {names}")
        return 1
    print(f"guard: pass, {len(verdicts)} ratios")
    return 0


def render_verdicts(verdicts: Sequence[Verdict]) -> str:
    """The table of the guard."""
    rows = [
        [
            one.limit.contender,
            one.limit.setting,
            one.limit.figure,
            number(one.limit.expected, 2),
            number(one.limit.expected * one.limit.band, 2),
            number(one.ratio, 2),
            "not measured" if one.ratio is None else "pass" if one.passed else "FAIL",
        ]
        for one in verdicts
    ]
    return table(["contender", "setting", "× floor", "expected", "at most", "measured", ""], rows, numbers=False)


def _needed(limits: Sequence[Limit]) -> tuple[list[str], list[str]]:
    """The contenders and the settings of *limits*, in the order of the catalogue."""
    wanted = {name for limit in limits for name in (limit.contender, limit.floor)}
    return [name for name in CATALOGUE if name in wanted], list(dict.fromkeys(limit.setting for limit in limits))
