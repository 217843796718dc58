"""What one replica notes for the live page, until its heartbeat writes it down."""

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

from cat_store.live.models import LONGEST_KIND
from tenure.events import Event, JobSkipped, LeadershipAcquired, LeadershipLost, LeaseAcquired
from tenure.instrumentation import LoggingHook

__all__ = ["LiveLog", "Noted"]

_KEPT: Final = 1000
"""What is kept while the database is away. Beyond it the oldest are dropped, and it is told how many."""

_KEPT_TOKENS: Final = 40
"""Keys may be as many as orders; the page shows those of the jobs, which come again and again."""

_LONGEST_MESSAGE: Final = 500

_SKIPS_EVERY_S: Final = 15.0
"""Two replicas skip every tick of every job, and would fill the page with it: told once in a while, with a count."""


@final
@dataclass(frozen=True, slots=True)
class Noted:
    """
    One event that was noted.

    Attributes:
        at: When, in seconds on the log's clock.
        level: Its level, such as "INFO".
        kind: Its name for machines.
        message: Its sentence.
        times: How often it happened since it was noted last.
    """

    at: float
    level: str
    kind: str
    message: str
    times: int = 1


@dataclass(slots=True)
class _Skips:
    noted_at: float
    since: int = 0


@final
class LiveLog:
    """
    Notes what happens on one replica.

    It is a hook for tenure's events (`Locks(..., hooks=[*default_hooks(), log])`), and has a `handler` for the shop's
    own lines that tell of an event. What is at debug level is left out but for skipped ticks, which are the point.

    Args:
        clock: Seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock: Final = clock
        self._noted: deque[Noted] = deque()
        self._dropped = 0
        self._skips: dict[str, _Skips] = {}
        self._leads: dict[str, int] = {}
        self._tokens: dict[str, int] = {}
        self.handler: Final[logging.Handler] = _Handler(self)
        # tenure's sentences, through the hook that makes them, and past the level of the replica's own log.
        apart = logging.Logger("cat_store.live", logging.DEBUG)  # noqa: LOG001 -- one a replica, not one a process
        apart.addHandler(self.handler)
        self._hook: Final = LoggingHook(apart)

    def __call__(self, event: Event, /) -> None:
        """Note one of tenure's events."""
        match event:
            case LeadershipAcquired(key=key, token=token):
                self._leads[key] = token
            case LeadershipLost(key=key):
                self._leads.pop(key, None)
            case LeaseAcquired(key=key, token=token) if "@" not in key:  # the key of a slot never comes again
                self._tokens.pop(key, None)
                self._tokens[key] = token
                if len(self._tokens) > _KEPT_TOKENS:
                    del self._tokens[next(iter(self._tokens))]
        self._hook(event)

    @property
    def leads(self) -> Mapping[str, int]:
        """The elections that this replica leads: token by key."""
        return dict(self._leads)

    @property
    def tokens(self) -> Mapping[str, int]:
        """The last token that this replica was given, by key; of the keys that it took lately."""
        return dict(self._tokens)

    @property
    def now(self) -> float:
        """The log's clock, to tell how long ago something was noted."""
        return self._clock()

    def take(self, most: int) -> list[Noted]:
        """Take the oldest ones out, *most* of them at most."""
        taken = [self._noted.popleft() for _ in range(min(most, len(self._noted)))]
        if self._dropped:
            message = f"{self._dropped} events were dropped: the database did not take them"
            taken.insert(0, Noted(self.now, "WARNING", "live.dropped", message, self._dropped))
            self._dropped = 0
        return taken

    def put_back(self, taken: Sequence[Noted]) -> None:
        """Put back what could not be written."""
        self._noted.extendleft(reversed(taken))
        self._shorten()

    def note(self, level: str, kind: str, message: str) -> None:
        """Note one event."""
        self._add(Noted(self.now, level, kind[:LONGEST_KIND], _clean(message)))

    def note_record(self, record: logging.LogRecord) -> None:
        """Note a log record, if it tells of an event."""
        event: object = getattr(record, "tenure_event", None)
        message = record.getMessage()
        if isinstance(event, JobSkipped):
            self._note_skip(message)
        elif record.levelno >= logging.INFO:
            kind = f"tenure.{type(event).__name__}" if event is not None else str(getattr(record, "event", "log"))
            self.note(record.levelname, kind, message)

    def _note_skip(self, message: str) -> None:
        now = self.now
        skips = self._skips.setdefault(message, _Skips(now - _SKIPS_EVERY_S))
        skips.since += 1
        if now - skips.noted_at >= _SKIPS_EVERY_S:
            self._add(Noted(now, "DEBUG", "tenure.JobSkipped", _clean(message), skips.since))
            skips.noted_at, skips.since = now, 0

    def _add(self, noted: Noted) -> None:
        self._noted.append(noted)
        self._shorten()

    def _shorten(self) -> None:
        while len(self._noted) > _KEPT:
            self._noted.popleft()
            self._dropped += 1


def _clean(message: str) -> str:
    """PostgreSQL refuses NUL and half a surrogate pair in text."""
    return message.replace("\x00", "").encode("utf-8", "replace").decode()[:_LONGEST_MESSAGE]


class _Handler(logging.Handler):
    def __init__(self, log: LiveLog) -> None:
        super().__init__(logging.DEBUG)
        self._log = log

    def filter(self, record: logging.LogRecord) -> bool:
        """Take what tells of an event, and what somebody should look into."""
        fields: dict[str, Any] = vars(record)
        return "event" in fields or "tenure_event" in fields or record.levelno >= logging.WARNING

    def emit(self, record: logging.LogRecord) -> None:
        self._log.note_record(record)
