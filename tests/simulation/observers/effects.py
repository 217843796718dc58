"""The observer of requests under idempotency keys: what was carried out, how often, and what repeats were told."""

import json
from dataclasses import dataclass, field
from typing import Any, final

from simulation.journal import Journal
from simulation.network import Call
from tenure.idempotency_store import Completion

__all__ = ["Effects"]


@final
@dataclass(slots=True)
class _Request:
    refuses: bool
    began_at: float
    committed: list[tuple[int, float]] = field(default_factory=list)
    stored: list[bytes] = field(default_factory=list)


@final
class Effects:
    """
    Counts effects.

    The rule: under a key, each attempt has its effect at most once, and a second attempt was told that it is one
    (`attempt` is greater). Where repeats of an unknown outcome are refused, there is one effect at most.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._requests: dict[str, _Request] = {}
        self.tail_lost_at = float("-inf")

    def expect(self, key: str, *, refuses: bool) -> None:
        """Announce a request; *refuses* where an execution of unknown outcome is not to be repeated."""
        self._requests[key] = _Request(refuses, self._journal.now)

    def commit(self, key: str, attempt: int, process: str) -> None:
        """Have the effect."""
        request = self._requests[key]
        before = [one for one, _ in request.committed]
        request.committed.append((attempt, self._journal.now))
        self._journal.say(process, f"effect of {key}, attempt {attempt}")
        self._journal.note("effect", process, record=key, attempt=attempt, committed=True)
        if not before:
            return
        told = attempt > max(before) and not request.refuses
        if told:
            self._journal.saw("a second effect by an attempt that was told")
        elif attempt not in before and not request.refuses:
            self._journal.saw("a second effect by an attempt that was replaced")
        elif self._forgotten(request):
            self._journal.saw("a second effect: the store lost its tail")
        else:
            self._journal.broke("effect", f"{key} has its effect again in attempt {attempt}, after {before}")

    def performed(self, call: Call, reply: Any) -> None:
        """See the server store an outcome."""
        if call.op != "complete" or reply is not Completion.STORED:
            return
        request, response = self._requests[call.args[0]], call.args[2]
        if not request.stored:
            request.stored.append(response)
        elif response not in request.stored:
            if not self._forgotten(request):
                self._journal.broke("replay", f"{call.args[0]} is completed a second time, with another outcome")
            request.stored.append(response)

    def replayed(self, key: str, value: Any) -> None:
        """See a repeat get an outcome in place of an execution."""
        self._journal.saw("a replay")
        body = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
        if not any(body in stored for stored in self._requests[key].stored):
            self._journal.broke("replay", f"a repeat of {key} is told what nobody stored")

    def _forgotten(self, request: _Request) -> bool:
        return request.began_at <= self.tail_lost_at
