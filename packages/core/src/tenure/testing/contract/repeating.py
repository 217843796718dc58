"""Rules 4 and 9: an acquire may be sent again, and taken back when nobody knows what became of it."""

from tenure.store import Acquired
from tenure.testing.contract.bench import LONG_MS, Bench
from tenure.testing.contract.case import Rung

__all__ = ["RUNG"]

RUNG = Rung(4)


@RUNG.case(
    "An acquire that is sent again gets the lock with the same token",
    race="A reply is lost, the driver asks again, meets the lock of its own first try, and waits for a ttl.",
)
async def repeat_gets_the_same_token(bench: Bench) -> None:
    key, owner = bench.key(), bench.owner()
    first = await bench.take(key, owner)
    again = await bench.take(key, owner, what="acquire() by the owner of the live lock")
    bench.equal(again.token, first.token, what="the token of the same acquisition, asked for again,")


@RUNG.case(
    "An acquire that is sent again starts a fresh ttl",
    race="The retry comes late in the ttl, the holder counts from it, and the store from the first try.",
    waits=True,
)
async def repeat_starts_a_fresh_ttl(bench: Bench) -> None:
    longer, owner = bench.key("longer"), bench.owner()
    await bench.take(longer, owner, bench.ttl_ms)
    await bench.take(longer, owner, LONG_MS, what="acquire() by the owner of the live lock")
    shorter, owner = bench.key("shorter"), bench.owner()
    await bench.take(shorter, owner, LONG_MS)
    await bench.take(shorter, owner, bench.short_ms, what="acquire() by the owner of the live lock")
    await bench.outlast(bench.short_ms)
    await bench.find_free(shorter, what="acquire() after the ttl of the second, shorter try")
    if bench.setting.advance_time is not None:
        await bench.outlast(bench.ttl_ms)
        await bench.find_held(longer, what="acquire() within the ttl of the second, longer try")


@RUNG.case(
    "A lock that its owner acquired twice is freed by one release",
    race="The store counts the retry as a second entry, and the release leaves the key held by nobody.",
)
async def repeat_is_not_counted(bench: Bench) -> None:
    key, owner = bench.key(), bench.owner()
    await bench.take(key, owner)
    await bench.take(key, owner, what="acquire() by the owner of the live lock")
    bench.equal(await bench.store.release(key, owner), True, what="release() after two acquires of one owner")
    await bench.take(key, what="acquire() after that release")


@RUNG.case(
    "An owner's own expired lock comes back as a new one, with a greater token",
    race="A retry arrives after the expiry, and after a holder in between whose token it would share.",
    waits=True,
)
async def own_expired_lock_is_new(bench: Bench) -> None:
    key, owner = bench.key(), bench.owner()
    first = await bench.take(key, owner, bench.short_ms)
    await bench.outlast(bench.short_ms)
    again = await bench.take(key, owner, what="acquire() of the owner's own expired lock")
    bench.grows(first.token, again.token, "the expiry")


@RUNG.case(
    "An owner's own released lock comes back as a new one, with a greater token",
    race="A write of the ended lease is still on its way, and carries the token of the new one.",
)
async def own_released_lock_is_new(bench: Bench) -> None:
    key, owner = bench.key(), bench.owner()
    first = await bench.take(key, owner)
    await bench.store.release(key, owner)
    again = await bench.take(key, owner, what="acquire() by the owner after its release")
    bench.grows(first.token, again.token, "the release")


@RUNG.case(
    "An acquire that is sent again says the same of the lock before it",
    race="The first reply, lost, said that the predecessor had crashed; the second keeps it to itself.",
)
async def repeat_says_the_same(bench: Bench) -> None:
    key, before, owner = bench.key(), bench.owner(), bench.owner()
    await bench.take(key, before)
    await bench.store.release(key, before)
    first = await bench.take(key, owner)
    again = await bench.take(key, owner)
    bench.equal(again.after, first.after, what="what the same acquisition, asked for again, says of the lock before it")


@RUNG.case(
    "An acquire that was cancelled is undone by a release",
    rule=9,
    race="A caller gives up, its acquire is granted all the same, and nobody holds the key until its ttl ends.",
    waits=True,
)
async def cancelled_acquire_is_undone(bench: Bench) -> None:
    # One turn of the loop more each time, so that the cancellation comes before, during and after the step.
    for turns in range(8):
        key, owner = bench.key(str(turns)), bench.owner()
        await bench.cancelled(bench.acquire(key, owner, bench.short_ms), turns)
        await _find_free_in_time(bench, key, owner)


async def _find_free_in_time(bench: Bench, key: str, owner: str) -> None:
    for last in (False, True):
        await bench.store.release(key, owner)
        reply = await bench.acquire(key, bench.owner(), bench.short_ms)
        if isinstance(reply, Acquired):
            return
        if not last:
            # The request was on its way and may have been carried out after the release: a ttl bounds that.
            await bench.outlast(bench.short_ms)
    bench.fail(f"a ttl after the release behind a cancelled acquire(), the key gave {reply!r}", "free")


@RUNG.case(
    "A cancelled call leaves the store as able as before",
    rule=8,
    race="Each cancellation costs a connection or leaves a lock locked, and at last no lease can be renewed.",
)
async def cancelled_calls_cost_nothing(bench: Bench) -> None:
    key, owner = bench.key(), bench.owner()
    await bench.take(key, owner)
    # More than a pool has connections: 5 with 10 to spare is the usual one.
    for turns in [*range(4)] * 5:
        await bench.cancelled(bench.store.renew(key, owner, LONG_MS), turns)
    bench.equal(await bench.store.renew(key, owner, LONG_MS), True, what="renew() after twenty cancelled ones")
    await bench.find_held(key, what="acquire() after twenty cancelled renewals")
    bench.equal(await bench.store.release(key, owner), True, what="release() after twenty cancelled renewals")
