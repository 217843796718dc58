"""PostgresServer on real servers."""

import asyncio
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from tenure_testbed import (
    PortTakenError,
    PostgresServer,
    ServerError,
    ServerStartError,
    StatementError,
    free_port,
    process_table,
)
from tenure_testbed.custody import custody
from tenure_testbed.postgres import _prove
from tenure_testbed.postgres_access import database_of
from tenure_testbed.postgres_data import DataDirectory
from tenure_testbed.pytest_plugin import or_skip


@pytest.fixture(scope="module")
def shared() -> Iterator[PostgresServer]:
    with or_skip(), PostgresServer() as started:
        yield started


@pytest.fixture
def server(shared: PostgresServer) -> PostgresServer:
    """One server for the file, up again and with an empty schema, whatever the test before did to it."""
    shared.restart("immediate")
    shared.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    return shared


def plain(url: str) -> str:
    return url.replace("+asyncpg", "")


async def test_a_server_serves_a_driver(server: PostgresServer) -> None:
    connection = await asyncpg.connect(plain(server.url()))
    try:
        assert (await connection.fetchval("SHOW server_version")).startswith("18")
    finally:
        await connection.close()


def test_the_server_does_not_run_as_root(server: PostgresServer) -> None:
    owner = Path(f"/proc/{server.pid}").stat().st_uid
    assert owner != 0
    assert owner == server.data.account.uid


def test_a_taken_port_is_left_for_another_one(server: PostgresServer) -> None:
    ports = iter([server.port, server.port, free_port()])
    with PostgresServer(port=lambda: next(ports)) as second:
        assert second.port != server.port
        for each in (server, second):
            assert each.execute("SHOW data_directory") == [[str(each.data.path)]]


def test_a_fixed_port_that_is_taken_is_an_error_that_names_it(server: PostgresServer) -> None:
    port = server.port
    with pytest.raises(PortTakenError, match=str(port)), PostgresServer(port=port):
        pass
    assert server.execute("SELECT 1") == [["1"]]


def test_a_foreign_server_on_the_port_is_told_by_its_data(server: PostgresServer) -> None:
    with PostgresServer() as foreign, pytest.raises(PortTakenError, match="another PostgreSQL"):
        _prove("PostgreSQL", server.data.path, foreign.port)


def test_a_start_that_is_not_proven_is_ended_and_tried_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    ports: list[int] = []

    def prove(_name: str, _data: Path, port: int) -> None:
        ports.append(port)
        if len(ports) == 1:
            raise PortTakenError("somebody else answers")

    monkeypatch.setattr("tenure_testbed.postgres._prove", prove)
    with PostgresServer() as server:
        assert server.port == ports[1] != ports[0]
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", ports[0]))


def test_a_data_directory_that_cannot_be_filled_leaves_nothing() -> None:
    def fail(_data: DataDirectory) -> None:
        raise StatementError("no space left")

    server = PostgresServer(prepare=fail)
    before = set(custody._entries)
    for _ in range(2):
        with pytest.raises(StatementError, match="no space left"):
            server.start()
    assert set(custody._entries) == before


def test_a_kill_ends_every_backend_and_keeps_what_was_committed(server: PostgresServer) -> None:
    server.execute("CREATE TABLE kept (id int); INSERT INTO kept VALUES (1)")
    family = process_table.descendants(server.pid)
    assert family, "a postmaster has children"
    server.kill()
    assert not server.running
    assert not any(map(process_table.is_alive, family))
    with pytest.raises(StatementError, match="refused"):
        server.execute("SELECT 1")
    server.start()
    assert server.execute("SELECT id FROM kept") == [["1"]]


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_restart_keeps_port_and_data(server: PostgresServer, mode: str) -> None:
    port, pid = server.port, server.pid
    server.execute("CREATE TABLE kept (id int)")
    server.restart(mode)  # type: ignore[arg-type]
    assert server.port == port
    assert server.pid != pid
    assert server.execute("SELECT count(*) FROM kept") == [["0"]]


