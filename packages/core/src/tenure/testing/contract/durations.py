"""Rule 7: durations are whole milliseconds, refused where they are not, never rounded."""

from datetime import timedelta
from decimal import Decimal

from tenure._durations import MAX_MS
from tenure.testing.contract.bench import LONG_MS, Bench
from tenure.testing.contract.case import Rung, Script

__all__ = ["RUNG"]

RUNG = Rung(7)


def _case(name: str, *ttls: object, race: str) -> Script:
    @RUNG.case(name, race=race)
    async def refused(bench: Bench) -> None:
        key, owner = bench.key(), bench.owner()
        for ttl_ms in ttls:
            call = bench.store.acquire(key, owner, ttl_ms)
            await bench.refuses(call, what=f"acquire() for a ttl_ms of {ttl_ms!r}")
        await bench.take(key, owner)
        for ttl_ms in ttls:
            call = bench.store.renew(key, owner, ttl_ms)
            await bench.refuses(call, what=f"renew() for a ttl_ms of {ttl_ms!r}")
        await bench.find_held(key, what="acquire() after the renewals that were refused")
        bench.equal(await bench.store.renew(key, owner, LONG_MS), True, what="renew() after those")

    return refused


zero_is_refused = _case(
    "A ttl of zero or less is refused",
    0,
    -1,
    -LONG_MS,
    race="A ttl of 0 deletes the lock and reports success.",
)
bools_are_refused = _case(
    "A ttl that is a bool is refused",
    True,
    False,
    race="A flag in the wrong place becomes a lock for a millisecond.",
)
fractions_are_refused = _case(
    "A ttl with a fraction is refused, a whole float too",
    0.5,
    1500.7,
    30_000.0,
    float("nan"),
    float("inf"),
    Decimal(30_000),
    race="Each layer rounds its own way: the holder believes a fraction longer than the store.",
)
text_is_refused = _case(
    "A ttl that is no number is refused",
    "30000",
    "30s",
    None,
    timedelta(seconds=30),
    race="The driver converts it: milliseconds here, seconds there.",
)
centuries_are_refused = _case(
    "A ttl of more than a hundred years is refused",
    MAX_MS + 1,
    2**63,
    race="The expiry overflows the server's date, in the middle of the night.",
)
