"""Rule 2: acquire classifies and takes in one step: another payload first, then what the record's state says."""

from tenure._idempotency_machine import RecordState
from tenure.idempotency_store import Abandoned, Acquired, Mismatch
from tenure.testing.idempotency_contract.bench import OTHER_PAYLOAD, RecordBench
from tenure.testing.idempotency_contract.case import Rung

__all__ = ["RUNG"]

RUNG = Rung(2)


async def _mismatches(bench: RecordBench, key: str, owner: str, state: RecordState, what: str) -> None:
    """Require another payload to be told so, whoever brings it and whatever they ask for."""
    for caller in (bench.owner(), owner):
        for takeover in (True, False):
            reply = await bench.acquire(key, caller, OTHER_PAYLOAD, takeover=takeover)
            by = "the owner" if caller is owner else "somebody else"
            bench.equal(reply, Mismatch(state), what=f"acquire() of {what} with another payload by {by}")


@RUNG.case(
    "Another payload in flight is a mismatch, before it is in flight",
    race="A8. A client's bug reuses the key for another order, is told to wait, and takes the first one's answer.",
)
async def mismatch_in_flight(bench: RecordBench) -> None:
    key = bench.key()
    owner = await bench.begin(key)
    await _mismatches(bench, key, owner, RecordState.IN_FLIGHT, "an execution in flight")
    await bench.find_in_flight(key, what="acquire() of the first payload after those")


@RUNG.case(
    "Another payload after a crash is a mismatch",
    race="A10. A process dies, and the key that it was at is taken for another order: one is lost, one runs twice.",
    waits=True,
)
async def mismatch_abandoned(bench: RecordBench) -> None:
    key = bench.key()
    owner = await bench.abandon(key)
    await _mismatches(bench, key, owner, RecordState.ABANDONED, "an abandoned execution")
    await bench.find_abandoned(key, what="acquire() of the first payload after those")


@RUNG.case(
    "Another payload after the outcome is a mismatch",
    race="A client is given the response of another request than the one it sent.",
)
async def mismatch_completed(bench: RecordBench) -> None:
    key = bench.key()
    owner = await bench.begin(key)
    await bench.completes(key, owner)
    await _mismatches(bench, key, owner, RecordState.COMPLETED, "a completed record")
    await bench.find_completed(key, b"done", owner, what="acquire() of the first payload after those")


@RUNG.case(
    "A mismatch writes nothing",
    race="A client's mistake takes the record over, or keeps a dead execution's lock alive.",
    waits=True,
)
async def mismatch_writes_nothing(bench: RecordBench) -> None:
    key = bench.key()
    owner = await bench.begin(key, lock_ms=bench.ttl_ms)
    await bench.pass_almost(bench.ttl_ms)
    for caller in (bench.owner(), owner):
        await bench.acquire(key, caller, OTHER_PAYLOAD)
    await bench.pass_the_end()
    await bench.find_abandoned(key, what="acquire() after the lock's end, mismatches before it notwithstanding")
    bench.equal(await bench.store.extend(key, owner, 1000), True, what="extend() by the owner after mismatches")


@RUNG.case(
    "Who is told that it is in flight writes nothing",
    race="Clients that repeat themselves keep the lock of a dead execution alive for ever.",
    waits=True,
)
async def in_flight_writes_nothing(bench: RecordBench) -> None:
    key = bench.key()
    await bench.begin(key, lock_ms=bench.ttl_ms)
    await bench.pass_almost(bench.ttl_ms)
    for takeover in (True, False):
        await bench.acquire(key, bench.owner(), takeover=takeover)
    await bench.pass_the_end()
    await bench.find_abandoned(key, what="acquire() after the lock's end, repetitions before it notwithstanding")


@RUNG.case(
    "An abandoned execution is shown to who takes nothing over, and left as it is",
    race="Asking counts as an attempt: a refused request ends the grace, or is told that it runs.",
    waits=True,
)
async def abandoned_is_shown(bench: RecordBench) -> None:
    key = bench.key()
    owner = await bench.abandon(key)
    for number in range(3):
        reply = await bench.acquire(key, bench.owner(), takeover=False)
        bench.equal(reply, Abandoned(1), what=f"look {number + 1} at an abandoned execution with takeover=False")
    bench.equal(await bench.store.extend(key, owner, 1000), True, what="extend() by its owner after looks at it")


@RUNG.case(
    "An abandoned execution is begun again as one attempt more, each time",
    race="A handler that runs again is told that it is the first, and charges without looking.",
    waits=True,
)
async def takeovers_are_counted(bench: RecordBench) -> None:
    key = bench.key()
    await bench.abandon(key)
    for attempt in (2, 3, 4):
        await bench.begin(
            key,
            lock_ms=bench.short_ms,
            attempt=attempt,
            what=f"acquire() of an execution abandoned {attempt - 1} times",
        )
        await bench.outlast(bench.short_ms)
    await bench.find_abandoned(key, 4, what="acquire() of an execution abandoned 4 times")


@RUNG.case(
    "A takeover keeps the payload of the first attempt",
    race="The row is written anew without its fingerprint: every repetition is refused, or any is taken.",
    waits=True,
)
async def takeover_keeps_the_payload(bench: RecordBench) -> None:
    key = bench.key()
    await bench.abandon(key)
    await bench.begin(key, attempt=2, what="acquire() of an abandoned execution")
    await bench.find_mismatch(key, RecordState.IN_FLIGHT, what="acquire() of a second attempt with another payload")
    await bench.find_in_flight(key, what="acquire() of a second attempt with its payload")


@RUNG.case(
    "The owner of an abandoned execution goes on without a takeover",
    race="A6. The reply was lost, the lock ran out meanwhile, and the caller takes its own execution for a dead one.",
    waits=True,
)
async def own_needs_no_takeover(bench: RecordBench) -> None:
    key = bench.key()
    owner = await bench.abandon(key)
    reply = await bench.acquire(key, owner, takeover=False)
    bench.equal(reply, Acquired(1), what="acquire() by the owner of an abandoned execution with takeover=False")


@RUNG.case(
    "What is left of a lock is told in whole milliseconds, at least one, and shrinks",
    race="A client is told to come back in zero seconds, or in as long as the response is kept.",
    waits=True,
)
async def what_is_left_is_told(bench: RecordBench) -> None:
    key = bench.key()
    owner = await bench.begin(key, lock_ms=bench.ttl_ms)
    first = await bench.find_in_flight(key, what="acquire() of an execution in flight")
    bench.left(first, 1, bench.ttl_ms, what="right after the acquisition")
    await bench.pass_ms(bench.ttl_ms / 2)
    half = await bench.find_in_flight(key, what="acquire() half-way through the lock")
    bench.left(half, 1, bench.ttl_ms - bench.ttl_ms // 2, what="half-way through the lock")
    await bench.store.extend(key, owner, 2 * bench.ttl_ms)
    extended = await bench.find_in_flight(key, what="acquire() after an extension")
    bench.left(extended, bench.ttl_ms, 2 * bench.ttl_ms, what="after an extension by two ttls")
    await bench.begin(bench.key("long"), lock_ms=2**40)
    left = await bench.find_in_flight(bench.key("long"), what="acquire() of an execution of decades")
    bench.left(left, 2**40 - 60_000, 2**40, what="of a lock of 2**40 ms")
