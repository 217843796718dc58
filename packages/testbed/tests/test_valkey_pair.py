"""ValkeyPair: what an asynchronous failover loses, on real servers."""

from collections.abc import Iterator

import pytest

from tenure_testbed import Blackhole, NotReachedError, ServerError, ValkeyPair
from tenure_testbed.process import until
from tenure_testbed.pytest_plugin import or_skip
from tenure_testbed.valkey_replication import await_caught_up, is_linked, is_primary

pytestmark = pytest.mark.matrix

# A stream brings a write over at once, a busy machine allowed for; one that is held back may take a second.
NO_TIME_SECONDS = 0.4


@pytest.fixture
def pair(own_valkey_pair: ValkeyPair) -> ValkeyPair:
    return own_valkey_pair


@pytest.fixture(params=["valkey-server", "redis-server"])
def either(request: pytest.FixtureRequest) -> Iterator[ValkeyPair]:
    with or_skip(), ValkeyPair(binary=request.param) as started:
        yield started


def test_both_are_servers_that_were_started_here(pair: ValkeyPair) -> None:
    for server in (pair.primary, pair.replica):
        assert server.info("server")["process_id"] == str(server.pid)
    assert is_primary(pair.primary)
    assert not is_primary(pair.replica)


def test_what_is_written_is_replicated_from_the_first_moment_on(either: ValkeyPair) -> None:
    # Not a matter of course: a primary holds the stream back after a whole copy, and the link is up meanwhile.
    either.primary.execute("SET", "k", "v")
    until(lambda: either.replica.execute("GET", "k") == "v", "a write to reach the replica", NO_TIME_SECONDS)


def test_a_stream_that_is_held_back_is_not_taken_for_one_that_is_in_step() -> None:
    # A second before the copy, in which its acknowledgement can be put out of the way.
    with or_skip(), ValkeyPair(settings={"repl-diskless-sync-delay": "1"}) as pair:
        pair.replica.kill()
        pair.replica.start()
        until(lambda: "state=wait_bgsave" in pair.primary.info("replication").get("slave0", ""), "the wait for a copy")
        pair._primary.open_link().set(to_server=Blackhole())
        until(lambda: is_linked(pair.replica), "a link that is up")
        with pytest.raises(NotReachedError, match="to have what"):
            await_caught_up(pair.primary, pair.replica, timeout=0.2)
        pair.heal()


def test_a_kill_alone_loses_nothing(pair: ValkeyPair) -> None:
    for n in range(100):
        pair.primary.execute("SET", f"k{n}", n)
    pair.catch_up()
    pair.kill_primary()
    pair.promote()
    assert pair.primary.execute("DBSIZE") == 100


def test_a_cut_link_loses_the_tail_that_was_acknowledged(either: ValkeyPair) -> None:
    either.primary.execute("SET", "k", 1)
    either.catch_up()
    either.cut_replication()
    either.primary.execute("SET", "k", 2)
    either.kill_primary()
    either.promote()
    assert either.primary.execute("GET", "k") == "1"
    assert either.primary.execute("SET", "k", 3) == "OK"


def test_healing_after_the_kill_does_not_bring_the_tail_back(pair: ValkeyPair) -> None:
    pair.cut_replication()
    pair.primary.execute("SET", "k", 1)
    pair.kill_primary()
    pair.heal()
    pair.promote()
    assert pair.primary.execute("GET", "k") is None


def test_a_healed_link_brings_the_tail_over(pair: ValkeyPair) -> None:
    pair.cut_replication()
    pair.primary.execute("SET", "k", 1)
    assert pair.replica.execute("GET", "k") is None
    with pytest.raises(NotReachedError, match="to have what"):
        await_caught_up(pair.primary, pair.replica, timeout=0.2)
    for n in range(20):  # so much that it takes its time
        pair.primary.execute("SET", f"k{n}", "v" * 1_000_000)
    pair.heal()
    assert pair.replica.execute("DBSIZE") == 21


def test_the_old_primary_comes_back_as_the_replica_and_there_and_back_again(pair: ValkeyPair) -> None:
    first, second = pair.primary, pair.replica
    pair.cut_replication()
    first.execute("SET", "lost", 1)
    pair.kill_primary()
    pair.promote()
    assert (pair.primary, pair.replica) == (second, first)
    pair.primary.execute("SET", "kept", 1)
    pair.rejoin()
    assert pair.replica.execute("KEYS", "*") == ["kept"]
    pair.cut_replication()
    pair.primary.execute("SET", "lost", 1)
    pair.kill_primary()
    pair.promote()
    assert pair.primary is first
    pair.rejoin()
    assert pair.replica.execute("KEYS", "*") == ["kept"]


def test_two_primaries_take_writes_after_a_split_and_one_history_is_thrown_away(pair: ValkeyPair) -> None:
    pair.cut_replication()
    pair.promote()
    pair.primary.execute("SET", "new", 1)
    pair.replica.execute("SET", "old", 1)
    pair.rejoin()
    assert pair.replica.execute("KEYS", "*") == ["new"]
    assert not is_primary(pair.replica)


def test_who_was_promoted_is_a_primary_after_a_restart_too(pair: ValkeyPair) -> None:
    pair.promote()
    pair.primary.restart()
    assert is_primary(pair.primary)


def test_a_replica_that_is_restarted_follows_again(pair: ValkeyPair) -> None:
    pair.primary.execute("SET", "k", 1)
    pair.replica.restart()
    pair.catch_up()
    assert pair.replica.execute("GET", "k") == "1"


def test_rejoining_without_a_promotion_is_refused(pair: ValkeyPair) -> None:
    with pytest.raises(ServerError, match="comes after promote"):
        pair.rejoin()


def test_the_url_is_the_one_of_the_primary_now(pair: ValkeyPair) -> None:
    assert pair.url() == pair.primary.url()
    before = pair.url(scheme="valkey")
    pair.promote()
    assert pair.url(scheme="valkey") == pair.primary.url(scheme="valkey") != before


def test_users_and_the_empty_state_are_those_of_both(pair: ValkeyPair) -> None:
    pair.add_user("guest", "secret", "~*", "+set")
    pair.primary.execute("SET", "k", "v", user="guest")
    pair.flush_all()
    assert pair.replica.execute("DBSIZE") == 0
    pair.promote()
    assert pair.primary.execute("SET", "k", "v", user="guest") == "OK"
