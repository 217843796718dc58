"""Effects in the caller's own transaction: exactly once, whoever dies when."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_scoped_session, async_sessionmaker

from tenure.errors import ConfigurationError, ExecutionLostError
from tenure.idempotency_store import Abandoned, Acquired, AcquireReply, Completed, Completion, InFlight
from tenure_postgres import PostgresIdempotencyStore

Owner = Callable[[], str]
MakeEngine = Callable[..., AsyncEngine]
Planted = Callable[..., PostgresIdempotencyStore]
Store = PostgresIdempotencyStore

MINUTE = 60_000
DAY = 24 * 60 * MINUTE
ENDED = "UPDATE tenure_idempotency SET lock_until = clock_timestamp()"
"""The execution's lock ends, and its grace goes on."""


class CrashError(Exception):
    """Ends a transaction without its commit."""


@pytest.fixture
async def shop(engine: AsyncEngine, person: Any) -> AsyncEngine:
    await person.execute("CREATE TABLE orders (key text NOT NULL, by text NOT NULL)")
    return engine


async def begin(store: Store, owner: str, key: str = "order") -> int:
    reply = await store.acquire(key, owner, "f", MINUTE, DAY)
    assert isinstance(reply, Acquired), reply
    return reply.attempt


async def order(store: Store, engine: AsyncEngine, owner: str, key: str = "order") -> None:
    """A handler's work: one effect, in one transaction with its proof."""
    async with engine.begin() as connection:
        await store.assert_owner(connection, key, owner)
        await connection.execute(text("INSERT INTO orders VALUES (:key, :by)"), {"key": key, "by": owner})


async def ask(store: Store, owner: str, key: str = "order", **options: bool) -> AcquireReply:
    return await store.acquire(key, owner, "f", MINUTE, DAY, **options)


# ------------------------------------------------------------------------------------------------------- a commit


async def test_a_committed_effect_is_never_begun_again_until_the_records_end(
    shop: AsyncEngine, records: Store, owner: Owner, person: Any
) -> None:
    first = owner()
    await begin(records, first)
    await order(records, shop, first)
    assert isinstance(await ask(records, owner()), InFlight), "its lock lives"
    await person.execute(ENDED)
    for takeover in (True, False):
        assert await ask(records, owner(), takeover=takeover) == Abandoned(1, effect_committed=True)
    assert await records.effect_committed("order", first)
    assert not await records.release("order", first), "an execution that had its effect is not one without any"
    assert await ask(records, owner()) == Abandoned(1, effect_committed=True)
    assert await ask(records, first) == Acquired(1), "its owner may still store the response"
    assert await records.complete("order", first, b"201", DAY) is Completion.STORED
    assert await ask(records, owner()) == Completed(b"201", first)
    assert await records.effect_committed("order", first)


async def test_after_the_records_end_the_effect_is_forgotten_with_it(
    shop: AsyncEngine, records: Store, owner: Owner, person: Any
) -> None:
    first = owner()
    await begin(records, first)
    await order(records, shop, first)
    await person.execute("UPDATE tenure_idempotency SET expires_at = clock_timestamp()")
    assert await ask(records, owner()) == Acquired(1)
    await person.execute(ENDED)
    assert await ask(records, owner()) == Acquired(2), "the effect was the first record's"


@pytest.mark.parametrize("kind", ["connection", "session", "scoped session"])
async def test_a_connection_and_a_session_are_taken(shop: AsyncEngine, records: Store, owner: Owner, kind: str) -> None:
    first = owner()
    await begin(records, first)
    if kind == "connection":
        async with shop.begin() as connection:
            await records.assert_owner(connection, "order", first)
            await records.assert_owner(connection, "order", first)
    elif kind == "session":
        async with AsyncSession(shop) as session, session.begin():
            await records.assert_owner(session, "order", first)
    else:
        scoped = async_scoped_session(async_sessionmaker(shop), scopefunc=asyncio.current_task)
        await records.assert_owner(scoped, "order", first)
        await scoped.commit()
        await scoped.remove()
    assert await records.effect_committed("order", first)


