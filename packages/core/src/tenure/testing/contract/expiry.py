"""Rule 2: an expired lock does not exist, for any method; expiry is on the store's clock, in milliseconds."""

from tenure._durations import MAX_MS
from tenure.testing.contract.bench import Bench
from tenure.testing.contract.case import Rung

__all__ = ["RUNG"]

RUNG = Rung(2)

_DAY_MS = 86_400_000


@RUNG.case(
    "A lock is held until its ttl has passed, and free after it",
    race="The lock of a crashed holder ends too soon, under one that lives, or never.",
    waits=True,
)
async def held_for_its_ttl(bench: Bench) -> None:
    key = bench.key()
    await bench.take(key, ttl_ms=bench.ttl_ms)
    await bench.pass_ms(bench.ttl_ms / 2)
    await bench.find_held(key, what="acquire() half-way through the ttl")
    await bench.outlast(bench.ttl_ms - bench.ttl_ms // 2)
    await bench.find_free(key, what="acquire() after the ttl")


@RUNG.case(
    "A ttl of 300 milliseconds ends after 300 milliseconds",
    race="The store counts whole seconds and rounds up: every takeover is late by as much.",
    waits=True,
)
async def ttl_is_not_rounded_up(bench: Bench) -> None:
    key = bench.key()
    await bench.take(key, ttl_ms=300)
    await bench.outlast(300)
    await bench.find_free(key, what="acquire() after a ttl of 300 ms")


@RUNG.case(
    "A ttl of 999 milliseconds is not cut to none",
    race="The store counts whole seconds and cuts: the holder believes in a lock that is gone.",
)
async def ttl_is_not_cut(bench: Bench) -> None:
    key = bench.key()
    await bench.take(key, ttl_ms=999)
    await bench.find_held(key, what="acquire() at once after a grant for 999 ms")


@RUNG.case(
    "A ttl past 31 bits does not wrap round",
    race="A lock for a month is stored as a negative number, and is free at once.",
    waits=True,
)
async def ttl_past_31_bits(bench: Bench) -> None:
    await _stays_held(bench, 2**31 + 1)


@RUNG.case(
    "A ttl past 32 bits does not wrap round",
    race="A lock for two months is stored as a millisecond, and is free at once.",
    waits=True,
)
async def ttl_past_32_bits(bench: Bench) -> None:
    await _stays_held(bench, 2**32 + 1)


async def _stays_held(bench: Bench, ttl_ms: int) -> None:
    taken, renewed, owner = bench.key("taken"), bench.key("renewed"), bench.owner()
    await bench.take(taken, ttl_ms=ttl_ms)
    await bench.take(renewed, owner)
    bench.equal(await bench.store.renew(renewed, owner, ttl_ms), True, what=f"renew() for {ttl_ms} ms")
    # A clock that can be moved shows a ttl that was cut to the greatest number of 32 bits, too.
    await bench.pass_ms(ttl_ms - _DAY_MS if bench.setting.advance_time else 50)
    await bench.find_held(taken, what=f"acquire() within a ttl of {ttl_ms} ms")
    await bench.find_held(renewed, what=f"acquire() within a renewed ttl of {ttl_ms} ms")


@RUNG.case(
    "The longest ttl and the shortest one are both kept",
    race="A hundred years overflow the server's date, or a millisecond is taken for none.",
    waits=True,
)
async def extreme_ttls(bench: Bench) -> None:
    longest, shortest = bench.key("longest"), bench.key("shortest")
    await bench.take(longest, ttl_ms=MAX_MS)
    await bench.take(shortest, ttl_ms=1)
    await bench.find_held(longest, what="acquire() within a ttl of a hundred years")
    await bench.outlast(1)
    await bench.find_free(shortest, what="acquire() after a ttl of 1 ms")


@RUNG.case(
    "An expired lock is free to another owner, although nobody deleted it",
    race="A holder is killed, and its job never runs again.",
    waits=True,
)
async def expired_is_free(bench: Bench) -> None:
    key = bench.key()
    await bench.take(key, ttl_ms=bench.short_ms)
    await bench.outlast(bench.short_ms)
    await bench.find_free(key, what="acquire() of an expired lock")


@RUNG.case(
    "An expired lock is not renewed, even where nobody has taken it",
    race="A holder that slept past its lease is told that it held it all the while.",
    waits=True,
)
async def expired_is_not_renewed(bench: Bench) -> None:
    key, owner = bench.key(), bench.owner()
    await bench.take(key, owner, bench.short_ms)
    await bench.outlast(bench.short_ms)
    bench.equal(await bench.store.renew(key, owner, bench.ttl_ms), False, what="renew() of the owner's expired lock")
    await bench.find_free(key, what="acquire() after a renewal of an expired lock was refused")


@RUNG.case(
    "An expired lock is not released, even where nobody has taken it",
    race="A holder is told that it held the key to the end, and trusts what it wrote last.",
    waits=True,
)
async def expired_is_not_released(bench: Bench) -> None:
    key, owner = bench.key(), bench.owner()
    await bench.take(key, owner, bench.short_ms)
    await bench.outlast(bench.short_ms)
    bench.equal(await bench.store.release(key, owner), False, what="release() of the owner's expired lock")
