"""Bugs planted in the scripts of the records: each is found by the fact that it breaks."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tenure.idempotency_store import Acquired, Completed, Completion, InFlight, Mismatch, RecordState
from tenure_testbed import ValkeyServer
from tenure_valkey import ForeignValueError, Script, ValkeyIdempotencyStore, idempotency_store

RECORD = "idem:order"
MINUTE_MS, HOUR_MS = 60_000, 3_600_000

Fact = Callable[[ValkeyIdempotencyStore, ValkeyServer], Awaitable[None]]


async def begin(store: ValkeyIdempotencyStore, owner: str, payload: str = "cats", **options: Any) -> Any:
    return await store.acquire("order", owner, payload, MINUTE_MS, HOUR_MS, **options)


async def abandon(store: ValkeyIdempotencyStore, server: ValkeyServer, owner: str = "first") -> None:
    await begin(store, owner)
    server.execute("PEXPIRE", RECORD, HOUR_MS)


async def replace(store: ValkeyIdempotencyStore, server: ValkeyServer) -> None:
    """The first one's lock ended, and the second one took over."""
    await abandon(store, server)
    assert await begin(store, "second") == Acquired(2)


async def complete(store: ValkeyIdempotencyStore, response: bytes = b"made", owner: str = "first") -> None:
    await begin(store, owner)
    assert await store.complete("order", owner, response, HOUR_MS) is Completion.STORED


def left(server: ValkeyServer) -> int:
    return int(str(server.execute("PTTL", RECORD)))


# ------------------------------------------------------------------------------------------ acquire


async def a_request_in_flight_is_not_begun_again(store: ValkeyIdempotencyStore, server: ValkeyServer) -> None:
    await begin(store, "first")
    assert isinstance(await begin(store, "second"), InFlight)


async def what_is_in_flight_is_told_with_the_lock_s_time(store: ValkeyIdempotencyStore, server: ValkeyServer) -> None:
    await begin(store, "first")
    assert (await begin(store, "second")).expires_in_ms <= MINUTE_MS


async def a_crash_frees_the_key_after_the_lock(store: ValkeyIdempotencyStore, server: ValkeyServer) -> None:
    await replace(store, server)


async def a_crash_is_remembered_for_the_grace(store: ValkeyIdempotencyStore, server: ValkeyServer) -> None:
    await begin(store, "first")
    assert left(server) > HOUR_MS


async def a_lost_reply_is_asked_for_again(store: ValkeyIdempotencyStore, server: ValkeyServer) -> None:
    assert await begin(store, "first") == await begin(store, "first") == Acquired(1)


async def a_repeat_extends(store: ValkeyIdempotencyStore, server: ValkeyServer) -> None:
    await abandon(store, server)
    await begin(store, "first")
    assert isinstance(await begin(store, "second"), InFlight)


async def a_repeat_shortens_nothing(store: ValkeyIdempotencyStore, server: ValkeyServer) -> None:
    await begin(store, "first")
    await store.acquire("order", "first", "cats", 1, 1)
    assert left(server) > HOUR_MS + MINUTE_MS - 5000


async def what_is_abandoned_is_left_where_no_takeover_is_wanted(
    store: ValkeyIdempotencyStore, server: ValkeyServer
) -> None:
    await abandon(store, server)
    assert not isinstance(await begin(store, "second", takeover=False), Acquired)


async def another_payload_is_refused_while_in_flight(store: ValkeyIdempotencyStore, server: ValkeyServer) -> None:
    await begin(store, "first")
    assert await begin(store, "second", "dogs") == Mismatch(RecordState.IN_FLIGHT)


async def another_payload_is_refused_after_a_crash(store: ValkeyIdempotencyStore, server: ValkeyServer) -> None:
    await abandon(store, server)
    assert await begin(store, "second", "dogs") == Mismatch(RecordState.ABANDONED)


async def another_payload_is_refused_after_completion(store: ValkeyIdempotencyStore, server: ValkeyServer) -> None:
    await complete(store)
    assert await begin(store, "second", "dogs") == Mismatch(RecordState.COMPLETED)


