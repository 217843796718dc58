"""Rule 5: acquire and complete are safe to repeat by their owner; the first completion wins."""

from tenure.idempotency_store import Acquired, Completion
from tenure.testing.idempotency_contract.bench import LONG_MS, RecordBench
from tenure.testing.idempotency_contract.case import Rung

__all__ = ["RUNG"]

RUNG = Rung(5)


@RUNG.case(
    "An acquire that is sent again gets the same attempt",
    race="A6. The reply is lost; the caller asks again, meets its own record, and is refused until its lock ends.",
)
async def acquire_is_repeated(bench: RecordBench) -> None:
    key = bench.key()
    owner = await bench.begin(key)
    for _ in range(3):
        await bench.begin(key, owner, what="acquire() by the recorded owner again")
    await bench.find_in_flight(key, what="acquire() by somebody else after those")


@RUNG.case(
    "An acquire that is sent again extends the lock",
    race="A6. The second try comes late in the lock of the first, and the execution is taken over as it begins.",
    waits=True,
)
async def repeated_acquire_extends(bench: RecordBench) -> None:
    key = bench.key()
    owner = await bench.begin(key, lock_ms=bench.ttl_ms)
    await bench.pass_ms(bench.ttl_ms / 2)
    await bench.begin(key, owner, lock_ms=bench.ttl_ms, what="acquire() by the recorded owner again")
    await bench.pass_ms(bench.ttl_ms * 3 / 4)
    await bench.find_in_flight(key, what="acquire() after the first lock's end, within that of its repetition")


@RUNG.case(
    "An acquire that is sent again after the lock's end is in flight again, as the same attempt",
    race="A6. The reply is lost for longer than the lock: the caller is told that somebody ran before it.",
    waits=True,
)
async def late_acquire_is_repeated(bench: RecordBench) -> None:
    key = bench.key()
    owner = await bench.abandon(key)
    await bench.begin(key, owner, what="acquire() by the owner of an abandoned execution")
    await bench.find_in_flight(key, what="acquire() by somebody else after that")


@RUNG.case(
    "The second attempt that is sent again is the second",
    race="A6. A repetition of a repetition is counted: the handler is told of executions that never were.",
    waits=True,
)
async def second_attempt_is_repeated(bench: RecordBench) -> None:
    key = bench.key()
    await bench.abandon(key)
    owner = await bench.begin(key, attempt=2, what="acquire() of an abandoned execution")
    await bench.begin(key, owner, attempt=2, what="acquire() by the owner of the second attempt again")
    # Attempts are counted from the record: an owner that has nothing to do with it is none of them.
    await bench.find_in_flight(key, what="acquire() by somebody else after that")


@RUNG.case(
    "An acquire that is sent again keeps the grace that was recorded",
    race="Two tries with two settings leave a record whose end neither of them knows.",
    waits=True,
)
async def repeated_acquire_keeps_the_grace(bench: RecordBench) -> None:
    longer, briefer = bench.key("longer"), bench.key("briefer")
    owner = await bench.begin(longer, lock_ms=bench.short_ms, grace_ms=LONG_MS)
    await bench.begin(briefer, owner, lock_ms=bench.short_ms, grace_ms=bench.short_ms)
    what = "acquire() by the recorded owner again"
    await bench.begin(longer, owner, lock_ms=bench.short_ms, grace_ms=1, what=what)
    await bench.begin(briefer, owner, lock_ms=bench.short_ms, what=what)
    await bench.outlast(2 * bench.short_ms)
    await bench.find_abandoned(longer, what="acquire() within the grace that was recorded")
    await bench.find_absent(briefer, what="acquire() after the grace that was recorded")


@RUNG.case(
    "A replaced owner that asks again is somebody else",
    race="A's first reply was lost and B took over: A's second try takes the record back from B.",
    waits=True,
)
async def replaced_owner_is_somebody_else(bench: RecordBench) -> None:
    key = bench.key()
    replaced = await bench.abandon(key)
    successor = await bench.begin(key, attempt=2, what="acquire() of an abandoned execution")
    reply = await bench.acquire(key, replaced)
    bench.require(not isinstance(reply, Acquired), f"acquire() by a replaced owner gave {reply!r}", "InFlight")
    await bench.completes(key, successor, what="complete() by the successor after that")


@RUNG.case(
    "An owner that asks again after its completion is given the outcome",
    race="A caller whose replies were all lost runs what it has completed.",
)
async def own_outcome_is_given(bench: RecordBench) -> None:
    key = bench.key()
    owner = await bench.begin(key)
    await bench.completes(key, owner)
    reply = await bench.acquire(key, owner)
    bench.require_completed(reply, b"done", owner, what="acquire() by the owner that completed")


@RUNG.case(
    "A completion that is sent again is stored, and the first one's bytes stay",
    race="C4. The reply is lost, the repetition carries another date: two clients are given two answers.",
)
async def complete_is_repeated(bench: RecordBench) -> None:
    key = bench.key()
    owner = await bench.begin(key)
    await bench.completes(key, owner, b"first")
    for response in (b"second", b"first", b""):
        await bench.completes(key, owner, response, what="complete() by the owner that completed")
        await bench.find_completed(key, b"first", owner, what="acquire() after a repeated complete()")


@RUNG.case(
    "A completion that is sent again leaves the retention as it is",
    race="C4. Each repetition begins the retention anew, or ends it: when the key is free again is anyone's guess.",
    waits=True,
)
async def repeated_complete_keeps_the_retention(bench: RecordBench) -> None:
    brief, long = bench.key("brief"), bench.key("long")
    owner = await bench.begin(brief)
    await bench.begin(long, owner)
    await bench.completes(brief, owner, retention_ms=bench.short_ms)
    await bench.completes(long, owner)
    await bench.completes(brief, owner, what="complete() by the owner that completed")
    await bench.completes(long, owner, retention_ms=1, what="complete() by the owner that completed")
    await bench.outlast(bench.short_ms)
    await bench.find_completed(long, b"done", owner, what="acquire() within the first completion's retention")
    await bench.find_absent(brief, what="acquire() after the first completion's retention")


@RUNG.case(
    "An owner stays the owner, however often it extends",
    race="E5. extend() draws a new owner, its reply is lost, and the execution cannot store what it did.",
)
async def owner_stays(bench: RecordBench) -> None:
    key = bench.key()
    owner = await bench.begin(key)
    for _ in range(3):
        bench.equal(await bench.store.extend(key, owner, LONG_MS), True, what="extend() by the owner, again")
    await bench.completes(key, owner, what="complete() by the owner after extensions")
    await bench.find_completed(key, b"done", owner, what="acquire() after that")


@RUNG.case(
    "A completion after the owner's own release is gone, and stale once somebody else began",
    race="C5. A request is released and completed after all: its response is given to the next one's client.",
)
async def complete_after_release(bench: RecordBench) -> None:
    key = bench.key()
    owner = await bench.begin(key)
    bench.equal(await bench.store.release(key, owner), True, what="release() by the owner")
    completed = await bench.store.complete(key, owner, b"late", LONG_MS)
    bench.equal(completed, Completion.GONE, what="complete() by an owner that released")
    successor = await bench.begin(key, what="acquire() after a release and a late complete()")
    completed = await bench.store.complete(key, owner, b"late", LONG_MS)
    bench.equal(completed, Completion.STALE, what="complete() by an owner that released, once somebody else began,")
    await bench.completes(key, successor, what="complete() by the one that began after the release")
    await bench.find_completed(key, b"done", successor, what="acquire() after that")
