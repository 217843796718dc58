"""One part of what the page shows: read in bounded time, and kept where it cannot be read."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, Generic, TypeVar, final

__all__ = ["Source", "end_all", "now_ms", "read_all"]

Value = TypeVar("Value")


@final
class Source(Generic[Value]):
    """
    A part that is read again and again.

    A look that takes too long is not cancelled, which would cost a connection: the next one waits for its end too. So a
    part that hangs has one look under way, however long it hangs.

    Attributes:
        value: What was read last; None where nothing was yet.
        at_ms: When, in milliseconds on this process's monotonic clock.
        trouble: Why it could not be read since, in a sentence; None where it could.

    Args:
        name: What troubles call it, such as "The database".
        look: Reads it.
    """

    def __init__(self, name: str, look: Callable[[], Awaitable[Value]]) -> None:
        self._name: Final = name
        self._look: Final = look
        self._under_way: asyncio.Task[None] | None = None
        self.value: Value | None = None
        self.at_ms = 0
        self.trouble: str | None = None

    def begin(self) -> "asyncio.Task[None]":
        """Begin a look, or join the one that is under way."""
        if self._under_way is None or self._under_way.done():
            self._under_way = asyncio.create_task(self._read(), name=f"look: {self._name}")
        return self._under_way

    def blame(self) -> None:
        """Say that the look that was begun took too long."""
        self.trouble = f"{self._name} does not answer: what it told last is shown."

    async def _read(self) -> None:
        try:
            self.value = await self._look()
        except Exception as error:  # noqa: BLE001 -- whatever a driver raises: the page says so and shows the rest
            # Not its text: a driver's text may hold addresses and keys.
            self.trouble = f"{self._name} failed ({type(error).__name__}): what it told last is shown."
        else:
            self.at_ms = now_ms()
            self.trouble = None


def now_ms() -> int:
    """Return this process's monotonic clock, in milliseconds: the page counts on it, for no wall clock is needed."""
    return round(time.monotonic() * 1000)


async def read_all(sources: list[Source[Any]], within_s: float) -> None:
    """Read every source at once; return when all have answered, or after that many seconds."""
    begun = {source.begin(): source for source in sources}
    _, late = await asyncio.wait(begun, timeout=within_s)
    for task in late:
        begun[task].blame()


async def end_all(sources: list[Source[Any]]) -> None:
    """Cancel what is under way: for the end of the process."""
    tasks = [source._under_way for source in sources if source._under_way is not None]  # noqa: SLF001 -- its own module
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
