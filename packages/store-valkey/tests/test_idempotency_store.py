"""The records on a server: the machine's table call by call, and responses byte by byte."""

from collections.abc import Callable
from typing import Any

import pytest

from tenure._idempotency_machine import TRANSITIONS, Answer, Caller, IdempotencyCall, RecordState, Verdict, judge
from tenure.idempotency_store import Abandoned, Acquired, Completed, Completion, InFlight, Mismatch
from tenure.store import ChecksServer
from tenure_testbed import ValkeyServer
from tenure_valkey import (
    ValkeyIdempotencyStore,
)

Owner = Callable[[], str]
Person = Callable[..., Any]

RECORD = "idem:order"
PRINT = "v1:cats"
HOUR_MS = 3_600_000
ANY_BYTES = bytes(range(256)) * 4


async def begin(store: ValkeyIdempotencyStore, owner: str, **options: Any) -> Any:
    """Acquire, with a lock of a minute and a grace of an hour."""
    settings = {"fingerprint": PRINT, "lock_ttl_ms": 60_000, "grace_ms": HOUR_MS} | options
    return await store.acquire("order", owner, **settings)


def left(person: Person) -> int:
    ms: int = person("PTTL", RECORD)
    return ms


def end_lock(person: Person) -> None:
    """As if the lock had ended a moment ago: less than the grace is left."""
    person("PEXPIRE", RECORD, HOUR_MS - 1000)


async def in_state(
    store: ValkeyIdempotencyStore, person: Person, state: RecordState, owner: str, *, attempt: int = 1
) -> None:
    if state is RecordState.ABSENT:
        return
    for number in range(1, attempt):
        await begin(store, f"attempt-{number}")
        end_lock(person)
    assert await begin(store, owner) == Acquired(attempt)
    if state is RecordState.ABANDONED:
        end_lock(person)
    if state is RecordState.COMPLETED:
        assert await store.complete("order", owner, ANY_BYTES, HOUR_MS) is Completion.STORED


def seen(person: Person) -> tuple[Any, Any, int]:
    """The record but for its response, which is no text."""
    fields = person("HMGET", RECORD, "owner", "fingerprint", "attempt", "grace")
    return fields, person("HSTRLEN", RECORD, "response"), person("PEXPIRETIME", RECORD)


async def state_of(store: ValkeyIdempotencyStore, person: Person) -> RecordState:
    if not person("EXISTS", RECORD):
        return RecordState.ABSENT
    reply = await begin(store, "nobody", fingerprint="another payload")
    assert isinstance(reply, Mismatch)
    return reply.state


ANSWERS = {
    Acquired: Answer.ACQUIRED,
    InFlight: Answer.IN_FLIGHT,
    Abandoned: Answer.ABANDONED,
    Mismatch: Answer.MISMATCH,
    Completed: Answer.COMPLETED,
}


def answer_of(reply: object) -> Answer:
    if isinstance(reply, bool):
        return Answer.YES if reply else Answer.NO
    return Answer(reply.value) if isinstance(reply, Completion) else ANSWERS[type(reply)]


async def ask(store: ValkeyIdempotencyStore, call: IdempotencyCall, owner: str, **options: Any) -> object:
    if call is IdempotencyCall.ACQUIRE:
        return await begin(store, owner, **options)
    if call is IdempotencyCall.EXTEND:
        return await store.extend("order", owner, 60_000)
    if call is IdempotencyCall.COMPLETE:
        return await store.complete("order", owner, b"later", HOUR_MS)
    return await store.release("order", owner)


@pytest.mark.parametrize("attempt", [1, 2])
@pytest.mark.parametrize("row", TRANSITIONS, ids=[" ".join(word.value for word in row) for row in TRANSITIONS])
async def test_every_call_in_every_state_is_answered_as_the_machine_says(
    records: ValkeyIdempotencyStore,
    person: Person,
    owner: Owner,
    row: tuple[RecordState, IdempotencyCall, Caller],
    attempt: int,
) -> None:
    (state, call, caller), recorded, other = row, owner(), owner()
    await in_state(records, person, state, recorded, attempt=attempt)
    before = seen(person)
    reply = await ask(records, call, recorded if caller is Caller.OWNER else other)
    verdict = judge(state, call, caller, first=attempt == 1)
    assert answer_of(reply) is verdict.answer
    after = seen(person)
    assert (after == before) or verdict.writes
    assert await state_of(records, person) is verdict.state
    if isinstance(reply, Acquired):
        assert reply.attempt == (attempt if state is not RecordState.ABSENT else 0) + verdict.new_attempt
    if state is RecordState.ABANDONED and isinstance(reply, Acquired):
        assert after[0][0] == (other if verdict.new_attempt else recorded)


