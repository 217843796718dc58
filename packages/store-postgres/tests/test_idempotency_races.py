"""Idempotency records in races and in random histories, beside the store in memory."""

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from tenure.idempotency_store import Acquired, AcquireReply, Completed, Completion, InFlight, Mismatch, RecordState
from tenure.memory import InMemoryIdempotencyStore
from tenure.testing import ManualClock
from tenure_postgres import PostgresIdempotencyStore

Owner = Callable[[], str]
MakeEngine = Callable[..., AsyncEngine]
Planted = Callable[..., PostgresIdempotencyStore]
Store = PostgresIdempotencyStore

MINUTE = 60_000
DAY = 24 * 60 * MINUTE

ROUNDS = 25
CALLERS = 24


@pytest.fixture
def crowded(make_engine: MakeEngine) -> Store:
    """A store whose calls really overlap."""
    return Store(make_engine(pool_size=20, max_overflow=0))


async def ask(store: Store, owner: str, key: str, fingerprint: str = "f") -> AcquireReply:
    return await store.acquire(key, owner, fingerprint, MINUTE, DAY)


async def end_locks(person: Any) -> None:
    await person.execute("UPDATE tenure_idempotency SET lock_until = clock_timestamp()")


def acquired(replies: list[AcquireReply]) -> list[Acquired]:
    return [reply for reply in replies if isinstance(reply, Acquired)]


async def test_of_many_callers_of_a_new_key_one_begins_and_each_other_is_told_that_it_is_in_flight(
    crowded: Store, owner: Owner
) -> None:
    for number in range(ROUNDS):
        replies = await asyncio.gather(*(ask(crowded, owner(), f"order-{number}") for _ in range(CALLERS)))
        assert acquired(replies) == [Acquired(1)]
        assert sum(isinstance(reply, InFlight) for reply in replies) == CALLERS - 1


async def test_of_many_callers_of_an_abandoned_record_one_begins_as_the_second(
    crowded: Store, owner: Owner, person: Any
) -> None:
    for number in range(ROUNDS):
        key = f"order-{number}"
        await ask(crowded, owner(), key)
        await end_locks(person)
        assert await ask(crowded, owner(), key, "g") == Mismatch(RecordState.ABANDONED)
        replies = await asyncio.gather(*(ask(crowded, owner(), key) for _ in range(CALLERS)))
        assert acquired(replies) == [Acquired(2)]
        assert sum(isinstance(reply, InFlight) for reply in replies) == CALLERS - 1


async def test_of_many_callers_of_a_record_past_its_end_one_begins_as_the_first(
    crowded: Store, owner: Owner, person: Any
) -> None:
    for number in range(ROUNDS):
        key = f"order-{number}"
        await ask(crowded, owner(), key)
        await person.execute("UPDATE tenure_idempotency SET expires_at = clock_timestamp()")
        replies = await asyncio.gather(
            *(ask(crowded, owner(), key) for _ in range(CALLERS)), *(crowded.purge() for _ in range(3))
        )
        assert acquired([reply for reply in replies if not isinstance(reply, int)]) == [Acquired(1)]


async def test_a_late_completion_is_stored_and_nobody_took_over_or_stale_and_one_did(
    crowded: Store, owner: Owner, person: Any
) -> None:
    seen = set()
    for number in range(2 * ROUNDS):
        key, late = f"order-{number}", owner()
        await ask(crowded, late, key)
        await end_locks(person)
        calls = [ask(crowded, owner(), key) for _ in range(8)]
        calls.insert(number % 9, crowded.complete(key, late, b"late", DAY))  # type: ignore[arg-type]  # one of nine
        replies: list[Any] = list(await asyncio.gather(*calls))
        [completion] = [reply for reply in replies if isinstance(reply, Completion)]
        seen.add(completion)
        if completion is Completion.STORED:
            assert not acquired(replies)
            assert await ask(crowded, owner(), key) == Completed(b"late", late)
        else:
            assert completion is Completion.STALE
            assert acquired(replies) == [Acquired(2)]
            assert isinstance(await ask(crowded, owner(), key), InFlight)
    assert seen == {Completion.STORED, Completion.STALE}, "the two hardly met"


async def test_an_extension_and_a_takeover_never_both_succeed(crowded: Store, owner: Owner, person: Any) -> None:
    for number in range(ROUNDS):
        key, late = f"order-{number}", owner()
        await ask(crowded, late, key)
        await end_locks(person)
        extended, *replies = await asyncio.gather(
            crowded.extend(key, late, MINUTE), *(ask(crowded, owner(), key) for _ in range(8))
        )
        assert len(acquired(replies)) == (0 if extended else 1)


