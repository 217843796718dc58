"""Rule 3: renew and release are for the recorded owner of a live lock alone, checked where they write."""

from tenure.testing.contract.bench import LONG_MS, Bench
from tenure.testing.contract.case import Rung

__all__ = ["RUNG"]

RUNG = Rung(3)


@RUNG.case("The owner renews its lock", race="Every holder loses its lease at the first renewal.")
async def owner_renews(bench: Bench) -> None:
    key, owner = bench.key(), bench.owner()
    await bench.take(key, owner)
    for _ in range(3):
        bench.equal(await bench.store.renew(key, owner, LONG_MS), True, what="renew() by the owner")


@RUNG.case(
    "A renewed lock outlives its first ttl",
    race="A renewal is confirmed, changes nothing, and the holder believes on.",
    waits=True,
)
async def renewal_extends(bench: Bench) -> None:
    key, owner = bench.key(), bench.owner()
    await bench.take(key, owner, bench.ttl_ms)
    await bench.pass_ms(bench.ttl_ms / 2)
    bench.equal(await bench.store.renew(key, owner, bench.ttl_ms), True, what="renew() half-way")
    # Past the first ttl by a sixth of it, and a third of it before the end of the second.
    await bench.pass_ms(bench.ttl_ms * 2 / 3)
    await bench.find_held(key, what="acquire() after the first ttl of a renewed lock")


@RUNG.case(
    "A renewal counts from now: it adds nothing to what was left",
    race="Renewals pile up, and a crashed holder keeps its job for a week.",
    waits=True,
)
async def renewal_replaces(bench: Bench) -> None:
    key, owner = bench.key(), bench.owner()
    await bench.take(key, owner, LONG_MS)
    bench.equal(await bench.store.renew(key, owner, bench.short_ms), True, what="renew() for a shorter ttl")
    await bench.outlast(bench.short_ms)
    await bench.find_free(key, what="acquire() after the ttl of the last renewal")


@RUNG.case(
    "Another owner's renewal is refused, and moves nothing",
    race="A pauses, B takes over, A renews by key alone: both believe, and B's lock ends when A says.",
    waits=True,
)
async def stranger_does_not_renew(bench: Bench) -> None:
    key = bench.key()
    await bench.take(key, ttl_ms=bench.short_ms)
    bench.equal(await bench.store.renew(key, bench.owner(), LONG_MS), False, what="renew() by another owner")
    await bench.outlast(bench.short_ms)
    await bench.find_free(key, what="acquire() after the ttl of a lock that a stranger asked to renew")


@RUNG.case(
    "A renewal creates no lock where there was none",
    race="A store loses its data, a holder's renewal makes a lock of its own, and no token ever grew.",
)
async def renewal_creates_nothing(bench: Bench) -> None:
    key = bench.key()
    bench.equal(await bench.store.renew(key, bench.owner(), LONG_MS), False, what="renew() of a key never locked")
    await bench.take(key, what="acquire() of a key that a renewal was refused on")


@RUNG.case(
    "A released lock is not renewed back into being",
    race="A renewal that was under way overtakes the release: the key is held by nobody until its ttl ends.",
)
async def renewal_after_release(bench: Bench) -> None:
    key, owner = bench.key(), bench.owner()
    await bench.take(key, owner)
    await bench.store.release(key, owner)
    bench.equal(await bench.store.renew(key, owner, LONG_MS), False, what="renew() after the owner's release")
    await bench.take(key, what="acquire() after a late renewal of a released lock")


@RUNG.case(
    "A lock that another took and gave back is not taken again by a late renewal",
    race="A pauses, B takes the key, works and releases; A's renewal finds the key free, takes it silently, and A"
    " never learns that somebody was there.",
    waits=True,
)
async def gone_and_free_again(bench: Bench) -> None:
    key, paused, other = bench.key(), bench.owner(), bench.owner()
    await bench.take(key, paused, bench.short_ms)
    await bench.outlast(bench.short_ms)
    await bench.take(key, other)
    await bench.store.release(key, other)
    bench.equal(await bench.store.renew(key, paused, LONG_MS), False, what="renew() of a lock gone and free again")
    await bench.take(key, what="acquire() after that renewal")


