"""Waiting for a write whose outcome somebody wants to know, although the run around it is being cancelled."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["uninterrupted"]

Result = TypeVar("Result")


async def uninterrupted(write: Coroutine[Any, Any, Result]) -> Result:
    """
    Let *write* come to its end, and only then let a cancellation of the caller go on.

    A run that loses its lease is cancelled. Cancelling a statement on its way would not take it back, but would cost
    the connection and hide what became of it. A fenced write needs no taking back: where the lease is gone and a
    newer run wrote, the database refuses it, and the log should say so.

    Raises:
        CancelledError: The caller was cancelled meanwhile; *write* has ended, however it ended, unless the caller
            was cancelled twice.
    """
    task = asyncio.create_task(write)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        # Waited for, not awaited: a second cancellation ends this wait and still does not reach the write.
        await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # looked at: the cancellation is what the caller hears of
        raise
