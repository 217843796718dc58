"""Ticks of a job, the same moments on every instance."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from tenure_loadtests.contenders.contract import RunsJobs
from tenure_loadtests.worker.meter import Meter

__all__ = ["run_ticks"]


async def run_ticks(  # noqa: PLR0913 -- the members of a command
    contender: RunsJobs, servers: Sequence[int], *, key: str, start_at: float, period_s: float, ticks: int
) -> dict[str, Any]:
    """
    Call a job at every tick.

    Args:
        contender: Who runs it, or does not.
        servers: Whose CPU time is told.
        key: The job's key.
        start_at: When the first tick comes, on the clock that the processes share.
        period_s: How far apart the ticks lie.
        ticks: How many.

    Returns:
        `ran`, the numbers of the ticks that ran here; `took_s`, how long each call took; and the usage.
    """
    ran: list[int] = []
    took_s: list[float] = []
    current = 0

    def note() -> None:
        ran.append(current)

    tick = contender.job(key, note)
    await asyncio.sleep(max(0.0, start_at - time.perf_counter()))
    meter = Meter(servers)
    for number in range(ticks):
        await asyncio.sleep(max(0.0, start_at + number * period_s - time.perf_counter()))
        current, begun = number, time.perf_counter()
        await tick()
        took_s.append(time.perf_counter() - begun)
    return {"ran": ran, "took_s": took_s, "usage": meter.read().to_json()}
