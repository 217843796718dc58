"""Rule 4: only the recorded owner extends, completes and releases, and only a takeover takes that from it."""

from tenure.idempotency_store import Completion
from tenure.testing.idempotency_contract.bench import LONG_MS, RecordBench
from tenure.testing.idempotency_contract.case import Rung

__all__ = ["RUNG"]

RUNG = Rung(4)


async def _taken_over(bench: RecordBench, key: str, *, lock_ms: int = LONG_MS) -> tuple[str, str]:
    """Have an execution under *key* replaced, and return the owners: who was, and who is."""
    replaced = await bench.abandon(key)
    successor = await bench.begin(key, lock_ms=lock_ms, attempt=2, what="acquire() of an abandoned execution")
    return replaced, successor


# ----------------------------------------------------------------------------------------- extend


@RUNG.case(
    "The owner extends its lock, time after time",
    race="A slow export loses its key half-way, and a repetition runs beside it.",
    waits=True,
)
async def owner_extends(bench: RecordBench) -> None:
    key = bench.key()
    owner = await bench.begin(key, lock_ms=bench.ttl_ms)
    for _ in range(3):
        await bench.pass_ms(bench.ttl_ms / 4)
        extended = await bench.store.extend(key, owner, bench.ttl_ms)
        bench.equal(extended, True, what="extend() by the owner within its lock")
    await bench.pass_ms(bench.ttl_ms / 2)
    await bench.find_in_flight(key, what="acquire() of an extended execution after its first lock would have ended")


@RUNG.case(
    "Nobody else extends",
    race="Whoever knows the key keeps it from everyone, for ever.",
    waits=True,
)
async def stranger_does_not_extend(bench: RecordBench) -> None:
    key = bench.key()
    await bench.begin(key, lock_ms=bench.short_ms)
    bench.equal(await bench.store.extend(key, bench.owner(), LONG_MS), False, what="extend() by another owner")
    await bench.outlast(bench.short_ms)
    await bench.find_abandoned(key, what="acquire() after the lock's end, another owner's extend() notwithstanding")
    extended = await bench.store.extend(key, bench.owner(), LONG_MS)
    bench.equal(extended, False, what="extend() of an abandoned execution by another owner")
    await bench.find_abandoned(key, what="acquire() of an abandoned execution after another owner's extend()")


@RUNG.case(
    "Nothing is extended, completed or released where there is no record",
    race="A late heartbeat makes a record of nothing, or a response is stored that no request asked for.",
)
async def absent_is_nobodys(bench: RecordBench) -> None:
    key, owner = bench.key(), bench.owner()
    bench.equal(await bench.store.extend(key, owner, LONG_MS), False, what="extend() of an absent record")
    bench.equal(await bench.store.release(key, owner), False, what="release() of an absent record")
    completed = await bench.store.complete(key, owner, b"done", LONG_MS)
    bench.equal(completed, Completion.GONE, what="complete() of an absent record")
    await bench.find_absent(key, what="acquire() after calls on an absent record")


@RUNG.case(
    "A replaced owner does not extend, and leaves its successor's lock alone",
    race="E1. A pauses, B takes over, A extends by key alone: B dies, and its lock lives on.",
    waits=True,
)
async def replaced_does_not_extend(bench: RecordBench) -> None:
    key = bench.key()
    replaced, _ = await _taken_over(bench, key, lock_ms=bench.ttl_ms)
    extended = await bench.store.extend(key, replaced, LONG_MS)
    bench.equal(extended, False, what="extend() by a replaced owner")
    await bench.outlast(bench.ttl_ms)
    await bench.find_abandoned(key, 2, what="acquire() after the successor's lock, a replaced extend() notwithstanding")


@RUNG.case(
    "A late owner whom nobody replaced extends, and is in flight again",
    race="E3. A process sleeps past its lock and goes on with its effect, while the store calls it dead.",
    waits=True,
)
async def late_owner_extends(bench: RecordBench) -> None:
    key = bench.key()
    owner = await bench.abandon(key)
    bench.equal(await bench.store.extend(key, owner, LONG_MS), True, what="extend() of the owner's own ended lock")
    await bench.find_in_flight(key, what="acquire() after a late extend()")


@RUNG.case(
    "An owner whose record has ended extends nothing",
    race="What the store promised to forget comes back, with a payload that nobody knows.",
    waits=True,
)
async def ended_is_nobodys(bench: RecordBench) -> None:
    keys = {label: bench.key(label) for label in ("extend", "complete", "release", "completed")}
    owner = bench.owner()
    await bench.begin(keys["completed"], owner)
    await bench.completes(keys["completed"], owner, retention_ms=bench.short_ms)
    for label in ("extend", "complete", "release"):
        await bench.begin(keys[label], owner, lock_ms=bench.short_ms, grace_ms=1)
    await bench.outlast(bench.short_ms + 1)
    extended = await bench.store.extend(keys["extend"], owner, LONG_MS)
    bench.equal(extended, False, what="extend() by the owner of a record past its grace")
    for label in ("complete", "completed"):
        completed = await bench.store.complete(keys[label], owner, b"late", LONG_MS)
        bench.equal(completed, Completion.GONE, what="complete() by the owner of a record past its end")
    released = await bench.store.release(keys["release"], owner)
    bench.equal(released, False, what="release() by the owner of a record past its grace")
    for label, key in keys.items():
        await bench.find_absent(key, what=f"acquire() of a record past its end, after a late call ({label})")


# --------------------------------------------------------------------------------------- complete


