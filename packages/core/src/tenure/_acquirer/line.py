"""The line of those of one process who wait for a key, and what its head knows of its wait."""

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

from tenure.clock import Clock, wait_until
from tenure.store import Claim, Held

__all__ = ["Lines", "Wait"]


@final
@dataclass(slots=True)
class Wait:
    """
    What the head of a line knows of its wait.

    Attributes:
        claim: What it asks for.
        until: When its time is up, in seconds on the holder's clock.
        refuse_unless_open: Raises where there is nothing to be waited for any more.
        sent_at: When it asked last, of what was answered.
        placed: Whether it may stand in the store's queue, with nothing under way that frees its place.
        doubtful: Whether a grant may have come and gone unheard.
        wake: What it listens to: its grant, or a release.
    """

    claim: Claim
    until: float
    refuse_unless_open: Callable[[], None]
    sent_at: float = 0.0
    placed: bool = False
    doubtful: bool = False
    wake: "asyncio.Task[Any] | None" = None

    @property
    def ttl_s(self) -> float:
        return self.claim.ttl_ms / 1000

    def heard(self) -> bool:
        """Whether what it listens to has told something, and not merely ended."""
        wake = self.wake
        told = wake is not None and wake.done() and not wake.cancelled() and wake.exception() is None
        return told and wake is not None and not isinstance(wake.result(), Held)


@final
class Lines:
    """
    For each key that somebody waits for, a line: first come, first served.

    Whoever comes first is its head at once; each of the others has a turn, which is given by the one in front when it
    leaves, however it leaves. A line is gone with its last waiter.

    Args:
        clock: The holder's clock.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # For each key whose line has a head: the turns of those behind it, in the order in which they came.
        self._lines: dict[str, dict[asyncio.Future[None], None]] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._lines

    def __len__(self) -> int:
        return len(self._lines)

    def begin(self, key: str) -> bool:
        """Begin a line for *key*, as its head. Returns False where there is one."""
        if key in self._lines:
            return False
        self._lines[key] = {}
        return True

    async def turn(self, key: str, until: float) -> bool:
        """Wait until everybody in front has left the line. Returns False where the time is up before."""
        line = self._lines[key]
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        line[turn] = None
        stays = False
        try:
            if until == math.inf:
                await turn
            else:
                await wait_until(self._clock, turn, when=until)
            stays = turn.done()
            return stays
        finally:
            if turn in line:
                del line[turn]
            elif not stays and not turn.cancelled():
                self.call_next(key)  # its turn had come in the moment in which it left

    def call_next(self, key: str) -> None:
        """Give the turn to the next in line."""
        line = self._lines[key]
        while line:
            turn = next(iter(line))
            del line[turn]
            if not turn.done():
                turn.set_result(None)
                return
        del self._lines[key]