async def what_is_completed_is_replayed(store: ValkeyIdempotencyStore, server: ValkeyServer) -> None:
    await complete(store)
    assert await begin(store, "second") == Completed(b"made", "first")


async def a_foreign_hash_is_refused(store: ValkeyIdempotencyStore, server: ValkeyServer) -> None:
    server.execute("HSET", RECORD, "owner", "first", "attempt", "x")
    with pytest.raises(ForeignValueError):
        await begin(store, "first")


async def a_full_server_begins_nothing(store: ValkeyIdempotencyStore, server: ValkeyServer) -> None:
    await store.acquire("warm", "first", "cats", 1, 1)
    server.set_maxmemory(1)
    with pytest.raises(Exception, match="maxmemory"):
        await begin(store, "first")
    assert server.execute("EXISTS", RECORD) == 0


# ------------------------------------------------------------------------------------------- extend


async def a_replaced_execution_extends_nothing(store: ValkeyIdempotencyStore, server: ValkeyServer) -> None:
    await replace(store, server)
    assert not await store.extend("order", "first", 10 * MINUTE_MS)


async def an_extension_shortens_no_retention(store: ValkeyIdempotencyStore, server: ValkeyServer) -> None:
    await complete(store)
    assert not await store.extend("order", "first", 10 * MINUTE_MS)


async def an_extension_shortens_nothing(store: ValkeyIdempotencyStore, server: ValkeyServer) -> None:
    await begin(store, "first")
    await store.extend("order", "first", 1)
    assert left(server) > HOUR_MS + MINUTE_MS - 5000


async def an_extension_keeps_the_grace(store: ValkeyIdempotencyStore, server: ValkeyServer) -> None:
    await begin(store, "first")
    await store.extend("order", "first", 10 * MINUTE_MS)
    assert left(server) > HOUR_MS + 9 * MINUTE_MS


async def a_full_server_extends(store: ValkeyIdempotencyStore, server: ValkeyServer) -> None:
    await begin(store, "first")
    server.set_maxmemory(1)
    assert await store.extend("order", "first", MINUTE_MS)


# ----------------------------------------------------------------------------------------- complete


async def a_replaced_execution_completes_nothing(store: ValkeyIdempotencyStore, server: ValkeyServer) -> None:
    await replace(store, server)
    assert await store.complete("order", "first", b"late", HOUR_MS) is Completion.STALE


async def the_first_completion_wins(store: ValkeyIdempotencyStore, server: ValkeyServer) -> None:
    await complete(store)
    assert await store.complete("order", "first", b"again", HOUR_MS) is Completion.STORED
    assert await begin(store, "second") == Completed(b"made", "first")


async def a_completion_that_is_repeated_is_known(store: ValkeyIdempotencyStore, server: ValkeyServer) -> None:
    await complete(store)
    assert await store.complete("order", "first", b"made", HOUR_MS) is Completion.STORED


async def a_retention_that_is_repeated_is_the_first(store: ValkeyIdempotencyStore, server: ValkeyServer) -> None:
    await complete(store)
    await store.complete("order", "first", b"made", 9 * HOUR_MS)
    assert left(server) <= HOUR_MS


async def what_is_gone_stays_gone(store: ValkeyIdempotencyStore, server: ValkeyServer) -> None:
    assert await store.complete("order", "first", b"made", HOUR_MS) is Completion.GONE
    assert server.execute("EXISTS", RECORD) == 0


async def a_completed_record_lives_for_its_retention(store: ValkeyIdempotencyStore, server: ValkeyServer) -> None:
    await begin(store, "first")
    await store.complete("order", "first", b"made", 5 * HOUR_MS)
    assert 4 * HOUR_MS < left(server) <= 5 * HOUR_MS


async def a_full_server_stores_what_was_carried_out(store: ValkeyIdempotencyStore, server: ValkeyServer) -> None:
    await begin(store, "first")
    server.set_maxmemory(1)
    assert await store.complete("order", "first", b"made", HOUR_MS) is Completion.STORED