async def test_a_transaction_that_fails_leaves_no_effect(
    shop: AsyncEngine, records: Store, owner: Owner, person: Any
) -> None:
    first = owner()
    await begin(records, first)
    with suppress(CrashError):
        async with shop.begin() as connection:
            await records.assert_owner(connection, "order", first)
            raise CrashError
    assert not await records.effect_committed("order", first)
    await person.execute(ENDED)
    assert await ask(records, owner()) == Acquired(2)


async def test_a_commit_that_fails_in_silence_is_found_out(
    shop: AsyncEngine, records: Store, owner: Owner, person: Any
) -> None:
    """A hook that commits after the handler swallowed the commit's failure: the handler said 201, and there is none."""
    await person.execute("ALTER TABLE orders ADD CONSTRAINT once UNIQUE (key) DEFERRABLE INITIALLY DEFERRED")
    await person.execute("INSERT INTO orders VALUES ('order', 'somebody')")
    first = owner()
    await begin(records, first)
    session = AsyncSession(shop)
    await records.assert_owner(session, "order", first)
    await session.execute(text("INSERT INTO orders VALUES ('order', 'first')"))
    with suppress(DBAPIError):
        await session.commit()
    await session.close()
    assert not await records.effect_committed("order", first)


# ---------------------------------------------------------------------------------------------------- being replaced


async def test_the_transaction_of_a_replaced_execution_rolls_back(
    shop: AsyncEngine, records: Store, owner: Owner, person: Any
) -> None:
    zombie, successor = owner(), owner()
    await begin(records, zombie)
    await person.execute(ENDED)
    assert await begin(records, successor) == 2
    with pytest.raises(ExecutionLostError):
        await order(records, shop, zombie)
    await order(records, shop, successor)
    assert await person.fetchval("SELECT array_agg(by) FROM orders") == [successor]
    assert not await records.effect_committed("order", zombie)


