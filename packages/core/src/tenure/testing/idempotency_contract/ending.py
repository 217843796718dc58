"""Rule 3: a record outlives its lock by its grace; locks, graces and retentions end on the store's clock, in ms."""

from tenure._durations import MAX_MS
from tenure.testing.idempotency_contract.bench import OTHER_PAYLOAD, RecordBench
from tenure.testing.idempotency_contract.case import Rung

__all__ = ["RUNG"]

RUNG = Rung(3)

_DAY_MS = 86_400_000


@RUNG.case(
    "An execution is in flight until its lock ends, and abandoned after it",
    race="The key of a crashed handler ends too soon, under one that lives, or is stuck for as long as a response.",
    waits=True,
)
async def in_flight_until_the_lock_ends(bench: RecordBench) -> None:
    key = bench.key()
    await bench.begin(key, lock_ms=bench.ttl_ms)
    await bench.pass_almost(bench.ttl_ms)
    await bench.find_in_flight(key, what="acquire() just before the lock's end")
    await bench.pass_the_end()
    await bench.find_abandoned(key, what="acquire() just after the lock's end")


@RUNG.case(
    "A record is kept until its grace ends, and absent after it",
    race="What a dead execution may have done is forgotten with its lock: the repetition is told that it is the first.",
    waits=True,
)
async def kept_until_the_grace_ends(bench: RecordBench) -> None:
    key = bench.key()
    await bench.begin(key, lock_ms=bench.short_ms, grace_ms=bench.ttl_ms)
    await bench.pass_almost(bench.short_ms + bench.ttl_ms)
    await bench.find_abandoned(key, what="acquire() just before the grace's end")
    await bench.pass_the_end()
    await bench.find_absent(key, OTHER_PAYLOAD, what="acquire() with another payload just after the grace's end")


@RUNG.case(
    "An outcome is kept until its retention ends, and absent after it",
    race="A response is forgotten while its client still repeats itself, or a key is never free again.",
    waits=True,
)
async def kept_until_the_retention_ends(bench: RecordBench) -> None:
    key = bench.key()
    owner = await bench.begin(key)
    await bench.completes(key, owner, retention_ms=bench.ttl_ms)
    await bench.pass_almost(bench.ttl_ms)
    await bench.find_completed(key, b"done", owner, what="acquire() just before the retention's end")
    await bench.pass_the_end()
    await bench.find_absent(key, OTHER_PAYLOAD, what="acquire() with another payload just after the retention's end")


@RUNG.case(
    "The retention replaces the grace, whichever is longer",
    race="C7. The response is written and its time is not: it is kept for as long as the lock had left.",
    waits=True,
)
async def retention_replaces_the_grace(bench: RecordBench) -> None:
    longer, owner = bench.key("longer"), bench.owner()
    await bench.begin(longer, owner, lock_ms=bench.short_ms, grace_ms=bench.short_ms)
    await bench.completes(longer, owner)
    await bench.outlast(2 * bench.short_ms)
    await bench.find_completed(longer, b"done", owner, what="acquire() after the lock and grace of a completed record")


@RUNG.case(
    "Each record has its own grace",
    race="The store keeps one grace for all: a job's key is forgotten with a request's.",
    waits=True,
)
async def grace_is_the_records(bench: RecordBench) -> None:
    brief, long = bench.key("brief"), bench.key("long")
    await bench.begin(long, lock_ms=bench.short_ms)
    await bench.begin(brief, lock_ms=bench.short_ms, grace_ms=bench.short_ms)
    await bench.outlast(2 * bench.short_ms)
    await bench.find_absent(brief, what="acquire() after a brief grace")
    await bench.find_abandoned(long, what="acquire() within a long grace")


@RUNG.case(
    "A takeover brings its own grace",
    race="The second attempt is kept for as long as the first one asked for, and is forgotten too soon.",
    waits=True,
)
async def takeover_has_its_own_grace(bench: RecordBench) -> None:
    longer, briefer = bench.key("longer"), bench.key("briefer")
    await bench.begin(longer, lock_ms=bench.short_ms, grace_ms=bench.ttl_ms)
    await bench.begin(briefer, lock_ms=bench.short_ms)
    await bench.outlast(bench.short_ms)
    what = "acquire() of an abandoned execution"
    await bench.begin(longer, lock_ms=bench.short_ms, attempt=2, what=what)
    await bench.begin(briefer, lock_ms=bench.short_ms, grace_ms=bench.short_ms, attempt=2, what=what)
    await bench.outlast(2 * bench.short_ms)
    await bench.find_absent(briefer, what="acquire() after the brief grace of a takeover")
    await bench.pass_ms(bench.ttl_ms)
    await bench.find_abandoned(longer, 2, what="acquire() within the long grace of a takeover")


