"""Idempotency records under contention: what is waited for, what is looked at again, and when the times are drawn."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any

import asyncpg
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from tenure.idempotency_store import Abandoned, Acquired, Completed, Completion, InFlight
from tenure_postgres import PostgresIdempotencyStore

Owner = Callable[[], str]
Planted = Callable[..., PostgresIdempotencyStore]
Store = PostgresIdempotencyStore

TABLE = "tenure_idempotency"
MINUTE = 60_000
DAY = 24 * 60 * MINUTE

TAKE_OVER = (
    "UPDATE tenure_idempotency SET owner = 'other', attempt = attempt + 1, "
    "lock_until = clock_timestamp() + interval '1 minute', expires_at = clock_timestamp() + interval '1 day'"
)
END_IT = "UPDATE tenure_idempotency SET expires_at = clock_timestamp()"


async def begin(store: Store, key: str, owner: str, lock_ttl_ms: int = MINUTE, grace_ms: int = DAY) -> int:
    reply = await store.acquire(key, owner, "f", lock_ttl_ms, grace_ms)
    assert isinstance(reply, Acquired), reply
    if lock_ttl_ms < 10:
        # Over when this returns: a call on a quick machine takes less than a millisecond.
        await asyncio.sleep((lock_ttl_ms + 2) / 1000)
    return reply.attempt


# --------------------------------------------------------------------------------------------- a row that is locked


@pytest.fixture
def waiting(person: Any, locked_row: Any, waits_for_a_row: Any) -> Any:
    """Start a call while somebody has the row locked; let them do something once it waits, and commit."""

    async def run(call: Coroutine[Any, Any, Any], *meanwhile: str) -> Any:
        async with locked_row("order", TABLE) as other:
            task = asyncio.create_task(call)
            await waits_for_a_row()
            for statement in meanwhile:
                await other.execute(statement)
        return await task

    return run


async def test_a_lock_counts_from_when_its_row_was_had_and_not_from_when_it_was_asked_for(
    records: Store, owner: Owner, person: Any, waiting: Any
) -> None:
    await begin(records, "order", owner(), 1, 1)
    await person.execute("SELECT pg_sleep(0.005)")
    marked = "CREATE TABLE marked AS SELECT clock_timestamp() AS at"
    await waiting(records.acquire("order", owner(), "f", MINUTE, DAY), "SELECT pg_sleep(0.05)", marked)
    row = await person.fetchrow(
        "SELECT lock_until >= at + interval '1 minute' AS whole, expires_at - lock_until = interval '1 day' AS grace "
        "FROM tenure_idempotency, marked"
    )
    assert dict(row) == {"whole": True, "grace": True}


async def test_planted_times_of_excluded_are_from_before_the_wait(
    records: Store, owner: Owner, person: Any, waiting: Any, planted: Planted
) -> None:
    planted(
        records,
        "acquire",
        ("SELECT now.at + $4::bigint * interval '1 millisecond' AS lock_until", "SELECT excluded.lock_until"),
    )
    with pytest.raises(AssertionError):
        await test_a_lock_counts_from_when_its_row_was_had_and_not_from_when_it_was_asked_for(
            records, owner, person, waiting
        )


async def test_a_completion_that_waited_for_a_takeover_is_stale_and_writes_nothing(
    records: Store, owner: Owner, person: Any, waiting: Any
) -> None:
    late = owner()
    await begin(records, "order", late, 1)
    assert await waiting(records.complete("order", late, b"late", DAY), TAKE_OVER) is Completion.STALE
    assert await person.fetchval("SELECT response FROM tenure_idempotency") is None


async def test_planted_a_completion_that_goes_by_its_snapshot_overwrites_the_successor(
    records: Store, owner: Owner, person: Any, waiting: Any, planted: Planted
) -> None:
    """A read beside the write, in one statement, shows the row as it was before."""
    planted(
        records,
        "complete",
        ("SELECT own, completed FROM locked WHERE expires_at > clock_timestamp()", "SELECT own, completed FROM seen"),
        ("WHERE completed OR NOT own", "WHERE false"),
    )
    with pytest.raises(AssertionError):
        await test_a_completion_that_waited_for_a_takeover_is_stale_and_writes_nothing(records, owner, person, waiting)


@pytest.mark.parametrize("meanwhile", [END_IT, "DELETE FROM tenure_idempotency"])
async def test_what_ended_while_it_was_waited_for_is_gone(
    records: Store, owner: Owner, waiting: Any, meanwhile: str
) -> None:
    holder = owner()
    await begin(records, "order", holder)
    assert await waiting(records.complete("order", holder, b"x", DAY), meanwhile) is Completion.GONE
    await begin(records, "order", holder)
    assert await waiting(records.extend("order", holder, MINUTE), meanwhile) is False
    await begin(records, "order", holder)
    assert await waiting(records.release("order", holder), meanwhile) is False
    await begin(records, "order", holder)
    assert await waiting(records.acquire("order", holder, "f", MINUTE, DAY), meanwhile) == Acquired(1)


async def test_an_extension_and_a_release_that_waited_for_a_takeover_leave_the_successor_alone(
    records: Store, owner: Owner, person: Any, waiting: Any
) -> None:
    for call in (lambda late: records.extend("order", late, DAY), lambda late: records.release("order", late)):
        await person.execute("TRUNCATE tenure_idempotency")
        late = owner()
        await begin(records, "order", late, 1)
        assert await waiting(call(late), TAKE_OVER) is False
        row = await person.fetchrow("SELECT owner, lock_until < now() + interval '2 m' AS same FROM tenure_idempotency")
        assert tuple(row) == ("other", True)


@pytest.fixture
def waiting_past_the_end(person: Any, locked_row: Any, waits_for_a_row: Any, until: Any) -> Any:
    """Start a call while somebody has the row locked, who changes nothing and lets go after the record's end."""

    async def run(call: Coroutine[Any, Any, Any]) -> Any:
        async with locked_row("order", TABLE):
            task = asyncio.create_task(call)
            await waits_for_a_row()
            ended = "SELECT bool_and(expires_at < clock_timestamp()) FROM tenure_idempotency"
            await until(lambda: person.fetchval(ended), "the record to end")
        return await task

    return run


