"""Signals: a loss is told in time, nobody believes beyond his right, and calls end (H8)."""

import math
from collections.abc import Iterator
from typing import Final

from tenure._startup import CHECK_S, PROBE_PREFIX
from tenure.testing.history.calls import Call, Grant
from tenure.testing.history.holding import HAIR_S
from tenure.testing.history.report import Violation
from tenure.testing.history.timeline import Timeline

__all__ = ["calls_end", "losses_are_told"]

CALL_ALLOWANCE_S: Final = 0.25
"""How much longer than its time-out a call may take, in seconds, beside the stall that was measured."""


def losses_are_told(line: Timeline) -> Iterator[Violation]:
    """H8: the loss signal fires at the rightful deadline, or at a refusal, and nobody believes beyond them."""
    for key in line.keys.values():
        for grant in key.grants:
            stall_s = line.runs.at(grant.granted).stall_s + HAIR_S
            yield from _told(line, key.name, grant, stall_s)
            yield from _believed(line, key.name, grant, stall_s)
    if line.starts_empty:
        for event in line.unfounded:
            text = f"{event['process']!r} believed in token {event['token']}, which it was never granted"
            yield Violation("H8", text, event["at"], event["key"])


def _told(line: Timeline, key: str, grant: Grant, stall_s: float) -> Iterator[Violation]:
    """The signal: late, or missing where its process went on and is known to have had a lease that has one."""
    due = min(grant.until, grant.refused)
    ended = min(grant.gave_back, grant.died)
    if ended <= due or grant.granted >= grant.until:
        return
    why = "its deadline" if due == grant.until else "the store's refusal"
    if grant.lost < math.inf and grant.lost <= ended:
        late_s = line.running_s(grant.process, due, grant.lost)
        line.longest("latest signal", late_s)
        if late_s > stall_s:
            text = f"{grant.process!r} was told of the loss of token {grant.token} {late_s:.6f} s after {why}"
            yield Violation("H8", text, grant.lost, key)
    elif grant.last_belief > -math.inf:
        # Only who asked `lease.held` is known to have a lease; a slot that is left to expire has no signal.
        untold_s = line.running_s(grant.process, due, min(ended, line.last_own[grant.process]))
        if untold_s > stall_s:
            text = f"{grant.process!r} was not told of the loss of token {grant.token}, {untold_s:.6f} s after {why}"
            yield Violation("H8", text, due, key)


def _believed(line: Timeline, key: str, grant: Grant, stall_s: float) -> Iterator[Violation]:
    """What the process says that it believes."""
    if grant.last_belief == -math.inf:
        return
    end, why = min(
        (grant.until, "its deadline"), (grant.lost, "the signal of its loss"), (grant.gave_back, "it gave it back")
    )
    late_s = line.running_s(grant.process, end, grant.last_belief)
    if late_s > stall_s:
        text = f"{grant.process!r} believed in token {grant.token} {late_s:.6f} s after {why}"
        yield Violation("H8", text, grant.last_belief, key)


def calls_end(line: Timeline) -> Iterator[Violation]:
    """H8: a call ends within its time-out, or, where nothing tells that it has, is not seen to go on beyond it."""
    for call in line.calls:
        run = line.runs.at(call.invoked)
        allowed_s = run.call_timeout_s
        if call.op == "renew":
            # A renewal is bounded by what is left of the leases that it is sent for, which may travel together.
            allowed_s = max(allowed_s, line.longest_ttl_s[call.process])
        # One that has a place in a queue is open until its grant is heard of, or its owner asks again.
        allowed_s += call.place_s
        if call.owner.key.name.startswith(PROBE_PREFIX):
            # What a start measures the round trip with; the first call also waits for the client to connect.
            allowed_s = max(allowed_s, CHECK_S)
        allowed_s += CALL_ALLOWANCE_S + run.stall_s + HAIR_S
        ended = min(call.ended, max(line.last_own[call.process], call.invoked))
        if ended - call.invoked <= allowed_s and call.returned < math.inf:
            line.longest(f"longest {call.op}", ended - call.invoked)
            continue
        took_s = line.running_s(call.process, call.invoked, ended)
        if call.returned < math.inf:
            line.longest(f"longest {call.op}", took_s)
        if took_s > allowed_s and not _was_left_alone(call, ended):
            ends = "took" if call.returned < math.inf else "has not ended after"
            text = f"a call to {call.op} by {call.process!r} {ends} {took_s:.6f} s; {allowed_s:.6f} s are allowed"
            yield Violation("H8", text, call.invoked, call.owner.key.name)


def _was_left_alone(call: Call, ended: float) -> bool:
    """Whether a renewal's lease was given back under way: nobody waits for it then, and its connection is spared."""
    return call.op == "renew" and any(grant.gave_back <= ended for grant in call.owner.grants)
