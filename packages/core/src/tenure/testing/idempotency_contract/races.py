"""The races: many callers at once, over and over, on whatever the store's calls really overlap on."""

import asyncio
from collections.abc import Iterable
from typing import Any

from tenure.idempotency_store import Acquired, AcquireReply, Completed, Completion, InFlight
from tenure.testing.idempotency_contract.bench import LONG_MS, OTHER_PAYLOAD, RecordBench
from tenure.testing.idempotency_contract.case import Rung

__all__ = ["RUNG"]

RUNG = Rung(1, races=True)


def _owners(bench: RecordBench, count: int | None = None) -> list[str]:
    return [bench.owner() for _ in range(count or bench.setting.callers)]


async def _race(bench: RecordBench, key: str, owners: Iterable[str]) -> list[AcquireReply]:
    return await asyncio.gather(*(bench.acquire(key, owner) for owner in owners))


def _one_begins(bench: RecordBench, replies: list[AcquireReply], attempt: int, *, what: str) -> int:
    """Require exactly one to begin among *replies*, and the others to be told so; return its place."""
    places = [place for place, reply in enumerate(replies) if isinstance(reply, Acquired)]
    bench.require(len(places) == 1, f"{len(places)} of {len(replies)} callers {what} began", "one")
    bench.equal(replies[places[0]], Acquired(attempt), what=f"the one that began of callers {what}")
    others = {type(reply).__name__ for place, reply in enumerate(replies) if place != places[0]}
    bench.require(others <= {"InFlight"}, f"the others of callers {what} were told {sorted(others)}", "InFlight")
    return places[0]


async def _abandoned(bench: RecordBench) -> dict[str, str]:
    """Leave an abandoned execution a round, and return their keys and owners."""
    owners = {bench.key(str(number)): bench.owner() for number in range(bench.setting.rounds)}
    for key, owner in owners.items():
        await bench.begin(key, owner, lock_ms=bench.short_ms)
    await bench.outlast(bench.short_ms)
    return owners


def _soon(call: Any) -> "asyncio.Task[Any]":
    return asyncio.get_running_loop().create_task(call)


@RUNG.case(
    "Of many requests that find a key new, one begins, round after round",
    race="A1. A client's retries reach three replicas at once, and all three place the order.",
)
async def absent_has_one_winner(bench: RecordBench) -> None:
    key = bench.key()
    for _ in range(bench.setting.rounds):
        owners = _owners(bench)
        replies = await _race(bench, key, owners)
        winner = owners[_one_begins(bench, replies, 1, what="that found a key new")]
        bench.equal(await bench.store.release(key, winner), True, what="release() by the winner")


@RUNG.case(
    "Of many requests that find an execution abandoned, one takes it over",
    race="A2. A replica is killed; the client's retries all notice in the same moment, and each runs again.",
)
async def abandoned_has_one_winner(bench: RecordBench) -> None:
    for key in await _abandoned(bench):
        replies = await _race(bench, key, _owners(bench))
        _one_begins(bench, replies, 2, what="that found an execution abandoned")


@RUNG.case(
    "Of many requests that find a record past its end, one begins",
    race="A1. A row that has ended is not yet deleted: each deletes it for the next, and all of them begin.",
)
async def ended_has_one_winner(bench: RecordBench) -> None:
    keys = [bench.key(str(number)) for number in range(bench.setting.rounds)]
    for key in keys:
        await bench.begin(key, lock_ms=1, grace_ms=1)
    await bench.outlast(2)
    for key in keys:
        replies = await _race(bench, key, _owners(bench))
        _one_begins(bench, replies, 1, what="that found a record past its end")


