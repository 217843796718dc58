"""What befalls the replicas in the middle of a storm: one is killed and started again, another one is paused."""

import asyncio
import time
from itertools import cycle
from typing import Final

from cat_store.demo.stage import INSTANCES, RECORD_LOCK_TTL_S, Stage
from cat_store_load.outcome import Trouble

__all__ = ["PAUSE_S", "make_trouble", "rounds_in"]

PAUSE_S: Final = 2.5 * RECORD_LOCK_TTL_S
"""How long a replica is paused, in seconds: others take over what it was at, and then it goes on as if it were its."""

_ROUND_S: Final = 30.0
"""One replica is killed and one paused in so much time, in seconds."""


def rounds_in(seconds: float) -> int:
    """Tell how often one is killed and one paused in a block of that many seconds."""
    return max(1, int(seconds // _ROUND_S))


async def make_trouble(stage: Stage, seconds: float) -> list[Trouble]:
    """
    Kill and pause replicas in turn, spread over a block of load; each is up or on its way up when this returns.

    Args:
        stage: Whose replicas they are.
        seconds: How long the block is.
    """
    rounds = rounds_in(seconds)
    share = seconds / rounds
    victims = cycle(INSTANCES)
    befell: list[Trouble] = []
    for _ in range(rounds):
        began = time.monotonic()
        await asyncio.sleep(0.2 * share)
        befell.append(await _kill(stage, next(victims), share))
        await asyncio.sleep(max(0.0, 0.55 * share - (time.monotonic() - began)))
        befell.append(await _pause(stage, next(victims)))
        await asyncio.sleep(max(0.0, share - (time.monotonic() - began)))
    return befell


async def _kill(stage: Stage, name: str, share: float) -> Trouble:
    at = time.monotonic()
    await stage.kill(name)
    # Gone for a while, so that its customers find out and go elsewhere.
    await asyncio.sleep(0.1 * share)
    await stage.launch(name)
    return Trouble("killed", name, at, time.monotonic())


async def _pause(stage: Stage, name: str) -> Trouble:
    at = time.monotonic()
    await stage.pause(name)
    try:
        await asyncio.sleep(PAUSE_S)
    finally:
        await stage.resume(name)
    return Trouble("paused", name, at, time.monotonic())
