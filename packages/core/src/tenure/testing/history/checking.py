"""The check of a history: the assumptions first, then the rules, each of which is a function of the timeline."""

import contextlib
import gc
from collections.abc import Callable, Iterator
from typing import Final

from tenure.testing.history.assumptions import check_assumptions
from tenure.testing.history.blocking import refusals_have_a_reason
from tenure.testing.history.effects import effects_are_committed_once, replays_are_the_first_answer
from tenure.testing.history.fencing import accepted_tokens_do_not_go_back
from tenure.testing.history.holding import nobody_believes_beside_another
from tenure.testing.history.reading import HistorySource, read_history
from tenure.testing.history.report import HistoryReport, Violation
from tenure.testing.history.signals import calls_end, losses_are_told
from tenure.testing.history.takeover import dead_holders_are_replaced, keys_are_granted_after_the_last_fault
from tenure.testing.history.timeline import Timeline, lay_out
from tenure.testing.history.tokens import nothing_is_renewed_by_a_former_owner, tokens_are_unique, tokens_grow

__all__ = ["check_history"]

_RULES: Final[tuple[Callable[[Timeline], Iterator[Violation]], ...]] = (
    tokens_are_unique,
    tokens_grow,
    nobody_believes_beside_another,
    accepted_tokens_do_not_go_back,
    nothing_is_renewed_by_a_former_owner,
    dead_holders_are_replaced,
    refusals_have_a_reason,
    losses_are_told,
    calls_end,
    keys_are_granted_after_the_last_fault,
    effects_are_committed_once,
    replays_are_the_first_answer,
)


def check_history(history: HistorySource, *, starts_empty: bool = True) -> HistoryReport:
    """
    Check a history against the rules H1 to H10.

        report = check_history(["holder-1.jsonl", "holder-2.jsonl", "nemesis.jsonl"])
        report.raise_if_broken()

    Args:
        history: A file, several files, or the events themselves; they are merged by their time. It must hold every call
            on its keys by whomever: what is not in it explains no refusal.
        starts_empty: Whether nothing was locked, and no token drawn for these keys, before it began. If not, what needs
            the time before to be judged is not: a refusal by a holder from then, or the return of a call sent then.

    Returns:
        What was found. Violations are found, not raised; see `HistoryReport.raise_if_broken`.

    Raises:
        HistoryError: It cannot be read: a line is no event of the table, other than the last one of a killed process.
        OSError: A file cannot be read.
    """
    with _without_collections():
        line = lay_out(read_history(history), starts_empty=starts_empty)
        assumptions = check_assumptions(line)
        violations = [violation for rule in _RULES for violation in rule(line)]
    violations.sort(key=lambda violation: violation.at)
    figures = dict(sorted(line.figures.items()))
    return HistoryReport(violations, assumptions, dict(line.counts), figures)


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """Put off the collector of cycles, which would look through millions of events again and again for nothing."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
