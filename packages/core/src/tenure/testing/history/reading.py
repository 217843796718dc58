"""Reading histories: files of lines, or events that are there already, merged into one by their time."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, final

from tenure.testing.history.recorder import TORN
from tenure.testing.history.vocabulary import HistoryError, check_event

__all__ = ["Events", "HistorySource", "read_history"]

HistorySource = str | Path | Iterable[Mapping[str, Any] | str | Path]
"""A file, several files, or the events themselves."""

# Below json.loads, which looks for white space around each of a million lines.
_decode: Final = json.JSONDecoder().raw_decode


@final
@dataclass(slots=True)
class Events:
    """
    The events of a history, in the order of their times; of one time, in the order in which they were written.

    Attributes:
        events: The events.
        torn: Lines that a killed process did not finish; nobody acted on what they would have said.
        backwards: Where a writer's time went back: its name, and the time that is below the one before it.
    """

    events: list[dict[str, Any]] = field(default_factory=list)
    torn: int = 0
    backwards: list[tuple[str, float]] = field(default_factory=list)


def read_history(history: HistorySource) -> Events:
    """
    Read *history*, and check each of its events.

    Raises:
        HistoryError: A line is no event of the table, other than the last one of a killed process.
        OSError: A file cannot be read.
    """
    found = Events()
    parts = [history] if isinstance(history, str | Path) else history
    loose: list[dict[str, Any]] = []
    for part in parts:
        if isinstance(part, str | Path):
            _take(found, list(_read_file(Path(part), found)))
        else:
            loose.append(_checked(part, len(loose) + 1))
    _take(found, loose)
    found.events.sort(key=itemgetter("at"))
    return found


def _checked(event: object, number: int) -> dict[str, Any]:
    try:
        plain: dict[str, Any] = event if isinstance(event, dict) else dict(event)  # type: ignore[call-overload]
        check_event(plain)
    except HistoryError as error:
        raise HistoryError(f"Event {number}: {error}") from None
    except (TypeError, ValueError):
        raise HistoryError(f"Event {number} is no mapping.") from None
    return plain


def _take(found: Events, events: list[dict[str, Any]]) -> None:
    """Add the events of one file, in which the time of each writer must not go back."""
    last: dict[str, float] = {}
    for event in events:
        # What a nemesis writes is about another process, and stands on the nemesis's own time.
        writer, at = event.get("by") or event["process"], event["at"]
        if at < last.get(writer, at):
            found.backwards.append((writer, at))
        last[writer] = at
    found.events += events


def _read_file(path: Path, found: Events) -> Iterator[dict[str, Any]]:
    lines = path.read_bytes().split(b"\n")
    tail = lines.pop()
    for number, line in enumerate(lines, 1):
        if line.endswith(TORN):
            found.torn += 1
            continue
        try:
            yield _parse(line)
        except HistoryError as error:
            raise HistoryError(f"{path}, line {number}: {error}") from None
    if tail:
        try:
            yield _parse(tail)
        except HistoryError:
            found.torn += 1


def _parse(line: bytes) -> dict[str, Any]:
    try:
        text = line.decode()
        event, end = _decode(text)
    except (ValueError, RecursionError):
        raise HistoryError("This is no JSON object in UTF-8. Each line of a history is one.") from None
    if end != len(text):
        raise HistoryError("Something follows the JSON object. Each line of a history is one object, and no more.")
    check_event(event)
    plain: dict[str, Any] = event
    return plain
