"""
Store calls that wait for the test itself: a hang, or a delay on the clock that the test moves.

`ManualClock.advance()` waits for every store call that it knows of. A call that hangs on purpose would never
end, and one that sleeps on that very clock would end only once the clock moves on: waiting for either is a
deadlock between the test and itself. So such a wait is marked here, and advance() passes it over.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

__all__ = ["is_parked", "parked"]

# Weak: a task that a test forgot while it hung must not live for as long as the process.
_parked: "WeakSet[asyncio.Task[Any]]" = WeakSet()


@contextmanager
def parked() -> Iterator[None]:
    """Mark the running task as parked for as long as the block lasts."""
    task = asyncio.current_task()
    if task is None or task in _parked:
        yield
        return
    _parked.add(task)
    try:
        yield
    finally:
        _parked.discard(task)


def is_parked(task: "asyncio.Task[Any]") -> bool:
    """Tell whether *task* waits for the test rather than for a server."""
    return task in _parked
