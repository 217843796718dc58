"""The idempotency store on PostgreSQL: what it reads, writes, purges, refuses and never names."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import asyncpg
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from tenure.errors import ConfigurationError, LeaseStateError
from tenure.idempotency_store import (
    Abandoned,
    Acquired,
    Completed,
    Completion,
    InFlight,
    Mismatch,
    RecordsEffects,
    RecordState,
)
from tenure.store import ChecksServer
from tenure_postgres import (
    PostgresIdempotencyStore,
    create_idempotency_schema_sql,
    open_postgres_idempotency_store,
)
from tenure_postgres.statements import TableName

Owner = Callable[[], str]
Planted = Callable[..., PostgresIdempotencyStore]
Store = PostgresIdempotencyStore

TABLE = "tenure_idempotency"
MINUTE = 60_000
DAY = 24 * 60 * MINUTE


async def begin(store: Store, key: str, owner: str, lock_ttl_ms: int = MINUTE, grace_ms: int = DAY) -> int:
    reply = await store.acquire(key, owner, "f", lock_ttl_ms, grace_ms)
    assert isinstance(reply, Acquired), reply
    if lock_ttl_ms < 10:
        # Over when this returns: a call on a quick machine takes less than a millisecond.
        await asyncio.sleep((lock_ttl_ms + 2) / 1000)
    return reply.attempt


async def pass_time(person: Any, seconds: float) -> None:
    """What is so many seconds later true of every record."""
    await person.execute(
        "UPDATE tenure_idempotency SET lock_until = lock_until - $1 * interval '1 second', "
        "expires_at = expires_at - $1 * interval '1 second'",
        seconds,
    )


def test_it_has_the_capabilities() -> None:
    store = Store(create_async_engine(NOBODY))
    assert isinstance(store, RecordsEffects)
    assert isinstance(store, ChecksServer)
    assert store.reach == "cluster"


# ------------------------------------------------------------------------------------------------ reads that only read


async def test_whoever_does_not_acquire_neither_writes_nor_locks(records: Store, owner: Owner, person: Any) -> None:
    """500 repeats of a request during its execution cost one read each."""
    holder = owner()
    await begin(records, "flying", holder)
    await begin(records, "lost", holder, 1)
    await begin(records, "done", holder)
    await records.complete("done", holder, b"201", DAY)
    await person.execute("SELECT pg_sleep(0.005)")
    look = "SELECT key, ctid::text, xmax::text FROM tenure_idempotency ORDER BY key"
    before = await person.fetch(look)
    transactions = await person.fetchval("SELECT pg_current_xact_id()::text::bigint")
    for _ in range(5):
        reply = await records.acquire("flying", owner(), "f", MINUTE, DAY)
        assert isinstance(reply, InFlight)
        assert 59_000 < reply.expires_in_ms <= 60_000
        assert await records.acquire("flying", owner(), "g", MINUTE, DAY) == Mismatch(RecordState.IN_FLIGHT)
        assert await records.acquire("lost", owner(), "f", MINUTE, DAY, takeover=False) == Abandoned(1)
        assert await records.acquire("lost", owner(), "g", MINUTE, DAY) == Mismatch(RecordState.ABANDONED)
        assert await records.acquire("done", owner(), "f", MINUTE, DAY) == Completed(b"201", holder)
        assert await records.acquire("done", owner(), "g", MINUTE, DAY) == Mismatch(RecordState.COMPLETED)
        assert await records.complete("flying", owner(), b"x", DAY) is Completion.STALE
        assert await records.complete("none", owner(), b"x", DAY) is Completion.GONE
        assert await records.complete("done", holder, b"x", DAY) is Completion.STORED
    assert await person.fetch(look) == before
    # pg_current_xact_id() draws a number itself; nobody else drew one.
    assert await person.fetchval("SELECT pg_current_xact_id()::text::bigint") == transactions + 1


@pytest.mark.parametrize("left", ["acquire", "complete"])
async def test_a_repeat_is_answered_while_somebody_has_the_row_locked(
    records: Store, owner: Owner, locked_row: Any, left: str
) -> None:
    holder = owner()
    await begin(records, "order", holder)
    if left == "complete":
        await records.complete("order", holder, b"201", DAY)
    async with locked_row("order", TABLE):
        reply = await records.acquire("order", owner(), "f", MINUTE, DAY)
    assert isinstance(reply, InFlight if left == "acquire" else Completed)


async def test_a_record_whose_end_has_passed_is_begun_anew_without_a_purge(
    records: Store, owner: Owner, person: Any
) -> None:
    first, second = owner(), owner()
    await begin(records, "order", first)
    await records.complete("order", first, b"201", MINUTE)
    await pass_time(person, 60)
    reply = await records.acquire("order", second, "another payload", MINUTE, DAY)
    assert reply == Acquired(1)
    row = await person.fetchrow("SELECT owner, fingerprint, attempt, effect, response FROM tenure_idempotency")
    assert tuple(row) == (second, "another payload", 1, False, None)


async def test_planted_do_nothing_never_begins_a_record_whose_end_has_passed(
    records: Store, owner: Owner, person: Any, planted: Planted
) -> None:
    begin_at, end_at = records._sql.acquire.index("DO UPDATE"), records._sql.acquire.index("RETURNING record.attempt")
    planted(records, "acquire", (records._sql.acquire[begin_at:end_at], "DO NOTHING\n"))
    with pytest.raises(AssertionError):
        await test_a_record_whose_end_has_passed_is_begun_anew_without_a_purge(records, owner, person)


# ---------------------------------------------------------------------------------------------------------- purge


async def test_a_record_that_is_begun_anew_while_it_is_purged_stays(
    records: Store, owner: Owner, person: Any, locked_row: Any
) -> None:
    await begin(records, "order", owner(), 1, 1)
    await begin(records, "other", owner(), 1, 1)
    await person.execute("SELECT pg_sleep(0.005)")
    async with locked_row("order", TABLE) as other:
        await other.execute(
            "UPDATE tenure_idempotency SET owner = 'other', expires_at = now() + interval '1 day' WHERE key = 'order'"
        )
        task = asyncio.create_task(records.purge())
        await asyncio.wait({task}, timeout=0.5)
    assert await task == 1
    assert await person.fetchval("SELECT key FROM tenure_idempotency") == "order"


async def test_planted_a_purge_that_does_not_look_again_deletes_a_live_record(
    records: Store, owner: Owner, person: Any, locked_row: Any, planted: Planted
) -> None:
    planted(records, "purge", ("FOR UPDATE SKIP LOCKED", ""))
    with pytest.raises(AssertionError):
        await test_a_record_that_is_begun_anew_while_it_is_purged_stays(records, owner, person, locked_row)


async def test_a_purge_takes_those_first_that_ended_first_and_no_more_than_it_may(records: Store, person: Any) -> None:
    await person.execute(
        "INSERT INTO tenure_idempotency SELECT 'k' || n, NULL, 'f', 1, now(), now() - n * interval '1 minute', false, "
        "NULL FROM generate_series(-1, 5) AS n"
    )
    assert await records.purge(2) == 2
    keys = "SELECT array_agg(key ORDER BY key) FROM tenure_idempotency"
    assert await person.fetchval(keys) == ["k-1", "k0", "k1", "k2", "k3"]
    assert await records.purge() == 4
    assert await records.purge() == 0
    assert await person.fetchval(keys) == ["k-1"]


async def test_a_purge_searches_by_the_index(records: Store, person: Any) -> None:
    """A moment that may change with each row would be compared with every row."""
    await person.execute(
        "INSERT INTO tenure_idempotency SELECT 'k' || n, NULL, 'f', 1, now(), now() + interval '1 day', false, NULL "
        "FROM generate_series(1, 5000) AS n"
    )
    await person.execute("ANALYZE tenure_idempotency")
    plan = await person.fetch("EXPLAIN " + records._sql.purge.replace("$1", "1000"))
    text = "\n".join(row[0] for row in plan)
    assert "ix_tenure_idempotency_expires_at" in text
    assert "Index Cond: (expires_at <=" in text


# ------------------------------------------------------------------------------------------------------ its own facts


async def test_a_megabyte_with_every_byte_comes_back_as_it_was(records: Store, owner: Owner) -> None:
    holder, response = owner(), bytes(range(256)) * 4096
    await begin(records, "order", holder)
    assert await records.complete("order", holder, response, DAY) is Completion.STORED
    assert await records.acquire("order", owner(), "f", MINUTE, DAY) == Completed(response, holder)


async def test_a_release_after_an_earlier_attempt_keeps_the_row_and_its_count(
    records: Store, owner: Owner, person: Any
) -> None:
    await begin(records, "order", owner(), 1)
    second = owner()
    assert await begin(records, "order", second, MINUTE, DAY) == 2
    assert await records.release("order", second)
    assert not await records.release("order", second)
    row = await person.fetchrow(
        "SELECT owner, attempt, lock_until <= clock_timestamp() AS ended, "
        "extract(epoch FROM expires_at - lock_until)::int AS grace_s FROM tenure_idempotency"
    )
    assert tuple(row) == (None, 2, True, 86_400)
    assert await begin(records, "order", owner()) == 3


@pytest.mark.parametrize(
    ("table", "schema"),
    [('we"ird', None), ("select", None), ("Locks of:ops %s {x}", 'sche"ma'), ("tenure_locks2", None), ("x" * 63, None)],
)
async def test_a_table_of_any_name_works(
    engine: AsyncEngine, person: Any, owner: Owner, table: str, schema: str | None
) -> None:
    if schema is not None:
        await person.execute("CREATE SCHEMA " + str(TableName(schema)))
    await person.execute(create_idempotency_schema_sql(table=table, schema=schema))
    store, holder = Store(engine, table=table, schema=schema), owner()
    await begin(store, "order", holder)
    assert await store.extend("order", holder, MINUTE)
    async with engine.begin() as connection:
        await store.assert_owner(connection, "order", holder)
    assert await store.effect_committed("order", holder)
    assert await store.complete("order", holder, b"x", DAY) is Completion.STORED
    assert not await store.release("order", holder)
    assert await store.purge() == 0
    assert {finding.code for finding in await store.check()} <= {"fsync"}
    assert await person.fetchval("SELECT count(*) FROM tenure_idempotency") == 0, "the default table was not touched"


NOBODY = "postgresql+asyncpg://nobody@127.0.0.1:1/none"
"""Nothing listens there: whatever is sent fails with another error than the one expected."""


async def test_what_cannot_be_is_refused_before_anything_is_sent_and_not_named() -> None:
    store, secret = Store(create_async_engine(NOBODY)), "canary-3f9a"
    bad: list[Coroutine[Any, Any, Any]] = [
        store.acquire("", "o", "f", 1, 1),
        store.acquire("k", secret + "\0", "f", 1, 1),
        store.acquire("k", "o", secret * 50, 1, 1),
        store.acquire("k", "o", "f", 0, 1),
        store.acquire("k", "o", "f", 1, True),
        store.extend("k", "o", 1.5),  # type: ignore[arg-type]  # that is the point
        store.extend("k", secret * 50, 1),
        store.complete("k", "o", secret, 1),  # type: ignore[arg-type]  # that is the point
        store.complete("k", "o", bytearray(secret.encode()), 1),  # type: ignore[arg-type]  # that is the point
        store.complete("k", "o", b"x", 2**63),
        store.release("k\ud800", "o"),
        store.purge(0),
        store.assert_owner(None, "k", ""),  # type: ignore[arg-type]  # that is the point
        store.effect_committed("", "o"),
    ]
    for call in bad:
        with pytest.raises(ConfigurationError) as caught:
            await call
        assert secret not in f"{caught.value}{caught.value!r}"


async def test_a_server_that_says_no_names_no_key_owner_fingerprint_or_response(
    records: Store, person: Any, engine: AsyncEngine
) -> None:
    secrets = ("canary-key", "canary-owner", "canary-fingerprint", b"canary-response")
    key, owner, fingerprint, response = secrets
    await records.acquire(key, owner, fingerprint, MINUTE, DAY)
    await person.execute("ALTER TABLE tenure_idempotency ADD CONSTRAINT c CHECK (attempt > 1) NOT VALID")
    calls: list[Coroutine[Any, Any, Any]] = [
        records.acquire("canary-key-2", owner, fingerprint, MINUTE, DAY),
        records.complete(key, owner, response, DAY),
        records.extend(key, owner, MINUTE),
    ]
    for call in calls:
        with pytest.raises(asyncpg.CheckViolationError) as caught:
            await call
        assert "canary" not in f"{caught.value}{caught.value!r}{caught.value.__dict__}"
    assert "canary" not in repr(await records.acquire(key, "canary-other", fingerprint, MINUTE, DAY))


async def test_a_store_by_url_owns_its_engine_and_a_closed_one_says_so(database_url: str, owner: Owner) -> None:
    url = database_url.replace("+asyncpg", "") + "?table=tenure_idempotency&lock_timeout=250ms&pool_size=2"
    async with open_postgres_idempotency_store(url) as store:
        assert await begin(store, "order", owner()) == 1
        assert store._engine.lock_timeout == "250ms"
    with pytest.raises(LeaseStateError, match="open_idempotency_store"):
        await store.purge()
    with pytest.raises(LeaseStateError):
        await store.check()
    assert repr(store) == "PostgresIdempotencyStore(table='\"tenure_idempotency\"')"
    await store.aclose()


def test_an_entry_point_leads_to_the_factory() -> None:
    import tomllib
    from pathlib import Path

    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = project["entry-points"]
    assert set(groups["tenure.idempotency_stores"]) == set(groups["tenure.stores"])
    assert set(groups["tenure.idempotency_stores"].values()) == {"tenure_postgres:open_postgres_idempotency_store"}
