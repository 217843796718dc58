"""
What the demo and the tests need inside a replica, and a real shop has no use for: trouble at the worst moment.

It is off unless `CAT_STORE_REHEARSAL=on`.
"""

import asyncio
import enum
import logging
import os
import signal
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final, final

from litestar.enums import ScopeType
from litestar.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["DIE_AT", "Deaths", "Mark", "PauseBeforeWrite", "Reach", "reach_nothing"]

logger = logging.getLogger(__name__)

DIE_AT: Final = "x-rehearse-death"
"""The header of a request that is to die: a mark, and how many requests die there together, as in `after-commit;10`."""

_NAME: Final = DIE_AT.encode()


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


@final
class Mark(enum.Enum):
    """The moments of a request at which a process may die, in their order."""

    BEFORE_THE_HANDLER = "before-handler"
    """Its record is in flight, and nothing was done."""
    INSIDE_THE_TRANSACTION = "inside-transaction"
    """Its order is written and not committed."""
    AFTER_THE_COMMIT = "after-commit"
    """Its order is placed, and its response is nowhere."""
    BEFORE_THE_LAST_BYTE = "before-last-byte"
    """Its response is stored, and its client has not got it."""


Reach = Callable[[Mark], Awaitable[None]]
"""Called by what has a mark in it."""


async def reach_nothing(mark: Mark) -> None:
    """Go on: what a shop does at every mark."""
    del mark


@dataclass(frozen=True, slots=True)
class _Death:
    """
    What one request asks for.

    Attributes:
        mark: Where to die.
        together: How many requests have to be there first.
    """

    mark: Mark
    together: int


_death: ContextVar[_Death | None] = ContextVar("_death", default=None)


@dataclass(slots=True)
class Deaths:
    """
    Kills this process at a mark when a request asks for it. Requests that arrive there first wait for the rest.

    Outside of everything else, so that the last mark lies behind all that an application does to a response.
    """

    waiting: dict[Mark, int] = field(default_factory=dict)

    def around(self, app: ASGIApp) -> ASGIApp:
        """Wrap an application."""

        async def rehearsing(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != ScopeType.HTTP or (death := _asked_for(scope)) is None:
                await app(scope, receive, send)
                return

            async def dying_send(message: Message) -> None:
                if message["type"] == "http.response.body" and not message.get("more_body"):
                    await self.reach(Mark.BEFORE_THE_LAST_BYTE)
                await send(message)

            token = _death.set(death)
            try:
                await app(scope, receive, dying_send)
            finally:
                _death.reset(token)

        return rehearsing

    async def reach(self, mark: Mark) -> None:
        """Die here, if the request at hand asked for it."""
        death = _death.get()
        if death is None or death.mark is not mark:
            return
        self.waiting[mark] = self.waiting.get(mark, 0) + 1
        if self.waiting[mark] >= death.together:
            os.kill(os.getpid(), signal.SIGKILL)
        logger.info("Holding a request at %s", mark.value, extra={"event": "rehearsal.held", "mark": mark.value})
        await asyncio.Event().wait()


def _asked_for(scope: Scope) -> _Death | None:
    text = next((value.decode("latin-1") for name, value in scope["headers"] if name == _NAME), "")
    mark, _, together = text.partition(";")
    try:
        return _Death(Mark(mark), int(together or 1))
    except ValueError:
        return None
