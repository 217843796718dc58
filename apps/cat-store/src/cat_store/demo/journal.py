"""What the replicas log, as it comes: the demo learns of everything from their lines, as an operator would."""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from tenure_testbed import Replica

__all__ = ["Entry", "Journal", "NotSeenError"]

# Short against the seconds that are measured, long against the cost of a look.
_LOOK_EVERY_S = 0.02
_KEPT = 20_000

Found = TypeVar("Found")


class NotSeenError(Exception):
    """Something that the story waited for did not happen in time."""


@dataclass(frozen=True, slots=True)
class Entry:
    """
    One line of one replica.

    Attributes:
        number: Counted from 1 over all replicas.
        at: When it was read, in seconds on this process's monotonic clock.
        instance: Which replica wrote it.
        level: Its level, such as "INFO".
        event: What it tells, such as "stock.reconciled"; empty for a line that is only for people.
        message: Its text.
        fields: The fields of the event.
    """

    number: int
    at: float
    instance: str
    level: str
    event: str
    message: str
    fields: Mapping[str, Any] = field(default_factory=dict)


class Journal:
    """Reads the replicas' output, and waits for lines in it."""

    def __init__(self) -> None:
        self._entries: deque[Entry] = deque(maxlen=_KEPT)
        self._replicas: list[Replica] = []
        self._marks: dict[str, int] = {}
        self._news = asyncio.Event()
        self._count = 0

    def follow(self, replica: Replica) -> None:
        """Read what *replica* writes from now on, across its restarts."""
        self._replicas.append(replica)
        self._marks[replica.name] = replica.mark

    @contextlib.asynccontextmanager
    async def reading(self) -> AsyncIterator["Journal"]:
        """Read until left."""
        task = asyncio.create_task(self._read())
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.wait({task})

    @property
    def mark(self) -> int:
        """How many entries there are: what a later look begins after."""
        return self._count

    def entries(self, *, after: int = 0) -> Iterator[Entry]:
        """The entries after a mark."""
        return (entry for entry in tuple(self._entries) if entry.number > after)

    def latest(self) -> Iterator[Entry]:
        """The entries, the last one first."""
        return reversed(tuple(self._entries))

    def count(self, event: str, *, after: int = 0, **fields: Any) -> int:
        """How many entries tell of *event*, with these fields."""
        return sum(_tells(entry, event, fields) for entry in self.entries(after=after))

    async def wait_for(
        self,
        event: str,
        *,
        after: int,
        within_s: float,
        where: Callable[[Entry], bool] = lambda _: True,
        **fields: Any,
    ) -> Entry:
        """
        Wait for the first entry after a mark that tells of *event*.

        Raises:
            NotSeenError: There was none within that many seconds.
        """

        def find() -> Entry | None:
            return next((e for e in self.entries(after=after) if _tells(e, event, fields) and where(e)), None)

        found = await self._until(find, within_s)
        if found is None:
            raise NotSeenError(f"No replica told of {event} {fields or ''} within {within_s:g} s.{self._last_lines()}")
        return found

    async def wait_until(self, reached: Callable[[], bool], what: str, *, within_s: float) -> None:
        """
        Wait until *reached*, which is asked at every new entry.

        Raises:
            NotSeenError: It was not so within that many seconds.
        """
        if await self._until(lambda: reached() or None, within_s) is None:
            raise NotSeenError(f"Waited {within_s:g} s in vain for: {what}.{self._last_lines()}")

    async def _until(self, find: Callable[[], Found | None], within_s: float) -> Found | None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while True:
                    news = self._news
                    if (found := find()) is not None:
                        return found
                    await news.wait()
        return None

    def _last_lines(self) -> str:
        lines = [f"\n  {entry.instance}  {entry.level}  {entry.message}" for entry in self._entries]
        return " The last lines:" + "".join(lines[-12:]) if lines else " No replica wrote a line."

    async def _read(self) -> None:
        while True:
            new = [entry for replica in self._replicas for entry in self._new_of(replica)]
            if new:
                self._entries.extend(new)
                news, self._news = self._news, asyncio.Event()
                news.set()
            await asyncio.sleep(_LOOK_EVERY_S)

    def _new_of(self, replica: Replica) -> Iterator[Entry]:
        for line in replica.output.lines(self._marks[replica.name]):
            self._marks[replica.name] = line.number
            self._count += 1
            yield _entry(self._count, replica.name, line.text)


def _tells(entry: Entry, event: str, fields: Mapping[str, Any]) -> bool:
    return entry.event == event and all(
        (entry.instance if name == "instance" else entry.fields.get(name)) == value for name, value in fields.items()
    )


def _entry(number: int, instance: str, text: str) -> Entry:
    """Read a line; one that is no JSON (a warning of the interpreter's) is kept as it is."""
    at = time.monotonic()
    try:
        line = msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError:
        return Entry(number, at, instance, "?", "", text)
    return Entry(number, at, instance, line.get("level", "?"), line.get("event", ""), line.get("message", ""), line)
