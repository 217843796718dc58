"""The races: many callers at once, over and over, on whatever the store's calls really overlap on."""

import asyncio
import itertools
import secrets
from collections.abc import Coroutine, Iterable
from typing import Any

from tenure.store import Acquired, Claim, Held, RenewsMany
from tenure.testing.contract.bench import LONG_MS, Bench
from tenure.testing.contract.case import Rung

__all__ = ["MANY_RACES", "RACES"]

RACES = Rung(1, races=True)
MANY_RACES = Rung(3, capability=RenewsMany, races=True)


async def _race(bench: Bench, key: str, owners: Iterable[str], ttl_ms: int = LONG_MS) -> list[Acquired | Held]:
    return await asyncio.gather(*(bench.acquire(key, owner, ttl_ms) for owner in owners))


def _one_wins(bench: Bench, replies: list[Acquired | Held], *, what: str) -> int:
    """Require exactly one grant among *replies*, and return its place."""
    places = [place for place, reply in enumerate(replies) if isinstance(reply, Acquired)]
    bench.require(len(places) == 1, f"{len(places)} of {len(replies)} callers {what} got the key", "one")
    return places[0]


def _owners(bench: Bench) -> list[str]:
    return [bench.owner() for _ in range(bench.setting.callers)]


@RACES.case(
    "Of many callers that find a key free, one wins, round after round",
    race="Three replicas fire the same tick, and all three export the invoices.",
)
async def free_key_has_one_winner(bench: Bench) -> None:
    key = bench.key()
    for _ in range(bench.setting.rounds):
        owners = _owners(bench)
        replies = await _race(bench, key, owners)
        winner = owners[_one_wins(bench, replies, what="that found a key free")]
        bench.equal(await bench.store.release(key, winner), True, what="release() by the winner")


@RACES.case(
    "Of many callers that find a lock expired, one takes it over",
    race="A holder is killed; all the others notice in the same poll, and each takes the job over.",
)
async def expired_lock_has_one_winner(bench: Bench) -> None:
    keys = [bench.key(str(number)) for number in range(bench.setting.rounds)]
    before = [await bench.take(key, ttl_ms=bench.short_ms) for key in keys]
    await bench.outlast(bench.short_ms)
    for key, grant in zip(keys, before, strict=True):
        replies = await _race(bench, key, _owners(bench))
        place = _one_wins(bench, replies, what="that found a lock expired")
        reply = replies[place]
        assert isinstance(reply, Acquired)
        bench.grows(grant.token, reply.token, "a takeover")


@RACES.case(
    "An owner whose lock expired cannot renew it while others take it over",
    rule=3,
    race="A wakes and renews in the moment of the takeover: its renewal and B's acquire both succeed.",
)
async def no_renewal_against_a_takeover(bench: Bench) -> None:
    keys = [bench.key(str(number)) for number in range(bench.setting.rounds)]
    owners = [bench.owner() for _ in keys]
    for key, paused in zip(keys, owners, strict=True):
        await bench.take(key, paused, bench.short_ms)
    await bench.outlast(bench.short_ms)
    for key, paused in zip(keys, owners, strict=True):
        renewal = asyncio.create_task(bench.store.renew(key, paused, LONG_MS))
        replies = await _race(bench, key, _owners(bench)[:4])
        bench.equal(await renewal, False, what="renew() of an expired lock amid takeovers")
        _one_wins(bench, replies, what="that found a lock expired")
        bench.equal(await bench.store.renew(key, paused, LONG_MS), False, what="renew() after the takeover")


@RACES.case(
    "A release that is sent twice frees no lock but its own",
    rule=3,
    race="The owner is checked in a read of its own: between it and the write, B takes the key that A frees.",
)
async def double_release_frees_one(bench: Bench) -> None:
    for number in range(bench.setting.rounds):
        key, owner, next_owner = bench.key(str(number)), bench.owner(), bench.owner()
        await bench.take(key, owner)
        releases = [asyncio.create_task(bench.store.release(key, owner)) for _ in range(4)]
        await _ask_until_in(bench, key, next_owner)
        answers = await asyncio.gather(*releases)
        bench.equal(sum(answers), 1, what="the number of releases, out of four, that gave the lock back")
        await bench.find_held(key, what="acquire() while the next owner holds the key")


@RACES.case(
    "A renewal that the release overtakes brings nothing back",
    rule=3,
    race="The owner is checked in a read of its own: between it and the write, A releases and B takes the key.",
)
async def overtaken_renewal_writes_nothing(bench: Bench) -> None:
    for number in range(bench.setting.rounds):
        key, owner, next_owner = bench.key(str(number)), bench.owner(), bench.owner()
        await bench.take(key, owner)
        renewals = [asyncio.create_task(bench.store.renew(key, owner, LONG_MS)) for _ in range(4)]
        release = asyncio.create_task(bench.store.release(key, owner))
        await _ask_until_in(bench, key, next_owner)
        await asyncio.gather(release, *renewals)
        bench.equal(await bench.store.renew(key, owner, LONG_MS), False, what="renew() by the owner that released")
        bench.equal(await bench.store.release(key, next_owner), True, what="release() by the next owner")


