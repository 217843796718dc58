"""Fencing: what a resource accepts never goes back (H4)."""

from bisect import bisect_left
from collections.abc import Iterator
from operator import itemgetter
from typing import Any

from tenure.testing.history.report import Violation
from tenure.testing.history.timeline import Timeline

__all__ = ["accepted_tokens_do_not_go_back"]


def accepted_tokens_do_not_go_back(line: Timeline) -> Iterator[Violation]:
    """H4: no accepted write has a token below that of a write that was accepted before it was sent."""
    for resource, writes in line.writes.items():
        accepted = [event for event in writes if event["accepted"]]
        line.counts["writes accepted"] += len(accepted)
        line.counts["writes refused"] += len(writes) - len(accepted)
        yield from _on_resource(resource, accepted)


def _on_resource(resource: str, accepted: list[dict[str, Any]]) -> Iterator[Violation]:
    accepted.sort(key=itemgetter("at"))
    noted = [event["at"] for event in accepted]
    greatest: list[int] = []
    for event in accepted:
        greatest.append(max(greatest[-1], event["token"]) if greatest else event["token"])
    for index, event in enumerate(accepted):
        sent_at = event.get("sent_at")
        # Without a time of its sending, all that was noted before it counts as accepted before.
        before = index if sent_at is None else min(index, bisect_left(noted, sent_at))
        if before and greatest[before - 1] > event["token"]:
            text = (
                f"{event['process']!r} wrote with token {event['token']} and was accepted, after a write with token "
                f"{greatest[before - 1]}"
            )
            yield Violation("H4", text, event["at"], resource)
