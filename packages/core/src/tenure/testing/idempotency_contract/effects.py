"""Rule 7, of stores whose records live in the application's own database: an effect and its proof commit together."""

import asyncio
from contextlib import suppress

from tenure.errors import ExecutionLostError
from tenure.idempotency_store import Abandoned, Acquired, AcquireReply, InFlight, RecordsEffects
from tenure.testing.idempotency_contract.bench import LONG_MS, RecordBench
from tenure.testing.idempotency_contract.case import Rung

__all__ = ["RUNG"]

RUNG = Rung(7, capability=RecordsEffects)


class _RolledBackError(Exception):
    """Ends a transaction without its commit."""


def _end_without_commit() -> None:
    raise _RolledBackError


async def _roll_back(bench: RecordBench, key: str, owner: str) -> None:
    """Assert the effect in a transaction that is rolled back."""
    with suppress(_RolledBackError):
        async with bench.transaction() as connection:
            await bench.store.assert_owner(connection, key, owner)
            _end_without_commit()


async def _have_effect(bench: RecordBench, key: str, owner: str) -> None:
    async with bench.transaction() as connection:
        await bench.store.assert_owner(connection, key, owner)


async def _is_lost(bench: RecordBench, key: str, owner: str, *, what: str) -> None:
    """Require the assertion of *owner* to be refused."""
    try:
        await _have_effect(bench, key, owner)
    except ExecutionLostError:
        return
    bench.fail(f"assert_owner() {what} passed", "ExecutionLostError, so that the transaction is rolled back")


@RUNG.case(
    "A committed effect is known, and its execution is never begun again",
    race="A commits and dies before it completes: the repetition has the effect a second time.",
    waits=True,
)
async def effect_is_never_repeated(bench: RecordBench) -> None:
    key = bench.key()
    owner = await bench.begin(key, lock_ms=bench.short_ms)
    bench.equal(await bench.store.effect_committed(key, owner), False, what="effect_committed() before the effect")
    await _have_effect(bench, key, owner)
    bench.equal(await bench.store.effect_committed(key, owner), True, what="effect_committed() after the commit")
    await bench.outlast(bench.short_ms)
    for takeover in (True, False):
        reply = await bench.acquire(key, bench.owner(), takeover=takeover)
        what = f"acquire() of an abandoned execution whose effect is committed, with takeover={takeover},"
        bench.equal(reply, Abandoned(1, effect_committed=True), what=what)


@RUNG.case(
    "A committed effect is not released",
    race="A commits, its response fails, it releases: the repetition has the effect a second time.",
    waits=True,
)
async def effect_is_not_released(bench: RecordBench) -> None:
    key = bench.key()
    owner = await bench.begin(key, lock_ms=bench.short_ms)
    await _have_effect(bench, key, owner)
    bench.equal(await bench.store.release(key, owner), False, what="release() of a committed effect")
    await bench.outlast(bench.short_ms)
    bench.equal(
        await bench.store.release(key, owner), False, what="release() of a committed effect after the lock's end"
    )
    await bench.find_abandoned(key, effect=True, what="acquire() after the releases")


@RUNG.case(
    "A committed effect is completed and extended by its owner, late too",
    race="The proof is in the way of the outcome: what is done never has a response.",
    waits=True,
)
async def effect_is_completed(bench: RecordBench) -> None:
    key = bench.key()
    owner = await bench.begin(key, lock_ms=bench.short_ms)
    await _have_effect(bench, key, owner)
    await bench.outlast(bench.short_ms)
    bench.equal(await bench.store.extend(key, owner, LONG_MS), True, what="extend() by the owner of a committed effect")
    await bench.find_in_flight(key, what="acquire() after that")
    await bench.completes(key, owner, what="complete() by the owner of a committed effect")
    await bench.find_completed(key, b"done", owner, what="acquire() after that")