async def test_planted_a_proof_that_asks_for_the_key_alone_lets_a_replaced_execution_commit(
    shop: AsyncEngine, records: Store, owner: Owner, person: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tenure_postgres import caller_transaction

    plain = caller_transaction.read_statement
    by_owner = "AND encode(sha256(convert_to(record.owner, 'UTF8')), 'hex') = :owner_digest"
    assert by_owner in plain("records/assert_owner")
    careless = "AND length(:owner_digest) > 0"
    monkeypatch.setattr(caller_transaction, "read_statement", lambda name: plain(name).replace(by_owner, careless))
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        await test_the_transaction_of_a_replaced_execution_rolls_back(shop, records, owner, person)


@pytest.mark.parametrize("state", ["absent", "completed", "past its end"])
async def test_without_a_live_execution_there_is_nothing_to_prove(
    shop: AsyncEngine, records: Store, owner: Owner, person: Any, state: str
) -> None:
    first = owner()
    if state != "absent":
        await begin(records, first)
    if state == "completed":
        await records.complete("order", first, b"201", DAY)
    if state == "past its end":
        await person.execute("UPDATE tenure_idempotency SET expires_at = clock_timestamp()")
    with pytest.raises(ExecutionLostError):
        await order(records, shop, first)


async def test_an_execution_whose_lock_has_ended_and_that_nobody_replaced_still_has_its_effect(
    shop: AsyncEngine, records: Store, owner: Owner, person: Any
) -> None:
    late = owner()
    await begin(records, late)
    await person.execute(ENDED)
    await order(records, shop, late)
    assert await ask(records, owner()) == Abandoned(1, effect_committed=True)


@pytest.mark.parametrize("isolation", ["REPEATABLE READ", "SERIALIZABLE"])
async def test_a_takeover_since_the_snapshot_is_a_serialization_failure(
    shop: AsyncEngine, records: Store, owner: Owner, person: Any, isolation: Any
) -> None:
    late = owner()
    await begin(records, late)
    strict = shop.execution_options(isolation_level=isolation)
    with pytest.raises(DBAPIError) as caught:
        async with strict.begin() as connection:
            await connection.execute(text("SELECT count(*) FROM orders"))
            await person.execute(ENDED)
            await begin(records, owner())
            await records.assert_owner(connection, "order", late)
    assert getattr(caught.value.orig, "sqlstate", None) == "40001"
    assert late not in f"{caught.value}{caught.value!r}"
    assert caught.value.params is None


# ------------------------------------------------------------------------------------- while the transaction is open


async def test_while_a_transaction_has_the_effect_a_takeover_is_told_to_wait_and_is_not_kept_waiting(
    shop: AsyncEngine, records: Store, owner: Owner, person: Any
) -> None:
    first = owner()
    await begin(records, first)
    await person.execute(ENDED)
    async with shop.begin() as connection:
        await records.assert_owner(connection, "order", first)
        # Well under the two seconds of the store's lock_timeout, on a machine that may be busy.
        async with asyncio.timeout(1.5):
            replies = await asyncio.gather(*(ask(records, owner()) for _ in range(5)))
        assert replies == [InFlight(100)] * 5
        assert await records.purge() == 0
    assert await ask(records, owner()) == Abandoned(1, effect_committed=True)


async def test_planted_a_takeover_that_does_not_skip_a_locked_row_is_kept_waiting(
    shop: AsyncEngine, records: Store, owner: Owner, person: Any, planted: Planted
) -> None:
    planted(records, "acquire", ("FOR NO KEY UPDATE OF record SKIP LOCKED", "FOR NO KEY UPDATE OF record"))
    with pytest.raises(TimeoutError):
        await test_while_a_transaction_has_the_effect_a_takeover_is_told_to_wait_and_is_not_kept_waiting(
            shop, records, owner, person
        )


@pytest.mark.parametrize("commits", [True, False])
async def test_whether_an_effect_is_committed_is_said_when_its_transaction_has_ended(
    shop: AsyncEngine, records: Store, owner: Owner, waits_for_a_row: Any, commits: bool
) -> None:
    first = owner()
    await begin(records, first)
    with suppress(CrashError):
        async with shop.begin() as connection:
            await records.assert_owner(connection, "order", first)
            asking = asyncio.create_task(records.effect_committed("order", first))
            await waits_for_a_row()
            if not commits:
                raise CrashError
    assert await asking is commits


async def test_planted_an_answer_that_does_not_wait_denies_an_effect_that_is_about_to_commit(
    shop: AsyncEngine, records: Store, owner: Owner, planted: Planted
) -> None:
    planted(records, "effect_committed", ("FOR SHARE OF record", ""))
    first = owner()
    await begin(records, first)
    async with shop.begin() as connection:
        await records.assert_owner(connection, "order", first)
        assert await records.effect_committed("order", first) is False


async def test_a_release_waits_for_the_transaction_and_frees_nothing_after_its_commit(
    shop: AsyncEngine, records: Store, owner: Owner, waits_for_a_row: Any
) -> None:
    first = owner()
    await begin(records, first)
    async with shop.begin() as connection:
        await records.assert_owner(connection, "order", first)
        releasing = asyncio.create_task(records.release("order", first))
        await waits_for_a_row()
    assert await releasing is False
    assert await records.effect_committed("order", first)


async def test_planted_a_release_that_looks_before_it_locks_frees_a_record_with_an_effect(
    shop: AsyncEngine, records: Store, owner: Owner, waits_for_a_row: Any, planted: Planted
) -> None:
    planted(records, "release", ("FOR UPDATE OF record", ""))
    with pytest.raises(AssertionError):
        await test_a_release_waits_for_the_transaction_and_frees_nothing_after_its_commit(
            shop, records, owner, waits_for_a_row
        )


async def test_twenty_requests_that_race_with_a_late_handler_have_one_effect(
    shop: AsyncEngine, make_engine: MakeEngine, owner: Owner, person: Any
) -> None:
    """Each that acquires has its effect, and the first one comes late: whatever the order, one effect is committed."""
    engine = make_engine(pool_size=12, max_overflow=0)
    store = Store(engine)

    async def retry(key: str) -> None:
        me = owner()
        if isinstance(await ask(store, me, key), Acquired):
            await order(store, engine, me, key)

    for number in range(15):
        key, late = f"order-{number}", owner()
        await begin(store, late, key)
        await person.execute(ENDED)
        handled = asyncio.create_task(order(store, engine, late, key))
        await asyncio.gather(*(retry(key) for _ in range(20)))
        with suppress(ExecutionLostError):
            await handled
        await retry(key)
        assert await person.fetchval("SELECT count(*) FROM orders WHERE key = $1", key) == 1, key


# ------------------------------------------------------------------------------------------------- a process that dies

KEYS = [f"order-{number}" for number in range(12)]


@pytest.fixture
async def killed(shop: AsyncEngine, database_url: str) -> AsyncIterator[Callable[[str], Any]]:
    """Have another process execute a request under each of the keys up to a stage, and kill it there."""
    started: list[asyncio.subprocess.Process] = []

    async def kill_at(stage: str) -> None:
        program = str(Path(__file__).with_name("dying_handler.py"))
        child = await asyncio.create_subprocess_exec(
            sys.executable, program, database_url, stage, *KEYS, stdout=asyncio.subprocess.PIPE
        )
        started.append(child)
        assert child.stdout is not None
        async with asyncio.timeout(30):  # a new interpreter, on a machine that may be busy
            assert await child.stdout.readline() == b"reached\n"
        child.send_signal(signal.SIGKILL)
        await child.wait()

    yield kill_at
    for child in started:
        if child.returncode is None:
            child.kill()
            await child.wait()


async def retried(store: Store, owner: str, key: str) -> AcquireReply:
    """What the client's retries come to."""
    async with asyncio.timeout(10):  # the lock of the dead process lives for a second and a half
        while isinstance(reply := await ask(store, owner, key), InFlight):
            await asyncio.sleep(min(reply.expires_in_ms, 100) / 1000)
    return reply


@pytest.mark.parametrize(
    ("stage", "expected"),
    [
        ("acquired", Acquired(2)),
        ("asserted", Acquired(2)),
        ("committed", Abandoned(1, effect_committed=True)),
        ("completed", None),
    ],
)
async def test_a_process_that_is_killed_leaves_one_effect_a_key_whenever_it_dies(
    shop: AsyncEngine, records: Store, killed: Any, stage: str, expected: AcquireReply | None
) -> None:
    await killed(stage)
    for key in KEYS:
        me = f"retry:{key}"
        reply = await retried(records, me, key)
        assert reply == (expected or Completed(b"201", f"dying-1:{key}"))
        if isinstance(reply, Acquired):
            await order(records, shop, me, key)
    async with shop.connect() as connection:
        orders = text("SELECT key FROM orders ORDER BY key")
        assert sorted((await connection.execute(orders)).scalars()) == sorted(KEYS)


# ------------------------------------------------------------------------------------------------------ what it is not


async def test_a_connection_in_autocommit_is_refused(make_engine: MakeEngine, records: Store, owner: Owner) -> None:
    first = owner()
    await begin(records, first)
    async with make_engine(isolation_level="AUTOCOMMIT").connect() as connection:
        with pytest.raises(ConfigurationError, match="AUTOCOMMIT"):
            await records.assert_owner(connection, "order", first)
    assert not await records.effect_committed("order", first)


@pytest.mark.parametrize("given", [None, 7, "postgresql://", object()])
async def test_what_is_no_connection_is_refused(records: Store, given: Any) -> None:
    with pytest.raises(ConfigurationError, match="AsyncConnection"):
        await records.assert_owner(given, "order", "o")


async def test_the_owner_is_in_no_log_and_no_error_of_the_applications_engine(
    make_engine: MakeEngine, records: Store, person: Any, caplog: pytest.LogCaptureFixture
) -> None:
    secret = "canary-owner"
    await begin(records, secret)
    await person.execute("ALTER TABLE tenure_idempotency RENAME TO gone")
    engine = make_engine(echo=True)
    with pytest.raises(DBAPIError) as caught:
        async with engine.begin() as connection:
            await records.assert_owner(connection, "order", secret)
    assert "assert_owner" in caplog.text
    assert secret not in f"{caplog.text}{caught.value}{caught.value!r}{caught.value.__cause__!r}"
