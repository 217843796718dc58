"""Uncontended cycles: every task takes and gives back a key of its own, as often as it can."""

import asyncio
import gc
import threading
import time
from collections.abc import Sequence
from typing import Any

from tenure_loadtests.contenders.contract import AsyncLock, Blocking, BlockingLock, Contender, RunsCycles
from tenure_loadtests.figures import quantile
from tenure_loadtests.worker.meter import Meter, Usage

__all__ = ["run_cycles"]

_WARM_S = 0.2


async def run_cycles(
    contender: Contender, servers: Sequence[int], *, tasks: int, seconds: float, prefix: str
) -> dict[str, Any]:
    """
    Run cycles for a while, after a moment that is not counted.

    Args:
        contender: Who takes and gives back.
        servers: Whose CPU time is told beside the contender's.
        tasks: How many at once.
        seconds: For how long.
        prefix: What the keys begin with.

    Returns:
        `cycles_per_s`; `p50_us` and `p99_us` of a cycle; a cycle's CPU time `client_us` and `server_us` and its page
        `faults`; and the usage as `Usage` has it.
    """
    keys = [f"{prefix}:{number}" for number in range(tasks)]
    if isinstance(contender, RunsCycles):
        gc.collect()
        meter = Meter(servers)
        told = dict(await contender.run_cycles(tasks, seconds))
        usage = meter.read()
        cycles = told.pop("cycles")
        return _per_cycle(cycles, usage) | told
    if isinstance(contender, Blocking):
        blocking = [contender.blocking_lock(key) for key in keys]
        await asyncio.to_thread(_in_threads, blocking, _WARM_S)
        gc.collect()
        meter = Meter(servers)
        samples = await asyncio.to_thread(_in_threads, blocking, seconds)
    else:
        locks = [contender.lock(key) for key in keys]
        await _in_tasks(locks, _WARM_S)
        gc.collect()
        meter = Meter(servers)
        samples = await _in_tasks(locks, seconds)
    usage = meter.read()
    samples.sort()
    told = {"p50_us": quantile(samples, 0.5) * 1e6, "p99_us": quantile(samples, 0.99) * 1e6}
    return _per_cycle(len(samples), usage) | told


def _per_cycle(cycles: float, usage: Usage) -> dict[str, Any]:
    return {
        "cycles_per_s": cycles / usage.wall_s,
        "client_us": usage.client_s / cycles * 1e6,
        "server_us": usage.server_s / cycles * 1e6,
        "faults": usage.faults / cycles,
        "usage": usage.to_json(),
    }


async def _in_tasks(locks: Sequence[AsyncLock], seconds: float) -> list[float]:
    now = time.perf_counter
    until = now() + seconds
    samples: list[float] = []

    async def turn(lock: AsyncLock) -> None:
        while (begun := now()) < until:
            await lock.acquire()
            await lock.release()
            samples.append(now() - begun)

    async with asyncio.TaskGroup() as group:
        for lock in locks:
            group.create_task(turn(lock))
    return samples


def _in_threads(locks: Sequence[BlockingLock], seconds: float) -> list[float]:
    now = time.perf_counter
    until = now() + seconds
    samples: list[float] = []
    failures: list[Exception] = []

    def turn(lock: BlockingLock) -> None:
        try:
            while (begun := now()) < until:
                lock.acquire()
                lock.release()
                samples.append(now() - begun)
        except Exception as error:  # noqa: BLE001 -- raised again below, where somebody hears it
            failures.append(error)

    threads = [threading.Thread(target=turn, args=(lock,)) for lock in locks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return samples