async def test_a_paused_server_answers_nobody_and_carries_on_afterwards(server: PostgresServer) -> None:
    connection = await asyncpg.connect(plain(server.url()))
    await connection.execute("CREATE TABLE t (id int)")
    await asyncio.to_thread(server.pause)
    entries = [*process_table.descendants(server.pid), process_table.find(server.pid)]
    assert all(entry is not None and entry.state == "T" for entry in entries)
    insert = asyncio.create_task(connection.execute("INSERT INTO t VALUES (1)"))
    done, _ = await asyncio.wait({insert}, timeout=0.3)
    assert not done
    await asyncio.to_thread(server.resume)
    await insert
    assert server.execute("SELECT id FROM t") == [["1"]]
    await connection.close()


def test_a_paused_server_can_be_stopped(server: PostgresServer) -> None:
    server.pause()
    server.stop()
    assert not server.running
    assert "database system is shut down" in server.log, "it ended in good order and was not killed"


def test_a_fast_stop_that_hangs_becomes_immediate(server: PostgresServer) -> None:
    # A postmaster with a stopped child waits for it in a fast stop, and kills it in an immediate one.
    child = process_table.descendants(server.pid)[0]
    process_table.send(child, signal.SIGSTOP)
    server.stop(timeout=0.5)
    assert not server.running
    assert "received immediate shutdown request" in server.log
    assert not process_table.is_alive(child)


def test_settings_hold_at_once_and_after_a_restart(server: PostgresServer) -> None:
    server.configure(work_mem="5MB", max_connections=42)
    assert server.execute("SHOW work_mem; SHOW max_connections") == [["5MB"], ["200"]]
    server.restart()
    assert server.execute("SHOW work_mem; SHOW max_connections") == [["5MB"], ["42"]]


def test_fsync_is_off_unless_it_is_asked_for(server: PostgresServer) -> None:
    assert server.execute("SHOW fsync") == [["off"]]
    with PostgresServer(fsync=True) as durable:
        assert durable.execute("SHOW fsync; SHOW full_page_writes") == [["on"], ["on"]]


def test_a_failed_start_shows_the_log() -> None:
    server = PostgresServer(settings={"shared_buffers": "nonsense"})
    with pytest.raises(ServerStartError, match="shared_buffers"), server:
        pass


def test_databases_come_and_go(server: PostgresServer) -> None:
    url = server.create_database('odd "name"/?')
    assert database_of(url) == 'odd "name"/?'
    assert server.execute("SELECT current_database()", database_of(url)) == [['odd "name"/?']]
    server.drop_database('odd "name"/?')
    server.drop_database('odd "name"/?')
    with pytest.raises(StatementError, match="does not exist"):
        server.execute("SELECT 1", 'odd "name"/?')


def test_a_statement_that_fails_leaves_those_before_it(server: PostgresServer) -> None:
    with pytest.raises(StatementError, match="division by zero"):
        server.execute("CREATE TABLE before (id int); SELECT 1/0; CREATE TABLE after (id int)")
    rows = server.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    assert rows == [["before"]]


def test_settings_of_the_caller_do_not_reach_the_tools(server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGOPTIONS", "-c default_transaction_isolation=serializable")
    assert server.execute("SHOW default_transaction_isolation") == [["read committed"]]


def test_a_server_that_was_not_started_says_so() -> None:
    server = PostgresServer(name="the store")
    with pytest.raises(ServerError, match="the store has no address yet"):
        server.url()
    with pytest.raises(ServerError, match="the store does not run"):
        server.pause()


def test_close_removes_the_data_and_may_be_called_again() -> None:
    server = PostgresServer()
    server.start()
    path = server.data.path
    server.kill()
    server.close()
    server.close()
    assert not path.exists()
    assert not path.parent.exists()


def test_a_killed_server_leaves_no_shared_memory_behind() -> None:
    with PostgresServer() as server:
        found = server.data.postmaster()
        assert found is not None
        assert found.memory in shared_memory()
        server.kill()
    assert found.memory not in shared_memory()


def shared_memory() -> set[int | None]:
    segments = Path("/proc/sysvipc/shm").read_text(encoding="ascii").splitlines()[1:]
    return {int(segment.split()[1]) for segment in segments}


def test_a_server_outlives_the_thread_that_started_it() -> None:
    server = PostgresServer()
    starter = threading.Thread(target=server.start)
    starter.start()
    starter.join()
    try:
        assert server.execute("SELECT 1") == [["1"]]
    finally:
        server.close()


async def test_a_server_in_an_async_with() -> None:
    async with PostgresServer() as server:
        assert server.execute("SELECT 1") == [["1"]]
    assert not server.running
