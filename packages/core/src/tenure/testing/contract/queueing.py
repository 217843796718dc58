"""QueuesWaiters: whoever releases a lock grants it to the head of its queue, and to nobody else."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from tenure.store import Acquired, Held, QueuesWaiters
from tenure.testing.contract.bench import LONG_MS, Bench
from tenure.testing.contract.case import Rung

__all__ = ["RACES", "RUNG"]

RUNG = Rung(1, capability=QueuesWaiters)
RACES = Rung(1, capability=QueuesWaiters, races=True)

_TRIES = 3
"""A message may be lost (it costs one poll); three in a row are not."""

_HEARD_WITHIN_S = 1.0


async def _held_by(bench: Bench, key: str) -> str:
    """Take *key* for somebody, and name the owner."""
    owner = bench.owner()
    await bench.take(key, owner)
    return owner


async def _release(bench: Bench, key: str, owner: str) -> None:
    bench.equal(await bench.store.release(key, owner), True, what="release() by the holder")


async def _is_granted(bench: Bench, key: str, owner: str, *, to: str) -> None:
    bench.require(await bench.holds(key, owner), f"a release did not grant the lock to {to}", "granted to it")


async def _is_not_granted(bench: Bench, key: str, owner: str, *, to: str) -> None:
    bench.require(not await bench.holds(key, owner), f"the lock was granted to {to}", "granted to nobody of the kind")


async def _listening(bench: Bench, key: str, owner: str) -> "asyncio.Task[Acquired]":
    listening = asyncio.get_running_loop().create_task(bench.store.granted(key, owner))
    for _ in range(5):
        await asyncio.sleep(0)
    return listening


async def _hears(bench: Bench, key: str, *, early: bool) -> tuple[str, object]:
    """Let a waiter be granted the lock, and return it with what it heard; *early* where it listens before."""
    waiter, heard = "", None
    for _ in range(_TRIES):
        holder = await _held_by(bench, key)
        waiter = await bench.stand(key)
        listening = await _listening(bench, key, waiter) if early else None
        await _release(bench, key, holder)
        listening = listening or await _listening(bench, key, waiter)
        await asyncio.wait([listening], timeout=_HEARD_WITHIN_S)
        if listening.done():
            heard = listening.result()
            break
        listening.cancel()
        await bench.store.release(key, waiter)
    what = f"granted() had not returned after {_TRIES} releases that granted the lock to its waiter"
    bench.require(heard is not None, what, "heard")
    return waiter, heard


# -------------------------------------------------------------------------------------------- the lock


@RUNG.case(
    "Asked for a place, a free key is taken as acquire takes it",
    race="A waiter comes just after the release, and stands in the queue of a key that nobody holds.",
)
async def free_key_is_taken(bench: Bench) -> None:
    key, owner = bench.key(), bench.owner()
    taken = await bench.ask_queued(key, owner)
    bench.require(isinstance(taken, Acquired), f"acquire_queued() of a free key gave {taken!r}", "Acquired")
    await bench.find_held(key, what="acquire() of a key that was taken with acquire_queued()")
    again = await bench.ask_queued(key, owner)
    bench.equal(again, taken, what="acquire_queued() by the owner of the lock")


@RUNG.case(
    "Releases grant the lock to the waiters in the order in which they came",
    race="The process that is nearest to the server has every turn, and the others starve.",
)
async def order_of_arrival(bench: Bench) -> None:
    key = bench.key()
    holder = await _held_by(bench, key)
    waiters = [await bench.stand(key) for _ in range(4)]
    for place, waiter in enumerate(waiters):
        await _release(bench, key, holder)
        await _is_granted(bench, key, waiter, to=f"the waiter that came as number {place + 1}")
        holder = waiter


@RUNG.case(
    "While somebody waits, a release lets nobody else in",
    race="A third caller asks in the moment of the release, and gets what others have waited for.",
)
async def third_does_not_barge(bench: Bench) -> None:
    key = bench.key()
    holder = await _held_by(bench, key)
    waiter = await bench.stand(key)
    await _release(bench, key, holder)
    await bench.find_held(key, what="acquire() by a third after a release for which somebody waited")
    third = await bench.stand(key)
    await _is_granted(bench, key, waiter, to="its head")
    await _is_not_granted(bench, key, third, to="a waiter behind the head")


@RUNG.case(
    "Whoever released has to queue like everybody",
    race="A worker in a loop gives the lock back and takes it again at once, for ever, while others wait.",
)
async def releaser_does_not_barge(bench: Bench) -> None:
    key = bench.key()
    holder = await _held_by(bench, key)
    waiter = await bench.stand(key)
    await _release(bench, key, holder)
    reply = await bench.acquire(key, holder)
    bench.require(isinstance(reply, Held), f"acquire() by who has just released gave {reply!r}", "Held")
    await bench.stand(key, holder)
    await _is_granted(bench, key, waiter, to="its head")
    await _release(bench, key, waiter)
    await _is_granted(bench, key, holder, to="who had released it before, and came back into its queue")


@RUNG.case(
    "Who waits without a place gets the key when the queue is empty",
    race="A caller that only polls is kept out by a queue in which nobody stands any more.",
)
async def plain_waiter_is_served(bench: Bench) -> None:
    key, poller = bench.key(), bench.owner()
    holder = await _held_by(bench, key)
    waiter = await bench.stand(key)
    for owner in (holder, waiter):
        reply = await bench.acquire(key, poller)
        bench.require(isinstance(reply, Held), f"acquire() of a lock that is held gave {reply!r}", "Held")
        await _release(bench, key, owner)
    await bench.take(key, poller, what="acquire() after the last of a queue has released")


@RUNG.case(
    "The queue of a lock that expired keeps nobody out, and is granted nothing",
    rule=2,
    race="A holder is killed, and its lock goes on to a waiter that was killed with it, and to the next.",
    waits=True,
)
async def expired_lock_grants_nobody(bench: Bench) -> None:
    key, holder = bench.key(), bench.owner()
    await bench.take(key, holder, bench.short_ms)
    waiter = await bench.stand(key)
    await bench.outlast(bench.short_ms)
    bench.equal(await bench.store.release(key, holder), False, what="release() of a lock that has expired")
    await _is_not_granted(bench, key, waiter, to="a waiter, by an expiry")
    third = bench.owner()
    await bench.take(key, third, what="acquire() of an expired lock that somebody had waited for")
    await _release(bench, key, third)
    await _is_not_granted(bench, key, waiter, to="a waiter of a lock that expired, by the release of the next")


# ------------------------------------------------------------------------------------------- the grant


@RUNG.case(
    "A waiter hears that it was granted the lock, also where it listens a moment late",
    rule=10,
    race="Every hand-over takes a poll.",
)
async def waiter_hears(bench: Bench) -> None:
    for early in (True, False):
        key = bench.key(f"early {early}")
        waiter, heard = await _hears(bench, key, early=early)
        told = await bench.store.acquire(key, waiter, LONG_MS)
        bench.equal(heard, told, what="granted(), against acquire() by who was granted,")


@RUNG.case(
    "A waiter that stops to listen keeps its place",
    race="A connection for messages breaks, and the waiter that polls on has lost its turn.",
)
async def deaf_waiter_keeps_its_place(bench: Bench) -> None:
    key = bench.key()
    holder = await _held_by(bench, key)
    waiter = await bench.stand(key)
    listening = await _listening(bench, key, waiter)
    listening.cancel()
    await asyncio.wait([listening])
    await _release(bench, key, holder)
    await _is_granted(bench, key, waiter, to="a waiter that had stopped to listen")


@RUNG.case(
    "The token grows with a grant, and is what its owner is told from then on",
    rule=5,
    race="The next holder has the token of the one before: late writes of the one pass for the other's.",
)
async def token_grows(bench: Bench) -> None:
    key, holder = bench.key(), bench.owner()
    before = (await bench.take(key, holder)).token
    for _ in range(3):
        waiter = await bench.stand(key)
        await _release(bench, key, holder)
        told = [
            await bench.store.acquire(key, waiter, LONG_MS),
            await bench.ask_queued(key, waiter),
            await bench.store.acquire(key, waiter, LONG_MS),
        ]
        first = told[0]
        if not isinstance(first, Acquired):
            bench.fail(f"acquire() by the owner that was granted the lock gave {first!r}", "Acquired")
        bench.grows(before, first.token, "a grant")
        bench.equal(told, [first] * 3, what="the replies to an owner that was granted the lock, asked again,")
        bench.require(first.after in (None, "released"), f"a grant says {first.after!r} of the lock before", "released")
        before, holder = first.token, waiter


@RUNG.case(
    "The ttl of a grant begins with the grant",
    rule=2,
    race="It began with the place: the new holder believes in a lock that is gone. Or the old one's goes on.",
    waits=True,
)
async def ttl_from_the_grant(bench: Bench) -> None:
    key = bench.key()
    holder = await _held_by(bench, key)
    await bench.stand(key, ttl_ms=bench.ttl_ms)
    await bench.pass_ms(bench.ttl_ms * 3 / 4)
    await _release(bench, key, holder)
    await bench.pass_ms(bench.ttl_ms / 2)
    await bench.find_held(key, what="acquire() half-way through the ttl of a grant")
    await bench.outlast(bench.ttl_ms - bench.ttl_ms // 2)
    await bench.find_free(key, what="acquire() after the ttl of a grant")


@RUNG.case(
    "Who was granted the lock renews it and releases it",
    rule=3,
    race="The grant names nobody: the holder loses what it was given a moment ago.",
)
async def granted_owner_owns(bench: Bench) -> None:
    key = bench.key()
    holder = await _held_by(bench, key)
    waiter = await bench.stand(key)
    await _release(bench, key, holder)
    bench.equal(await bench.store.renew(key, waiter, LONG_MS), True, what="renew() by who was granted the lock")
    bench.equal(await bench.store.release(key, waiter), True, what="release() by who was granted the lock")
    bench.equal(await bench.store.release(key, waiter), False, what="a second release() by it")
    await bench.find_free(key, what="acquire() after it")


# ------------------------------------------------------------------------------------------- the place


@RUNG.case(
    "A waiter owns nothing: it renews nothing, and its release answers False and frees nothing",
    rule=3,
    race="A waiter that gives up frees the lock under its holder.",
)
async def waiter_owns_nothing(bench: Bench) -> None:
    key = bench.key()
    holder = await _held_by(bench, key)
    waiter = await bench.stand(key)
    bench.equal(await bench.store.renew(key, waiter, LONG_MS), False, what="renew() by a waiter")
    bench.equal(await bench.store.release(key, waiter), False, what="release() by a waiter")
    bench.require(await bench.holds(key, holder), "the release of a waiter freed the holder's lock", "as it was")


@RUNG.case(
    "A waiter that released is skipped",
    race="The lock is granted to a caller that has left, and is nobody's until its ttl ends.",
)
async def leaver_is_skipped(bench: Bench) -> None:
    key = bench.key()
    holder = await _held_by(bench, key)
    first, second, third = [await bench.stand(key) for _ in range(3)]
    for leaver in (first, third):
        await bench.store.release(key, leaver)
    await _release(bench, key, holder)
    await _is_not_granted(bench, key, first, to="a waiter that had left")
    await _is_granted(bench, key, second, to="the one behind a waiter that had left")
    await _release(bench, key, second)
    await bench.find_free(key, what="acquire() of a lock whose last waiter had left")


@RUNG.case(
    "A place that was not asked for again in its time is skipped",
    rule=2,
    race="A waiter is killed, the lock is granted to it, and is nobody's until its ttl ends.",
    waits=True,
)
async def old_place_is_skipped(bench: Bench) -> None:
    key, alone = bench.key(), bench.key("alone")
    holders = {one: await _held_by(bench, one) for one in (key, alone)}
    dead = {one: await bench.stand(one, place_ms=bench.short_ms) for one in (key, alone)}
    waiter = await bench.stand(key)
    await bench.outlast(bench.short_ms)
    for one, holder in holders.items():
        await _release(bench, one, holder)
        await _is_not_granted(bench, one, dead[one], to="a waiter whose place had run out")
    await _is_granted(bench, key, waiter, to="the one behind a place that had run out")
    await bench.find_free(alone, what="acquire() of a lock whose only waiter's place had run out")


@RUNG.case(
    "A place is kept for as long as it was asked for",
    rule=2,
    race="A waiter that polls in time finds itself at the end of the queue each time.",
    waits=True,
)
async def place_is_kept(bench: Bench) -> None:
    key = bench.key()
    holder = await _held_by(bench, key)
    waiter = await bench.stand(key, place_ms=bench.ttl_ms)
    await bench.stand(key)
    await bench.pass_ms(bench.ttl_ms / 2)
    await _release(bench, key, holder)
    await _is_granted(bench, key, waiter, to="a waiter half-way through the time of its place")


@RUNG.case(
    "Who asks again keeps its place",
    rule=4,
    race="A waiter that polls falls behind those that poll less.",
)
async def repeat_keeps_the_place(bench: Bench) -> None:
    key = bench.key()
    holder = await _held_by(bench, key)
    first, second = [await bench.stand(key) for _ in range(2)]
    await bench.stand(key, first)
    await _release(bench, key, holder)
    await _is_granted(bench, key, first, to="the first, which had asked again")
    await _release(bench, key, first)
    await _is_granted(bench, key, second, to="the second")
    await _release(bench, key, second)
    await bench.find_free(key, what="acquire() after both have released")


@RUNG.case(
    "Who asks again has its place for the time that it asked for last",
    rule=4,
    race="A place ends as it was taken first, and a waiter that polls in time is skipped.",
    waits=True,
)
async def repeat_prolongs_the_place(bench: Bench) -> None:
    key = bench.key()
    holder = await _held_by(bench, key)
    waiter = await bench.stand(key, place_ms=LONG_MS)
    await bench.stand(key, waiter, place_ms=bench.short_ms)
    behind = await bench.stand(key, place_ms=bench.short_ms)
    await bench.stand(key, behind, place_ms=LONG_MS)
    await bench.outlast(bench.short_ms)
    await _release(bench, key, holder)
    await _is_granted(bench, key, behind, to="the waiter that had asked again for longer")


@RUNG.case(
    "Queues belong to exact keys",
    rule=6,
    race="The release of one tenant's lock grants another tenant's.",
)
async def queues_are_exact(bench: Bench) -> None:
    labels = ("caf\u00e9", "cafe\u0301", "CAF\u00c9", "caf\u00e9 ", "caf\u00e9:queue")
    holders = {label: await _held_by(bench, bench.key(label)) for label in labels}
    waiters = {label: await bench.stand(bench.key(label)) for label in labels}
    # The last first: at the head of a queue that they shared would be somebody else.
    for label in reversed(labels):
        bench.require(await bench.holds(bench.key(label), holders[label]), "another key's lock was taken away", "held")
        await _release(bench, bench.key(label), holders[label])
        await _is_granted(bench, bench.key(label), waiters[label], to="the waiter of its key")


@RUNG.case(
    "A key, an owner, a ttl and a time of a place that no store may be asked for are refused",
    rule=7,
    race="A place for 0 ms, or for ever, is stored as whatever the server makes of it.",
)
async def arguments_are_refused(bench: Bench) -> None:
    key, owner = bench.key(), bench.owner()
    await _held_by(bench, key)
    queued = bench.store.acquire_queued
    for wrong in (0, -1, 0.5, True, "1000", None, 2**63):
        await bench.refuses(queued(key, owner, LONG_MS, wrong), what=f"acquire_queued() for a place of {wrong!r} ms")
        await bench.refuses(queued(key, owner, wrong, LONG_MS), what=f"acquire_queued() with a ttl of {wrong!r} ms")
    await bench.refuses(queued("", owner, LONG_MS, LONG_MS), what="acquire_queued() of an empty key")
    await bench.refuses(queued("k\0", owner, LONG_MS, LONG_MS), what="acquire_queued() of a key with NUL")
    wrong_owner = f"{owner}\0"
    await bench.refuses(
        queued(key, wrong_owner, LONG_MS, LONG_MS), what="acquire_queued() by an owner with NUL", secret=owner
    )


# ------------------------------------------------------------------------------------------- the races


@RACES.case(
    "Of many that wait, take, leave and release at once, one holds at a time, and each that stays has its turns",
    race="A release frees the lock, and grants it in a second step: between them somebody else takes it.",
)
async def turns_are_taken_alone(bench: Bench) -> None:
    key, inside, turns = bench.key(), [0], [0]
    workers = min(6, bench.setting.callers)

    async def wait_for_it(owner: str) -> None:
        while isinstance(await bench.ask_queued(key, owner), Held):
            listening = asyncio.get_running_loop().create_task(bench.store.granted(key, owner))
            await asyncio.wait([listening], timeout=_HEARD_WITHIN_S / 10)
            if listening.done() and listening.exception() is None:
                return
            listening.cancel()

    async def work(number: int) -> None:
        for turn in range(bench.setting.rounds):
            owner = bench.owner()
            if (number + turn) % 4 == 3:
                # One that does not stay: its release takes it out, or gives back what it was granted meanwhile.
                await bench.ask_queued(key, owner)
                await bench.store.release(key, owner)
                continue
            await wait_for_it(owner)
            inside[0] += 1
            bench.equal(inside[0], 1, what="the number of those who hold the key at once")
            await bench.store.renew(key, owner, LONG_MS)
            await asyncio.sleep(0)
            inside[0] -= 1
            turns[0] += 1
            bench.equal(await bench.store.release(key, owner), True, what="release() by who was granted the lock")

    await _together([work(number) for number in range(workers)])
    expected = sum((number + turn) % 4 != 3 for number in range(workers) for turn in range(bench.setting.rounds))
    bench.equal(turns[0], expected, what="the turns that were had")
    await bench.find_free(key, what="acquire() after everybody has released")


async def _together(works: "list[Coroutine[Any, Any, None]]") -> None:
    """Run *works* side by side, and raise the first failure by itself."""
    tasks = [asyncio.get_running_loop().create_task(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