@RUNG.case(
    "An effect that was rolled back is none",
    race="The proof is written beside the transaction: what never happened is never tried again.",
    waits=True,
)
async def rolled_back_is_none(bench: RecordBench) -> None:
    key, released = bench.key(), bench.key("released")
    owner = await bench.begin(key, lock_ms=bench.short_ms)
    await bench.begin(released, owner)
    await _roll_back(bench, key, owner)
    await _roll_back(bench, released, owner)
    bench.equal(await bench.store.effect_committed(key, owner), False, what="effect_committed() after a rollback")
    bench.equal(await bench.store.release(released, owner), True, what="release() after a rollback")
    await bench.outlast(bench.short_ms)
    await bench.find_abandoned(key, what="acquire() after a rollback and the lock's end")
    await bench.begin(key, attempt=2, what="acquire() after a rollback and the lock's end")


@RUNG.case(
    "Who is replaced, or has no record, has no effect",
    race="A pauses, B takes over and commits; A wakes and commits beside it.",
    waits=True,
)
async def replaced_has_no_effect(bench: RecordBench) -> None:
    key = bench.key()
    replaced = await bench.abandon(key)
    successor = await bench.begin(key, attempt=2, what="acquire() of an abandoned execution")
    await _is_lost(bench, key, replaced, what="by a replaced owner")
    await _is_lost(bench, bench.key("absent"), successor, what="of an absent record")
    known = await bench.store.effect_committed(key, replaced)
    bench.equal(known, False, what="effect_committed() of a replaced owner")
    await _have_effect(bench, key, successor)
    known = await bench.store.effect_committed(key, replaced)
    bench.equal(known, False, what="effect_committed() of a replaced owner after its successor's effect")


@RUNG.case(
    "A late owner whom nobody replaced has its effect",
    race="A handler that outlives its lock by a second rolls back what nobody else has begun.",
    waits=True,
)
async def late_owner_has_its_effect(bench: RecordBench) -> None:
    key = bench.key()
    owner = await bench.abandon(key)
    await _have_effect(bench, key, owner)
    await bench.find_abandoned(key, effect=True, what="acquire() after a late owner's effect")


@RUNG.case(
    "Nobody takes over amid a transaction that has its effect, nor after its commit",
    race="A's lock ends within its transaction, B takes over, A commits: the effect is there, and B has it again.",
    waits=True,
    alone=True,
)
async def nobody_takes_over_amid_effect(bench: RecordBench) -> None:
    what = "a takeover after the transaction of an effect"
    reply = await _take_over_amid_effect(bench, bench.key("committed"), commits=True)
    bench.equal(reply, Abandoned(1, effect_committed=True), what=f"{what}, which committed,")
    reply = await _take_over_amid_effect(bench, bench.key("rolled back"), commits=False)
    bench.equal(reply, Acquired(2), what=f"{what}, which was rolled back,")


async def _take_over_amid_effect(bench: RecordBench, key: str, *, commits: bool) -> object:
    """
    Ask for *key* after its lock's end, within the transaction of its owner's effect; return what the end of it brings.

    A store may have the caller wait for that end, or say that it is in flight, and be asked again.
    """
    owner = await bench.begin(key, lock_ms=bench.short_ms)
    asking: list[asyncio.Task[AcquireReply]] = []
    with suppress(_RolledBackError):
        async with bench.transaction() as connection:
            await bench.store.assert_owner(connection, key, owner)
            await bench.outlast(bench.short_ms)
            asking.append(asyncio.get_running_loop().create_task(bench.acquire(key, bench.owner())))
            # Long enough for a takeover that does not wait to be done.
            await asyncio.wait(asking, timeout=0.1)
            if asking[0].done() and not isinstance(asking[0].result(), InFlight):
                seen = f"a takeover amid the transaction of an effect gave {asking[0].result()!r}"
                bench.fail(seen, "InFlight, or to wait for its end")
            if not commits:
                _end_without_commit()
    reply = await asking[0]
    return await bench.acquire(key, bench.owner()) if isinstance(reply, InFlight) else reply
