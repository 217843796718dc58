"""What a replica writes down, and what the others read from it."""

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import AsyncEngine

from cat_store.database.engine import create_engine
from cat_store.database.migrate import migrate
from cat_store.database.registry import Model
from cat_store.live.facts import EventFact, ReplicaFact
from cat_store.live.heartbeat import KEPT_EVENTS, Heartbeat, _prune
from cat_store.live.log import LiveLog
from cat_store.live.reading import SHOWN_EVENTS, DatabaseReader
from tenure_testbed import PostgresServer

Eventually = Callable[[Callable[[], Awaitable[object]]], Awaitable[None]]

ADDRESS = "http://127.0.0.1:3001"


@pytest.fixture
async def engine(postgres_url: str) -> AsyncIterator[AsyncEngine]:
    engine = create_engine(postgres_url)
    await migrate(engine)
    yield engine
    await engine.dispose()


def heartbeat(url: str, log: LiveLog, instance: str = "cat-store-1", *, locks: bool = True) -> Heartbeat:
    return Heartbeat(url, log, instance=instance, address=ADDRESS, locks=locks, every_s=0.05)


async def replicas_of(engine: AsyncEngine) -> dict[str, ReplicaFact]:
    shared, _ = await DatabaseReader(engine).read()
    return {replica.instance: replica for replica in shared.replicas}


async def events_of(engine: AsyncEngine) -> list[EventFact]:
    shared, _ = await DatabaseReader(engine).read()
    return list(shared.events)


async def test_the_tables_are_those_of_the_models_and_go_with_their_migration(engine: AsyncEngine) -> None:
    def differences(connection: Connection) -> list[str]:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        return [repr(each) for each in compare_metadata(context, Model.metadata) if "live_" in repr(each)]

    async with engine.connect() as connection:
        assert await connection.run_sync(differences) == []
    await migrate(engine, "0003")
    async with engine.connect() as connection:
        assert len(await connection.run_sync(differences)) == 2  # both tables are missing, and nothing else is told
    await migrate(engine)
    async with engine.connect() as connection:
        assert await connection.run_sync(differences) == []


async def test_a_replica_is_seen_while_it_is_up_and_says_goodbye(
    engine: AsyncEngine, postgres_url: str, eventually: Eventually
) -> None:
    async with heartbeat(postgres_url, LiveLog(), locks=False):
        await eventually(lambda: replicas_of(engine))
        seen = (await replicas_of(engine))["cat-store-1"]
        assert (seen.address, seen.locks, seen.stopped, seen.connected) == (ADDRESS, False, False, True)
        assert 0 <= seen.silent_for_s < 5  # generous: a beat every 50 ms
    left = (await replicas_of(engine))["cat-store-1"]
    assert (left.stopped, left.connected) == (True, False)


async def test_what_happens_last_is_written_before_a_replica_is_gone(engine: AsyncEngine, postgres_url: str) -> None:
    log = LiveLog()
    async with heartbeat(postgres_url, log):
        log.note("INFO", "locks.closed", "Locks of instance cat-store-1 closed")
    assert [event.message for event in await events_of(engine)] == ["Locks of instance cat-store-1 closed"]


async def test_lines_of_the_shop_that_tell_of_an_event_are_written_and_others_are_not(
    engine: AsyncEngine, postgres_url: str
) -> None:
    logging.getLogger("cat_store").setLevel(logging.INFO)
    async with heartbeat(postgres_url, LiveLog()):
        logging.getLogger("cat_store.invoices").info("Exported", extra={"event": "invoices.exported"})
        logging.getLogger("cat_store.invoices").info("Only for people")
    assert [(event.kind, event.message) for event in await events_of(engine)] == [("invoices.exported", "Exported")]


async def test_events_are_dated_when_they_happened_and_not_when_they_were_written(
    engine: AsyncEngine, postgres_url: str
) -> None:
    now = 100.0
    log = LiveLog(lambda: now)
    log.note("INFO", "early", "early")
    now = 160.0
    log.note("INFO", "late", "late")
    async with heartbeat(postgres_url, log):
        pass
    late, early = await events_of(engine)
    assert (late.kind, early.kind) == ("late", "early")
    assert (late.at - early.at).total_seconds() == pytest.approx(60, abs=1)