async def _ask_until_in(bench: Bench, key: str, owner: str) -> None:
    """Ask for *key* until it is granted, while calls that free it are on their way."""
    for _ in range(10_000):
        if isinstance(await bench.acquire(key, owner), Acquired):
            return
        await asyncio.sleep(0)
    bench.fail("a key whose owner had released it was never granted", "granted")


@RACES.case(
    "An owner that asks many times at once gets one lock, with one token",
    rule=4,
    race="A driver's retry overtakes its first try: the holder knows one token, and the store another.",
)
async def repeats_agree(bench: Bench) -> None:
    for number in range(bench.setting.rounds):
        key, owner = bench.key(str(number)), bench.owner()
        replies = await _race(bench, key, [owner] * min(8, bench.setting.callers))
        tokens = {reply.token if isinstance(reply, Acquired) else None for reply in replies}
        bench.require(len(tokens) == 1 and None not in tokens, f"one owner's tries gave the tokens {tokens}", "one")


@RACES.case(
    "Tokens grow in the order in which the locks were held",
    rule=5,
    race="A token is drawn before the key is locked: a later holder gets a smaller one, and its writes are refused.",
)
async def tokens_are_in_order(bench: Bench) -> None:
    key = bench.key()
    tokens: list[int] = []

    async def holder() -> None:
        for _ in range(bench.setting.rounds):
            owner = bench.owner()
            reply = await bench.acquire(key, owner)
            if isinstance(reply, Acquired):
                tokens.append(int(reply.token))
                await bench.store.release(key, owner)

    await asyncio.gather(*(holder() for _ in range(bench.setting.callers)))
    bench.require(len(tokens) > 0, "nobody ever got the key", "held in turn")
    for before, after in itertools.pairwise(tokens):
        bench.grows(before, after, "a hand-over")


@RACES.case(
    "A counter that only its holder touches loses no count",
    race="Two holders read the same stock, and one of two deliveries is lost.",
)
async def counter_loses_nothing(bench: Bench) -> None:
    key, counter, expected = bench.key(), [0], [0]

    async def deliver() -> None:
        for _ in range(bench.setting.rounds):
            owner = bench.owner()
            if not isinstance(await bench.acquire(key, owner), Acquired):
                continue
            expected[0] += 1
            read = counter[0]
            # Work between the read and the write: what a second holder would have to slip into.
            await bench.store.renew(key, owner, LONG_MS)
            await asyncio.sleep(0)
            counter[0] = read + 1
            await bench.store.release(key, owner)

    await asyncio.gather(*(deliver() for _ in range(bench.setting.callers)))
    bench.equal(counter[0], expected[0], what="the counter of what was done under the lock")
    bench.require(expected[0] > 0, "nobody ever got the key", "held in turn")


@RACES.case(
    "Names are locks of their own, fifteen hundred of them at once",
    rule=6,
    race="The key is hashed to sixteen bits: jobs that have nothing to do with each other exclude each other.",
)
async def names_do_not_collide(bench: Bench) -> None:
    # Of 65 536 hashes, fifteen hundred names share one but for a chance of one in ten million.
    keys = iter([bench.key(f"job-{secrets.token_hex(8)}") for _ in range(1500)])

    async def take_some() -> None:
        for key in keys:
            owner = bench.owner()
            await bench.take(key, owner, LONG_MS, what="acquire() of a name that is like no other")
            taken.append((key, owner))

    taken: list[tuple[str, str]] = []
    await _together(take_some() for _ in range(bench.setting.callers))
    giving = iter(taken)

    async def give_some() -> None:
        for key, owner in giving:
            await bench.store.release(key, owner)

    await _together(give_some() for _ in range(bench.setting.callers))
    bench.forget()


async def _together(workers: Iterable[Coroutine[Any, Any, None]]) -> None:
    async with asyncio.TaskGroup() as group:
        for worker in workers:
            group.create_task(worker)


@MANY_RACES.case(
    "Many renewals of the same locks in opposite orders all end",
    race="Two instances' rows are locked crosswise: the database ends one of them with a deadlock.",
)
async def opposite_orders_end(bench: Bench) -> None:
    owner = bench.owner()
    keys = [bench.key(str(number)) for number in range(40)]
    for key in keys:
        await bench.take(key, owner)
    claims = [Claim(key, owner, LONG_MS) for key in keys]
    for _ in range(bench.setting.rounds):
        orders = (claims, claims[::-1]) * 2
        for answers in await asyncio.gather(*(bench.store.renew_many(order) for order in orders)):
            # None is right here: these calls may find each other's rows locked.
            wrong = [answer for answer in answers if answer not in (True, None)]
            bench.equal(wrong, [], what="the refusals among renewals of live locks in opposite orders")
