"""Rule 6: extend never shortens what is left; nothing but time removes a completed record."""

from tenure.idempotency_store import Completion
from tenure.testing.idempotency_contract.bench import LONG_MS, OTHER_PAYLOAD, RecordBench
from tenure.testing.idempotency_contract.case import Rung

__all__ = ["RUNG"]

RUNG = Rung(6)


@RUNG.case(
    "An extension by less than what is left shortens nothing",
    race="E4. Two extensions overtake each other on their way, and the older one ends the lock of the newer.",
    waits=True,
)
async def extend_never_shortens(bench: RecordBench) -> None:
    key = bench.key()
    owner = await bench.begin(key)
    bench.equal(await bench.store.extend(key, owner, bench.short_ms), True, what="extend() by less than is left")
    await bench.outlast(bench.short_ms)
    await bench.find_in_flight(key, what="acquire() after the briefer of two extensions")


@RUNG.case(
    "An extension by less than what is left leaves the record's end where it was",
    race="E4. The lock stays and the record's end does not: it vanishes under an execution that is alive.",
    waits=True,
)
async def extend_keeps_the_records_end(bench: RecordBench) -> None:
    key = bench.key()
    owner = await bench.begin(key, lock_ms=bench.ttl_ms, grace_ms=bench.ttl_ms)
    bench.equal(await bench.store.extend(key, owner, 1), True, what="extend() by less than is left")
    await bench.pass_almost(2 * bench.ttl_ms)
    await bench.find_abandoned(key, what="acquire() just before the record's end, a brief extension notwithstanding")


@RUNG.case(
    "An acquire that is sent again for less than what is left shortens nothing",
    race="E4. The first try of an acquire arrives behind the extension that followed it, and ends its lock.",
    waits=True,
)
async def repeated_acquire_never_shortens(bench: RecordBench) -> None:
    key = bench.key()
    owner = await bench.begin(key)
    await bench.begin(key, owner, lock_ms=bench.short_ms, what="acquire() by the recorded owner again")
    await bench.outlast(bench.short_ms)
    await bench.find_in_flight(key, what="acquire() after the briefer of an owner's two acquires")


@RUNG.case(
    "An extension is counted from now, and not added to what is left",
    race="A heartbeat every second adds half a minute each time: a crash blocks the key for a day.",
    waits=True,
)
async def extend_does_not_add(bench: RecordBench) -> None:
    key = bench.key()
    owner = await bench.begin(key, lock_ms=bench.ttl_ms)
    for _ in range(3):
        await bench.store.extend(key, owner, bench.ttl_ms)
    await bench.outlast(bench.ttl_ms)
    await bench.find_abandoned(key, what="acquire() a ttl after extensions by as much")


@RUNG.case(
    "An extension after the completion is refused, and leaves the retention as it is",
    race="E2. A heartbeat that overtakes the completion sets the time of the lock on the response: it is forgotten.",
    waits=True,
)
async def extend_after_complete(bench: RecordBench) -> None:
    brief, long = bench.key("brief"), bench.key("long")
    owner = await bench.begin(brief)
    await bench.begin(long, owner, lock_ms=bench.short_ms, grace_ms=bench.short_ms)
    await bench.completes(brief, owner, retention_ms=bench.short_ms)
    await bench.completes(long, owner)
    for key, ttl_ms in ((brief, LONG_MS), (long, 1)):
        extended = await bench.store.extend(key, owner, ttl_ms)
        bench.equal(extended, False, what="extend() by the owner after its complete()")
    await bench.outlast(2 * bench.short_ms)
    await bench.find_completed(long, b"done", owner, what="acquire() within the retention, an extend() notwithstanding")
    await bench.find_absent(brief, what="acquire() after the retention, an extend() notwithstanding")


@RUNG.case(
    "A release after the completion is refused, and the response stays",
    race="R2. The client hangs up after the response was stored, the handler releases, and the repetition runs again.",
)
async def release_after_complete(bench: RecordBench) -> None:
    key = bench.key()
    owner = await bench.begin(key)
    await bench.completes(key, owner)
    bench.equal(await bench.store.release(key, owner), False, what="release() by the owner after its complete()")
    bench.equal(await bench.store.release(key, bench.owner()), False, what="release() of an outcome by another owner")
    await bench.find_completed(key, b"done", owner, what="acquire() after the releases")


@RUNG.case(
    "No call of anyone's changes a completed record",
    race="An outcome that was given to one client is taken back from the next.",
)
async def completed_is_immutable(bench: RecordBench) -> None:
    key = bench.key()
    owner = await bench.begin(key)
    await bench.completes(key, owner)
    for caller in (owner, bench.owner()):
        for takeover in (True, False):
            await bench.acquire(key, caller, takeover=takeover)
            await bench.acquire(key, caller, OTHER_PAYLOAD, takeover=takeover)
        await bench.store.extend(key, caller, LONG_MS)
        answer = await bench.store.complete(key, caller, b"another", 1)
        bench.equal(
            answer, Completion.STORED if caller is owner else Completion.STALE, what="complete() of a completed record"
        )
        await bench.store.release(key, caller)
    await bench.find_completed(key, b"done", owner, what="acquire() after every call by everyone")
