"""Rule 10: what a reply tells beyond yes and no: how long the lock still lasts, and how the one before it ended."""

from tenure.store import Acquired
from tenure.testing.contract.bench import LONG_MS, Bench
from tenure.testing.contract.case import Rung

__all__ = ["RUNG"]

RUNG = Rung(10)


def _check_left(bench: Bench, left: object, at_most_ms: int) -> None:
    if left is None:
        return
    # One more than the ttl: a store that rounds up a fraction of floating point may say so.
    bench.require(
        type(left) is int and 1 <= left <= at_most_ms + 1,
        f"a lock of {at_most_ms} ms had {left!r} ms left",
        f"None, or an int from 1 to {at_most_ms}",
    )


@RUNG.case(
    "A refusal tells what is left of the lock in milliseconds, or nothing",
    race="A waiter reads seconds for milliseconds, and asks a thousand times too often, or sleeps for hours.",
)
async def left_is_plausible(bench: Bench) -> None:
    for ttl_ms in (bench.ttl_ms, LONG_MS):
        key = bench.key(str(ttl_ms))
        await bench.take(key, ttl_ms=ttl_ms)
        left = (await bench.find_held(key)).expires_in_ms
        _check_left(bench, left, ttl_ms)
    # Of the long one half: more than a machine that stalls loses between two calls, and a thousand times off shows.
    bench.require(
        left is None or left >= LONG_MS / 2, f"a fresh lock of {LONG_MS} ms had {left} ms left", "nearly all of it"
    )


@RUNG.case(
    "What is left shrinks as time passes, and grows with a renewal",
    race="A waiter is told the whole ttl each time, and never finds the moment at which the key is free.",
    waits=True,
)
async def left_shrinks(bench: Bench) -> None:
    key, owner = bench.key(), bench.owner()
    await bench.take(key, owner, bench.ttl_ms)
    first = (await bench.find_held(key)).expires_in_ms
    await bench.pass_ms(bench.ttl_ms / 2)
    later = (await bench.find_held(key)).expires_in_ms
    await bench.store.renew(key, owner, LONG_MS)
    renewed = (await bench.find_held(key)).expires_in_ms
    told = (first, later, renewed)
    if told == (None, None, None):
        return
    bench.require(None not in told, f"three refusals told {told}", "all None, or all numbers")
    _check_left(bench, later, bench.ttl_ms - bench.ttl_ms // 2)
    _check_left(bench, renewed, LONG_MS)
    bench.require(
        renewed is not None and renewed > LONG_MS / 2,
        f"after a renewal for {LONG_MS} ms, {renewed} ms were left",
        "nearly all of it",
    )


@RUNG.case(
    "A waiter that comes back when it was told to finds the key free",
    race="What is left is rounded down: every waiter comes a moment early, finds the key held, and waits again.",
    waits=True,
)
async def left_is_enough(bench: Bench) -> None:
    # Odd spans, and a part of one gone, so that a fraction of a millisecond is left.
    for number, part in enumerate((0.0, 0.3337, 0.7)):
        key = bench.key(str(number))
        await bench.take(key, ttl_ms=bench.short_ms + 7)
        await bench.pass_ms(bench.short_ms * part)
        reply = await bench.acquire(key, bench.owner(), bench.short_ms)
        if isinstance(reply, Acquired) or reply.expires_in_ms is None:
            continue
        await bench.pass_ms(reply.expires_in_ms)
        await bench.find_free(key, what=f"acquire() after the {reply.expires_in_ms} ms that were left")


@RUNG.case(
    "A grant tells how the lock before it ended, or never does",
    race="A holder is told of a clean release after a crash, and does not look for the work left half done.",
    waits=True,
)
async def after_is_true(bench: Bench) -> None:
    key, owner = bench.key(), bench.owner()
    fresh = await bench.take(key, owner)
    bench.equal(fresh.after, None, what="the first grant of a key says of a lock before it")
    await bench.store.release(key, owner)
    released = await bench.take(key, owner, bench.short_ms)
    await bench.outlast(bench.short_ms)
    await bench.store.release(key, owner)  # too late: it has expired, and that is what happened
    expired = await bench.take(key)
    told = (released.after, expired.after)
    bench.require(
        told in ((None, None), ("released", "expired")),
        f"grants after a release and after an expiry told {told}",
        "('released', 'expired'), or (None, None) of a store that does not know",
    )