@RUNG.case(
    "Who asks while an execution completes is told that it is in flight, or given the response",
    race="A3. The key is freed before the response is stored, or read before and written after: a repetition runs.",
)
async def acquire_against_complete(bench: RecordBench) -> None:
    response = bytes(range(256)) * 64
    for number in range(bench.setting.rounds):
        key = bench.key(str(number))
        owner = await bench.begin(key)
        owners = _owners(bench)
        first = [_soon(bench.acquire(key, one)) for one in owners[::2]]
        completion = _soon(bench.store.complete(key, owner, response, LONG_MS))
        second = [_soon(bench.acquire(key, one)) for one in owners[1::2]]
        bench.equal(await completion, Completion.STORED, what="complete() amid repetitions")
        for reply in await asyncio.gather(*first, *second):
            if isinstance(reply, Completed):
                bench.require_completed(reply, response, owner, what="acquire() amid a completion")
            else:
                bench.require(isinstance(reply, InFlight), f"acquire() amid a completion gave {reply!r}", "InFlight")
        await bench.find_completed(key, response, owner, what="acquire() after a completion amid repetitions")


@RUNG.case(
    "Who asks while an execution is released is told that it is in flight, or begins, and one at most does",
    race="A4. The release and the next acquire cross: the next one's record is deleted, or two begin.",
)
async def acquire_against_release(bench: RecordBench) -> None:
    for number in range(bench.setting.rounds):
        key = bench.key(str(number))
        owner = await bench.begin(key)
        owners = _owners(bench)
        asking: list[asyncio.Task[AcquireReply]] = []
        releases: list[asyncio.Task[bool]] = []
        for place, one in enumerate(owners):
            # Between one release and the next: what the first has freed must not be freed again under who took it.
            if place < 3:
                releases.append(_soon(bench.store.release(key, owner)))
            asking.append(_soon(bench.acquire(key, one)))
        replies = await asyncio.gather(*asking)
        released = await asyncio.gather(*releases)
        bench.equal(sum(released), 1, what="the number of releases of one execution that were the first")
        begun = [one for one, reply in zip(owners, replies, strict=True) if isinstance(reply, Acquired)]
        bench.require(len(begun) <= 1, f"{len(begun)} callers began amid a release", "one at most")
        for reply in replies:
            right = isinstance(reply, InFlight) or reply == Acquired(1)
            bench.require(right, f"acquire() amid a release gave {reply!r}", "InFlight or Acquired(1)")
        if begun:
            await bench.completes(key, begun[0], what="complete() by the one that began amid a release")


