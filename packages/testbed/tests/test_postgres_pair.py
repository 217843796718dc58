"""PostgresPair: what failovers lose, on real servers."""

import asyncio
from collections.abc import Iterator

import asyncpg
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from tenure_testbed import PostgresPair, ServerError
from tenure_testbed.pytest_plugin import or_skip

pytestmark = pytest.mark.matrix


@pytest.fixture(scope="module")
def shared() -> Iterator[PostgresPair]:
    with or_skip(), PostgresPair() as started:
        yield started


@pytest.fixture
def pair(shared: PostgresPair) -> PostgresPair:
    """One pair for the file, whole again and with an empty table, whatever the test before did to it."""
    if shared.standby.running:
        shared.heal()
    else:
        shared.rewind()
    shared.primary.execute("DROP TABLE IF EXISTS t; CREATE TABLE t (id int)")
    shared.catch_up()
    return shared


@pytest.fixture
def synchronous_pair() -> Iterator[PostgresPair]:
    with or_skip(), PostgresPair(synchronous=True) as started:
        started.primary.execute("CREATE TABLE t (id int)")
        started.catch_up()
        yield started


def ids(pair: PostgresPair) -> list[int]:
    return [int(row[0]) for row in pair.primary.execute("SELECT id FROM t ORDER BY id")]


def test_the_standby_follows(pair: PostgresPair) -> None:
    pair.primary.execute("INSERT INTO t VALUES (1)")
    pair.catch_up()
    assert pair.standby.execute("SELECT id FROM t") == [["1"]]
    assert pair.standby.execute("SELECT pg_is_in_recovery()") == [["t"]]
    assert pair.primary.execute("SELECT sync_state FROM pg_stat_replication") == [["async"]]


def test_a_kill_alone_loses_nothing(pair: PostgresPair) -> None:
    pair.primary.execute("INSERT INTO t SELECT generate_series(1, 100)")
    pair.catch_up()
    pair.kill_primary()
    pair.promote()
    assert len(ids(pair)) == 100


def test_a_cut_link_loses_the_tail_that_was_acknowledged(pair: PostgresPair) -> None:
    pair.primary.execute("INSERT INTO t VALUES (1)")
    pair.catch_up()
    pair.cut_replication()
    pair.primary.execute("INSERT INTO t VALUES (2)")
    pair.kill_primary()
    pair.promote()
    assert ids(pair) == [1]


def test_healing_after_the_kill_does_not_bring_the_tail_back(pair: PostgresPair) -> None:
    pair.cut_replication()
    pair.primary.execute("INSERT INTO t VALUES (1)")
    pair.kill_primary()
    pair.heal()
    pair.promote()
    assert ids(pair) == []


def test_a_healed_link_brings_the_tail_over(pair: PostgresPair) -> None:
    pair.cut_replication()
    pair.primary.execute("INSERT INTO t VALUES (1)")
    assert pair.standby.execute("SELECT id FROM t") == []
    pair.heal()
    assert pair.standby.execute("SELECT id FROM t") == [["1"]]


async def test_a_synchronous_primary_commits_nothing_behind_a_cut_link(synchronous_pair: PostgresPair) -> None:
    pair = synchronous_pair
    connection = await asyncpg.connect(pair.primary.url(driver="postgresql"))
    await connection.execute("INSERT INTO t VALUES (1)")
    pair.cut_replication()
    insert = asyncio.create_task(connection.execute("INSERT INTO t VALUES (2)"))
    done, _ = await asyncio.wait({insert}, timeout=0.5)
    assert not done, "it waits for the standby"
    await asyncio.to_thread(pair.kill_primary)
    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
        await insert
    await asyncio.to_thread(pair.promote)
    assert ids(pair) == [1], "what was acknowledged is there"
    connection.terminate()


@pytest.mark.parametrize("synchronous", [False, True])
def test_the_old_primary_comes_back_as_the_standby(synchronous: bool) -> None:
    with or_skip(), PostgresPair(synchronous=synchronous) as pair:
        pair.primary.execute("CREATE TABLE t (id int)")
        pair.catch_up()
        first, second = pair.primary, pair.standby
        pair.cut_replication()
        if not synchronous:
            first.execute("INSERT INTO t VALUES (666)")
        pair.kill_primary()
        pair.promote()
        assert (pair.primary, pair.standby) == (second, first)
        pair.primary.execute("INSERT INTO t VALUES (1)")
        pair.rewind()
        assert pair.standby.execute("SELECT id FROM t") == [["1"]], "the lost tail is gone from the old primary too"
        state = pair.primary.execute("SELECT sync_state FROM pg_stat_replication")
        assert state == [["sync" if synchronous else "async"]]
        # And back again: the links of both directions can be cut.
        pair.cut_replication()
        pair.kill_primary()
        pair.promote()
        pair.rewind()
        assert pair.primary is first
        assert ids(pair) == [1]


def test_two_primaries_take_writes_after_a_split(pair: PostgresPair) -> None:
    pair.cut_replication()
    pair.promote()
    pair.primary.execute("INSERT INTO t VALUES (1)")
    pair.standby.execute("INSERT INTO t VALUES (2)")
    pair.rewind()
    assert pair.standby.execute("SELECT id FROM t") == [["1"]]


def test_a_planned_switch_loses_nothing(pair: PostgresPair) -> None:
    pair.primary.execute("INSERT INTO t VALUES (1)")
    pair.primary.stop()
    pair.promote()
    pair.rewind()
    assert ids(pair) == [1]


def test_rewind_without_a_promotion_is_refused(pair: PostgresPair) -> None:
    with pytest.raises(ServerError, match="comes after promote"):
        pair.rewind()


async def test_one_url_leads_to_whichever_is_the_primary(pair: PostgresPair) -> None:
    engine = create_async_engine(pair.url())
    before, after = pair.primary.port, pair.standby.port
    port = text("SELECT inet_server_port()")
    try:
        async with engine.connect() as connection:
            assert (await connection.execute(port)).scalar_one() == before
        await engine.dispose()
        await asyncio.to_thread(pair.kill_primary)
        await asyncio.to_thread(pair.promote)
        async with engine.connect() as connection:
            assert (await connection.execute(port)).scalar_one() == after
    finally:
        await engine.dispose()
    driver = await asyncpg.connect(pair.url(driver="postgresql"))
    assert await driver.fetchval("SELECT inet_server_port()") == after
    await driver.close()
