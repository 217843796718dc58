"""When this process was not run: what its parent has to allow for, but for the times when it stopped it itself."""

import threading
import time
from typing import Final, final

_BEAT_S: Final = 0.01
_NOTED_S: Final = 0.03
"""Shorter ones are noise of every machine."""


@final
class Stalls:
    """A thread that sleeps for a moment at a time, and notes when it overslept."""

    def __init__(self) -> None:
        self._noted: list[tuple[float, float]] = []
        threading.Thread(target=self._beat, name="stalls", daemon=True).start()

    def take(self) -> list[tuple[float, float]]:
        """Take what was noted since the last time: from when to when, on the monotonic clock."""
        noted, self._noted = self._noted, []
        return noted

    def _beat(self) -> None:
        while True:
            before = time.monotonic()
            time.sleep(_BEAT_S)
            now = time.monotonic()
            if now - before - _BEAT_S > _NOTED_S:
                self._noted.append((before, now))


def worst_s(stalls: list[tuple[float, float]], stopped: list[tuple[float, float]]) -> float:
    """The longest of *stalls* that is none of the times when the process was stopped on purpose."""
    own = [(begin, end) for begin, end in stalls if not any(begin < until and since < end for since, until in stopped)]
    return max((end - begin - _BEAT_S for begin, end in own), default=0.0)
