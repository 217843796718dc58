"""Tokens: one owner each (H1), growing with time (H2), and an end to what a former owner may do (H5)."""

import math
from bisect import bisect_left
from collections.abc import Iterator
from typing import final

from tenure.testing.history.calls import Call, Key, Owner
from tenure.testing.history.report import Violation
from tenure.testing.history.timeline import Timeline

__all__ = ["nothing_is_renewed_by_a_former_owner", "tokens_are_unique", "tokens_grow"]


def tokens_are_unique(line: Timeline) -> Iterator[Violation]:
    """H1: no two owners of a key have one token."""
    for key in line.keys.values():
        seen: dict[int, Owner] = {}
        for grant in key.grants:
            first = seen.setdefault(grant.token, grant.owner)
            if first is not grant.owner:
                text = (
                    f"{grant.process!r} was granted token {grant.token}, which {first.calls[0].process!r} had been "
                    "granted for another owner"
                )
                yield Violation("H1", text, grant.granted, key.name)


def tokens_grow(line: Timeline) -> Iterator[Violation]:
    """H2: a grant that was asked for after another one returned has the greater token."""
    for key in line.keys.values():
        order = _Order(key)
        for call in order.calls:
            greatest = order.greatest_before(call.invoked)
            if greatest > call.token:
                text = f"{call.process!r} was granted token {call.token}, after token {greatest} had been granted"
                yield Violation("H2", text, call.returned, key.name)


def nothing_is_renewed_by_a_former_owner(line: Timeline) -> Iterator[Violation]:
    """H5: nobody renews or releases what another was granted before the call, or what it has not (any more) itself."""
    for key in line.keys.values():
        order = _Order(key)
        for owner in key.owners.values():
            yield from _of_owner(line, key.name, owner, order)


def _of_owner(line: Timeline, key: str, owner: Owner, order: "_Order") -> Iterator[Violation]:
    released = math.inf
    for call in owner.calls:
        if call.op == "acquire":
            released = math.inf
            continue
        if call.result != "ok":
            continue
        past = "renewed" if call.op == "renew" else "released"
        tokens = [grant.token for grant in owner.grants if grant.granted <= call.returned]
        if released < call.invoked:
            text = f"{call.process!r} {past} what it had released at {released:.6f}"
            yield Violation("H5", text, call.invoked, key)
        elif tokens:
            # Two holders that may overlap, after a failover that lost its tail, may both renew for as long.
            greatest = order.greatest_before(call.invoked - line.runs.at(call.invoked).overlap_s)
            if greatest > max(tokens):
                text = (
                    f"{call.process!r} {past} token {max(tokens)}, after token {greatest} had been granted to another"
                )
                yield Violation("H5", text, call.invoked, key)
        elif line.starts_empty and not _may_have_been_granted(owner, call):
            text = f"{call.process!r} {past} what it had never been granted"
            yield Violation("H5", text, call.invoked, key)
        if call.op == "release":
            released = min(released, call.returned)


def _may_have_been_granted(owner: Owner, call: Call) -> bool:
    """Whether an acquire was lost, or under way: the lock is there before its answer."""
    return any(one.op == "acquire" and one.result != "no" and one.invoked <= call.returned for one in owner.calls)


@final
class _Order:
    """The grants of a key by the time at which they were heard of."""

    def __init__(self, key: Key) -> None:
        self.calls = sorted((call for call in key.acquires if call.token), key=lambda call: call.returned)
        self._returned = [call.returned for call in self.calls]
        self._greatest: list[int] = []
        greatest = 0
        for call in self.calls:
            greatest = max(greatest, call.token)
            self._greatest.append(greatest)

    def greatest_before(self, when: float) -> int:
        """Return the greatest token that was heard of before *when*, or 0."""
        index = bisect_left(self._returned, when) - 1
        return self._greatest[index] if index >= 0 else 0
