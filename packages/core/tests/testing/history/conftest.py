"""What the facts of the history share: a way to tell a history in a few lines."""

import hashlib
import itertools
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from tenure.testing.history import HistoryReport, check_history

TTL_S = 3.0


class Story:
    """A history that is told event by event. Times are seconds; a lease's ttl is three seconds, and a call's one."""

    def __init__(self, **promised: Any) -> None:
        self.events: list[dict[str, Any]] = []
        self._calls: defaultdict[str, itertools.count[int]] = defaultdict(lambda: itertools.count(1))
        self._sent: dict[tuple[str, str], tuple[str, str]] = {}
        self.run(0.0, **promised)

    def tell(self, what: str, at: float, process: str, **fields: Any) -> None:
        self.events.append({"what": what, "at": at, "process": process, **fields})

    def run(self, at: float, **promised: Any) -> None:
        usual = {"topology": "told", "ttl_s": TTL_S, "retry_s": 0.5, "call_timeout_s": 1.0}
        self.tell("run", at, "runner", **{**usual, **promised})

    def call(
        self,
        op: str,
        process: str,
        at: float,
        *,
        key: str = "k",
        owner: str = "",
        took: float | None = 0.125,
        result: str = "ok",
        ttl_s: float = TTL_S,
        **answered: Any,
    ) -> None:
        """Tell a call; with *took* None, one that never returned."""
        number = next(self._calls[process])
        name = hashlib.sha256((owner or process).encode()).hexdigest()[:12]
        ttl = {} if op == "release" else {"ttl_ms": round(ttl_s * 1000)}
        self.tell("invoke", at, process, call=number, op=op, key=key, owner=name, **ttl)
        if took is not None:
            self.tell("return", at + took, process, call=number, result=result, **answered)

    def grant(self, process: str, at: float, token: int, **rest: Any) -> None:
        self.call("acquire", process, at, token=token, **rest)

    def refuse(self, process: str, at: float, **rest: Any) -> None:
        self.call("acquire", process, at, result="no", **rest)

    def renew(self, process: str, at: float, **rest: Any) -> None:
        self.call("renew", process, at, **rest)

    def give_back(self, process: str, at: float, token: int, **rest: Any) -> None:
        self.tell("gave_back", at, process, key=rest.get("key", "k"), token=token)
        self.call("release", process, at, **rest)

    def says(self, what: str, process: str, at: float, token: int, *, key: str = "k", **rest: Any) -> None:
        self.tell(what, at, process, key=key, token=token, **rest)

    def happens(self, what: str, process: str, at: float, **rest: Any) -> None:
        self.tell(what, at, process, by="nemesis", **rest)

    def write(self, process: str, at: float, token: int, *, accepted: bool = True, **rest: Any) -> None:
        self.tell("write", at, process, resource="shelf", key="k", token=token, accepted=accepted, **rest)

    def check(self, **options: Any) -> HistoryReport:
        # A story may be told out of order: each of its writers writes in time.
        events: list[dict[str, Any]] = sorted(self.events, key=lambda event: float(event["at"]))
        return check_history(events, **options)


@pytest.fixture
def tell() -> type[Story]:
    return Story


@pytest.fixture
def expect() -> Callable[..., HistoryReport]:
    """Check a story, and require that exactly the named rules are broken, and every assumption holds."""

    def check(story: Story, *rules: str, **options: Any) -> HistoryReport:
        report = story.check(**options)
        assert [one.name for one in report.assumptions if not one.holds] == [], str(report)
        assert report.broken_rules == rules, str(report)
        assert report.ok is (not rules)
        return report

    return check
