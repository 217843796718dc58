"""Requests that a switch holds open, and their release."""

import asyncio
from collections.abc import Callable

__all__ = ["HOLD_AT_MOST_S", "Held"]

# A switch that somebody forgot must not hold a client for ever; no scene of the demo needs half of it.
HOLD_AT_MOST_S = 60.0


class Held:
    """A place where requests wait until a condition holds; counts who waits."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()
        self.waiting = 0

    async def until(self, free: Callable[[], bool]) -> None:
        """Wait until *free* says so, looked at after every change, or `HOLD_AT_MOST_S` seconds."""
        self.waiting += 1
        self.look_again()
        try:
            async with asyncio.timeout(HOLD_AT_MOST_S):
                while not free():
                    await self._changed.wait()
        except TimeoutError:
            return
        finally:
            self.waiting -= 1

    def look_again(self) -> None:
        """Have everybody who waits look at their condition again."""
        self._changed.set()
        self._changed = asyncio.Event()
