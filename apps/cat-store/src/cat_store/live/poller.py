"""One look at everything a second while somebody watches, however many they are."""

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator
from types import TracebackType
from typing import Any, Final, Self, final

from cat_store.live.frames import Frame, beat, bye, following, message, version_of
from cat_store.live.picture import Picture
from cat_store.live.source import Source, end_all, now_ms, read_all

__all__ = ["MOST_VIEWERS", "LivePoller", "TooManyViewersError"]

logger = logging.getLogger(__name__)

MOST_VIEWERS: Final = 100
"""Each is a connection and a few kilobytes a second; a page that cannot have one goes to the next replica."""

_EVERY_S: Final = 1.0
_WITHIN_S: Final = 1.5
"""What a look waits for a part that does not answer, in seconds; the others are shown without it."""

_BEAT_EVERY_S: Final = 2.0
"""A page that hears nothing for more than two of these goes to the next replica: this one may be paused."""


class TooManyViewersError(Exception):
    """There are as many viewers as one replica takes."""


@final
class LivePoller:
    """
    Looks, paints, and tells the viewers what changed.

    Nothing is queued for a viewer: one that is slow gets what it is missing by then, and costs no memory.

    Args:
        sources: What is read at each look.
        paint: Makes the picture of what they have.
        every_s: The seconds between two looks.
        beat_every_s: After how many seconds without news a viewer is told that there is none.
    """

    def __init__(
        self,
        sources: list[Source[Any]],
        paint: Callable[[], Picture],
        *,
        every_s: float = _EVERY_S,
        beat_every_s: float = _BEAT_EVERY_S,
    ) -> None:
        self._sources: Final = sources
        self._paint: Final = paint
        self._every_s: Final = every_s
        self._beat_every_s: Final = beat_every_s
        self._epoch: Final = secrets.token_hex(4)
        self._frame = Frame()
        self._looked_at = float("-inf")
        self._looking: Final = asyncio.Lock()
        self._news = asyncio.Event()
        self._watched: Final = asyncio.Event()
        self._viewers = 0
        self._ended = False
        self._task: asyncio.Task[None] | None = None

    @property
    def viewers(self) -> int:
        """How many streams are open."""
        return self._viewers

    @property
    def frame(self) -> Frame:
        """The last version of the page."""
        return self._frame

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run(), name="live page")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end_streams()
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait({self._task})
        await end_all(self._sources)

    def end_streams(self) -> None:
        """End every open stream, and refuse new ones: an open one would hold up the server's end."""
        self._ended = True
        self._tell()

    async def fresh(self) -> Frame:
        """Return a version of the page that is a second old at most; looks of requests that come together are one."""
        async with self._looking:
            if time.monotonic() - self._looked_at >= self._every_s:
                await self._look()
        return self._frame

    async def stream(self, last_event_id: str | None) -> AsyncIterator[bytes]:
        """
        Tell a viewer what it is missing, and then what changes, until this replica stops.

        Args:
            last_event_id: What the viewer has, as it says.

        Raises:
            TooManyViewersError: There are `MOST_VIEWERS` already; raised when the first part is asked for.
        """
        with self._viewer():
            yield b"retry: 1000\n\n"
            has = version_of(self._epoch, last_event_id)
            await self.fresh()
            while not self._ended:
                if self._frame.version > has or has > self._frame.version:
                    frame = self._frame
                    yield message(self._epoch, frame, has)
                    has = frame.version
                elif not await self._changed():
                    yield beat(now_ms())
            yield bye()

    @property
    def full(self) -> bool:
        """Whether another viewer would be one too many."""
        return self._viewers >= MOST_VIEWERS

    @property
    def ended(self) -> bool:
        """Whether streams are refused because this replica stops."""
        return self._ended

    async def _changed(self) -> bool:
        """Wait for news; False after a while without any."""
        try:
            async with asyncio.timeout(self._beat_every_s):
                await self._news.wait()
        except TimeoutError:
            return False
        return True

    @contextlib.contextmanager
    def _viewer(self) -> Iterator[None]:
        if self.full:
            raise TooManyViewersError
        self._viewers += 1
        self._watched.set()
        try:
            yield
        finally:
            self._viewers -= 1
            if not self._viewers:
                self._watched.clear()

    async def _run(self) -> None:
        while True:
            await self._watched.wait()
            try:
                await self.fresh()
            except Exception:  # one picture that cannot be painted must not be the last one
                logger.exception("The live page could not be painted", extra={"event": "live.mistake"})
            await asyncio.sleep(self._every_s)

    async def _look(self) -> None:
        await read_all(self._sources, _WITHIN_S)
        self._looked_at = time.monotonic()
        frame = following(self._frame, self._paint())
        changed = frame.version > self._frame.version
        self._frame = frame
        if changed:
            self._tell()

    def _tell(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()
