"""C7: the way to the store is there and is bad: resets, refusals, slices of a byte, delays, torn replies."""

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from chaos.holders import holders
from chaos.ledger import Ledger
from chaos.peers import BEAT_S, CALL_S, PATIENCE_S, TTL_S, conducted
from chaos.scenario import Run, scenario
from chaos.stores import STANDALONE, backend, proxied
from tenure import Acquired, LockStore, open_store
from tenure_testbed import FaultProxy

_SPELL_S: Final = 0.8
"""How long a fault lasts, and `_REST_S` how long everything passes between two: long enough for a renewal."""
_REST_S: Final = 0.7
_REFUSAL_S: Final = 2.2
"""How long connections are refused: past the ttl, so that holders lose."""
_WORKERS: Final = 8
_RTT_S: Final = 0.12
"""The longest round trip under the delay: 50 ms each way, 10 more or less."""
assert _RTT_S < TTL_S / 3


def _refuse(proxy: FaultProxy) -> None:
    proxy.refuse()
    proxy.reset_all()


_FAULTS: Final[tuple[tuple[str, float, Callable[[FaultProxy], None]], ...]] = (
    ("reset in the middle of a call", _SPELL_S, lambda proxy: proxy.reset()),
    ("slices of one byte", _SPELL_S, lambda proxy: proxy.slice(1)),
    ("delay of 50 +- 10 ms", _SPELL_S, lambda proxy: proxy.delay(50, 10)),
    ("torn replies", _SPELL_S, lambda proxy: proxy.limit(300)),
    ("refused connections", _REFUSAL_S, _refuse),
)
"""Each fault, how long it lasts in seconds, and how it begins. The delay comes when nothing cost a lease before it."""

_GENTLE: Final = "delay of 50 +- 10 ms"


@scenario(
    "C7",
    "resets, refusals, slices, delays and torn replies",
    claims="H1 H2 H3 H4 H5 H7 H8 H9",
    stores=STANDALONE,
    quick=5,
    full=50,
    quick_stores=("postgres", "valkey"),
)
async def the_line_is_bad(run: Run) -> None:
    """Two holders of eight workers each, and a lease that each keeps, over a line that has one fault after another."""
    spells: list[tuple[str, float, float]] = []
    overlaps: list[bool] = []
    async with (
        conducted(run, ttl_s=TTL_S, call_s=CALL_S),
        backend(run.store) as found,
        Ledger(run.recorder) as ledger,
        proxied(found) as (proxy, url),
        open_store(found.url) as near,
    ):
        arguments = ("--url", url, "--ttl", str(TTL_S), "--store-timeout", str(CALL_S), "--keys", "12")
        work = ("--churn", str(_WORKERS), "--ledger", str(ledger.port), "--key", "kept")
        async with holders(run, 2, *arguments, *work) as processes:
            await asyncio.sleep(_REST_S)
            for number in range(run.n):
                name, lasts_s, begin = _FAULTS[number % len(_FAULTS)]
                with _spell(run, proxy, f"{name}, {number}", name, spells):
                    if begin is _refuse:
                        overlaps.append(await _hold_without_a_deadline(proxy, url, near, f"naive-{number}"))
                    else:
                        begin(proxy)
                        await asyncio.sleep(lasts_s)
                await asyncio.sleep(_REST_S)
        run.expect(all(one.replica.exit_code == 0 for one in processes), "A holder ended with an error.")
    histories = [run.history_file(f"holder-{number}") for number in (1, 2)]
    events = [json.loads(line) for path in histories for line in path.read_text("ascii").splitlines()]
    granted = sum(event["what"] == "return" and event.get("token") is not None for event in events)
    writes = ledger.accepted + ledger.refused
    run.figure("grants", granted)
    run.figure("writes", writes)
    run.figure("calls without an answer", sum(event.get("result") == "unknown" for event in events))
    run.figure("losses", _by_fault(events, spells))
    run.zero("violations of the history", sum(text.startswith("H") for text in run.outcome.broken), of=granted)
    run.zero("stale writes taken", ledger.stale_accepted, of=writes)
    gentle = [spell for spell in spells if spell[0] == _GENTLE]
    lost = [event for event in events if event["what"] == "lost" and any(_within(event, one) for one in gentle)]
    beliefs = [event for event in events if event["what"] == "believes" and any(_within(event, one) for one in gentle)]
    held = len({(event["key"], event["token"]) for event in beliefs})
    run.zero("leases lost under a delay below a third of the ttl", len(lost), of=held)
    run.control(
        "a holder that never looks at a deadline believes beside another", failed=sum(overlaps), of=len(overlaps)
    )


@contextlib.contextmanager
def _spell(
    run: Run, proxy: FaultProxy, fault: str, name: str, spells: list[tuple[str, float, float]]
) -> Iterator[None]:
    run.recorder.note("fault", fault=fault, kind=name)
    began_at = time.monotonic()
    try:
        yield
    finally:
        proxy.heal()
        spells.append((name, began_at, time.monotonic()))
        run.recorder.note("healed", fault=fault, kind=name)


def _within(event: dict[str, Any], spell: tuple[str, float, float]) -> bool:
    return bool(spell[1] <= event["at"] <= spell[2])


def _by_fault(events: list[dict[str, Any]], spells: list[tuple[str, float, float]]) -> str:
    counts: dict[str, int] = {}
    for event in events:
        if event["what"] == "lost":
            name = next((spell[0] for spell in spells if _within(event, spell)), "between faults")
            counts[name] = counts.get(name, 0) + 1
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items())) or "none"


async def _hold_without_a_deadline(proxy: FaultProxy, url: str, near: LockStore, key: str) -> bool:
    """
    Hold *key* as code does that renews and, where that fails, tries again: refuse connections past the ttl.

    Returns:
        Whether it believed while another owner had been granted the key.
    """
    ttl_ms, owner = round(TTL_S * 1000), f"naive:{0:032x}"
    until = time.monotonic() + PATIENCE_S
    async with open_store(url) as store:
        granted = False
        while not granted and time.monotonic() < until:
            with contextlib.suppress(Exception):  # the line was bad a moment ago
                granted = isinstance(await store.acquire(key, owner, ttl_ms), Acquired)
        believes = True
        _refuse(proxy)
        refused_at = time.monotonic()
        other = False
        while time.monotonic() < refused_at + _REFUSAL_S:
            with contextlib.suppress(Exception):
                believes = await store.renew(key, owner, ttl_ms)
            with contextlib.suppress(Exception):
                other = other or isinstance(await near.acquire(key, f"other:{0:032x}", 60_000), Acquired)
            if other and believes:
                return await _rest(refused_at)
            await asyncio.sleep(BEAT_S)
    return False


async def _rest(refused_at: float) -> bool:
    await asyncio.sleep(max(0.0, refused_at + _REFUSAL_S - time.monotonic()))
    return True
