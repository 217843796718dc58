"""What the processes of a run recorded, read back: their calls, grants, losses and beliefs."""

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

from chaos.scenario import Run

MARGIN: Final = 0.01
"""The share of the ttl that the library keeps off the end of a lease."""


def events(run: Run, process: str, *kinds: str) -> list[dict[str, Any]]:
    """Read what *process* wrote, of these kinds, in its order; nothing where it wrote nothing."""
    path = run.history_file(process)
    return [event for event in events_in(path) if event["what"] in kinds] if path.exists() else []


def tokens_granted(run: Run, *processes: str) -> list[tuple[float, str, int]]:
    """All grants of *processes*: when each returned, its key, and its token; by time."""
    paths = [path for process in processes if (path := run.history_file(process)).exists()]
    granted = grants(call for path in paths for call in _calls_in(path))
    return sorted((call.returned, call.key, call.token) for call in granted)


def repeated(found: list[tuple[float, str, int]]) -> int:
    """How many grants have a token that their key had before."""
    return len(found) - len({(key, token) for _, key, token in found})


@final
@dataclass(frozen=True, slots=True)
class RecordedCall:
    """
    A store call of a history, from its `invoke` to its `return`.

    Attributes:
        process: Who called.
        op: acquire, renew or release.
        key: On what.
        owner: For whom, as the history names it.
        invoked: When it was about to be sent.
        returned: When it ended; infinity where it has not.
        result: ok, no or unknown; "open" where it has not ended.
        token: The token of a grant, else 0.
        error: The type of what went wrong, or an empty text.
        queued: Whether it might leave a place in the key's queue.
    """

    process: str
    op: str
    key: str
    owner: str
    invoked: float
    returned: float
    result: str
    token: int
    error: str
    queued: bool

    @property
    def failed(self) -> bool:
        """Whether it ended without an answer. A wait in the queue whose owner asked again, or left, had one: "held"."""
        return self.result == "unknown" and not (self.queued and not self.error)


def recorded_calls(run: Run, *, prefix: str = "holder", directory: Path | None = None) -> list[RecordedCall]:
    """Read the calls of the histories whose names begin with *prefix*, by the time at which they were sent."""
    paths = sorted((directory or run.directory).glob(f"{prefix}*.jsonl"))
    return sorted((call for path in paths for call in _calls_in(path)), key=lambda call: call.invoked)


def _calls_in(path: Path) -> Iterable[RecordedCall]:
    invoked: dict[int, dict[str, Any]] = {}
    for event in events_in(path):
        if event["what"] == "invoke":
            if event["call"] in invoked:  # the process was killed, and its successor counts anew
                yield _call(invoked[event["call"]], {})
            invoked[event["call"]] = event
        elif event["what"] == "return":
            yield _call(invoked.pop(event["call"]), event)
    yield from (_call(event, {}) for event in invoked.values())


def events_in(path: Path) -> Iterable[dict[str, Any]]:
    """Go through the events of a history; a line that a kill cut off is left out."""
    for line in path.read_text(encoding="ascii", errors="replace").splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue  # the last line of a process that was killed; the checker counts those
        if isinstance(event, dict):
            yield event


def _call(invoke: dict[str, Any], ended: dict[str, Any]) -> RecordedCall:
    return RecordedCall(
        process=invoke["process"],
        op=invoke["op"],
        key=invoke["key"],
        owner=invoke["owner"],
        invoked=invoke["at"],
        returned=ended.get("at", math.inf),
        result=ended.get("result", "open"),
        token=ended.get("token") or 0,
        error=ended.get("error") or "",
        queued="place_ms" in invoke,
    )


def grants(calls: Iterable[RecordedCall]) -> list[RecordedCall]:
    """Those that were granted."""
    return [call for call in calls if call.op == "acquire" and call.result == "ok"]


def repeated_tokens(calls: Iterable[RecordedCall]) -> int:
    """Count tokens of a key that were given to one owner too many."""
    owners: dict[tuple[str, int], set[str]] = defaultdict(set)
    for call in grants(calls):
        owners[call.key, call.token].add(call.owner)
    return sum(len(found) - 1 for found in owners.values())


def first_grant_after(
    calls: Sequence[RecordedCall], moments: Sequence[float], about: Callable[[str], bool]
) -> list[float]:
    """From each moment to the first grant of a call that was sent after it, on the keys that *about* names; seconds."""
    found = []
    for moment in moments:
        later = [call.returned for call in grants(calls) if call.invoked >= moment and about(call.key)]
        found.append(min(later, default=math.inf) - moment)
    return found


@final
@dataclass(frozen=True, slots=True)
class Loss:
    """
    A loss, as the history of its process has it.

    Attributes:
        key: The key, and `token`, its fencing token.
        at: When the signal fired.
        deadline: When the last confirmed call's trust ended: its sending, the ttl, less the margin.
        reason: How the loss was found out.
    """

    key: str
    token: int
    at: float
    deadline: float
    reason: str


@final
@dataclass(frozen=True, slots=True)
class Calls:
    """
    What the history of one process says of its store calls.

    Attributes:
        losses: The losses, each with the deadline that the calls before it imply.
        sent: How many calls were sent, and `ended`, how many of them have ended.
        unknown: How many ended without an answer.
    """

    losses: list[Loss]
    sent: int
    ended: int
    unknown: int


def read_calls(history: Path) -> Calls:
    """Read the calls and losses of a process."""
    asked: dict[int, dict[str, Any]] = {}
    trusted: dict[tuple[str, str], float] = {}
    owners: dict[tuple[str, int], str] = {}
    losses: list[Loss] = []
    sent = ended = unknown = 0
    for line in history.read_text("ascii").splitlines():
        event = json.loads(line)
        if event["what"] == "invoke":
            sent += 1
            asked[event["call"]] = event
        elif event["what"] == "return":
            ended += 1
            unknown += event["result"] == "unknown"
            call = asked.pop(event["call"])
            if event["result"] != "ok" or call["op"] == "release":
                continue
            key, owner = call["key"], call["owner"]
            until = call["at"] + call["ttl_ms"] / 1000 * (1 - MARGIN)
            trusted[key, owner] = max(until, trusted.get((key, owner), until))
            if call["op"] == "acquire":
                owners[key, event["token"]] = owner
        elif event["what"] == "lost":
            key, token = event["key"], event["token"]
            losses.append(Loss(key, token, event["at"], trusted[key, owners[key, token]], event["reason"]))
    return Calls(losses, sent, ended, unknown)


def believed_after(history: Path, token: int, moment: float) -> int:
    """Count how often a process believed in the lease of *token* after *moment*."""
    events = [json.loads(line) for line in history.read_text("ascii").splitlines()]
    return sum(one["what"] == "believes" and one["token"] == token and one["at"] > moment for one in events)
