"""C6: an acquire is carried out, and its reply is lost."""

import asyncio
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Final, final

from chaos.outcome import Times
from chaos.peers import Peer, conducted, side_by_side, tasks_left, timed
from chaos.scenario import Run, scenario
from chaos.stores import STANDALONE, backend, proxied
from tenure import Held, Lease
from tenure_testbed import FaultProxy

TTL_S: Final = 2.0
CALL_S: Final = 2.0
"""Longer than a driver needs to open a connection again, which the release behind a lost reply has to do."""

_BATCH: Final = 20
"""Acquires whose replies are lost together."""
_REPLIES: Final = 1
"""Calls that are made together travel on one connection, whose reset loses all that is under way there."""
_ROUNDS: Final = 4
"""So many times the batches that are needed: in some of them a reply gets through, or no request does."""
_LOOK_S: Final = 0.004
_MARGIN_S: Final = 0.5
_WARM_S: Final = 3.0


@final
@dataclass(frozen=True, slots=True)
class _Orphan:
    """
    A key whose grant nobody heard of.

    Attributes:
        open_s: From the sending of the acquire until somebody else could have the key.
        known_s: From the moment at which its caller was told that the outcome is unknown.
        ended: "released" or "expired".
    """

    open_s: float
    known_s: float
    ended: str


@scenario(
    "C6",
    "reply of an acquire lost",
    claims="H5 H7",
    stores=STANDALONE,
    quick=100,
    full=1000,
    quick_stores=STANDALONE,
)
async def a_reply_is_lost(run: Run) -> None:
    """The server grants, the reply is dropped and the connection reset; another asks until it has the key."""
    before = asyncio.all_tasks()
    async with (
        conducted(run, ttl_s=TTL_S, call_s=CALL_S),
        backend(run.store) as found,
        proxied(found) as (proxy, url),
        Peer(run, "far", url, ttl_s=TTL_S, call_s=CALL_S) as far,
        Peer(run, "near", found.url, ttl_s=TTL_S, call_s=CALL_S) as near,
    ):
        probes: list[asyncio.Task[_Orphan | None]] = []
        for batch in range(_ROUNDS * -(-run.n // _BATCH)):
            keys = [f"lost-{batch}-{number}" for number in range(_BATCH)]
            probes += await _lose_replies(run, proxy, far, near, keys)
            if sum(probe.done() and probe.result() is not None for probe in probes) >= run.n:
                break
        ends = await asyncio.gather(*probes)
        lost = [orphan for orphan in ends if orphan is not None]
        kept = await _lose_replies_of_a_bare_client(proxy, far, near)
    run.expect(len(lost) >= run.n, f"Only {len(lost)} replies were lost after their request was carried out.")
    run.figure("requests that never arrived", len(ends) - len(lost))
    expired = sum(orphan.ended == "expired" for orphan in lost)
    run.figure("left to expire (the release was lost, too)", expired)
    # No claim on time, so none that a busy machine excuses: without the release behind them, all of them expire.
    run.expect(2 * expired < len(lost), f"{expired} of {len(lost)} keys were not released behind their lost reply.")
    run.times("free again after the caller was told", [orphan.known_s for orphan in lost])
    run.figure("median", f"{1000 * Times.of([orphan.known_s for orphan in lost]).p50:.1f} ms")
    # Two stalls: the server's expiry and the look at it may each be hit.
    bound_s = TTL_S + _MARGIN_S + 2 * run.meter.worst_s
    run.zero("orphans older than a ttl", sum(orphan.open_s > bound_s for orphan in lost), of=len(lost))
    run.within("oldest orphan", max(orphan.open_s for orphan in lost), TTL_S + _MARGIN_S)
    run.within("median until the key is free", Times.of([orphan.known_s for orphan in lost]).p50, TTL_S / 2)
    run.zero("tasks left", await tasks_left(before), of=len(lost))
    run.control("a client that sends no release: keys taken by nobody after half a ttl", failed=sum(kept), of=len(kept))


async def _lose_replies(
    run: Run, proxy: FaultProxy, far: Peer, near: Peer, keys: list[str]
) -> list["asyncio.Task[_Orphan | None]"]:
    """Lose the replies of one batch; returns who asks for the keys from then on."""
    await _warm_up(far)
    scope = keys[0]
    run.recorder.note("fault", fault=f"drop_reply:{scope}", kind="drop_reply", scope=scope)
    proxy.drop_reply(_REPLIES)
    probes: list[asyncio.Task[_Orphan | None]] = []

    async def ask(key: str) -> None:
        sent_at = time.monotonic()
        _, answer = await timed(far.locks.try_acquire(key))
        if isinstance(answer, Exception):
            probes.append(asyncio.create_task(_until_free(near, key, sent_at)))
        elif isinstance(answer, Lease):
            await timed(answer.release())

    asking = [asyncio.create_task(ask(key)) for key in keys]
    # The direction passes again as soon as the replies are lost, so that the releases behind them get through.
    await asyncio.wait(asking, timeout=CALL_S / 2, return_when=asyncio.FIRST_COMPLETED)
    await asyncio.sleep(0.01)
    proxy.heal()
    run.recorder.note("healed", fault=f"drop_reply:{scope}", kind="drop_reply", scope=scope)
    await asyncio.gather(*asking)
    return probes


async def _warm_up(far: Peer) -> None:
    """Have the connection know the statement: a reply that is lost is an acquire's."""
    until = time.monotonic() + _WARM_S
    calls: list[Coroutine[Any, Any, Any]] = []
    while time.monotonic() < until:
        calls = [timed(far.raw.acquire(f"warm-{number}", f"warm:{0:032x}", 1)) for number in range(_BATCH)]
        if not any(isinstance(answer, Exception) for _, answer in await side_by_side(calls)):
            return
        await asyncio.sleep(_LOOK_S)


async def _until_free(near: Peer, key: str, sent_at: float) -> _Orphan | None:
    """Ask for *key* until it is had; None where nobody had it before."""
    told_at = time.monotonic()
    while True:
        _, lease = await timed(near.locks.try_acquire(key))
        now = time.monotonic()
        if isinstance(lease, Lease):
            ended = lease.after
            await timed(lease.release())
            return None if ended is None else _Orphan(now - sent_at, now - told_at, ended)
        if now > sent_at + 5 * TTL_S:
            return _Orphan(now - sent_at, now - told_at, "never")
        await asyncio.sleep(_LOOK_S)


async def _lose_replies_of_a_bare_client(proxy: FaultProxy, far: Peer, near: Peer) -> list[bool]:
    """The same through the store alone, which sends no release: which keys are taken after half a ttl."""
    kept: list[bool] = []
    for attempt in range(_ROUNDS):
        await _warm_up(far)
        keys = [f"bare-{attempt}-{number}" for number in range(_BATCH)]
        proxy.drop_reply(_REPLIES)
        await side_by_side([timed(far.raw.acquire(key, f"bare:{0:032x}", round(TTL_S * 1000))) for key in keys])
        proxy.heal()
        await asyncio.sleep(TTL_S / 2)
        probes = [timed(near.raw.acquire(key, f"probe:{0:032x}", 1)) for key in keys]
        kept += [isinstance(answer, Held) for _, answer in await side_by_side(probes)]
        if any(kept):
            break
    return kept
