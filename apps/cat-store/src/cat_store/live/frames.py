"""Versions of the page: what changed when, and what a viewer who has seen a version is missing. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, final

import msgspec

from cat_store.live.facts import EventFact
from cat_store.live.markup import Html
from cat_store.live.picture import Picture, event_view
from cat_store.live.sections import SECTIONS, event_item

__all__ = ["Frame", "beat", "bye", "following", "message", "version_of"]


@final
@dataclass(frozen=True, slots=True)
class Frame:
    """
    One version of the page.

    Attributes:
        version: Its number, from 1; 0 is nothing at all.
        now_ms: When it was painted, on the painter's monotonic clock.
        sections: Each section's HTML, and the version in which it became that.
        events: The last events, newest first, each with its HTML and the version in which it came.
        addresses: Where the replicas answer, this one first.
    """

    version: int = 0
    now_ms: int = 0
    sections: Mapping[str, tuple[Html, int]] = field(default_factory=dict)
    events: Sequence[tuple[EventFact, Html, int]] = ()
    addresses: Sequence[str] = ()


def following(frame: Frame, picture: Picture) -> Frame:
    """Return the frame after *frame* that shows *picture*; it keeps its version where nothing changed."""
    version = frame.version + 1
    sections = {}
    for name, render in SECTIONS.items():
        html = render(picture)
        old = frame.sections.get(name)
        sections[name] = old if old is not None and old[0] == html else (html, version)
    known = {event.id: (event, html, came) for event, html, came in frame.events}
    events = [
        known.get(event.id) or (event, event_item(event_view(event, picture.place.zone)), version)
        for event in picture.events
    ]
    changed = any(since == version for _, since in sections.values()) or any(came == version for *_, came in events)
    addresses = [view.origin for view in picture.replicas if view.origin is not None]
    if not changed:
        return replace(frame, now_ms=picture.now_ms, addresses=addresses)
    return Frame(version, picture.now_ms, sections, events, addresses)


def message(epoch: str, frame: Frame, since: int) -> bytes:
    """
    Encode what a viewer is missing as one server-sent event.

    Args:
        epoch: What names this process: another one's versions say nothing here.
        frame: What there is.
        since: The version that the viewer has; 0 for none.
    """
    body: dict[str, Any] = {
        "now": frame.now_ms,
        "reset": since == 0,
        "sections": {name: str(html) for name, (html, changed) in frame.sections.items() if changed > since},
        "events": [{"id": event.id, "html": str(html)} for event, html, came in frame.events if came > since],
        "addresses": frame.addresses,
    }
    # JSON has no line break of its own, so it is one line of data.
    return b"id: %s-%d\nevent: page\ndata: %s\n\n" % (epoch.encode(), frame.version, msgspec.json.encode(body))


def beat(now_ms: int) -> bytes:
    """Encode that there is no news: a comment for proxies, and an event for the page, which comments do not reach."""
    return b": nothing new\n\nevent: beat\ndata: %d\n\n" % now_ms


def bye() -> bytes:
    """Encode that this replica stops: the page goes on at the next one at once."""
    return b"event: bye\ndata: 1\n\n"


def version_of(epoch: str, last_event_id: str | None) -> int:
    """Read the version that a viewer says it has; 0 for another process's, and for what is no version."""
    if last_event_id is None:
        return 0
    theirs, _, number = last_event_id.partition("-")
    short: Final = 12  # digits; longer is no version that was ever given out
    return int(number) if theirs == epoch and number.isascii() and number.isdigit() and len(number) <= short else 0
