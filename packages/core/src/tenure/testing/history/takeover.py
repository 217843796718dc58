"""Takeover: a dead holder's key is another's in time (H6), and after the last fault every key is granted (H9)."""

import math
from bisect import bisect_right
from collections.abc import Iterator
from itertools import zip_longest

from tenure.testing.history.calls import Call, Key
from tenure.testing.history.holding import HAIR_S
from tenure.testing.history.report import Violation
from tenure.testing.history.timeline import Timeline

__all__ = ["dead_holders_are_replaced", "keys_are_granted_after_the_last_fault"]


def dead_holders_are_replaced(line: Timeline) -> Iterator[Violation]:
    """H6: the next grant of a key whose holder died comes within what the run promises, where it promises it."""
    for key in line.keys.values():
        grants = sorted(key.grants, key=lambda grant: grant.granted)
        for grant, following in zip_longest(grants, grants[1:]):
            run = line.runs.at(grant.died)
            if run.takeover_s is None or grant.died == math.inf or grant.ends < grant.died:
                continue
            granted = math.inf if following is None else following.granted
            if granted <= grant.died:
                continue  # it was not the last holder
            # A lease of a longer ttl than the run's lives for as much longer.
            bound_s = run.takeover_s + max(0.0, grant.ttl_s - run.ttl_s) + run.late_expiry_s + run.stall_s
            healed = line.fault_times.last_heal(grant.died, grant.died + bound_s)
            yield from _replaced(line, key, grant.died, max(grant.died, healed) + bound_s, granted)


def _replaced(line: Timeline, key: Key, died: float, limit: float, granted: float) -> Iterator[Violation]:
    if granted < math.inf:
        line.counts["takeovers"] += 1
        line.longest("longest takeover", granted - died)
        if granted > limit + HAIR_S and _asked(key, died, limit):
            text = f"its holder died at {died:.6f}, and it was granted again {granted - died:.6f} s later"
            yield Violation("H6", f"{text}; {limit - died:g} s are allowed", granted, key.name)
    elif line.last_at > limit + HAIR_S and _asked(key, died, limit):
        text = f"its holder died at {died:.6f}, and it was not granted again although it was asked for"
        yield Violation("H6", f"{text}; {limit - died:g} s are allowed", limit, key.name)


def _asked(key: Key, begins: float, ends: float) -> bool:
    index = bisect_right(key.acquires, begins, key=_invoked)
    return index < len(key.acquires) and key.acquires[index].invoked <= ends


def _invoked(call: Call) -> float:
    return call.invoked


def keys_are_granted_after_the_last_fault(line: Timeline) -> Iterator[Violation]:
    """
    H9: within two ttls after the last fault, every key that is asked for is granted, unless somebody holds it alive.

    One ttl frees whatever a fault left behind; who asks in the second is served. A pause, a death and a start count
    as faults here.
    """
    healed = max((fault.healed for fault in line.faults), default=math.inf)
    if healed == math.inf:
        return
    for key in line.keys.values():
        run = line.runs.at(healed)
        ttl_s = max([run.ttl_s, *(call.ttl_s for call in key.acquires)])
        allowed_s = run.stall_s + run.late_expiry_s
        begins = healed
        for upset in line.upsets:
            if begins <= upset <= begins + 2 * ttl_s + allowed_s:
                begins = upset
        ends = begins + 2 * ttl_s + allowed_s
        if line.last_at < ends:
            continue
        line.counts["keys after the last fault"] += 1
        asked = _asked(key, begins + ttl_s + allowed_s, ends)
        if not asked or any(begins <= grant.granted <= ends for grant in key.grants):
            continue
        if not _is_kept_alive(key, begins, ends):
            text = f"it was asked for and not granted within {ends - begins:g} s after the last fault"
            yield Violation("H9", text, ends, key.name)


def _is_kept_alive(key: Key, begins: float, ends: float) -> bool:
    return any(
        call.op == "renew" and call.result == "ok" and begins <= call.returned <= ends
        for owner in key.owners.values()
        for call in owner.calls
    )