async def test_an_extension_that_waited_past_the_records_end_is_refused(
    records: Store, owner: Owner, waiting_past_the_end: Any
) -> None:
    holder = owner()
    await begin(records, "order", holder, 150, 150)
    assert await waiting_past_the_end(records.extend("order", holder, MINUTE)) is False


async def test_a_completion_and_a_release_that_waited_past_the_records_end_find_nothing(
    records: Store, owner: Owner, waiting_past_the_end: Any
) -> None:
    holder = owner()
    await begin(records, "order", holder, 150, 150)
    assert await waiting_past_the_end(records.complete("order", holder, b"x", DAY)) is Completion.GONE
    await begin(records, "order", holder, 150, 150)
    assert await waiting_past_the_end(records.release("order", holder)) is False


async def test_planted_an_update_alone_revives_a_record_that_ended_while_it_waited(
    records: Store, owner: Owner, waiting_past_the_end: Any
) -> None:
    alone = (
        "WITH bound AS MATERIALIZED (SELECT set_config('lock_timeout', $4, true)) "
        "UPDATE tenure_idempotency AS record SET lock_until = clock_timestamp() + $3::bigint * interval '1 ms', "
        "expires_at = clock_timestamp() + interval '1 day' FROM bound "
        "WHERE key = $1 AND owner = $2 AND response IS NULL AND expires_at > clock_timestamp() RETURNING true"
    )
    records._sql = replace(records._sql, extend=alone)
    with pytest.raises(AssertionError):
        await test_an_extension_that_waited_past_the_records_end_is_refused(records, owner, waiting_past_the_end)


@pytest.mark.parametrize("call", ["acquire", "extend", "complete", "release", "effect_committed"])
async def test_a_call_of_the_owners_waits_for_a_locked_row_no_longer_than_lock_timeout(
    engine: AsyncEngine, owner: Owner, locked_row: Any, call: str
) -> None:
    store, holder = Store(engine, lock_timeout="100ms"), owner()
    await begin(store, "order", holder)
    more: dict[str, tuple[Any, ...]] = {
        "acquire": ("f", MINUTE, DAY),
        "extend": (MINUTE,),
        "complete": (b"x", DAY),
    }
    async with locked_row("order", TABLE):
        with pytest.raises(asyncpg.LockNotAvailableError) as caught:
            await getattr(store, call)("order", holder, *more.get(call, ()))
    assert "assert_owner()" in caught.value.__notes__[0]
    assert await store.complete("order", holder, b"y", DAY) is Completion.STORED, "the failed call changed nothing"


# --------------------------------------------------------------------- what changes between a read and its lock


@pytest.fixture
def slowly(engine: AsyncEngine, person: Any, until: Callable[..., Awaitable[None]], planted: Planted) -> Any:
    """Start an acquisition with half a second between its read and its lock; return once it is in between."""

    async def run(owner: str, *changes: tuple[str, str]) -> "asyncio.Task[Any]":
        pause = ("AS record, seen\n", "AS record, seen, pg_sleep(0.5) AS pause\n")
        store = planted(Store(engine), "acquire", pause, *changes)
        task = asyncio.create_task(store.acquire("order", owner, "f", MINUTE, DAY))
        paused = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()"
        await until(lambda: person.fetchval(paused), "an acquisition between its read and its lock")
        return task

    return run


async def test_two_that_read_the_same_abandoned_record_take_it_over_once(
    records: Store, owner: Owner, slowly: Any
) -> None:
    await begin(records, "order", owner(), 1)
    fast = owner()
    task = await slowly(owner())
    assert await begin(records, "order", fast) == 2
    assert isinstance(await task, InFlight)
    assert await records.extend("order", fast, MINUTE)


