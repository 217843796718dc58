"""WakesWaiters and ChecksServer: a waiter hears of a release, and a sound server is found sound."""

import asyncio

from tenure.store import ChecksServer, Finding, WakesWaiters
from tenure.testing.contract.bench import Bench
from tenure.testing.contract.case import Rung

__all__ = ["CHECKING", "WAKING"]

WAKING = Rung(10, capability=WakesWaiters)
CHECKING = Rung(8, capability=ChecksServer)

_TRIES = 5
"""A wake-up may be lost (it costs one poll): one before the wait has reached the server, for example."""

_HEARD_WITHIN_S = 1.0


async def _is_woken(bench: Bench, key: str, waiter: "asyncio.Task[None]") -> bool:
    """Release *key* a few times, and tell whether *waiter* heard of one."""
    for _ in range(_TRIES):
        owner = bench.owner()
        await bench.take(key, owner)
        for _ in range(5):
            await asyncio.sleep(0)
        await bench.store.release(key, owner)
        done, _ = await asyncio.wait([waiter], timeout=_HEARD_WITHIN_S / _TRIES)
        if done:
            waiter.result()
            return True
    return False


@WAKING.case("A waiter is woken by the release", race="Every hand-over takes a poll interval.")
async def release_wakes(bench: Bench) -> None:
    key = bench.key()
    waiter = asyncio.get_running_loop().create_task(bench.store.released(key))
    try:
        woken = await _is_woken(bench, key, waiter)
        bench.require(woken, f"released() had not returned after {_TRIES} releases of its key", "woken")
    finally:
        waiter.cancel()


@WAKING.case(
    "A waiter that gave up takes nobody's wake-up with it",
    race="The wake-up goes to a task that was cancelled, and the next in line sleeps on beside a free key.",
)
async def cancelled_waiter_takes_nothing(bench: Bench) -> None:
    key = bench.key()
    loop = asyncio.get_running_loop()
    first, second = (loop.create_task(bench.store.released(key)) for _ in range(2))
    try:
        for _ in range(5):
            await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait([first])
        woken = await _is_woken(bench, key, second)
        bench.require(woken, f"a second waiter had not returned after {_TRIES} releases of its key", "woken")
    finally:
        second.cancel()


@CHECKING.case(
    "A server that works is found without a fatal fault, and works on",
    race="A check that is too strict keeps every instance from starting, in the middle of a deploy.",
)
async def sound_server_is_sound(bench: Bench) -> None:
    findings = list(await bench.store.check())
    for finding in findings:
        bench.require(isinstance(finding, Finding), f"check() gave a {type(finding).__name__}", "Finding")
    fatal = [finding.code for finding in findings if finding.fatal]
    bench.equal(fatal, [], what="the fatal findings of check() on the server under test")
    await bench.take(bench.key(), what="acquire() after check()")
