"""PgBouncer in front of a real server."""

import signal

import asyncpg
import pytest

from tenure_testbed import PgBouncer, PortTakenError, PostgresAccess, StatementError, free_port
from tenure_testbed.pgbouncer import _prove, _stop_signal
from tenure_testbed.postgres_access import database_of


def plain(url: str) -> str:
    return url.replace("+asyncpg", "")


async def test_transactions_of_one_client_share_server_connections(pgbouncer_url: str, postgres_url: str) -> None:
    assert database_of(pgbouncer_url) == database_of(postgres_url)
    connections = [await asyncpg.connect(plain(pgbouncer_url), statement_cache_size=0) for _ in range(5)]
    try:
        pids = {await connection.fetchval("SELECT pg_backend_pid()") for connection in connections}
        assert len(pids) == 1, "five clients, one after the other, need one server connection in transaction mode"
    finally:
        for connection in connections:
            await connection.close()


def test_a_taken_port_is_left_for_another_one(pgbouncer: PgBouncer, postgres_server: PostgresAccess) -> None:
    ports = iter([pgbouncer.port, free_port()])
    with PgBouncer(postgres_server, port=lambda: next(ports)) as second:
        assert second.port != pgbouncer.port
        assert second.access.execute("SELECT 1") == [["1"]]


def test_a_foreign_one_on_the_port_is_told_by_its_pidfile(
    pgbouncer: PgBouncer, postgres_server: PostgresAccess
) -> None:
    with PgBouncer(postgres_server) as own, pytest.raises(PortTakenError, match="another server"):
        assert own._scratch is not None
        _prove("PgBouncer", pgbouncer.access, own._scratch.path / "pid")


def test_a_fixed_port_that_is_taken_is_an_error_that_names_it(
    pgbouncer: PgBouncer, postgres_server: PostgresAccess
) -> None:
    with (
        pytest.raises(PortTakenError, match=str(pgbouncer.port)),
        PgBouncer(postgres_server, port=pgbouncer.port),
    ):
        pass


def test_another_role_is_let_in_once_it_is_allowed(pgbouncer: PgBouncer, postgres_server: PostgresAccess) -> None:
    postgres_server.execute("DROP ROLE IF EXISTS bed_guest; CREATE ROLE bed_guest LOGIN")
    guest = pgbouncer.access.as_role("bed_guest")
    with pytest.raises(StatementError, match="authentication failed"):
        guest.execute("SELECT 1")
    pgbouncer.allow("bed_guest")
    assert guest.execute("SELECT current_user") == [["bed_guest"]]


def test_a_killed_one_comes_back_on_its_port(postgres_server: PostgresAccess) -> None:
    with PgBouncer(postgres_server) as bouncer:
        port = bouncer.port
        bouncer.kill()
        with pytest.raises(StatementError, match="refused"):
            bouncer.access.execute("SELECT 1")
        bouncer.start()
        assert bouncer.port == port
        bouncer.restart()
        bouncer.pause()
        bouncer.resume()
        assert bouncer.access.execute("SELECT 1") == [["1"]]


def test_a_missing_program_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenure_testbed.pgbouncer.shutil.which", lambda *_, **__: None)
    assert not PgBouncer.available()
    assert "apt-get install pgbouncer" in str(PgBouncer.unavailable())


def test_a_stop_does_not_wait_for_clients_whatever_the_version() -> None:
    assert _stop_signal((1, 18)) == signal.SIGTERM
    assert _stop_signal((1, 23)) == signal.SIGQUIT


async def test_a_stop_ends_the_connections_of_clients(postgres_server: PostgresAccess) -> None:
    with PgBouncer(postgres_server) as bouncer:
        connection = await asyncpg.connect(bouncer.url(driver="postgresql"), statement_cache_size=0)
        bouncer.stop()
        assert "got SIG" in bouncer.log, "it ended in good order and was not killed"
        with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
            await connection.fetchval("SELECT 1")