async def test_planted_a_takeover_that_trusts_its_read_takes_a_live_record(
    records: Store, owner: Owner, slowly: Any
) -> None:
    trusting = ("record.lock_until <= clock_timestamp() AND NOT record.effect AND $6", "true")
    with pytest.raises(AssertionError):
        await test_two_that_read_the_same_abandoned_record_take_it_over_once(
            records, owner, lambda taker: slowly(taker, trusting)
        )


async def test_an_effect_that_is_committed_between_a_takeovers_read_and_its_lock_is_seen(
    records: Store, engine: AsyncEngine, owner: Owner, slowly: Any
) -> None:
    late = owner()
    await begin(records, "order", late, 1)
    task = await slowly(owner())
    async with engine.begin() as connection:
        await records.assert_owner(connection, "order", late)
    assert await task == Abandoned(1, effect_committed=True)


async def test_planted_a_takeover_that_looks_for_the_effect_in_its_read_alone_repeats_it(
    records: Store, engine: AsyncEngine, owner: Owner, slowly: Any
) -> None:
    trusting = ("clock_timestamp() AND NOT record.effect AND $6", "clock_timestamp() AND $6")
    with pytest.raises(AssertionError):
        await test_an_effect_that_is_committed_between_a_takeovers_read_and_its_lock_is_seen(
            records, engine, owner, lambda taker: slowly(taker, trusting)
        )


async def test_a_completion_between_a_takeovers_read_and_its_lock_is_answered(
    records: Store, owner: Owner, slowly: Any
) -> None:
    late = owner()
    await begin(records, "order", late, 1)
    task = await slowly(owner())
    assert await records.complete("order", late, b"201", DAY) is Completion.STORED
    assert await task == Completed(b"201", late)


async def test_a_record_that_is_deleted_between_the_read_and_the_lock_is_begun_and_never_assumed(
    records: Store, owner: Owner, person: Any, slowly: Any
) -> None:
    late, taker = owner(), owner()
    await begin(records, "order", late, 1)
    task = await slowly(taker)
    assert await records.release("order", late)
    assert await task == Acquired(1)
    assert await person.fetchval("SELECT owner FROM tenure_idempotency") == taker


async def test_whoever_always_comes_too_late_is_told_to_wait_and_never_goes_on_without_a_record(
    records: Store, owner: Owner, planted: Planted
) -> None:
    """A statement that never gets the row, as if somebody else were faster each time."""
    planted(records, "acquire", ("OR EXISTS (SELECT FROM free)", "AND false"))
    assert await records.acquire("order", owner(), "f", MINUTE, DAY) == InFlight(100)


# ------------------------------------------------------------------------------------------------------------ times


async def test_a_grace_over_a_change_of_the_clocks_stays_as_long_as_it_is(
    make_engine: Callable[..., AsyncEngine], person: Any
) -> None:
    """181 days of the calendar, from winter to summer, are an hour less than 181 days of 24 hours."""
    warsaw = {"server_settings": {"TimeZone": "Europe/Warsaw"}}
    store = Store(make_engine(connect_args=warsaw))
    row = "'o', 'f', 2, '2190-01-15T12:00Z', '2190-07-15T12:00Z', false, NULL"
    await person.execute(f"INSERT INTO tenure_idempotency VALUES ('order', {row})")
    ends = "SELECT expires_at = '2190-07-15T12:00Z' FROM tenure_idempotency"
    assert await store.extend("order", "o", MINUTE)
    assert await person.fetchval(ends)
    assert await store.acquire("order", "o", "f", MINUTE, 1) == Acquired(2)
    assert await person.fetchval(ends)
    assert await store.release("order", "o")
    grace = "SELECT extract(epoch FROM expires_at - lock_until) = 181 * 86400 FROM tenure_idempotency"
    assert await person.fetchval(grace)


async def test_planted_a_grace_that_is_added_as_days_of_the_calendar_loses_an_hour(
    make_engine: Callable[..., AsyncEngine], person: Any, monkeypatch: pytest.MonkeyPatch, planted: Planted
) -> None:
    plain = Store.__init__

    def calendar(self: Store, *arguments: Any, **options: Any) -> None:
        plain(self, *arguments, **options)
        planted(
            self,
            "extend",
            (
                "extract(epoch FROM own.expires_at - own.lock_until) AS grace_s",
                "own.expires_at - own.lock_until AS grace",
            ),
            ("live.grace_s * interval '1 second'", "live.grace"),
        )

    monkeypatch.setattr(Store, "__init__", calendar)
    with pytest.raises(AssertionError):
        await test_a_grace_over_a_change_of_the_clocks_stays_as_long_as_it_is(make_engine, person)


async def test_a_lock_and_a_grace_of_a_century_are_kept(records: Store, owner: Owner) -> None:
    century, holder = 100 * 366 * DAY, owner()
    assert await begin(records, "order", holder, century, century) == 1
    assert await records.extend("order", holder, century)
    reply = await records.acquire("order", owner(), "f", MINUTE, DAY)
    assert isinstance(reply, InFlight)
    assert century - MINUTE < reply.expires_in_ms <= century
    assert await records.complete("order", holder, b"", century) is Completion.STORED