@RUNG.case(
    "A grace begins at the lock's end, however late that is",
    race="An execution that was extended for hours leaves a record that ended long before it: nothing guards its key.",
    waits=True,
)
async def extension_moves_the_grace(bench: RecordBench) -> None:
    key = bench.key()
    owner = await bench.begin(key, lock_ms=bench.short_ms, grace_ms=bench.ttl_ms)
    bench.equal(await bench.store.extend(key, owner, bench.ttl_ms), True, what="extend() by the owner")
    await bench.pass_almost(2 * bench.ttl_ms)
    await bench.find_abandoned(key, what="acquire() just before the end of the grace of an extended lock")
    await bench.pass_the_end()
    await bench.find_absent(key, what="acquire() just after the end of the grace of an extended lock")


@RUNG.case(
    "Times of 300 milliseconds end after 300 milliseconds",
    race="The store counts whole seconds and rounds up: every repetition after a crash is late by as much.",
    waits=True,
)
async def times_are_not_rounded_up(bench: RecordBench) -> None:
    lock, grace, retention = bench.key("lock"), bench.key("grace"), bench.key("retention")
    await bench.begin(lock, lock_ms=300)
    await bench.begin(grace, lock_ms=150, grace_ms=150)
    owner = await bench.begin(retention)
    await bench.completes(retention, owner, retention_ms=300)
    await bench.outlast(300)
    await bench.find_abandoned(lock, what="acquire() after a lock of 300 ms")
    await bench.find_absent(grace, what="acquire() after a lock and a grace of 150 ms each")
    await bench.find_absent(retention, what="acquire() after a retention of 300 ms")


@RUNG.case(
    "Times of 999 milliseconds are not cut to none",
    race="The store counts whole seconds and cuts: an execution is taken over while it has just begun.",
)
async def times_are_not_cut(bench: RecordBench) -> None:
    lock, retention = bench.key("lock"), bench.key("retention")
    await bench.begin(lock, lock_ms=999, grace_ms=999)
    await bench.find_in_flight(lock, what="acquire() at once after one for 999 ms")
    owner = await bench.begin(retention)
    await bench.completes(retention, owner, retention_ms=999)
    await bench.find_completed(retention, b"done", owner, what="acquire() at once after a completion for 999 ms")


async def _are_kept(bench: RecordBench, span_ms: int) -> None:
    """Require a lock, a grace and a retention of *span_ms* to be kept."""
    lock, extended, grace, retention = (bench.key(part) for part in ("lock", "extended", "grace", "retention"))
    await bench.begin(lock, lock_ms=span_ms)
    owner = await bench.begin(extended)
    bench.equal(await bench.store.extend(extended, owner, span_ms), True, what=f"extend() by {span_ms} ms")
    await bench.begin(grace, lock_ms=1, grace_ms=span_ms)
    owner = await bench.begin(retention)
    await bench.completes(retention, owner, retention_ms=span_ms)
    # A clock that can be moved shows a time that was cut to the greatest number of 32 bits, too.
    await bench.pass_ms(span_ms - _DAY_MS if bench.setting.advance_time else 50)
    await bench.find_in_flight(lock, what=f"acquire() within a lock of {span_ms} ms")
    await bench.find_in_flight(extended, what=f"acquire() within a lock extended by {span_ms} ms")
    await bench.find_abandoned(grace, what=f"acquire() within a grace of {span_ms} ms")
    await bench.find_completed(retention, b"done", owner, what=f"acquire() within a retention of {span_ms} ms")


@RUNG.case(
    "Times past 31 bits do not wrap round",
    race="A response kept for a month is stored with a negative time, and is forgotten at once.",
    waits=True,
)
async def times_past_31_bits(bench: RecordBench) -> None:
    await _are_kept(bench, 2**31 + 1)


@RUNG.case(
    "Times past 32 bits do not wrap round",
    race="A response kept for two months is stored for a millisecond, and is forgotten at once.",
    waits=True,
)
async def times_past_32_bits(bench: RecordBench) -> None:
    await _are_kept(bench, 2**32 + 1)


@RUNG.case(
    "The longest times and the shortest ones are both kept",
    race="A lock and a grace of a hundred years each overflow the server's date, or a millisecond is taken for none.",
    waits=True,
)
async def extreme_times(bench: RecordBench) -> None:
    longest, kept, shortest, brief = (bench.key(label) for label in ("longest", "kept", "shortest", "brief"))
    await bench.begin(longest, lock_ms=MAX_MS, grace_ms=MAX_MS)
    owner = await bench.begin(kept)
    await bench.completes(kept, owner, retention_ms=MAX_MS)
    await bench.begin(shortest, lock_ms=1, grace_ms=1)
    await bench.completes(brief, await bench.begin(brief), retention_ms=1)
    await bench.outlast(2)
    await bench.find_in_flight(longest, what="acquire() within a lock of a hundred years")
    await bench.find_completed(kept, b"done", owner, what="acquire() within a retention of a hundred years")
    await bench.find_absent(shortest, what="acquire() after a lock and a grace of 1 ms")
    await bench.find_absent(brief, what="acquire() after a retention of 1 ms")