@RUNG.case(
    "The owner completes, and everyone who repeats the request is given the response",
    race="The response is stored where nobody looks for it: a repetition runs again.",
)
async def owner_completes(bench: RecordBench) -> None:
    key = bench.key()
    owner = await bench.begin(key)
    await bench.completes(key, owner, b"order 7")
    for _ in range(2):
        await bench.find_completed(key, b"order 7", owner, what="acquire() after complete()")


@RUNG.case(
    "Nobody else completes",
    race="Whoever knows the key answers another's request.",
    waits=True,
)
async def stranger_does_not_complete(bench: RecordBench) -> None:
    key = bench.key()
    owner = await bench.begin(key, lock_ms=bench.short_ms)
    completed = await bench.store.complete(key, bench.owner(), b"forged", LONG_MS)
    bench.equal(completed, Completion.STALE, what="complete() by another owner")
    await bench.outlast(bench.short_ms)
    completed = await bench.store.complete(key, bench.owner(), b"forged", LONG_MS)
    bench.equal(completed, Completion.STALE, what="complete() of an abandoned execution by another owner")
    await bench.completes(key, owner, what="complete() by the owner after others'")
    completed = await bench.store.complete(key, bench.owner(), b"forged", LONG_MS)
    bench.equal(completed, Completion.STALE, what="complete() of a completed record by another owner")
    await bench.find_completed(key, b"done", owner, what="acquire() after others' complete()")


@RUNG.case(
    "A late owner whom nobody replaced completes",
    race="C3. A handler outlives its lock by a second, its effect stands, and its response is thrown away.",
    waits=True,
)
async def late_owner_completes(bench: RecordBench) -> None:
    key = bench.key()
    owner = await bench.abandon(key)
    await bench.completes(key, owner, what="complete() after the lock's end, when nobody took over,")
    await bench.find_completed(key, b"done", owner, what="acquire() after a late complete()")


@RUNG.case(
    "A replaced owner does not complete what its successor is at",
    race="C1. A pauses, B takes over, A stores its response: B's client is given what B did not do.",
    waits=True,
)
async def replaced_does_not_complete(bench: RecordBench) -> None:
    key = bench.key()
    replaced, successor = await _taken_over(bench, key)
    completed = await bench.store.complete(key, replaced, b"stale", LONG_MS)
    bench.equal(completed, Completion.STALE, what="complete() by a replaced owner")
    await bench.find_in_flight(key, what="acquire() after a replaced owner's complete()")
    await bench.completes(key, successor, what="complete() by the successor")


@RUNG.case(
    "A replaced owner does not overwrite its successor's response",
    race="C2. B has answered; A wakes and completes, and every repetition is given A's answer.",
    waits=True,
)
async def replaced_does_not_overwrite(bench: RecordBench) -> None:
    key = bench.key()
    replaced, successor = await _taken_over(bench, key)
    await bench.completes(key, successor, b"fresh")
    completed = await bench.store.complete(key, replaced, b"stale", LONG_MS)
    bench.equal(completed, Completion.STALE, what="complete() by a replaced owner after its successor's")
    await bench.find_completed(key, b"fresh", successor, what="acquire() after a replaced owner's complete()")


# ---------------------------------------------------------------------------------------- release


@RUNG.case(
    "Nobody else releases",
    race="A shutdown hook gives back by key, and frees an execution of another instance's.",
    waits=True,
)
async def stranger_does_not_release(bench: RecordBench) -> None:
    key = bench.key()
    await bench.begin(key, lock_ms=bench.ttl_ms)
    bench.equal(await bench.store.release(key, bench.owner()), False, what="release() by another owner")
    await bench.find_in_flight(key, what="acquire() after another owner's release()")
    await bench.outlast(bench.ttl_ms)
    released = await bench.store.release(key, bench.owner())
    bench.equal(released, False, what="release() of an abandoned execution by another owner")
    await bench.find_abandoned(key, what="acquire() of an abandoned execution after another owner's release()")


@RUNG.case(
    "A replaced owner does not release its successor",
    race="R1. A outlives its lock, B takes over, A fails and frees the record under B: C runs beside B.",
    waits=True,
)
async def replaced_does_not_release(bench: RecordBench) -> None:
    key = bench.key()
    replaced, successor = await _taken_over(bench, key)
    bench.equal(await bench.store.release(key, replaced), False, what="release() by a replaced owner")
    await bench.find_in_flight(key, what="acquire() after a replaced owner's release()")
    await bench.completes(key, successor, what="complete() by the successor")


# ----------------------------------------------------------------------------------------- owners


@RUNG.case(
    "Owners that a collation or a normal form takes for equal are two owners",
    race="Another execution whose name looks the same completes in this one's place.",
)
async def owners_are_exact(bench: RecordBench) -> None:
    for number, (owner, other) in enumerate(
        (
            ("a:Cat", "a:cat"),
            ("a:caf\u00e9", "a:cafe\u0301"),
            ("a:cat", "a:cat "),
            ("a:\U0001f408", "a:\U0001f431"),
            ("1", "01"),
        )
    ):
        key = bench.key(str(number))
        await bench.begin(key, owner)
        bench.equal(await bench.store.extend(key, other, LONG_MS), False, what="extend() by a near namesake")
        completed = await bench.store.complete(key, other, b"forged", LONG_MS)
        bench.equal(completed, Completion.STALE, what="complete() by a near namesake")
        bench.equal(await bench.store.release(key, other), False, what="release() by a near namesake")
        await bench.completes(key, owner, what="complete() by the owner after its near namesake's")
        await bench.find_completed(key, b"done", owner, what="acquire() after complete() by that owner")
