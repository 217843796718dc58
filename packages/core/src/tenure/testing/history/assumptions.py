"""What the rules rely on, looked at first: a history that breaks it proves nothing, however few violations it has."""

import math
from bisect import bisect_left
from collections.abc import Iterator

from tenure.testing.history.calls import Key, Owner
from tenure.testing.history.report import Assumption
from tenure.testing.history.timeline import Timeline

__all__ = ["check_assumptions"]

_TOLD = 20
"""Problems of one assumption that are told: the rest looks like them."""


def check_assumptions(line: Timeline) -> list[Assumption]:
    """Look at each assumption of *line*."""
    found = {
        "the time of each writer never goes back": line.odd["time"],
        "each return belongs to one call": line.odd["numbers"],
        "what is promised is said before it is tried": list(_promised(line)),
        "nothing was locked at the start": list(_empty(line)) if line.starts_empty else [],
        "an owner has one call under way": [
            problem for key in line.keys.values() for owner in key.owners.values() for problem in _alone(key, owner)
        ],
        "every fault and every pause began and ended": line.odd["faults"],
        "something was granted, or had its effect, in each phase": list(_granted(line)),
    }
    return [Assumption(name, _shortened(problems)) for name, problems in found.items()]


def _shortened(problems: list[str]) -> tuple[str, ...]:
    if len(problems) <= _TOLD:
        return tuple(problems)
    return (*problems[:_TOLD], f"and {len(problems) - _TOLD} more")


def _promised(line: Timeline) -> Iterator[str]:
    first = line.calls[0].invoked if line.calls else math.inf
    if line.calls and line.runs.first_at > first:
        yield f"no run event stands before the first call, at {first:.6f}: limits in time cannot be checked"


def _empty(line: Timeline) -> Iterator[str]:
    """A refusal, or a grant after another lock, before anybody was seen who may hold: somebody else was there."""
    for key in line.keys.values():
        may_hold = [call for call in key.acquires if call.result != "no"]
        first = may_hold[0] if may_hold else None
        second = next((call for call in may_hold if first is not None and call.owner is not first.owner), None)
        for call in key.acquires:
            if call.result != "no":
                continue
            holder = first if first is None or first.owner is not call.owner else second
            if holder is None or holder.invoked > call.returned:
                yield f"{key.name!r} was refused at {call.returned:.6f}, and nobody had asked for it before"
        if first is not None and first.follows and (len(may_hold) == 1 or may_hold[1].invoked > first.returned):
            yield f"{key.name!r} was granted at {first.returned:.6f} after another lock, which nobody had asked for"


def _alone(key: Key, owner: Owner) -> Iterator[str]:
    """
    Two renewals may be under way, and a release beside them; and a release behind an acquire that has no answer.

    Nothing else: an acquire stands alone.
    """
    acquiring = others = -math.inf
    for call in owner.calls:
        waits_for = acquiring if call.op == "renew" else max(acquiring, others) if call.op == "acquire" else -math.inf
        if call.invoked < waits_for:
            yield f"an owner of {key.name!r} had two calls under way at {call.invoked:.6f}, one of them an acquire"
        if call.op == "acquire":
            acquiring = max(acquiring, call.ended)
        else:
            others = max(others, call.ended)


def _granted(line: Timeline) -> Iterator[str]:
    """A phase in which nothing was granted, and nothing had its effect, has put nothing to the test."""
    grants = [grant.granted for key in line.keys.values() for grant in key.grants]
    effects = [event["at"] for events in line.effects.values() for event in events if event["committed"]]
    times = sorted(grants + effects)
    phases = line.phases or [(-math.inf, "the run")]
    for index, (begins, name) in enumerate(phases):
        ends = phases[index + 1][0] if index + 1 < len(phases) else math.inf
        if bisect_left(times, ends) <= bisect_left(times, begins):
            yield f"nothing was granted, and nothing had its effect, in the phase {name!r}"
