"""Workers that take locks, and write to a fenced resource while they hold them."""

import asyncio
import random
from typing import Final

from simulation.life import Life
from simulation.network import NetworkError
from simulation.scene import Scene
from tenure import Lease, LeaseLostError, LockNotAcquiredError, TenureError

__all__ = ["KEYS", "work"]

KEYS: Final = ("lock:a", "lock:b")

_WAYS: Final = ("hold", "hold", "hold", "by hand", "try", "max hold")


async def work(scene: Scene, life: Life, rng: random.Random) -> None:
    """Take one lock after the other, until the life or the run ends."""
    turn = rng.randrange(len(KEYS))
    while not scene.stopping and not life.closing:
        # Each key is asked for in turn: after the faults, all of them are to be had.
        turn += 1
        key = KEYS[turn % len(KEYS)]
        scene.asked_keys.add(key)
        operation = life.spawn_user(_operate(scene, life, rng, key))
        await asyncio.wait({operation})
        await life.sleep(scene.plan.ttl_s * rng.uniform(0.05, 0.7))


async def _operate(scene: Scene, life: Life, rng: random.Random, key: str) -> None:
    assert life.locks is not None
    way, wait_s = rng.choice(_WAYS), rng.choice((0.0, round(scene.plan.ttl_s * rng.random(), 3)))
    if wait_s and key in life.locks.acquirer.lines:
        scene.journal.saw("a wait in a line")
    try:
        if way in ("hold", "max hold"):
            max_hold = round(scene.plan.ttl_s * 0.3, 3) if way == "max hold" else None
            async with life.locks.hold(key, wait=wait_s, max_hold=max_hold) as lease:
                await _write(scene, life, rng, lease, guarded=True)
        elif way == "by hand":
            lease = await life.locks.acquire(key, wait=wait_s)
            try:
                await _write(scene, life, rng, lease, guarded=False)
            finally:
                await lease.release()
        else:
            taken = await life.locks.try_acquire(key)
            if taken is not None:
                async with taken:
                    await _write(scene, life, rng, taken, guarded=False)
    except LeaseLostError:
        scene.journal.saw("a body cancelled by its loss")
    except LockNotAcquiredError:
        scene.journal.saw("a wait in vain")
    except (TenureError, NetworkError) as error:
        scene.journal.saw(f"an operation failed: {type(error).__name__}")
    except asyncio.CancelledError:
        scene.journal.saw("an operation cancelled")
        raise


async def _write(scene: Scene, life: Life, rng: random.Random, lease: Lease, *, guarded: bool) -> None:
    for _ in range(rng.randrange(1, 4)):
        await life.sleep(scene.plan.ttl_s * rng.uniform(0.02, 0.4))
        grant = scene.watch.guarded(lease) if guarded else scene.watch.grants[lease._kept.claim.owner]
        if not scene.watch.believes(grant):
            return
        scene.journal.note("believes", life.name, key=lease.key, token=lease.token)
        if rng.random() < 0.3:
            # Between the look and the write: where a pause makes the write a late one.
            await life.sleep(0.01)
        scene.resource.write(grant, scene.write_draw())
