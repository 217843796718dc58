"""Leases that a library, or its user, renews with a task each: how grelmicro and mithril-locks keep many of them."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

__all__ = ["RENEWALS_PER_TTL", "Renewals", "TaskALease"]

RENEWALS_PER_TTL = 3


class Renewals:
    """
    When each lease was renewed, and how late that was.

    Args:
        period_s: How far apart the renewals of one lease should lie, in seconds.
    """

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self._last: dict[str, float] = {}
        self.late_ms: list[float] = []

    def note(self, key: str) -> None:
        """A renewal of *key* is sent now."""
        now = time.perf_counter()
        before = self._last.get(key)
        if before is not None:
            self.late_ms.append(max(0.0, now - before - self._period_s) * 1e3)
        self._last[key] = now


class TaskALease:
    """
    Holds every key in a task of its own, which renews it each third of its ttl.

    Args:
        ttl_s: How long a lease lives without a renewal.
    """

    def __init__(self, ttl_s: float) -> None:
        self._period_s = ttl_s / RENEWALS_PER_TTL
        self._renewals = Renewals(self._period_s)
        self._tasks: list[asyncio.Task[None]] = []
        self._lost = 0

    async def take(
        self,
        keys: Sequence[str],
        take: Callable[[str], Awaitable[tuple[Callable[[], Awaitable[object]], Callable[[], Awaitable[object]]]]],
        at_once: int,
    ) -> None:
        """
        Take all keys, and return when all are held.

        Args:
            keys: What to take.
            take: Takes one key in the task that calls it; returns what renews and what releases it.
            at_once: How many are on their way at the same time.
        """
        gate = asyncio.Semaphore(at_once)
        held = [asyncio.get_running_loop().create_future() for _ in keys]

        async def keep(key: str, had: "asyncio.Future[None]") -> None:
            try:
                async with gate:
                    renew, release = await take(key)
            except Exception as error:  # noqa: BLE001 -- whatever the library raises, where it is waited for
                had.set_exception(error)
                return
            self._renewals.note(key)
            had.set_result(None)
            try:
                while True:
                    await asyncio.sleep(self._period_s)
                    self._renewals.note(key)
                    await renew()
            except asyncio.CancelledError:
                await release()
            except Exception:  # noqa: BLE001 -- a lease that is not renewed is lost, for whatever reason
                self._lost += 1

        self._tasks = [asyncio.create_task(keep(key, had)) for key, had in zip(keys, held, strict=True)]
        await asyncio.gather(*held)

    def lost(self) -> int:
        """How many could not be renewed."""
        return self._lost

    def late_ms(self) -> Sequence[float]:
        """How late each renewal was sent."""
        return self._renewals.late_ms

    async def let_go(self) -> None:
        """Release all of them."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
