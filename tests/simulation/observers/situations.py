"""
Situations that a batch must have been in: what never came up was not tested, however green the batch is.

Antithesis calls them `sometimes` assertions.
"""

from collections import Counter
from typing import Final

from simulation.plan import FAULTS

__all__ = ["ENOUGH_SEEDS", "SITUATIONS", "never_seen"]

ENOUGH_SEEDS: Final = 1000
"""From how many seeds on each of them must have come up: the rarest comes up in one of a hundred."""

SITUATIONS: Final = (
    # Locks and their ends.
    "takeover of a lock",
    "handover of a lock",
    "a late grant discarded",
    "a loss: expired",
    "a loss: refused",
    "a loss: stalled",
    "a loss: max_hold",
    "a loss: closed",
    "a loss found at the release",
    "a body cancelled by its loss",
    "a stale write refused",
    "a write accepted",
    "an orphan freed by the release behind it",
    "a repeated acquire granted a lock that nobody wants",
    "a renewal failed, and is tried again",
    "leases renewed together",
    "a waiter woken by a release",
    "a wait in vain",
    "a wait in a line",
    "a grant by a release",
    "a grant heard",
    "a grant found by asking",
    "the message of a grant lost",
    "the message of a grant that is over",
    "a grant to a waiter that had left",
    "an operation cancelled",
    # Elections and jobs.
    "takeover of a leadership",
    "handover of a leadership",
    "a leadership lost",
    "a leader stood down",
    "a lead that failed",
    "takeover of a job",
    "handover of a job",
    "a run cancelled by its loss",
    "a lock left to expire",
    "a tick skipped: it runs on another instance",
    "a tick skipped: a run is still in progress",
    "a tick skipped: its slot was already run",
    # Requests.
    "a replay",
    "a request: in flight",
    "a request: key reused",
    "a request: outcome unknown",
    "an outcome: taken over",
    "an outcome: released",
    "an outcome: abandoned",
    "an outcome: stale",
    "an execution lost its lock",
    "a second effect by an attempt that was told",
    "a second effect by an attempt that was replaced",
    # Faults of which it is known, and published, that two may hold.
    "an overlap: the store lost its tail",
    "an overlap: the store's clock went forward",
    "an overlap: the holder's clock is slower than the margin",
    "an overlap: the holder's clock stood still",
    "a second effect: the store lost its tail",
)


def never_seen(fired: Counter[str], seen: Counter[str]) -> list[str]:
    """Name the faults that never met anybody, and the situations that never came up."""
    return [fault for fault in FAULTS if not fired[fault]] + [one for one in SITUATIONS if not seen[one]]