# ------------------------------------------------------------------------------------------ release


async def a_replaced_execution_releases_nothing(store: ValkeyIdempotencyStore, server: ValkeyServer) -> None:
    await replace(store, server)
    assert not await store.release("order", "first")


async def a_completed_record_is_not_released(store: ValkeyIdempotencyStore, server: ValkeyServer) -> None:
    await complete(store)
    assert not await store.release("order", "first")
    assert await begin(store, "second") == Completed(b"made", "first")


async def a_released_key_is_free_at_once(store: ValkeyIdempotencyStore, server: ValkeyServer) -> None:
    await begin(store, "first")
    assert await store.release("order", "first")
    assert await begin(store, "second", "dogs") == Acquired(1)


async def a_released_second_attempt_is_still_counted(store: ValkeyIdempotencyStore, server: ValkeyServer) -> None:
    await replace(store, server)
    assert await store.release("order", "second")
    assert await begin(store, "third") == Acquired(3)


async def a_released_second_attempt_is_nobody_s(store: ValkeyIdempotencyStore, server: ValkeyServer) -> None:
    await replace(store, server)
    await store.release("order", "second")
    assert not await store.extend("order", "second", MINUTE_MS)


async def a_full_server_releases(store: ValkeyIdempotencyStore, server: ValkeyServer) -> None:
    await replace(store, server)
    await store.acquire("other", "first", "cats", MINUTE_MS, HOUR_MS)
    server.set_maxmemory(1)
    assert await store.release("order", "second")
    assert await store.release("other", "first")


_GT = ", 'GT')"
_OWN = "if owner ~= ARGV[1] or"
_ARRIVES = "redis.call('HSET', key, 'owner'"

PLANTED = [
    (
        "acquire",
        "if locked > 0 then\n    return {2",
        "if false then\n    return {2",
        a_request_in_flight_is_not_begun_again,
    ),
    ("acquire", "or left - grace", "or left", a_crash_frees_the_key_after_the_lock),
    ("acquire", "return {2, locked}", "return {2, left}", what_is_in_flight_is_told_with_the_lock_s_time),
    ("acquire", "ARGV[3] + ARGV[4]", "ARGV[3]", a_crash_is_remembered_for_the_grace),
    ("acquire", "if owner == ARGV[1] then", "if false then", a_lost_reply_is_asked_for_again),
    ("acquire", "ARGV[3] + grace", "grace", a_repeat_extends),
    ("acquire", _GT, ")", a_repeat_shortens_nothing),
    ("acquire", "if ARGV[5] ~= '1' then", "if false then", what_is_abandoned_is_left_where_no_takeover_is_wanted),
    (
        "acquire",
        "if fingerprint ~= ARGV[2] then",
        "if completed and fingerprint ~= ARGV[2] then",
        another_payload_is_refused_while_in_flight,
    ),
    (
        "acquire",
        "if fingerprint ~= ARGV[2] then",
        "if locked > 0 and fingerprint ~= ARGV[2] then",
        another_payload_is_refused_after_a_crash,
    ),
    (
        "acquire",
        "if fingerprint ~= ARGV[2] then",
        "if not completed and fingerprint ~= ARGV[2] then",
        another_payload_is_refused_after_completion,
    ),
    ("acquire", "if completed then", "if false then", what_is_completed_is_replayed),
    ("acquire", "return {-1}", "", a_foreign_hash_is_refused),
    ("acquire", _ARRIVES, f"redis.call('DEL', key) {_ARRIVES}", a_full_server_begins_nothing),
    ("acquire", "-- Prevents", "#!lua flags=allow-oom\n-- Prevents", a_full_server_begins_nothing),
    ("extend", _OWN, "if", a_replaced_execution_extends_nothing),
    ("extend", " or redis.call('HEXISTS', key, 'response') == 1", "", an_extension_shortens_no_retention),
    ("extend", _GT, ")", an_extension_shortens_nothing),
    ("extend", "ARGV[2] + grace", "ARGV[2]", an_extension_keeps_the_grace),
    ("extend", "-- Prevents", "#!lua\n-- Prevents", a_full_server_extends),
    ("complete", "if owner ~= ARGV[1] then", "if false then", a_replaced_execution_completes_nothing),
    (
        "complete",
        "redis.call('HSETNX', key, 'response', ARGV[2]) == 1",
        "redis.call('HSET', key, 'response', ARGV[2]) >= 0",
        the_first_completion_wins,
    ),
    (
        "complete",
        "redis.call('PEXPIRE', key, ARGV[3])",
        "redis.call('PEXPIRE', key, ARGV[3]) redis.call('HDEL', key, 'owner')",
        a_completion_that_is_repeated_is_known,
    ),
    ("complete", "== 1 then", ">= 0 then", a_retention_that_is_repeated_is_the_first),
    ("complete", "return 2", "redis.call('HSET', key, 'response', ARGV[2]) return 1", what_is_gone_stays_gone),
    ("complete", "redis.call('PEXPIRE', key, ARGV[3])", "", a_completed_record_lives_for_its_retention),
    ("complete", "#!lua flags=allow-oom\n", "", a_full_server_stores_what_was_carried_out),
    ("complete", "flags=allow-oom\n", "\n", a_full_server_stores_what_was_carried_out),
    ("release", _OWN, "if", a_replaced_execution_releases_nothing),
    ("release", " or redis.call('HEXISTS', key, 'response') == 1", "", a_completed_record_is_not_released),
    ("release", "if attempt == '1' then", "if false then", a_released_key_is_free_at_once),
    ("release", "if attempt == '1' then", "if true then", a_released_second_attempt_is_still_counted),
    ("release", "redis.call('HDEL', key, 'owner')", "", a_released_second_attempt_is_nobody_s),
    ("release", "redis.call('HDEL', key, 'owner')", "redis.call('HSET', key, 'owner', '')", a_full_server_releases),
    ("release", "-- Prevents", "#!lua\n-- Prevents", a_full_server_releases),
]