@RUNG.case(
    "A purge amid acquires deletes nothing that has begun",
    rule=3,
    race="A5. The purge reads that a record has ended; it is begun anew; the purge deletes it under its execution.",
)
async def purge_against_acquire(bench: RecordBench) -> None:
    keys = {bench.key(str(number)): bench.owner() for number in range(4 * bench.setting.rounds)}
    for key in keys:
        await bench.begin(key, lock_ms=1, grace_ms=1)
    await bench.outlast(2)
    purges = [_soon(bench.store.purge(max(1, len(keys) // 4))) for _ in range(6)]
    begun = [_soon(bench.acquire(key, owner)) for key, owner in keys.items()]
    purges += [_soon(bench.store.purge(max(1, len(keys) // 4))) for _ in range(6)]
    for reply in await asyncio.gather(*begun):
        bench.equal(reply, Acquired(1), what="acquire() of a record past its end amid purges")
    await asyncio.gather(*purges)
    for key, owner in keys.items():
        bench.equal(await bench.store.extend(key, owner, LONG_MS), True, what="extend() by who began amid purges")


@RUNG.case(
    "An owner that asks many times at once has one execution",
    rule=5,
    race="A6. A driver's retry overtakes its first try: the record is of an attempt that nobody was told of.",
)
async def repeats_agree(bench: RecordBench) -> None:
    for key in await _abandoned(bench):
        owner = bench.owner()
        replies = await _race(bench, key, [owner] * min(8, bench.setting.callers))
        attempts = {reply.attempt if isinstance(reply, Acquired) else None for reply in replies}
        bench.require(attempts == {2}, f"one owner's tries gave the attempts {attempts}", "{2}")
        bench.equal(await bench.store.extend(key, owner, LONG_MS), True, what="extend() by that owner")


@RUNG.case(
    "Another payload that comes at the same moment never begins beside the first",
    rule=2,
    race="A8. The payload is compared in a read of its own: two orders under one key are both new.",
)
async def payloads_at_once(bench: RecordBench) -> None:
    for number in range(bench.setting.rounds):
        key = bench.key(str(number))
        asking = [
            bench.acquire(key, owner, OTHER_PAYLOAD) if place % 2 else bench.acquire(key, owner)
            for place, owner in enumerate(_owners(bench))
        ]
        replies = await asyncio.gather(*asking)
        winner = [place for place, reply in enumerate(replies) if isinstance(reply, Acquired)]
        bench.require(len(winner) == 1, f"{len(winner)} of two payloads' requests at once began", "one")
        for place, reply in enumerate(replies):
            told = type(reply).__name__
            expected = "Mismatch" if (place - winner[0]) % 2 else "InFlight"
            bench.require(place in winner or told == expected, f"a request beside the first was told {told}", expected)


@RUNG.case(
    "A late extension and a takeover never both succeed",
    rule=4,
    race="E1. A wakes and extends in the moment of the takeover: A and B both go on with the effect.",
)
async def extend_against_takeover(bench: RecordBench) -> None:
    for key, late in (await _abandoned(bench)).items():
        takers = _owners(bench, 4)
        before = [_soon(bench.acquire(key, taker)) for taker in takers[:2]]
        extension = _soon(bench.store.extend(key, late, LONG_MS))
        after = [_soon(bench.acquire(key, taker)) for taker in takers[2:]]
        replies = await asyncio.gather(*before, *after)
        extended = await extension
        begun = sum(isinstance(reply, Acquired) for reply in replies)
        bench.require(
            begun + extended == 1, f"a late extend() gave {extended}, and {begun} took over beside it", "one of them"
        )
        bench.equal(
            await bench.store.extend(key, late, LONG_MS), extended, what="extend() after that by the late owner"
        )


@RUNG.case(
    "Extensions that cross the completion leave the retention alone",
    rule=6,
    race="E2. A heartbeat reads that it is in flight, the completion is stored, the heartbeat writes its time over it.",
)
async def extend_against_complete(bench: RecordBench) -> None:
    owners = {bench.key(str(number)): bench.owner() for number in range(bench.setting.rounds)}
    for key, owner in owners.items():
        await bench.begin(key, owner, lock_ms=bench.short_ms, grace_ms=bench.short_ms)
        early = [_soon(bench.store.extend(key, owner, bench.short_ms)) for _ in range(3)]
        completion = _soon(bench.store.complete(key, owner, b"done", LONG_MS))
        late = [_soon(bench.store.extend(key, owner, bench.short_ms)) for _ in range(3)]
        bench.equal(await completion, Completion.STORED, what="complete() amid extensions")
        await asyncio.gather(*early, *late)
        bench.equal(await bench.store.extend(key, owner, 1), False, what="extend() after the completion")
    await bench.outlast(2 * bench.short_ms)
    for key, owner in owners.items():
        await bench.find_completed(key, b"done", owner, what="acquire() within the retention, extensions crossing it")


@RUNG.case(
    "Of a late completion and a takeover exactly one succeeds",
    rule=4,
    race="C3. A's response is stored under B, which runs: the client is answered, and the effect comes again.",
)
async def complete_against_takeover(bench: RecordBench) -> None:
    for key, late in (await _abandoned(bench)).items():
        takers = _owners(bench, 4)
        before = [_soon(bench.acquire(key, taker)) for taker in takers[:2]]
        completion = _soon(bench.store.complete(key, late, b"late", LONG_MS))
        after = [_soon(bench.acquire(key, taker)) for taker in takers[2:]]
        replies = await asyncio.gather(*before, *after)
        begun = [taker for taker, reply in zip(takers, replies, strict=True) if isinstance(reply, Acquired)]
        answer = await completion
        expected = Completion.STALE if begun else Completion.STORED
        bench.require(len(begun) <= 1, f"{len(begun)} callers took over amid a completion", "one at most")
        bench.equal(answer, expected, what=f"a late complete() amid takeovers, of which {len(begun)} succeeded,")
        if begun:
            await bench.completes(key, begun[0], b"fresh", what="complete() by the one that took over")
        await bench.find_completed(key, b"fresh" if begun else b"late", what="acquire() after that")


@RUNG.case(
    "Of many completions by one owner at once the first wins, and is what everyone is given",
    rule=5,
    race="C4. A retried completion overtakes the first one: a client is answered, and the next one otherwise.",
)
async def completions_agree(bench: RecordBench) -> None:
    for number in range(bench.setting.rounds):
        key = bench.key(str(number))
        owner = await bench.begin(key)
        responses = [str(place).encode() * 50 for place in range(min(8, bench.setting.callers))]
        seen: set[bytes] = set()

        async def complete_and_look(response: bytes, key: str = key, owner: str = owner) -> bytes:
            await bench.completes(key, owner, response)
            reply = await bench.look(key)
            if not isinstance(reply, Completed):
                bench.fail(f"acquire() after a completion gave {reply!r}", "Completed")
            return reply.response

        seen.update(await asyncio.gather(*(complete_and_look(response) for response in responses)))
        bench.require(len(seen) == 1, f"{len(seen)} responses were given to those who asked", "one")
        await bench.find_completed(key, seen.pop(), owner, what="acquire() after all completions")


@RUNG.case(
    "A late release and a takeover never leave two executions, nor none that is known of",
    rule=4,
    race="R1. A's release reads its own record, B takes over, the release deletes B's: C runs beside B.",
)
async def release_against_takeover(bench: RecordBench) -> None:
    for key, late in (await _abandoned(bench)).items():
        takers = _owners(bench, 4)
        before = [_soon(bench.acquire(key, taker)) for taker in takers[:2]]
        release = _soon(bench.store.release(key, late))
        after = [_soon(bench.acquire(key, taker)) for taker in takers[2:]]
        replies = await asyncio.gather(*before, *after)
        released = await release
        begun = [taker for taker, reply in zip(takers, replies, strict=True) if isinstance(reply, Acquired)]
        attempts = {reply.attempt for reply in replies if isinstance(reply, Acquired)}
        bench.require(len(begun) <= 1, f"{len(begun)} callers began amid a late release", "one at most")
        bench.require(
            attempts <= {1 if released else 2},
            f"a late release() gave {released}, and the attempts {attempts} began beside it",
            "the first after a release that succeeded, the second otherwise",
        )
        if begun:
            await bench.completes(key, begun[0], what="complete() by the one that began amid a late release")


@RUNG.case(
    "Of a release and a completion by one owner one succeeds, and the record says which",
    rule=6,
    race="R2. The client hangs up as the response is stored: the release deletes it, and the repetition runs again.",
)
async def release_against_complete(bench: RecordBench) -> None:
    for number in range(bench.setting.rounds):
        key = bench.key(str(number))
        owner = await bench.begin(key)
        order = [True, False, True] if number % 2 else [False, True, False]
        calls = [
            _soon(bench.store.complete(key, owner, b"done", LONG_MS) if stores else bench.store.release(key, owner))
            for stores in order
        ]
        answers = await asyncio.gather(*calls)
        stored = Completion.STORED in answers
        bench.require(
            stored != (True in answers), f"a completion and a release at once answered {answers}", "one to succeed"
        )
        if stored:
            await bench.find_completed(key, b"done", owner, what="acquire() after a completion that won over a release")
        else:
            await bench.find_absent(key, what="acquire() after a release that won over a completion")
