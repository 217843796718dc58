"""What a process writes, line by line, kept within bounds."""

import re
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Literal

Stream = Literal["stdout", "stderr"]

# A chatty process must not fill the memory of the test that runs it.
KEPT_LINES = 10_000
_LONGEST_LINE = 64 * 1024


@dataclass(frozen=True, slots=True)
class Line:
    """
    One line that a process wrote.

    Attributes:
        number: Counted from 1 over both streams and all runs of the process.
        stream: Where it was written to.
        text: Without its end.
    """

    number: int
    stream: Stream
    text: str


class Output:
    """
    The lines of a process, in the order in which they were read; the oldest go when there are too many.

    Lines of one stream keep their order; those of the two streams can change places by a little.
    """

    def __init__(self, kept: int = KEPT_LINES) -> None:
        self._lines: deque[Line] = deque(maxlen=kept)
        self._count = 0
        self._open = 0
        self._news = threading.Condition()

    def follow(self, stream: Stream, pipe: IO[bytes]) -> threading.Thread:
        """Read a pipe to its end in a thread of its own, and close it."""
        with self._news:
            self._open += 1
        thread = threading.Thread(target=self._read, args=(stream, pipe), name=f"reader of {stream}", daemon=True)
        thread.start()
        return thread

    @property
    def mark(self) -> int:
        """How many lines there were so far: what a later search begins after."""
        with self._news:
            return self._count

    @property
    def ended(self) -> bool:
        """Whether every pipe was read to its end."""
        with self._news:
            return self._open == 0

    def lines(self, after: int = 0) -> list[Line]:
        """The lines that are kept, from the first one after a mark."""
        with self._news:
            return [line for line in self._lines if line.number > after]

    def tail(self, count: int = 20) -> str:
        """The last lines as one text, for errors."""
        return "\n".join(line.text for line in self.lines()[-count:]) or "(it wrote nothing)"

    def search(self, pattern: str | re.Pattern[str], timeout: float, after: int = 0) -> re.Match[str] | None:
        """
        Find the first line that matches, waiting for it while there may be one.

        Args:
            pattern: Searched for anywhere in a line.
            timeout: Seconds.
            after: Lines up to this mark do not count.

        Returns:
            The match; None when the time is up, or when every pipe has ended without one.
        """
        expression = re.compile(pattern)
        deadline = time.monotonic() + timeout
        with self._news:
            while True:
                for line in self._newer(after):
                    after = line.number
                    if found := expression.search(line.text):
                        return found
                left = deadline - time.monotonic()
                if self._open == 0 or left <= 0:
                    return None
                self._news.wait(left)

    def _newer(self, after: int) -> Iterator[Line]:
        return (line for line in tuple(self._lines) if line.number > after)

    def _read(self, stream: Stream, pipe: IO[bytes]) -> None:
        with pipe:
            while raw := pipe.readline(_LONGEST_LINE):
                text = raw.decode("utf-8", errors="replace").rstrip("\r\n")
                with self._news:
                    self._count += 1
                    self._lines.append(Line(self._count, stream, text))
                    self._news.notify_all()
        with self._news:
            self._open -= 1
            self._news.notify_all()
