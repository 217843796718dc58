"""ValkeyServer on real servers."""

import pytest
from tenure_testbed import PortTakenError, ServerStartError, StatementError, ValkeyServer, free_port, process_table


def test_a_server_keeps_what_it_is_given(own_valkey: ValkeyServer) -> None:
    assert own_valkey.execute("PING") == "PONG"
    assert own_valkey.execute("SET", "kéy", "välue") == "OK"
    assert own_valkey.execute("GET", "kéy") == "välue"
    assert own_valkey.execute("GET", "none") is None
    assert own_valkey.execute("RPUSH", "list", 1, 2) == 2
    assert own_valkey.execute("LRANGE", "list", 0, -1) == ["1", "2"]


def test_an_error_reply_is_an_error(own_valkey: ValkeyServer) -> None:
    with pytest.raises(StatementError, match="unknown command"):
        own_valkey.execute("NONSENSE")


def test_a_foreign_server_on_the_port_is_left_alone() -> None:
    with ValkeyServer() as first:
        first.execute("SET", "mine", "1")
        ports = iter([first.port, free_port()])
        with ValkeyServer(port=lambda: next(ports)) as second:
            assert second.port != first.port
            assert second.execute("GET", "mine") is None
            assert f"process_id:{second.pid}" in str(second.execute("INFO", "server"))
        assert first.execute("GET", "mine") == "1"


def test_a_fixed_port_that_is_taken_is_an_error_that_names_it(own_valkey: ValkeyServer) -> None:
    with (
        pytest.raises(PortTakenError, match=str(own_valkey.port)),
        ValkeyServer(port=own_valkey.port),
    ):
        pass


def test_a_kill_loses_what_was_not_written_down(own_valkey: ValkeyServer) -> None:
    own_valkey.execute("SET", "k", "v")
    port = own_valkey.port
    own_valkey.kill()
    with pytest.raises(ConnectionRefusedError):
        own_valkey.execute("PING")
    own_valkey.start()
    assert own_valkey.port == port
    assert own_valkey.execute("GET", "k") is None


def test_an_append_only_file_survives_a_kill() -> None:
    with ValkeyServer(settings={"appendonly": "yes", "appendfsync": "always"}) as server:
        server.execute("SET", "k", "v")
        server.kill()
        server.start()
        assert server.execute("GET", "k") == "v"


def test_a_paused_server_is_stopped_until_it_is_resumed(own_valkey: ValkeyServer) -> None:
    own_valkey.pause()
    entry = process_table.find(own_valkey.pid)
    assert entry is not None
    assert process_table.is_stopped(entry)
    own_valkey.resume()
    assert own_valkey.execute("PING") == "PONG"


def test_a_paused_server_can_be_stopped(own_valkey: ValkeyServer) -> None:
    own_valkey.pause()
    own_valkey.stop()
    assert not own_valkey.running
    assert "bye bye" in own_valkey.log, "it ended in good order and was not killed"


def test_a_failed_start_shows_the_log() -> None:
    with pytest.raises(ServerStartError, match="maxmemory-policy"), ValkeyServer(settings={"maxmemory-policy": "x"}):
        pass


def test_the_url_has_the_scheme_that_is_asked_for(own_valkey: ValkeyServer) -> None:
    assert own_valkey.url() == f"redis://127.0.0.1:{own_valkey.port}/0"
    assert own_valkey.url(1, "valkey") == f"valkey://127.0.0.1:{own_valkey.port}/1"


async def test_a_server_in_an_async_with() -> None:
    async with ValkeyServer() as server:
        assert server.execute("PING") == "PONG"
    assert not server.running