@pytest.mark.parametrize("caller", Caller)
@pytest.mark.parametrize("state", [state for state in RecordState if state is not RecordState.ABSENT])
async def test_another_payload_is_told_so_first_whatever_the_state(
    records: ValkeyIdempotencyStore, person: Person, owner: Owner, state: RecordState, caller: Caller
) -> None:
    recorded = owner()
    await in_state(records, person, state, recorded)
    before = seen(person)
    asks = recorded if caller is Caller.OWNER else owner()
    for takeover in (True, False):
        reply = await begin(records, asks, fingerprint="v1:dogs", takeover=takeover)
        assert reply == Mismatch(state)
    assert judge(state, IdempotencyCall.ACQUIRE, caller, same_fingerprint=False) == Verdict(Answer.MISMATCH, state)
    assert seen(person) == before


async def test_what_is_abandoned_is_not_taken_over_where_that_is_not_wanted(
    records: ValkeyIdempotencyStore, person: Person, owner: Owner
) -> None:
    recorded = owner()
    await in_state(records, person, RecordState.ABANDONED, recorded, attempt=3)
    before = seen(person)
    assert await begin(records, owner(), takeover=False) == Abandoned(3)
    assert seen(person) == before
    assert await begin(records, recorded, takeover=False) == Acquired(3), "the owner takes nothing over"
    end_lock(person)
    assert await begin(records, owner()) == Acquired(4)


async def test_after_a_second_attempt_a_release_leaves_the_count_and_no_owner(
    records: ValkeyIdempotencyStore, person: Person, owner: Owner
) -> None:
    second = owner()
    await in_state(records, person, RecordState.IN_FLIGHT, second, attempt=2)
    assert await records.release("order", second)
    assert person("HKEYS", RECORD) == ["fingerprint", "attempt", "grace"]
    assert HOUR_MS - 5000 < left(person) <= HOUR_MS
    assert not await records.release("order", second)
    assert not await records.extend("order", second, 1000)
    assert await records.complete("order", second, b"late", 1000) is Completion.STALE
    assert await begin(records, owner(), takeover=False) == Abandoned(2)
    assert await begin(records, second) == Acquired(3)


async def test_the_first_completion_wins_and_its_retention(
    records: ValkeyIdempotencyStore, person: Person, owner: Owner
) -> None:
    recorded = owner()
    await begin(records, recorded)
    assert await records.complete("order", recorded, b"first", HOUR_MS) is Completion.STORED
    person("PEXPIRE", RECORD, 5000)
    assert await records.complete("order", recorded, b"second", 10 * HOUR_MS) is Completion.STORED
    assert await begin(records, owner()) == Completed(b"first", recorded)
    assert left(person) <= 5000


@pytest.mark.parametrize("response", [b"", b"\0", ANY_BYTES, b"\xff" * 1_000_000], ids=["empty", "NUL", "any", "1 MB"])
async def test_a_response_comes_back_byte_by_byte(
    valkey_url: str, open_records: Any, owner: Owner, client: str, response: bytes
) -> None:
    store, recorded = open_records(valkey_url, client=client), owner()
    await begin(store, recorded)
    assert await store.complete("order", recorded, response, HOUR_MS) is Completion.STORED
    assert await begin(store, owner()) == Completed(response, recorded)


async def test_keys_owners_and_fingerprints_are_any_text(records: ValkeyIdempotencyStore) -> None:
    words = ["{a}b", "{}", "a b\nc", "ключ", "é", "e\u0301", "*?[x]", "😺" * 200]
    for word in words:
        assert await records.acquire(word, word, word, 60_000, 1000) == Acquired(1)
    for word in words:
        assert await records.complete(word, word, word.encode(), 60_000) is Completion.STORED
        assert await records.acquire(word, "x", word, 60_000, 1000) == Completed(word.encode(), word)


async def test_whoever_acquires_nothing_writes_nothing(
    records: ValkeyIdempotencyStore, person: Person, valkey_server: ValkeyServer, owner: Owner
) -> None:
    await begin(records, owner())

    def written() -> str:
        return valkey_server.info("persistence")["rdb_changes_since_last_save"]

    before = written()
    assert isinstance(await begin(records, owner()), InFlight)
    assert await begin(records, owner(), fingerprint="v1:dogs") == Mismatch(RecordState.IN_FLIGHT)
    assert not await records.extend("order", owner(), 1000)
    assert await records.complete("order", owner(), b"late", 1000) is Completion.STALE
    assert not await records.release("order", owner())
    assert written() == before


async def test_the_store_checks_servers_and_has_nothing_to_purge(records: ValkeyIdempotencyStore) -> None:
    assert isinstance(records, ChecksServer)
    assert records.reach == "cluster"
    assert await records.purge() == 0
