"""When a record's lock and the record itself end: durations of any length, and the very last millisecond."""

from collections.abc import Callable
from typing import Any

from tenure._durations import MAX_MS
from tenure.idempotency_store import Acquired, Completed, Completion, InFlight
from tenure_valkey import Script, ValkeyIdempotencyStore, create_redis_client, idempotency_store

Owner = Callable[[], str]
Person = Callable[..., Any]

RECORD = "idem:order"
PRINT = "v1:cats"
HOUR_MS = 3_600_000


async def begin(store: ValkeyIdempotencyStore, owner: str, **options: Any) -> Any:
    """Acquire, with a lock of a minute and a grace of an hour."""
    settings = {"fingerprint": PRINT, "lock_ttl_ms": 60_000, "grace_ms": HOUR_MS} | options
    return await store.acquire("order", owner, **settings)


def left(person: Person) -> int:
    ms: int = person("PTTL", RECORD)
    return ms


async def test_a_record_outlives_its_lock_by_its_grace(
    records: ValkeyIdempotencyStore, person: Person, owner: Owner
) -> None:
    await begin(records, owner())
    assert HOUR_MS + 55_000 < left(person) <= HOUR_MS + 60_000
    reply = await begin(records, owner())
    assert isinstance(reply, InFlight)
    assert 55_000 < reply.expires_in_ms <= 60_000


async def test_weeks_are_kept_to_the_millisecond(records: ValkeyIdempotencyStore, person: Person, owner: Owner) -> None:
    weeks = 10 * 7 * 24 * HOUR_MS
    assert weeks > 2**32
    recorded = owner()
    await begin(records, recorded, lock_ttl_ms=weeks, grace_ms=3 * weeks)
    assert 4 * weeks - 5000 < left(person) <= 4 * weeks
    reply = await begin(records, owner())
    assert isinstance(reply, InFlight)
    assert weeks - 5000 < reply.expires_in_ms <= weeks
    assert await records.extend("order", recorded, 2 * weeks)
    assert 5 * weeks - 5000 < left(person) <= 5 * weeks
    assert await records.complete("order", recorded, b"", 7 * weeks) is Completion.STORED
    assert 7 * weeks - 5000 < left(person) <= 7 * weeks


async def test_the_longest_durations_are_taken(records: ValkeyIdempotencyStore, person: Person, owner: Owner) -> None:
    recorded = owner()
    await begin(records, recorded, lock_ttl_ms=MAX_MS, grace_ms=MAX_MS)
    assert 2 * MAX_MS - 5000 < left(person) <= 2 * MAX_MS
    assert await records.extend("order", recorded, MAX_MS)


async def test_an_extension_never_shortens(records: ValkeyIdempotencyStore, person: Person, owner: Owner) -> None:
    recorded = owner()
    await begin(records, recorded)
    assert await records.extend("order", recorded, 1)
    assert await begin(records, recorded, lock_ttl_ms=1, grace_ms=1) == Acquired(1), "the recorded grace stays"
    assert HOUR_MS + 55_000 < left(person) <= HOUR_MS + 60_000
    assert await records.extend("order", recorded, 2 * 60_000)
    assert HOUR_MS + 115_000 < left(person) <= HOUR_MS + 120_000


async def test_a_late_extension_revives_what_nobody_took_over(
    records: ValkeyIdempotencyStore, person: Person, owner: Owner
) -> None:
    recorded = owner()
    await begin(records, recorded)
    person("PEXPIRE", RECORD, HOUR_MS - 1000)
    assert await records.extend("order", recorded, 60_000)
    assert isinstance(await begin(records, owner()), InFlight)


async def test_what_is_in_flight_for_a_millisecond_is_abandoned_after_it(records: ValkeyIdempotencyStore) -> None:
    for number in range(100):
        key, replies = f"order-{number}", [InFlight(1)]
        await records.acquire(key, "first", PRINT, 1, HOUR_MS)
        while isinstance(replies[-1], InFlight):
            assert replies[-1] == InFlight(1), "never 0: whoever comes back in that time finds the lock ended"
            replies.append(await records.acquire(key, "second", PRINT, 60_000, HOUR_MS))
        assert replies[-1] == Acquired(2)


async def in_its_last_millisecond(url: str, script: Script, *args: str | int) -> tuple[Any, Any]:
    """
    Run *script* in the millisecond in which a completed record ends, and read what is there then.

    A server keeps a key through that millisecond. Its clock stands still in a transaction, so the PTTL of 0 and the
    script's reply are of the same moment; it is met in one of some ten tries.
    """
    async with create_redis_client(url) as client:
        sha1 = await client.script_load(script.source)
        for number in range(2000):
            record = f"idem:order-{number}"
            fields = {"owner": "first", "fingerprint": PRINT, "attempt": 3, "grace": 1000, "response": b"old"}
            await client.hset(record, mapping=fields)
            await client.pexpire(record, 1)
            async with client.pipeline(transaction=True) as together:
                together.pttl(record)
                together.evalsha(sha1, 1, record, *args)
                together.hgetall(record)
                left_ms, reply, fields = await together.execute()
            if left_ms == 0:
                return reply, fields
    raise AssertionError("no record was met in its last millisecond")


async def test_in_the_millisecond_in_which_it_ends_a_record_is_absent(valkey_url: str) -> None:
    acquire = (idempotency_store._ACQUIRE, "second", "v1:dogs", 60_000, HOUR_MS, 1)
    reply, fields = await in_its_last_millisecond(valkey_url, *acquire)
    assert reply == [1, 1]
    assert fields == {b"owner": b"second", b"fingerprint": b"v1:dogs", b"attempt": b"1", b"grace": b"3600000"}
    for script, gone, *args in (
        (idempotency_store._EXTEND, 0, "first", 1000),
        (idempotency_store._COMPLETE, 2, "first", "new", 1000),
        (idempotency_store._RELEASE, 0, "first"),
    ):
        reply, _ = await in_its_last_millisecond(valkey_url, script, *args)
        assert reply == gone, script.name


async def test_a_record_that_a_person_made_permanent_is_in_flight_for_good_and_its_owner_completes_it(
    records: ValkeyIdempotencyStore, person: Person, owner: Owner
) -> None:
    recorded = owner()
    await begin(records, recorded)
    person("PERSIST", RECORD)
    assert await begin(records, owner()) == InFlight(2**53 - 1)
    assert await records.extend("order", recorded, 1000)
    assert left(person) == -1
    assert await records.complete("order", recorded, b"done", HOUR_MS) is Completion.STORED
    assert 0 < left(person) <= HOUR_MS
    person("PERSIST", RECORD)
    assert await begin(records, owner()) == Completed(b"done", recorded)