@pytest.mark.parametrize("planted", [False, True], ids=["sound", "planted"])
@pytest.mark.parametrize("bug", PLANTED, ids=[f"{fact.__name__}-{number}" for number, (*_, fact) in enumerate(PLANTED)])
async def test_a_planted_bug_is_found(
    bug: tuple[str, str, str, Fact],
    planted: bool,
    records: ValkeyIdempotencyStore,
    valkey_server: ValkeyServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name, sound, broken, fact = bug
    script: Any = getattr(idempotency_store, f"_{name.upper()}")
    assert script.source.count(sound) == 1, "the script was changed: plant the bug anew"
    if planted:
        source = script.source.replace(sound, broken)
        monkeypatch.setattr(idempotency_store, f"_{name.upper()}", Script(script.name, source))
    try:
        if planted:
            # An assertion, what the broken script made the store raise, or an error that did not come.
            with pytest.raises((Exception, pytest.fail.Exception)):
                await fact(records, valkey_server)
        else:
            await fact(records, valkey_server)
    finally:
        valkey_server.set_maxmemory(0)


async def test_a_script_that_looks_first_and_writes_in_a_second_call_lets_two_begin(
    records: ValkeyIdempotencyStore, valkey_server: ValkeyServer
) -> None:
    """The bug of most peers, for the control that must fail; the script lets one begin of thirty-two."""

    async def in_two_calls(owner: str) -> bool:
        found = await asyncio.to_thread(valkey_server.execute, "EXISTS", "idem:naive")
        if not found:
            await asyncio.to_thread(valkey_server.execute, "HSET", "idem:naive", "owner", owner)
        return not found

    begun = sum(await asyncio.gather(*(in_two_calls(f"owner-{number}") for number in range(32))))
    assert begun > 1
    replies = await asyncio.gather(*(begin(records, f"owner-{number}") for number in range(32)))
    assert sum(reply == Acquired(1) for reply in replies) == 1
