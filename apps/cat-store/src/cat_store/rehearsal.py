"""
What the demo needs inside a replica, and a real shop has no use for: a pause at the worst moment.

It is off unless `CAT_STORE_REHEARSAL=on`.
"""

import logging
import os
import signal
from typing import final

__all__ = ["PauseBeforeWrite"]

logger = logging.getLogger(__name__)


@final
class PauseBeforeWrite:
    """
    Stops this process right before its next stock write, once armed: the garbage collection, swap or VM migration.

    SIGSTOP takes effect before `kill` returns. Between the pause and the write no line of this process runs, so
    nothing in it can notice the time that passed.
    """

    def __init__(self) -> None:
        self._armed = False

    def arm(self) -> None:
        """Pause at the next write."""
        self._armed = True

    def __call__(self) -> None:
        """Pause, where armed, until somebody sends SIGCONT."""
        if not self._armed:
            return
        self._armed = False
        logger.info("Pausing before the stock write", extra={"event": "rehearsal.paused"})
        os.kill(os.getpid(), signal.SIGSTOP)
