"""Holding: no two running processes believe in leases on one key at a time (H3)."""

import math
from collections.abc import Iterator

from tenure.testing.history.calls import Grant, Key
from tenure.testing.history.report import Violation
from tenure.testing.history.timeline import Timeline

__all__ = ["HAIR_S", "nobody_believes_beside_another"]

HAIR_S = 1e-6
"""What two times that are meant to be equal may differ by, in seconds: sums of floats, rounded differently."""


def nobody_believes_beside_another(line: Timeline) -> Iterator[Violation]:
    """H3: the spans in which running processes believe in leases on one key do not overlap."""
    for key in line.keys.values():
        yield from _on_key(line, key)


def _on_key(line: Timeline, key: Key) -> Iterator[Violation]:
    spans = sorted(
        ((begins, ends, index) for index, grant in enumerate(key.grants) for begins, ends in _spans(line, grant)),
    )
    overlaps: dict[tuple[int, int], float] = {}
    latest_end, latest = -math.inf, -1
    for begins, ends, index in spans:
        if begins < latest_end and latest != index:
            pair = (latest, index)
            overlaps[pair] = overlaps.get(pair, 0.0) + min(ends, latest_end) - begins
        if ends > latest_end:
            latest_end, latest = ends, index
    for (older, younger), overlap_s in overlaps.items():
        line.longest("longest overlap", overlap_s)
        grant, other = key.grants[younger], key.grants[older]
        allowed_s = line.runs.at(grant.granted).overlap_s
        if overlap_s > allowed_s + HAIR_S:
            text = (
                f"{other.process!r} (token {other.token}) and {grant.process!r} (token {grant.token}) both believed "
                f"while they ran, for {overlap_s:.6f} s; {allowed_s:g} s are allowed"
            )
            yield Violation("H3", text, grant.granted, key.name)


def _spans(line: Timeline, grant: Grant) -> Iterator[tuple[float, float]]:
    """Iterate over the spans in which a process that ran believed in *grant*."""
    ends = grant.ends
    stall_s = line.runs.at(grant.granted).stall_s
    # What it says itself counts too, less what may have gone by between asking and saying.
    if line.running_s(grant.process, ends, grant.last_belief) > stall_s + HAIR_S:
        ends = max(ends, grant.last_belief - stall_s)
    if grant.granted >= ends:
        return
    pauses = line.pauses.get(grant.process)
    if pauses is None:
        yield grant.granted, ends
    else:
        yield from pauses.running(grant.granted, ends)
