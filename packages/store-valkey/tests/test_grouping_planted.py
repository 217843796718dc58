"""What holds for calls that travel together, and bugs planted in how they do: each fact finds its bug."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from unittest import mock

import pytest

from tenure.store import Acquired, Held
from tenure_testbed import ValkeyServer
from tenure_valkey import ForeignValueError, RedisRunner, ValkeyLockStore, create_redis_client, group, redis_connection
from tenure_valkey import glide_batches as batches
from tenure_valkey.group import Line, Pending
from tenure_valkey.runner import read_script

Fact = Callable[[ValkeyLockStore, ValkeyServer], Awaitable[None]]

MANY = 50


async def send_off() -> None:
    """Let what was begun get under way: a client that is connected sends within a turn of the loop or two."""
    for _ in range(20):
        await asyncio.sleep(0)


def begin(call: Any) -> "asyncio.Task[Any]":
    return asyncio.get_running_loop().create_task(call)


def hold_up(server: ValkeyServer) -> None:
    """Have the server take calls, and answer none of those that write, until `let_go`."""
    server.execute("CLIENT", "PAUSE", "60000", "WRITE")


def let_go(server: ValkeyServer) -> None:
    server.execute("CLIENT", "UNPAUSE")


def calls_of(server: ValkeyServer, command: str) -> int:
    stats = server.info("commandstats").get(f"cmdstat_{command}", "calls=0,")
    return int(stats.partition(",")[0].removeprefix("calls="))


async def warm_up(store: ValkeyLockStore) -> None:
    assert isinstance(await store.acquire("warm", "holder", 60_000), Acquired)
    assert await store.renew("warm", "holder", 60_000)
    assert await store.release("warm", "holder")


# ------------------------------------------------------------------------------------------------ facts


async def each_call_has_its_own_answer(store: ValkeyLockStore, server: ValkeyServer) -> None:
    await asyncio.gather(*(store.acquire(f"job-{number}", "first", 60_000) for number in range(0, MANY, 2)))
    answers = await asyncio.gather(*(store.acquire(f"job-{number}", "next", 60_000) for number in range(MANY)))
    assert [type(answer) for answer in answers] == [Held, Acquired] * (MANY // 2)
    released = await asyncio.gather(
        *(store.release(f"job-{number}", "first" if number % 4 else "nobody") for number in range(0, MANY, 2))
    )
    assert released == [bool(number % 4) for number in range(0, MANY, 2)]


async def an_error_is_its_own_calls_alone(store: ValkeyLockStore, server: ValkeyServer) -> None:
    await warm_up(store)
    server.execute("RPUSH", "locks:{job-7}", "x")
    server.execute("SET", "locks:{job-13}", "x")
    texts = calls_of(server, "eval")
    calls = (store.acquire(f"job-{number}", "holder", 60_000) for number in range(MANY))
    answers = await asyncio.gather(*calls, return_exceptions=True)
    odd = {number: answer for number, answer in enumerate(answers) if not isinstance(answer, Acquired)}
    assert set(odd) == {7, 13}
    assert "WRONGTYPE" in str(odd[7])
    assert isinstance(odd[13], ForeignValueError)
    assert calls_of(server, "eval") == texts, "an answer of the server's is no reason to send a call again"


async def only_what_did_not_run_is_sent_again(store: ValkeyLockStore, server: ValkeyServer) -> None:
    await warm_up(store)
    await asyncio.gather(*(store.acquire(f"old-{number}", "holder", 60_000) for number in range(MANY)))
    server.execute("SCRIPT", "FLUSH")
    await store.release("nothing", "holder")  # the server knows this script again, and not the other
    texts = calls_of(server, "eval")
    answers = await asyncio.gather(
        *(store.acquire(f"new-{number}", "holder", 60_000) for number in range(MANY)),
        *(store.release(f"old-{number}", "holder") for number in range(MANY)),
    )
    assert all(isinstance(answer, Acquired) for answer in answers[:MANY])
    assert answers[MANY:] == [True] * MANY
    assert calls_of(server, "eval") - texts in {0, MANY}, "glide loads a script, redis-py brings its text"


async def a_dropped_connection_fails_each_with_an_error_of_its_own(
    store: ValkeyLockStore, server: ValkeyServer
) -> None:
    await warm_up(store)
    hold_up(server)
    calls = [begin(store.acquire(f"job-{number}", "holder", 60_000)) for number in range(MANY)]
    await send_off()
    server.execute("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    errors = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(error).__name__ for error in errors} == {"ConnectionError"}
    assert len({id(error) for error in errors}) == MANY
    let_go(server)
    await warm_up(store)


async def a_cancelled_acquire_ends_when_it_was_carried_out(store: ValkeyLockStore, server: ValkeyServer) -> None:
    await warm_up(store)
    hold_up(server)
    acquiring = begin(store.acquire("job", "holder", 60_000))
    await send_off()
    with mock.patch.object(group, "_SEE_OUT_S", 60):
        acquiring.cancel()
        await send_off()
        try:
            assert not acquiring.done(), "a release that follows would come before it"
            releasing = begin(store.release("job", "stranger"))
            await send_off()
        finally:
            let_go(server)
        with pytest.raises(asyncio.CancelledError):
            await acquiring
    assert not await releasing
    assert await store.release("job", "holder"), "it had been carried out by the time that it ended"


async def a_server_that_is_silent_holds_up_nobody_behind_a_cancelled_call(
    store: ValkeyLockStore, server: ValkeyServer
) -> None:
    await warm_up(store)
    connected = int(server.info("stats")["total_connections_received"])
    hold_up(server)
    acquiring = begin(store.acquire("job", "holder", 60_000))
    await send_off()
    acquiring.cancel()
    next_one = begin(store.acquire("next", "holder", 60_000))
    try:
        await asyncio.wait([acquiring], timeout=5)
        assert acquiring.cancelled(), "it waited for as long as the client does"
        await asyncio.wait([next_one], timeout=0.5)
        # The pause, and this look, are a connection each.
        assert int(server.info("stats")["total_connections_received"]) > connected + 2, "it went the way that is dead"
    finally:
        let_go(server)
    assert isinstance(await next_one, Acquired)
    assert isinstance(await store.acquire("next", "holder", 60_000), Acquired)


async def who_cancels_twice_does_not_wait(store: ValkeyLockStore, server: ValkeyServer) -> None:
    await warm_up(store)
    hold_up(server)
    acquiring = begin(store.acquire("job", "holder", 60_000))
    try:
        for _ in range(2):
            await send_off()
            acquiring.cancel()
        await send_off()
        assert acquiring.cancelled()
    finally:
        let_go(server)
    await warm_up(store)


async def a_call_that_is_cancelled_before_it_was_sent_is_not_sent(store: ValkeyLockStore, server: ValkeyServer) -> None:
    await warm_up(store)
    hold_up(server)
    # As many as may be under way, one behind the other.
    first = []
    for number in range(2):
        first.append(begin(store.acquire(f"first-{number}", "holder", 60_000)))
        await send_off()
    waiting = begin(store.acquire("job", "holder", 60_000))
    await send_off()
    waiting.cancel()
    await send_off()
    try:
        assert waiting.cancelled(), "it had nothing to wait for"
    finally:
        let_go(server)
    assert all(isinstance(answer, Acquired) for answer in await asyncio.gather(*first))
    await warm_up(store)
    assert not server.execute("EXISTS", "locks:{job}", "locks:{job}:fence")


async def many_calls_do_not_hold_up_one(store: ValkeyLockStore, server: ValkeyServer) -> None:
    await warm_up(store)
    client = create_redis_client(server.url())
    runner, release = RedisRunner(client), read_script("release")
    calls = [([f"locks:{{job-{number}}}".encode()], [b"holder", b"1000"]) for number in range(1500)]
    many = begin(runner.run_many(release, calls))
    await send_off()
    await runner.run(release, *calls[0])
    waited = many.done()
    assert await many == [0] * len(calls)
    await client.aclose()
    assert not waited


async def a_connection_that_the_server_closed_is_noticed(store: ValkeyLockStore, server: ValkeyServer) -> None:
    await warm_up(store)
    server.execute("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    await asyncio.sleep(0.05)  # for the end of the stream to arrive, which tells nobody
    await warm_up(store)


async def runners_of_one_client_share_a_connection(store: ValkeyLockStore, server: ValkeyServer) -> None:
    async with create_redis_client(server.url()) as client:
        for _ in range(20):
            await warm_up(ValkeyLockStore(RedisRunner(client)))
        assert len(client.connection_pool._in_use_connections) == 1


async def a_pool_of_one_connection_serves_the_application_too(store: ValkeyLockStore, server: ValkeyServer) -> None:
    async with create_redis_client(server.url(), max_connections=1) as client:
        own = ValkeyLockStore(RedisRunner(client, warn=False))
        for _ in range(3):
            answers = await asyncio.gather(*(own.acquire(f"job-{number}", "holder", 1000) for number in range(MANY)))
            assert all(isinstance(answer, Acquired) for answer in answers)
            await asyncio.sleep(0)
            await send_off()
            assert await client.ping()


FACTS: dict[str, Fact] = {
    fact.__name__: fact
    for fact in (
        each_call_has_its_own_answer,
        an_error_is_its_own_calls_alone,
        only_what_did_not_run_is_sent_again,
        a_dropped_connection_fails_each_with_an_error_of_its_own,
        a_cancelled_acquire_ends_when_it_was_carried_out,
        who_cancels_twice_does_not_wait,
        a_server_that_is_silent_holds_up_nobody_behind_a_cancelled_call,
        a_call_that_is_cancelled_before_it_was_sent_is_not_sent,
        many_calls_do_not_hold_up_one,
        a_connection_that_the_server_closed_is_noticed,
        runners_of_one_client_share_a_connection,
        a_pool_of_one_connection_serves_the_application_too,
    )
}


@pytest.fixture(scope="module")
def server() -> Any:
    from tenure_testbed.pytest_plugin import or_skip

    with or_skip():
        own = ValkeyServer().__enter__()
    yield own
    own.close()


async def check(fact: Fact, server: ValkeyServer, client: str, open_store: Any) -> None:
    server.flush_all()
    store = open_store(server.url(), client=client, timeout="10s")
    try:
        await fact(store, server)
    finally:
        let_go(server)


# glide has one connection, which it opens anew by itself, and the last three are about redis-py's pool.
NOT_GLIDES = (
    "a_dropped_connection_fails_each_with_an_error_of_its_own",
    "a_server_that_is_silent_holds_up_nobody_behind_a_cancelled_call",
    *list(FACTS)[-4:],
)


@pytest.mark.parametrize(
    ("client", "name"),
    [(client, name) for client in ("redis", "glide") for name in FACTS if client == "redis" or name not in NOT_GLIDES],
)
async def test_a_fact_holds(name: str, server: ValkeyServer, client: str, open_store: Any) -> None:
    await check(FACTS[name], server, client, open_store)


# ------------------------------------------------------------------------------------------- planted bugs


async def _ends_at_once(calls: Sequence[Pending]) -> None:
    return


def _takes_what_was_given_up(self: Line, trip: Any) -> list[Pending]:
    taken = list(self._calls)
    self._calls.clear()
    for call in taken:
        call.trip = trip
    return taken


_exchange = redis_connection._exchange


async def _answers_in_another_order(connection: Any, calls: Sequence[Pending], commands: Sequence[bytes]) -> Any:
    return await _exchange(connection, calls[::-1], commands)


async def _looks_at_nothing(connection: Any, pool: Any) -> bool:
    return False


def _one_each(pool: Any) -> Line:
    return Line(redis_connection._KeptConnection(pool))


BUGS: dict[str, tuple[str, Any, str, Any, str]] = {
    # name: client, place, what, by what, the fact that finds it
    "any error is taken for NOSCRIPT": (
        "redis",
        redis_connection,
        "is_noscript",
        lambda error: True,
        "an_error_is_its_own_calls_alone",
    ),
    "an answer that is an error ends the connection": (
        "redis",
        redis_connection,
        "is_a",
        lambda error, *names: "NoScriptError" in names and type(error).__name__ == "NoScriptError",
        "an_error_is_its_own_calls_alone",
    ),
    "replies are handed out in another order": (
        "redis",
        redis_connection,
        "_exchange",
        _answers_in_another_order,
        "each_call_has_its_own_answer",
    ),
    "a cancelled call ends before its answer": (
        "redis",
        group,
        "_see_out",
        _ends_at_once,
        "a_cancelled_acquire_ends_when_it_was_carried_out",
    ),
    "a cancelled call of glide ends before its answer": (
        "glide",
        group,
        "_see_out",
        _ends_at_once,
        "a_cancelled_acquire_ends_when_it_was_carried_out",
    ),
    "a cancelled call waits for its answer": (
        "redis",
        group,
        "_SEE_OUT_S",
        60,
        "a_server_that_is_silent_holds_up_nobody_behind_a_cancelled_call",
    ),
    "a group that nobody waits for is waited for": (
        "redis",
        group._Trip,
        "give_up_if_deserted",
        lambda trip: None,
        "a_server_that_is_silent_holds_up_nobody_behind_a_cancelled_call",
    ),
    "a call that was given up is sent": (
        "redis",
        Line,
        "_take",
        _takes_what_was_given_up,
        "a_call_that_is_cancelled_before_it_was_sent_is_not_sent",
    ),
    "one error is raised in all": (
        "redis",
        group,
        "_own",
        lambda error: error,
        "a_dropped_connection_fails_each_with_an_error_of_its_own",
    ),
    "many calls get in line at once": ("redis", group, "CHUNK", 10**6, "many_calls_do_not_hold_up_one"),
    "a dead connection is used": (
        "redis",
        redis_connection,
        "_is_done_for",
        _looks_at_nothing,
        "a_connection_that_the_server_closed_is_noticed",
    ),
    "each runner keeps a connection": (
        "redis",
        redis_connection,
        "_line_to",
        _one_each,
        "runners_of_one_client_share_a_connection",
    ),
    "the last connection is kept": (
        "redis",
        redis_connection,
        "FEW_CONNECTIONS",
        0,
        "a_pool_of_one_connection_serves_the_application_too",
    ),
    "glide's NOSCRIPT is an error like others": (
        "glide",
        batches,
        "_is_noscript",
        lambda error: False,
        "only_what_did_not_run_is_sent_again",
    ),
    "all of a batch goes again": (
        "glide",
        batches,
        "_is_noscript",
        lambda error: isinstance(error, Exception),
        "an_error_is_its_own_calls_alone",
    ),
}


@pytest.mark.parametrize("name", BUGS)
async def test_a_planted_bug_is_found(
    name: str, server: ValkeyServer, open_store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, place, what, bug, fact = BUGS[name]
    monkeypatch.setattr(place, what, bug)
    with pytest.raises(Exception) as found:
        await check(FACTS[fact], server, client, open_store)
    assert not isinstance(found.value, AttributeError | NameError | TypeError), "the bug itself broke down"
    assert "Timeout" not in type(found.value).__name__, "nothing was found: it hung"
