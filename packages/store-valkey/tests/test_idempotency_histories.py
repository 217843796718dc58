"""Random histories, call by call the same on a server and in memory, whose store is the meaning of the contract."""

import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from tenure.idempotency_store import Acquired, InFlight
from tenure.memory.records import InMemoryIdempotencyStore
from tenure.testing import ManualClock
from tenure_testbed import ValkeyServer
from tenure_valkey import ValkeyIdempotencyStore, idempotency_store

MINUTE_MS, HOUR_MS = 60_000, 3_600_000

TIMES_MS = [HOUR_MS * 3**power for power in range(5)]
WAIT_MS = [time + 7 * MINUTE_MS for time in TIMES_MS[:4]]
"""
Times are whole hours, and waits seven minutes more: sixty waits would have to follow each other for a record's end to
be met to the minute. So it does not matter that the server's clock runs on while the test does.
"""

KEYS, OWNERS, PAYLOADS = ["a", "b"], ["ann", "bob", "cat"], ["cats", "dogs"]


@dataclass
class Both:
    """The same asked of both; what time passes in memory is taken from each record on the server."""

    records: ValkeyIdempotencyStore
    server: ValkeyServer
    memory: InMemoryIdempotencyStore
    clock: ManualClock
    began: dict[str, str] = field(default_factory=dict)

    async def ask(self, method: str, *args: Any, **options: Any) -> None:
        told = await getattr(self.records, method)(*args, **options)
        meant = await getattr(self.memory, method)(*args, **options)
        if isinstance(told, InFlight) and isinstance(meant, InFlight):
            assert abs(told.expires_in_ms - meant.expires_in_ms) < MINUTE_MS
        else:
            assert told == meant, (method, args, options)
        if isinstance(told, Acquired):
            self.began[args[0]] = args[1]

    async def wait(self, ms: int) -> None:
        await self.clock.advance(ms / 1000)
        for key in KEYS:
            left = int(str(self.server.execute("PTTL", f"idem:{key}")))
            if left != -2:
                # A PEXPIRE into the past deletes, as time does.
                self.server.execute("PEXPIRE", f"idem:{key}", left - ms)


async def history(both: Both, seed: int, calls: int) -> None:
    draw = random.Random(seed)
    for _ in range(calls):
        key = draw.choice(KEYS)
        # Half of the time whoever began last, or most calls would be a stranger's.
        owner = draw.choice([draw.choice(OWNERS), both.began.get(key, "ann")])
        match draw.choices(["acquire", "extend", "complete", "release", "wait"], [8, 3, 3, 2, 5])[0]:
            case "acquire":
                payload = draw.choices(PAYLOADS, [6, 1])[0]
                times = draw.choice(TIMES_MS[:3]), draw.choice(TIMES_MS[2:])
                await both.ask("acquire", key, owner, payload, *times, takeover=draw.random() < 0.7)
            case "extend":
                await both.ask("extend", key, owner, draw.choice(TIMES_MS[:3]))
            case "complete":
                await both.ask("complete", key, owner, draw.randbytes(draw.randrange(200)), draw.choice(TIMES_MS[:4]))
            case "release":
                await both.ask("release", key, owner)
            case "wait":
                await both.wait(draw.choice(WAIT_MS))


@pytest.fixture
def both(records: ValkeyIdempotencyStore, valkey_server: ValkeyServer) -> Both:
    clock = ManualClock()
    return Both(records, valkey_server, InMemoryIdempotencyStore(clock), clock)


@pytest.mark.parametrize("seed", range(4))
async def test_two_thousand_calls_are_answered_as_in_memory(both: Both, seed: int) -> None:
    await history(both, seed, 2000)


@pytest.mark.parametrize(
    ("name", "sound", "broken"),
    [
        ("acquire", "ARGV[3] + grace", "ARGV[3] + ARGV[4]"),
        ("extend", ", 'GT')", ")"),
        ("release", "redis.call('PEXPIRE', key, grace)", ""),
        ("complete", "== 1 then", ">= 0 then"),
    ],
)
async def test_a_history_finds_what_is_kept_otherwise(
    both: Both, name: str, sound: str, broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    script: Any = getattr(idempotency_store, f"_{name.upper()}")
    assert script.source.count(sound) == 1
    planted = idempotency_store.Script(script.name, script.source.replace(sound, broken))
    monkeypatch.setattr(idempotency_store, f"_{name.upper()}", planted)
    with pytest.raises(AssertionError):
        await history(both, 1, 8000)
