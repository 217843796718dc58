"""ValkeyServer on real servers."""

import pytest

from tenure_testbed import (
    PortTakenError,
    ServerError,
    ServerStartError,
    StatementError,
    ValkeyServer,
    free_port,
    process_table,
)


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


def test_a_server_has_started_when_it_has_read_what_it_wrote_down() -> None:
    # Read slowly, and with an ear for clients, as a large file would be: it tells of itself meanwhile.
    settings = {"appendonly": "yes", "appendfsync": "always", "key-load-delay": "50"}
    with ValkeyServer(settings=settings) as server:
        server.execute("EVAL", "for i = 1, 5000 do redis.call('SET', i, i) end", 0)
        server.kill()
        server.start()
        assert server.execute("DBSIZE") == 5000


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


def test_a_user_may_do_what_its_rules_say_and_nothing_else(own_valkey: ValkeyServer) -> None:
    own_valkey.add_user("guest", "se:cret/@", "~app:*", "+get", "+set")
    assert own_valkey.execute("SET", "app:1", "v", user="guest") == "OK"
    for refused in (("GET", "other"), ("DEL", "app:1")):
        with pytest.raises(StatementError, match="NOPERM"):
            own_valkey.execute(*refused, user="guest")
    assert own_valkey.execute("DEL", "app:1") == 1, "who names no user has every right"
    assert own_valkey.url(user="guest") == f"redis://guest:se%3Acret%2F%40@127.0.0.1:{own_valkey.port}/0"


def test_a_user_is_replaced_as_a_whole_and_survives_a_restart(own_valkey: ValkeyServer) -> None:
    own_valkey.add_user("guest", "old", "~*", "+get")
    own_valkey.add_user("guest", "new", "~*", "+set")
    for _ in range(2):
        assert own_valkey.execute("SET", "k", "v", user="guest") == "OK"
        with pytest.raises(StatementError, match="NOPERM"):
            own_valkey.execute("GET", "k", user="guest")
        own_valkey.restart()


def test_a_rule_that_is_none_leaves_no_user(own_valkey: ValkeyServer) -> None:
    with pytest.raises(StatementError, match="nonsense"):
        own_valkey.add_user("guest", "secret", "+nonsense")
    with pytest.raises(ServerError, match="has no user 'guest'"):
        own_valkey.execute("PING", user="guest")
    own_valkey.restart()


def test_a_full_server_refuses_what_grows_and_nothing_else(own_valkey: ValkeyServer) -> None:
    own_valkey.execute("SET", "k", "v", "PX", 60000)
    own_valkey.set_maxmemory(1)
    with pytest.raises(StatementError, match="OOM"):
        own_valkey.execute("SET", "more", "v")
    assert own_valkey.execute("PEXPIRE", "k", 70000) == 1
    assert own_valkey.execute("GET", "k") == "v", "nothing was thrown away to make room"
    own_valkey.restart()
    with pytest.raises(StatementError, match="OOM"):
        own_valkey.execute("SET", "more", "v")
    own_valkey.set_maxmemory(0)
    assert own_valkey.execute("SET", "more", "v") == "OK"


def test_a_server_that_evicts_makes_room(own_valkey: ValkeyServer) -> None:
    own_valkey.execute("SET", "k", "v")
    own_valkey.set_maxmemory(1, "allkeys-lru")
    assert own_valkey.info("memory")["maxmemory_policy"] == "allkeys-lru"
    with pytest.raises(StatementError, match="OOM"):
        own_valkey.execute("SET", "more", "v")
    assert own_valkey.execute("GET", "k") is None


def test_settings_hold_at_once_or_from_the_next_start_on(own_valkey: ValkeyServer) -> None:
    def limit() -> object:
        return own_valkey.execute("CONFIG", "GET", "maxclients")

    own_valkey.configure({"maxclients": "77"})
    assert limit() == ["maxclients", "77"]
    own_valkey.configure_start({"maxclients": "88"})
    assert limit() == ["maxclients", "77"]
    own_valkey.restart()
    assert limit() == ["maxclients", "88"]
    with pytest.raises(StatementError, match="nonsense"):
        own_valkey.configure({"nonsense": "1"})
    own_valkey.restart()


def test_a_server_tells_of_itself(own_valkey: ValkeyServer) -> None:
    assert own_valkey.info("server")["process_id"] == str(own_valkey.pid)
    assert own_valkey.info("server")["valkey_version"].startswith("9.")


def test_every_logical_database_is_emptied(own_valkey: ValkeyServer) -> None:
    own_valkey.execute("SET", "k", "v")
    own_valkey.execute("MOVE", "k", 3)
    own_valkey.flush_all()
    assert own_valkey.info("keyspace") == {}


def test_a_paused_server_says_so(own_valkey: ValkeyServer) -> None:
    assert not own_valkey.paused
    own_valkey.pause()
    assert own_valkey.paused
    assert own_valkey.running
    own_valkey.kill()
    assert not own_valkey.paused


async def test_a_server_in_an_async_with() -> None:
    async with ValkeyServer() as server:
        assert server.execute("PING") == "PONG"
    assert not server.running
