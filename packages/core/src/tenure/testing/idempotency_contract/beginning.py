"""Rule 1: each method is one atomic step on its key, and of any number of callers of a free key one acquires."""

import asyncio

from tenure.idempotency_store import Acquired, InFlight
from tenure.testing.idempotency_contract.bench import RecordBench
from tenure.testing.idempotency_contract.case import Rung

__all__ = ["RUNG"]

RUNG = Rung(1)


@RUNG.case(
    "An absent record is begun by who asks, as the first attempt",
    race="A request that nobody sent before is refused, or told that it may be a repetition.",
)
async def absent_is_begun(bench: RecordBench) -> None:
    await bench.begin(bench.key(), what="acquire() of a key that nobody has used")


@RUNG.case(
    "An absent record is begun also by who takes nothing over",
    race="A route that refuses to repeat what was abandoned refuses what was never begun.",
)
async def absent_needs_no_takeover(bench: RecordBench) -> None:
    reply = await bench.acquire(bench.key(), bench.owner(), takeover=False)
    bench.equal(reply, Acquired(1), what="acquire() of an absent record with takeover=False")


@RUNG.case(
    "An execution in flight is nobody else's, however often they ask",
    race="A client repeats its request every second, is let in at last, and the order is placed twice.",
)
async def in_flight_is_refused(bench: RecordBench) -> None:
    key, client = bench.key(), bench.owner()
    await bench.begin(key)
    for number in range(1, 6):
        reply = await bench.acquire(key, client, takeover=number % 2 == 1)
        bench.require(
            isinstance(reply, InFlight), f"repetition {number} of a request in flight gave {reply!r}", "InFlight"
        )


@RUNG.case(
    "A record on one key holds up no other key",
    race="A slow export keeps every other request of its instance from running.",
)
async def keys_are_independent(bench: RecordBench) -> None:
    owner = bench.owner()
    for label in ("first", "second", "third"):
        await bench.begin(bench.key(label), owner, what="acquire() of an absent record by an owner that has others")
    await bench.store.release(bench.key("first"), owner)
    await bench.completes(bench.key("third"), owner)
    await bench.find_in_flight(bench.key("second"), what="acquire() after its owner's other records were settled")


@RUNG.case(
    "Of two requests that come at the same moment, one begins",
    race="A1. Both read that the key is new, then both write that it is theirs: both run.",
)
async def one_of_two_begins(bench: RecordBench) -> None:
    for number in range(5):
        key = bench.key(str(number))
        replies = await asyncio.gather(bench.acquire(key, bench.owner()), bench.acquire(key, bench.owner()))
        begun = sum(isinstance(reply, Acquired) for reply in replies)
        bench.require(begun == 1, f"{begun} of two simultaneous requests began", "one")


@RUNG.case(
    "What is said to be begun is kept under its owner, also where a record has ended",
    race="A9. The record that stood in the way is gone at the second look, and the caller proceeds without one.",
    waits=True,
)
async def begun_is_recorded(bench: RecordBench) -> None:
    fresh, ended = bench.key("fresh"), bench.key("ended")
    await bench.begin(ended, lock_ms=1, grace_ms=1)
    await bench.outlast(2)
    for key in (fresh, ended):
        owner = await bench.begin(key)
        extended = await bench.store.extend(key, owner, 1000)
        bench.equal(extended, True, what="extend() right after acquire() by its owner")
        await bench.find_in_flight(key, what="acquire() by somebody else right after")
