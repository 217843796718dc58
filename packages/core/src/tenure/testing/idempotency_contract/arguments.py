"""Rule 9: what a store is told is checked before anything is sent: durations, responses, limits."""

from datetime import timedelta
from decimal import Decimal

from tenure._durations import MAX_MS
from tenure.testing.idempotency_contract.bench import LONG_MS, PAYLOAD, RecordBench
from tenure.testing.idempotency_contract.case import Rung, Script

__all__ = ["RUNG"]

RUNG = Rung(9)


def _case(name: str, *spans: object, race: str) -> Script:
    @RUNG.case(name, race=race)
    async def refused(bench: RecordBench) -> None:
        key, owner = bench.key(), bench.owner()
        for span in spans:
            for lock_ms, grace_ms, part in ((span, LONG_MS, "lock"), (LONG_MS, span, "grace")):
                call = bench.store.acquire(key, owner, PAYLOAD, lock_ms, grace_ms)
                await bench.refuses(call, what=f"acquire() for a {part} of {span!r} ms")
        await bench.begin(key, owner, what="acquire() after those that were refused")
        for span in spans:
            await bench.refuses(bench.store.extend(key, owner, span), what=f"extend() by {span!r} ms")
            call = bench.store.complete(key, owner, b"refused", span)
            await bench.refuses(call, what=f"complete() for a retention of {span!r} ms")
        await bench.find_in_flight(key, what="acquire() after the calls that were refused")

    return refused


zero_is_refused = _case(
    "A duration of zero or less is refused",
    0,
    -1,
    -LONG_MS,
    race="A retention of 0 deletes the response and reports that it is stored.",
)
bools_are_refused = _case(
    "A duration that is a bool is refused",
    True,
    False,
    race="A flag in the wrong place becomes a lock for a millisecond.",
)
fractions_are_refused = _case(
    "A duration with a fraction is refused, a whole float too",
    0.5,
    1500.7,
    30_000.0,
    float("nan"),
    float("inf"),
    Decimal(30_000),
    race="Each layer rounds its own way: an execution believes a fraction longer than the store.",
)
text_is_refused = _case(
    "A duration that is no number is refused",
    "30000",
    "24h",
    None,
    timedelta(hours=24),
    race="The driver converts it: milliseconds here, seconds there.",
)
centuries_are_refused = _case(
    "A duration of more than a hundred years is refused",
    MAX_MS + 1,
    2**63,
    race="The end overflows the server's date, in the middle of the night.",
)


@RUNG.case(
    "A response that is not bytes is refused, before any call",
    race="The driver converts it: text here, its repr there, and the replay is neither.",
)
async def responses_are_bytes(bench: RecordBench) -> None:
    key = bench.key()
    owner = await bench.begin(key)
    secret = bench.owner()
    bad: dict[str, object] = {
        "text": secret,
        "a bytearray": bytearray(secret.encode()),
        "a memoryview": memoryview(secret.encode()),
        "None": None,
        "a number": 200,
        "a list": [secret],
    }
    for what, response in bad.items():
        call = bench.store.complete(key, owner, response, LONG_MS)
        await bench.refuses(call, what=f"complete() with {what}", secret=secret)
    await bench.find_in_flight(key, what="acquire() after completions that were refused")


@RUNG.case(
    "A limit of a purge that is no count is refused",
    race="A limit of 0 or of None purges everything at once, and holds the table for minutes.",
)
async def limits_are_counts(bench: RecordBench) -> None:
    for limit in (0, -1, True, 1.5, "1000", None, 1_000_001):
        await bench.refuses(bench.store.purge(limit), what=f"purge() of {limit!r} records")