async def test_a_replica_of_the_same_name_that_came_meanwhile_is_not_declared_gone(
    engine: AsyncEngine, postgres_url: str, eventually: Eventually
) -> None:
    async with contextlib.AsyncExitStack() as left:
        old = heartbeat(postgres_url, LiveLog())
        async with old:
            await eventually(lambda: replicas_of(engine))
            # From here on the row is the successor's: the old one writes it no more, and then says goodbye.
            old._every_s = 60  # type: ignore[misc]
            await asyncio.sleep(0.2)  # the beat that was waited for before ends
            before = await _backend_of(engine)
            await left.enter_async_context(heartbeat(postgres_url, LiveLog()))

            async def taken_over() -> bool:
                return await _backend_of(engine) != before

            await eventually(taken_over)
            # What it does at its end, without the beat that goes before and would take the row back.
            async with old._engine.connect() as other:
                await old._say_goodbye(other)
            assert not (await replicas_of(engine))["cat-store-1"].stopped


async def _backend_of(engine: AsyncEngine) -> int:
    async with engine.connect() as connection:
        return (await connection.execute(text("SELECT backend_pid FROM live_replicas"))).scalar_one()


async def test_a_killed_replica_is_told_from_a_paused_one_by_its_session(
    engine: AsyncEngine, postgres_url: str, eventually: Eventually
) -> None:
    program = (
        "import asyncio, sys\n"
        "from cat_store.live.heartbeat import Heartbeat\n"
        "from cat_store.live.log import LiveLog\n"
        "async def main():\n"
        "    async with Heartbeat(sys.argv[1], LiveLog(), instance='cat-store-1', address='http://h:1', locks=True):\n"
        "        await asyncio.sleep(120)\n"
        "asyncio.run(main())\n"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-W", "ignore", "-c", program, postgres_url)
    try:
        await eventually(lambda: replicas_of(engine))
        os.kill(process.pid, signal.SIGSTOP)

        async def silent() -> bool:
            return (await replicas_of(engine))["cat-store-1"].silent_for_s > 1.5

        await eventually(silent)
        paused = (await replicas_of(engine))["cat-store-1"]
        assert (paused.connected, paused.stopped) == (True, False)
    finally:
        process.kill()
        await process.wait()

    async def disconnected() -> bool:
        return not (await replicas_of(engine))["cat-store-1"].connected

    await eventually(disconnected)
    assert not (await replicas_of(engine))["cat-store-1"].stopped


async def test_events_wait_for_a_database_that_restarts_and_the_log_says_so_once(
    own_postgres: PostgresServer, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    url = own_postgres.create_database()
    engine = create_engine(url)
    await migrate(engine)
    log = LiveLog()
    async with heartbeat(url, log):
        await eventually(lambda: replicas_of(engine))
        await asyncio.to_thread(own_postgres.stop)
        log.note("INFO", "meanwhile", "It happened while the database was away")

        async def told() -> bool:
            return "hears nothing of this replica" in caplog.text

        await eventually(told)
        await asyncio.to_thread(own_postgres.start)

        async def written() -> bool:
            return any(event.kind == "meanwhile" for event in await events_of(engine))

        await eventually(written)
    assert caplog.text.count("hears nothing of this replica") == 1
    await engine.dispose()


async def test_a_database_that_hangs_does_not_hold_up_a_replica_that_leaves(own_postgres: PostgresServer) -> None:
    url = own_postgres.create_database()
    engine = create_engine(url)
    await migrate(engine)
    await engine.dispose()
    began = asyncio.get_running_loop().time()
    try:
        async with heartbeat(url, LiveLog()):
            await asyncio.to_thread(own_postgres.pause)
    finally:
        await asyncio.to_thread(own_postgres.resume)
    # Three seconds for the goodbye, and as many for the driver to give up; generous for a busy machine.
    assert asyncio.get_running_loop().time() - began < 15


async def test_the_last_few_hundred_events_are_kept_and_the_last_hundred_shown(
    engine: AsyncEngine, postgres_url: str
) -> None:
    log = LiveLog()
    for number in range(KEPT_EVENTS + 150):
        log.note("INFO", "counted", str(number))
    async with heartbeat(postgres_url, log):
        pass
    async with engine.connect() as connection:
        await connection.execution_options(isolation_level="AUTOCOMMIT")
        await asyncio.gather(_prune(connection))
        kept = (await connection.execute(text("SELECT count(*) FROM live_events"))).scalar_one()
    assert kept == KEPT_EVENTS
    shown = await events_of(engine)
    assert [event.message for event in shown[:2]] == [str(KEPT_EVENTS + 149), str(KEPT_EVENTS + 148)]
    assert len(shown) == SHOWN_EVENTS


async def test_replicas_that_prune_at_once_do_not_wait_for_each_other(engine: AsyncEngine, postgres_url: str) -> None:
    log = LiveLog()
    for number in range(KEPT_EVENTS + 100):
        log.note("INFO", "counted", str(number))
    async with heartbeat(postgres_url, log):
        pass
    async with engine.connect() as one, engine.connect() as other:
        await _prune(one)  # in a transaction that stays open
        async with asyncio.timeout(5):
            await _prune(other)
