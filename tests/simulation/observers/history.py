"""The run's history, held against the rules of `tenure.testing.history`, as a run on real servers is."""

from typing import Any

from simulation.plan import Plan
from simulation.world import Outcome
from tenure.testing.history import HistoryReport, check_history

__all__ = ["check_run", "history_of"]


def _promise(plan: Plan) -> dict[str, Any]:
    """Say what holds in this run: how far the faults that are on may stretch it."""
    ttl_s = plan.ttl_s
    slowest = min(plan.rates)
    # A holder with a slow clock trusts its lease for longer than the hundredth that it keeps makes up for; and after a
    # suspend, the clock is looked at within a second.
    slow_s = ttl_s * max(0.0, 0.99 / slowest - 0.99)
    stall_s = 0.02 + slow_s + (1.0 if plan.on("suspend") else 0.0)
    limits = [fault for fault in ("lost tail", "store clock forward", "clock beyond the margin") if plan.on(fault)]
    asleep = any(plan.monotonic)
    late = any(plan.on(fault) for fault in ("request late", "request repeated"))
    return {
        "what": "run",
        "at": 0.0,
        "process": "world",
        "topology": "one simulated server",
        "ttl_s": ttl_s,
        "retry_s": ttl_s / 2,
        "call_timeout_s": plan.store_timeout_s / slowest,
        "margin": 0.01,
        "stall_s": stall_s + (3 * ttl_s if asleep else 0.0),
        "overlap_s": slow_s + (ttl_s if limits else 0.0) + (4 * ttl_s if asleep else 0.0),
        "late_expiry_s": (2 * ttl_s if late else 0.0) + (4 * ttl_s if plan.on("store clock back") else 0.0),
    }


def history_of(outcome: Outcome) -> list[dict[str, Any]]:
    """Return the events of a run, each of them in the table of `tenure.testing.history`."""
    events = outcome.journal.history
    if outcome.plan.on("lost tail"):
        # A record that the store forgot is begun again: known, and judged by the simulation's own observer.
        events = [event for event in events if event["what"] != "effect"]
    return [_promise(outcome.plan), *events]


def check_run(outcome: Outcome) -> HistoryReport:
    """Check the history of a run."""
    return check_history(history_of(outcome))
