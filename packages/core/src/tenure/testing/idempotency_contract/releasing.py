"""Rule 7: release says that this execution had no effect, and nothing of the ones before it."""

from tenure._idempotency_machine import RecordState
from tenure.idempotency_store import Completion
from tenure.testing.idempotency_contract.bench import LONG_MS, OTHER_PAYLOAD, RecordBench
from tenure.testing.idempotency_contract.case import Rung

__all__ = ["RUNG"]

RUNG = Rung(7)


async def _second_released(bench: RecordBench, key: str, *, grace_ms: int = LONG_MS) -> str:
    """Release the second attempt under *key*, and return its owner."""
    await bench.abandon(key)
    owner = await bench.begin(key, attempt=2, grace_ms=grace_ms, what="acquire() of an abandoned execution")
    bench.equal(await bench.store.release(key, owner), True, what="release() by the owner of the second attempt")
    return owner


@RUNG.case(
    "A first attempt that is released is forgotten",
    race="A request that was refused for its form blocks the key of its correction until the lock ends.",
)
async def first_is_forgotten(bench: RecordBench) -> None:
    key = bench.key()
    owner = await bench.begin(key)
    bench.equal(await bench.store.release(key, owner), True, what="release() by the owner")
    bench.equal(await bench.store.release(key, owner), False, what="release() by the owner that released")
    bench.equal(await bench.store.extend(key, owner, LONG_MS), False, what="extend() by the owner that released")
    await bench.find_absent(key, OTHER_PAYLOAD, what="acquire() with another payload after the release")


@RUNG.case(
    "A late owner whom nobody replaced releases",
    race="A handler that ended without an effect, a moment after its lock, leaves a record that says otherwise.",
    waits=True,
)
async def late_owner_releases(bench: RecordBench) -> None:
    key = bench.key()
    owner = await bench.abandon(key)
    bench.equal(await bench.store.release(key, owner), True, what="release() of the owner's own ended lock")
    await bench.find_absent(key, OTHER_PAYLOAD, what="acquire() with another payload after the release")


@RUNG.case(
    "A second attempt that is released leaves what is not known of the first",
    race="A dies in its effect, B is refused for its form and releases: C is told that it is the first, and charges.",
    waits=True,
)
async def second_is_not_forgotten(bench: RecordBench) -> None:
    key = bench.key()
    await _second_released(bench, key)
    await bench.find_abandoned(key, 2, what="acquire() after the release of the second attempt")
    await bench.begin(key, attempt=3, what="acquire() after the release of the second attempt")


@RUNG.case(
    "The payload of a second attempt that is released still guards the key",
    race="A10. The release frees the key for another order, while what became of the first is unknown.",
    waits=True,
)
async def released_second_keeps_its_payload(bench: RecordBench) -> None:
    key = bench.key()
    await _second_released(bench, key)
    await bench.find_mismatch(key, RecordState.ABANDONED, what="acquire() with another payload after that release")


@RUNG.case(
    "Who released a second attempt owns nothing any more",
    race="C5. A request is released and completed after all, or released twice, the second time under its successor.",
    waits=True,
)
async def released_second_has_no_owner(bench: RecordBench) -> None:
    key = bench.key()
    owner = await _second_released(bench, key)
    bench.equal(await bench.store.release(key, owner), False, what="release() by the owner that released")
    bench.equal(await bench.store.extend(key, owner, LONG_MS), False, what="extend() by the owner that released")
    completed = await bench.store.complete(key, owner, b"late", LONG_MS)
    bench.equal(completed, Completion.STALE, what="complete() by the owner that released a second attempt")
    await bench.begin(key, owner, attempt=3, what="acquire() by the owner that released")


@RUNG.case(
    "A second attempt that is released late leaves what is not known of the first",
    race="The release comes after the lock's end, takes the way of the ended, and deletes what it has to keep.",
    waits=True,
)
async def late_second_is_not_forgotten(bench: RecordBench) -> None:
    key = bench.key()
    await bench.abandon(key)
    what = "acquire() of an abandoned execution"
    owner = await bench.begin(key, lock_ms=bench.short_ms, attempt=2, what=what)
    await bench.outlast(bench.short_ms)
    bench.equal(await bench.store.release(key, owner), True, what="release() of a second attempt after its lock's end")
    await bench.find_abandoned(key, 2, what="acquire() after the late release of a second attempt")


@RUNG.case(
    "A second attempt that is released is kept for its grace from then on",
    race="The lock of an execution that has ended counts on: its record outlives its grace, or never ends.",
    waits=True,
)
async def released_second_has_its_grace(bench: RecordBench) -> None:
    key = bench.key()
    await _second_released(bench, key, grace_ms=bench.ttl_ms)
    await bench.pass_almost(bench.ttl_ms)
    await bench.find_abandoned(key, 2, what="acquire() just before the grace after the release has ended")
    await bench.pass_the_end()
    await bench.find_absent(key, OTHER_PAYLOAD, what="acquire() just after the grace after the release has ended")


@RUNG.case(
    "A second attempt completes as a first one does",
    race="The count of attempts is in the way of the outcome: what was begun twice never ends.",
    waits=True,
)
async def second_completes(bench: RecordBench) -> None:
    key = bench.key()
    await bench.abandon(key)
    owner = await bench.begin(key, attempt=2, what="acquire() of an abandoned execution")
    await bench.completes(key, owner, b"second", what="complete() by the owner of the second attempt")
    bench.equal(await bench.store.release(key, owner), False, what="release() after that")
    await bench.find_completed(key, b"second", owner, what="acquire() after that")
