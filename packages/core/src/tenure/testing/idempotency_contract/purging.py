"""Rule 3 in a purge: only what has ended is deleted, and what was begun anew since is not what ended."""

from tenure.testing.idempotency_contract.bench import RecordBench
from tenure.testing.idempotency_contract.case import Rung

__all__ = ["RUNG"]

RUNG = Rung(3)

_ENDED = 7
_LIMIT = 3
_MOST_PURGES = 10_000
"""Others' records on a shared server may have ended too: a purge that never answers 0 is a finding."""


async def _purge_all(bench: RecordBench, limit: int = 1000) -> int:
    """Purge until nothing is left to purge; return how many were deleted."""
    total = 0
    for _ in range(_MOST_PURGES):
        purged = await bench.store.purge(limit)
        if type(purged) is not int or not 0 <= purged <= limit:
            bench.fail(f"purge() of at most {limit} gave {purged!r}", f"a count from 0 to {limit}")
        total += purged
        if not purged:
            break
    else:
        bench.fail(f"{_MOST_PURGES} purges of {limit} never answered 0", "an end")
    return total


@RUNG.case(
    "A purge leaves what has not ended, in every state",
    race="The purge deletes what a client still repeats: it runs again.",
    waits=True,
    alone=True,
)
async def purge_leaves_what_lives(bench: RecordBench) -> None:
    flying, abandoned, completed, freed = (bench.key(part) for part in ("flying", "abandoned", "completed", "freed"))
    await bench.begin(flying)
    owner = await bench.begin(completed)
    await bench.completes(completed, owner)
    await bench.abandon(abandoned)
    await bench.abandon(freed)
    again = await bench.begin(freed, attempt=2, what="acquire() of an abandoned execution")
    await bench.store.release(freed, again)
    await _purge_all(bench)
    await bench.find_in_flight(flying, what="acquire() of an execution in flight after a purge")
    await bench.find_abandoned(abandoned, what="acquire() of an abandoned execution after a purge")
    await bench.find_completed(completed, b"done", owner, what="acquire() of a completed record after a purge")
    await bench.find_abandoned(freed, 2, what="acquire() of a released second attempt after a purge")


@RUNG.case(
    "A purge leaves what has begun anew since it ended",
    race="A5. A record ends, is begun anew, and is deleted under its execution for the time it had before.",
    waits=True,
    alone=True,
)
async def purge_leaves_what_began_anew(bench: RecordBench) -> None:
    began, extended, completed = bench.key("began"), bench.key("extended"), bench.key("completed")
    await bench.begin(began, lock_ms=1, grace_ms=1)
    owner = await bench.begin(extended, lock_ms=1, grace_ms=bench.ttl_ms)
    await bench.begin(completed, owner, lock_ms=1, grace_ms=bench.ttl_ms)
    await bench.completes(completed, owner)
    bench.equal(await bench.store.extend(extended, owner, 4 * bench.ttl_ms), True, what="extend() by the owner")
    await bench.outlast(bench.ttl_ms)
    anew = await bench.begin(began, what="acquire() of a record past its end")
    await _purge_all(bench)
    bench.equal(
        await bench.store.extend(began, anew, 1000), True, what="extend() of a record begun anew, after a purge"
    )
    await bench.find_in_flight(extended, what="acquire() of an extended execution after a purge")
    await bench.find_completed(completed, b"done", owner, what="acquire() of a completed record after a purge")


@RUNG.case(
    "A purge deletes what has ended, no more at once than it is told, and says how many",
    race="The table grows for ever; or one purge of a million rows holds up every request.",
    waits=True,
    alone=True,
)
async def purge_deletes_what_ended(bench: RecordBench) -> None:
    await _purge_all(bench)
    for number in range(_ENDED):
        key = bench.key(str(number))
        if number % 2:
            await bench.completes(key, await bench.begin(key), retention_ms=1)
        else:
            await bench.begin(key, lock_ms=1, grace_ms=1)
    await bench.outlast(2)
    purged = await _purge_all(bench, _LIMIT)
    if bench.purges:
        bench.require(purged >= _ENDED, f"purges of {_ENDED} ended records deleted {purged}", "all of them")
    elif bench.purges is None:
        bench.require(
            purged == 0 or purged >= _ENDED, f"purges of {_ENDED} ended records deleted {purged}", "all, or none"
        )
    else:
        bench.require(purged == 0, f"purges of a store that expires records by itself deleted {purged}", "none")
    for number in range(_ENDED):
        await bench.find_absent(bench.key(str(number)), what="acquire() of a record past its end, after a purge")
