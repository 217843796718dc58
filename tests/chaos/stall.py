"""How long this machine did not run us: what a limit on time has to allow for."""

import threading
import time
from typing import Self, final

_BEAT_S = 0.005


@final
class StallMeter:
    """
    A thread that sleeps for five milliseconds at a time, and remembers by how much it overslept.

    A limit in a scenario is a fact of the library plus what the machine took away. On an idle machine that is a
    millisecond; on a shared one it can be half a second, and a limit without it would fail for a neighbour's work.
    """

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="stall-meter", daemon=True)
        self._worst_s = 0.0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def worst_s(self) -> float:
        """The longest stall since the start, in seconds."""
        return self._worst_s

    def _beat(self) -> None:
        last = time.monotonic()
        while not self._stop.wait(_BEAT_S):
            now = time.monotonic()
            self._worst_s = max(self._worst_s, now - last - _BEAT_S)
            last = now
