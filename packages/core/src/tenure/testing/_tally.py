"""Counts that a test can wait for: a signal, where a sleep would guess."""

import asyncio
from collections import Counter

from tenure.testing._spans import patience_s
from tenure.testing.errors import DeadlockError

__all__ = ["Tally"]


class Tally(Counter[str]):
    """How often each store method did something, and a way to wait for the next time."""

    def __init__(self, verb: str) -> None:
        super().__init__()
        self._verb = verb
        self._waiting: dict[tuple[str, int, asyncio.Future[None]], None] = {}

    def add(self, method: str) -> int:
        """Count one more of *method*, wake who waits for it, and return the count."""
        self[method] += 1
        for waiting in [one for one in self._waiting if one[0] == method and one[1] <= self[method]]:
            del self._waiting[waiting]
            if not waiting[2].done():
                waiting[2].set_result(None)
        return self[method]

    async def reaches(self, method: str, times: int) -> None:
        """
        Wait until *method* was counted *times* times since the store was made; at once if it was.

        Raises:
            DeadlockError: It was not within a generous limit of real time.
        """
        if self[method] >= times:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = (method, times, future)
        self._waiting[waiting] = None
        limit_s = patience_s()
        try:
            await asyncio.wait([future], timeout=limit_s)
        finally:
            self._waiting.pop(waiting, None)
        if not future.done():
            raise DeadlockError(
                f"{method}() was {self._verb} {self[method]} times within {limit_s} s; the test waits for {times}."
            )