@RUNG.case(
    "A late renewal leaves the next holder's lock as it is",
    race="A pauses and its lock expires; its renewal arrives under B's lock, and moves B's expiry.",
    waits=True,
)
async def late_renewal_of_taken_lock(bench: Bench) -> None:
    key, paused = bench.key(), bench.owner()
    await bench.take(key, paused, bench.short_ms)
    await bench.outlast(bench.short_ms)
    await bench.take(key, ttl_ms=bench.short_ms)
    bench.equal(await bench.store.renew(key, paused, LONG_MS), False, what="renew() of a lock that another took over")
    await bench.outlast(bench.short_ms)
    await bench.find_free(key, what="acquire() after the ttl of the lock that was taken over")


@RUNG.case("A release frees the key at once", race="Every hand-over waits for a ttl.")
async def release_frees(bench: Bench) -> None:
    key, owner = bench.key(), bench.owner()
    await bench.take(key, owner)
    bench.equal(await bench.store.release(key, owner), True, what="release() by the owner")
    await bench.take(key, what="acquire() after the release")


@RUNG.case(
    "A second release says that there was nothing to give back",
    race="A release that is sent again after a lost reply counts as one that held the key to the end.",
)
async def second_release(bench: Bench) -> None:
    key, owner = bench.key(), bench.owner()
    await bench.take(key, owner)
    await bench.store.release(key, owner)
    bench.equal(await bench.store.release(key, owner), False, what="a second release() by the owner")
    bench.equal(await bench.store.release(bench.key("never"), owner), False, what="release() of a key never locked")


@RUNG.case(
    "Another owner's release leaves the lock alone",
    race="A shutdown hook gives back by key, and frees the lock of the instance that has just started.",
)
async def stranger_does_not_release(bench: Bench) -> None:
    key = bench.key()
    await bench.take(key)
    bench.equal(await bench.store.release(key, bench.owner()), False, what="release() by another owner")
    await bench.find_held(key, what="acquire() after another owner's release")


@RUNG.case(
    "A late release does not free the next holder's lock",
    race="A pauses, its lock expires, B takes the key; A wakes, releases, and C walks in on B.",
    waits=True,
)
async def late_release_of_taken_lock(bench: Bench) -> None:
    key, paused = bench.key(), bench.owner()
    await bench.take(key, paused, bench.short_ms)
    await bench.outlast(bench.short_ms)
    await bench.take(key)
    bench.equal(await bench.store.release(key, paused), False, what="release() of a lock that another took over")
    await bench.find_held(key, what="acquire() after that release")


@RUNG.case(
    "Owners are compared exactly",
    race="A column that folds case, pads, composes or cuts takes one holder for another.",
)
async def owners_are_exact(bench: Bench) -> None:
    longest = bench.owner().ljust(199, "x")
    pairs = [
        ("Case", "case"),
        ("space", "space "),
        ("caf\u00e9", "cafe\u0301"),
        ("null", ""),
        (longest + "a", longest + "b"),
    ]
    for number, (mine, near) in enumerate(pairs):
        key = bench.key(str(number))
        owner, stranger = (f"{key[:40]}:{one}" if len(one) < 200 else one for one in (mine, near))
        await bench.take(key, owner)
        bench.equal(await bench.store.renew(key, stranger, LONG_MS), False, what="renew() by a near namesake")
        bench.equal(await bench.store.release(key, stranger), False, what="release() by a near namesake")
        await bench.find_held(key, stranger, what="acquire() by a near namesake")
        bench.equal(await bench.store.release(key, owner), True, what="release() by the owner itself")
