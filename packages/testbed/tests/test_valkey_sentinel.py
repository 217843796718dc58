"""ValkeySentinel: who is the primary, through failovers and kills, on real servers."""

from collections.abc import Iterator

import pytest

from tenure_testbed import NotReachedError, Sentinel, ServerError, ValkeySentinel
from tenure_testbed.pytest_plugin import or_skip
from tenure_testbed.valkey_replication import is_primary

pytestmark = pytest.mark.matrix


@pytest.fixture(scope="module")
def shared() -> Iterator[ValkeySentinel]:
    with or_skip(), ValkeySentinel(replicas=2, down_after_ms=500) as started:
        yield started


@pytest.fixture
def watched(shared: ValkeySentinel) -> ValkeySentinel:
    """One for the file, whole again and empty, whatever the test before did to it."""
    shared.restart()
    shared.flush_all()
    return shared


def answers(watched: ValkeySentinel) -> list[int | None]:
    return [sentinel.primary_port("testbed") for sentinel in watched.sentinels if sentinel.running]


def test_every_server_is_one_that_was_started_here(watched: ValkeySentinel) -> None:
    everybody = (*watched.servers, *watched.sentinels)
    assert len({server.port for server in everybody}) == 6
    for server in everybody:
        assert server.info("server")["process_id"] == str(server.pid)


def test_every_sentinel_names_the_primary_and_knows_the_others(watched: ValkeySentinel) -> None:
    assert is_primary(watched.primary)
    assert answers(watched) == [watched.primary.port] * 3
    assert len(watched.replicas) == 2
    for sentinel in watched.sentinels:
        assert sentinel.knows("testbed", replicas=2, sentinels=2)
        assert sentinel.primary_port("nonsense") is None


def test_the_url_names_the_sentinels_and_what_to_ask_them_for(watched: ValkeySentinel) -> None:
    hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in watched.sentinels)
    assert watched.url() == f"redis+sentinel://{hosts}/testbed"
    assert watched.sentinel_addresses == [("127.0.0.1", sentinel.port) for sentinel in watched.sentinels]


def test_a_planned_failover_makes_a_replica_the_primary(watched: ValkeySentinel) -> None:
    old = watched.primary
    old.execute("SET", "k", "v")
    new = watched.failover()
    assert new is watched.primary is not old
    assert answers(watched) == [new.port] * 3
    assert new.execute("GET", "k") == "v"
    assert old in watched.replicas
    assert not is_primary(old)


def test_a_killed_primary_is_replaced_and_comes_back_as_a_replica(watched: ValkeySentinel) -> None:
    watched.primary.execute("SET", "k", "v")
    watched.catch_up()
    killed = watched.kill_primary()
    with pytest.raises(NotReachedError):
        watched.wait_until_ok(timeout=0.1)
    watched.wait_until_ok()
    assert watched.primary is not killed
    assert answers(watched) == [watched.primary.port] * 3
    assert watched.primary.execute("GET", "k") == "v"
    watched.restart()
    assert killed in watched.replicas
    assert killed.execute("GET", "k") == "v", "it was empty, and has a copy"


def test_two_sentinels_of_three_are_enough(watched: ValkeySentinel) -> None:
    watched.sentinels[0].kill()
    old = watched.primary
    old.pause()
    watched.wait_until_ok()
    assert watched.primary is not old
    assert answers(watched) == [watched.primary.port] * 2
    watched.restart()
    assert answers(watched) == [watched.primary.port] * 3, "the one that was away has heard of it"
    assert not is_primary(old)


def test_users_are_made_on_every_server(watched: ValkeySentinel) -> None:
    watched.add_user("guest", "secret", "~*", "+set")
    for server in watched.servers:
        assert "guest" in str(server.execute("ACL", "LIST"))
    watched.primary.execute("SET", "k", "v", user="guest")


def test_who_has_started_knows_the_others_and_without_sentinels_nobody_knows(own_watched: ValkeySentinel) -> None:
    for sentinel in own_watched.sentinels:
        assert sentinel.knows("other", replicas=1, sentinels=2)
    for sentinel in own_watched.sentinels:
        sentinel.kill()
    with pytest.raises(ServerError, match="No Sentinel runs"):
        _ = own_watched.primary


@pytest.fixture
def own_watched() -> Iterator[ValkeySentinel]:
    with or_skip(), ValkeySentinel(binary="redis-server", master_name="other") as started:
        assert started.url().endswith("/other")
        yield started


def test_a_sentinel_that_watches_nothing_does_not_start() -> None:
    with (
        or_skip(),
        pytest.raises(ServerError, match="watches nothing"),
        Sentinel(name="Sentinel", binary="valkey-server", options={}),
    ):
        pass
