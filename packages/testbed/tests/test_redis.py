"""Redis from the system, as the same server as Valkey."""

import pytest

from tenure_testbed import RedisServer, ServerUnavailableError, ValkeyServer
from tenure_testbed.pytest_plugin import or_skip


def test_it_is_redis_and_the_one_that_was_started(redis_server: RedisServer) -> None:
    fields = redis_server.info("server")
    assert "valkey_version" not in fields
    assert int(fields["redis_version"].partition(".")[0]) >= 7
    assert fields["process_id"] == str(redis_server.pid)


def test_it_can_do_what_valkey_can(redis_server: RedisServer) -> None:
    redis_server.add_user("guest", "secret", "~*", "+get")
    assert redis_server.execute("GET", "k", user="guest") is None
    assert redis_server.url(scheme="valkey") == f"valkey://127.0.0.1:{redis_server.port}/0"


def test_the_shared_redis_is_emptied_for_each_test_1(redis_server: RedisServer) -> None:
    assert redis_server.execute("SETNX", "k", "v") == 1


def test_the_shared_redis_is_emptied_for_each_test_2(redis_server: RedisServer, redis_url: str) -> None:
    assert redis_server.execute("SETNX", "k", "v") == 1
    assert redis_url == redis_server.url()


def test_it_can_be_asked_for_by_its_program() -> None:
    with or_skip(), ValkeyServer(binary="redis-server") as server:
        server.execute("SET", "k", "v")
        server.restart()
        assert server.execute("GET", "k") is None, "nothing was written to disk"
        assert "redis_version" in server.info("server")


def test_a_missing_program_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenure_testbed.valkey_program.shutil.which", lambda *_, **__: None)
    assert RedisServer.unavailable() == "Redis is not installed: apt-get install redis-server"
    assert ValkeyServer.unavailable() is None
    with pytest.raises(ServerUnavailableError, match="apt-get install redis-server"):
        RedisServer().start()
