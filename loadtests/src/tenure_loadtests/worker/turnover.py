"""Keys that change hands at a steady rate, waited for or not: a background for somebody else's latency."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from tenure_loadtests.contenders.contract import Contender
from tenure_loadtests.worker.meter import Meter

__all__ = ["turn_over"]


async def turn_over(  # noqa: PLR0913 -- the members of a command
    contender: Contender, servers: Sequence[int], *, keys: int, waiters: int, hold_s: float, seconds: float
) -> dict[str, Any]:
    """
    Take and release keys.

    Args:
        contender: Whose locks.
        servers: Whose CPU time is told.
        keys: How many keys.
        waiters: How many wait for each beside its holder.
        hold_s: How long each hold takes.
        seconds: For how long.

    Returns:
        `releases_per_s`, and the usage.
    """
    until = time.perf_counter() + seconds
    released = 0

    async def take_turns(key: str) -> None:
        nonlocal released
        lock = contender.lock(key)
        while time.perf_counter() < until:
            await lock.acquire()
            await asyncio.sleep(hold_s)
            await lock.release()
            released += 1

    meter = Meter(servers)
    async with asyncio.TaskGroup() as group:
        for number in range(keys):
            for _ in range(1 + waiters):
                group.create_task(take_turns(f"bench:turnover:{number}"))
    usage = meter.read()
    return {"releases_per_s": released / usage.wall_s, "usage": usage.to_json()}