async def test_a_record_that_is_released_again_and_again_is_never_had_by_two(crowded: Store, owner: Owner) -> None:
    inside, ran = 0, 0

    async def request() -> None:
        nonlocal inside, ran
        for _ in range(15):
            me = owner()
            reply = await ask(crowded, me, "order")
            if isinstance(reply, Acquired):
                inside += 1
                assert inside == 1
                assert reply == Acquired(1)
                await asyncio.sleep(0)
                inside -= 1
                ran += 1
                assert await crowded.release("order", me)

    await asyncio.gather(*(request() for _ in range(16)))
    assert ran > 1, "nobody came after a release"


async def test_a_storm_of_repeats_costs_one_statement_each(
    crowded: Store, owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ask(crowded, owner(), "order")
    sent, plain = 0, crowded._engine.connections.run

    async def counted(*arguments: Any) -> Any:
        nonlocal sent
        sent += 1
        return await plain(*arguments)

    monkeypatch.setattr(crowded._engine.connections, "run", counted)
    replies = await asyncio.gather(*(ask(crowded, owner(), "order") for _ in range(500)))
    assert all(isinstance(reply, InFlight) for reply in replies)
    assert sent == 500


# ------------------------------------------------------------------------------------------------- random histories


def _same(mine: Any, theirs: Any) -> bool:
    if isinstance(mine, InFlight) and isinstance(theirs, InFlight):
        # Real time goes by on the server: a few milliseconds a call, of spans that are ten seconds at least.
        return 0 <= theirs.expires_in_ms - mine.expires_in_ms < 9_000
    return bool(mine == theirs) and repr(mine) == repr(theirs)


async def play(store: Store, person: Any, seed: int, steps: int) -> None:
    """
    Ask both stores the same, call by call. Time passes by moving the records: all spans are tens of seconds.

    A moment in which both sides are at exactly an end is one in which it has come, on either clock.
    """
    rng, clock = random.Random(seed), ManualClock()
    memory = InMemoryIdempotencyStore(clock)
    for step in range(steps):
        key, owner = f"{seed}:{rng.randrange(2)}", rng.choice(["a", "b", "c"])
        span = rng.choice([10_000, 20_000, 30_000])
        calls: dict[str, tuple[Any, ...]] = {
            "acquire": (key, owner, rng.choice("fffg"), span, rng.choice([10_000, 40_000])),
            "extend": (key, owner, span),
            "complete": (key, owner, rng.choice([b"1", b"\0two", b""]), rng.choice([20_000, 60_000])),
            "release": (key, owner),
            "purge": (rng.choice([1, 1000]),),
        }
        name = rng.choice(["acquire", "acquire", "acquire", "extend", "complete", "release", "purge", "time", "time"])
        if name == "time":
            seconds = rng.choice([10, 20])
            await clock.advance(seconds)
            await person.execute(
                "UPDATE tenure_idempotency SET lock_until = lock_until - $1 * interval '1 second', "
                "expires_at = expires_at - $1 * interval '1 second'",
                float(seconds),
            )
            continue
        more = {"takeover": rng.random() < 0.7} if name == "acquire" else {}
        mine = await getattr(store, name)(*calls[name], **more)
        theirs = await getattr(memory, name)(*calls[name], **more)
        assert _same(mine, theirs), f"seed {seed}, step {step}: {name}{calls[name]} {more}: {mine!r}, {theirs!r}"


async def test_random_histories_are_answered_as_the_store_in_memory_answers_them(records: Store, person: Any) -> None:
    for seed in range(40):
        await person.execute("TRUNCATE tenure_idempotency")
        await play(records, person, seed, 60)


@pytest.mark.parametrize(
    "bug",
    [
        (
            "extend",
            "greatest(own.lock_until, clock_timestamp() + $3::bigint * interval '1 millisecond')",
            "clock_timestamp() + $3::bigint * interval '1 millisecond'",
        ),
        ("release", "AND live.attempt = 1", ""),
        ("release", "live.at + live.grace_s * interval '1 second'", "live.at"),
        ("complete", "AND NOT found.completed", ""),
        ("acquire", "record.fingerprint <> $3", "false"),
        ("acquire", "WHEN its.own THEN record.attempt ELSE", "ELSE"),
        ("acquire", "OR NOT $6", ""),
        ("acquire", "greatest(record.lock_until, asked.lock_until)", "asked.lock_until"),
    ],
)
async def test_planted_bugs_are_found_by_the_random_histories(
    records: Store, person: Any, planted: Planted, bug: tuple[str, str, str]
) -> None:
    statement, right, wrong = bug
    planted(records, statement, (right, wrong))
    with pytest.raises(AssertionError):
        await test_random_histories_are_answered_as_the_store_in_memory_answers_them(records, person)
