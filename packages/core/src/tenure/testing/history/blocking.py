"""Blocking: a key is refused only for as long as somebody may hold it, known or not (H7)."""

import math
from bisect import bisect_right
from collections.abc import Iterator
from operator import itemgetter
from typing import Final, final

from tenure.testing.history.calls import Call, Key, Owner
from tenure.testing.history.holding import HAIR_S
from tenure.testing.history.report import Violation
from tenure.testing.history.timeline import Timeline

__all__ = ["refusals_have_a_reason"]


def refusals_have_a_reason(line: Timeline) -> Iterator[Violation]:
    """
    H7: each refused acquire meets a lock that another may have then.

    A lock ends a ttl after the call that may have made or renewed it has ended, whatever the call answered: so an
    acquire that was lost blocks its key for a ttl at most. A call that was under way in a fault may be carried out
    until the fault has ended.
    """
    for key in line.keys.values():
        yield from _on_key(line, key)


def _on_key(line: Timeline, key: Key) -> Iterator[Violation]:
    refused = sorted((call for call in key.acquires if call.result == "no"), key=lambda call: call.returned)
    if not refused:
        return
    known, lost = _Blocks(), _Blocks()
    for owner in key.owners.values():
        for call in owner.calls:
            if call.op != "release" and call.result != "no":
                blocks = known if owner.grants else lost
                blocks.add(call.invoked, _blocks_until(line, call), call.ended, owner)
    known.sort()
    lost.sort()
    for call in refused:
        held_until, _ = known.latest(call)
        if held_until >= call.invoked - HAIR_S:
            continue
        lost_until, ended = lost.latest(call)
        if lost_until >= call.invoked - HAIR_S:
            line.counts["refused for a lost acquire"] += 1
            line.longest("longest block by a lost acquire", max(0.0, call.invoked - ended))
            continue
        blocked_until = max(held_until, lost_until)
        # Before anybody was seen to ask, it is the empty start that does not hold.
        if blocked_until == -math.inf or (not line.starts_empty and held_until == -math.inf):
            continue
        text = (
            f"{call.process!r} was refused a key that nobody can hold: whatever may have held it had ended "
            f"{call.invoked - blocked_until:.6f} s before"
        )
        yield Violation("H7", text, call.invoked, key.name)


def _blocks_until(line: Timeline, call: Call) -> float:
    """Until when a lock that *call* made or renewed may live."""
    run = line.runs.at(call.invoked)
    ended = max(call.ended, line.fault_times.last_heal(call.invoked, call.ended))
    if call.cut < math.inf and call.returned == math.inf:
        ended += (
            run.call_timeout_s if run.call_timeout_s < math.inf else 0.0
        )  # what it had sent may still be on its way
    # A place in the queue outlives its call: it may be granted the lock as late as at its end.
    place_s = 0.0 if call.result == "ok" else call.place_s
    return ended + place_s + call.ttl_s + run.late_expiry_s + run.stall_s


_NOTHING: Final = (-math.inf, -math.inf)


@final
class _Blocks:
    """What may block a key from when until when, asked by somebody whom his own lock does not block."""

    def __init__(self) -> None:
        self._blocks: list[tuple[float, float, float, Owner]] = []
        self._begins: list[float] = []
        self._latest: list[tuple[float, float, Owner]] = []
        self._others: list[tuple[float, float]] = []

    def add(self, begins: float, until: float, ended: float, owner: Owner) -> None:
        """Add a block by *owner*, of a call that ended at *ended*."""
        self._blocks.append((begins, until, ended, owner))

    def sort(self) -> None:
        """Make ready to be asked: after each block, the latest end so far, and the latest of another owner."""
        self._blocks.sort(key=itemgetter(0))
        latest: tuple[float, float, Owner | None] = (*_NOTHING, None)
        others = _NOTHING
        for begins, until, ended, owner in self._blocks:
            if owner is latest[2]:
                latest = (*max((until, ended), latest[:2]), owner)
            elif until > latest[0]:
                latest, others = (until, ended, owner), latest[:2]
            else:
                others = max(others, (until, ended))
            self._begins.append(begins)
            self._latest.append((latest[0], latest[1], owner if latest[2] is None else latest[2]))
            self._others.append(others)

    def latest(self, call: Call) -> tuple[float, float]:
        """Of the blocks by others that began before *call* returned: the latest end, and when its call had ended."""
        index = bisect_right(self._begins, call.returned) - 1
        if index < 0:
            return _NOTHING
        until, ended, owner = self._latest[index]
        return self._others[index] if owner is call.owner else (until, ended)
