"""C5: the holder's way to the store is cut, and nobody is told."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final, TypeVar, final

from chaos.ledger import Ledger
from chaos.peers import BEAT_S, CALL_S, PATIENCE_S, TTL_S, Peer, conducted, side_by_side, tasks_left, timed
from chaos.recorded import Calls, believed_after, read_calls
from chaos.scenario import Run, scenario
from chaos.stores import STANDALONE, Backend, backend, proxied
from tenure import Acquired, LockStore, open_store
from tenure_testbed import FaultProxy

T = TypeVar("T")

_RETRY_S: Final = TTL_S / 3
_OVERRUN_S: Final = 0.25
_TOGETHER: Final = 5
"""Partitions side by side, each with a way of its own."""


# --------------------------------------------------------------------------------------- partitions


@final
@dataclass(frozen=True, slots=True)
class _Cut:
    """What one partition did: times in seconds, and what was left behind."""

    overrun_s: float
    takeover_s: float
    back_s: float
    calls: Calls
    beside: int
    stale_refused: bool
    connections_left: int
    naive_overlap_s: float


@scenario(
    "C5",
    "blackhole between holder and store",
    claims="H3 H4 H8 H9",
    stores=STANDALONE,
    quick=4,
    full=30,
    quick_stores=STANDALONE,
)
async def a_holder_is_cut_off(run: Run) -> None:
    """The bytes of a holder go nowhere for two ttl; another one has a way, and takes over."""
    before = asyncio.all_tasks()
    cuts: list[_Cut] = []
    async with conducted(run), backend(run.store) as found, Ledger(run.recorder) as ledger:
        for first in range(0, run.n, _TOGETHER):
            together = range(first, min(first + _TOGETHER, run.n))
            cuts += await side_by_side([_cut_off(run, found, ledger, number) for number in together])
    losses = [loss for cut in cuts for loss in cut.calls.losses]
    run.zero("holders that did not give up by themselves", sum(len(cut.calls.losses) != 1 for cut in cuts), of=run.n)
    early = sum(loss.at < loss.deadline - _OVERRUN_S for loss in losses)
    run.zero("losses that were told long before the deadline", early, of=run.n)
    run.within("loss after the deadline, max", max(loss.at - loss.deadline for loss in losses), _OVERRUN_S)
    run.within("call beyond its time-out, max", max(cut.overrun_s for cut in cuts), _OVERRUN_S)
    run.times("takeover by another holder", [cut.takeover_s for cut in cuts])
    run.within("takeover after the cut, max", max(cut.takeover_s for cut in cuts), TTL_S + _RETRY_S + _OVERRUN_S)
    run.times("heal to the first grant", [cut.back_s for cut in cuts])
    run.within("heal to the first grant, max", max(cut.back_s for cut in cuts), 2 * TTL_S)
    # Whatever the machine takes: holder and successor are in one thread, and belief is noted in the step that reads it.
    run.zero("holders that believed when another had the key", sum(cut.beside > 0 for cut in cuts), of=run.n)
    run.zero("stale writes taken", sum(not cut.stale_refused for cut in cuts), of=run.n)
    sent = sum(cut.calls.sent for cut in cuts)
    run.figure("calls without an answer", sum(cut.calls.unknown for cut in cuts))
    run.zero("calls that never ended", sent - sum(cut.calls.ended for cut in cuts), of=sent)
    run.zero("connections left", sum(cut.connections_left for cut in cuts), of=run.n)
    run.zero("tasks left", await tasks_left(before), of=run.n)
    overlaps = [cut.naive_overlap_s for cut in cuts]
    run.figure("naive overlap max", max(overlaps))
    run.control(
        "a holder that looks at its deadline when its renewal has returned believes beside another",
        failed=sum(overlap > 0 for overlap in overlaps),
        of=run.n,
    )


async def _cut_off(run: Run, found: Backend, ledger: Ledger, number: int) -> _Cut:
    key = f"cut-{number}"
    async with proxied(found) as (proxy, url), Peer(run, f"near-{number}", found.url) as near:
        far = Peer(run, f"far-{number}", url)
        async with far, _naive(url, f"naive-{number}") as naive:
            lease = await far.take(key)
            far.work(lease, ledger)
            # The partitions of one round begin at different moments between two renewals.
            await asyncio.sleep((1 + number % _TOGETHER / _TOGETHER) * TTL_S / 3)
            cut_at = _cut(run, proxy, key)
            takeover = asyncio.create_task(near.take(key))
            displaced = asyncio.create_task(_displace(near, f"naive-{number}"))
            elapsed_s, answer = await timed(far.locks.try_acquire(f"asked-{number}"))
            run.expect(isinstance(answer, Exception), f"{key}: a call through a blackhole returned {answer!r}.")
            successor = await takeover
            granted_at = time.monotonic()
            near.work(successor, ledger)
            naive_overlap_s = await naive - await displaced
            await asyncio.sleep(max(0.0, cut_at + 2 * TTL_S - time.monotonic()))
            healed_at = _heal(run, proxy, key)
            # The write that was under way when the cut came, and that the library could not stop.
            stale_refused = not ledger.take(f"resource:{key}", key, lease.token)
            back = await far.take(f"back-{number}")
            back_s = time.monotonic() - healed_at
            await timed(back.release())
            await timed(successor.release())
        connections_left = await _connections_left(proxy)
    calls = read_calls(far.history)
    beside = believed_after(far.history, lease.token, granted_at)
    return _Cut(
        elapsed_s - CALL_S,
        granted_at - cut_at,
        back_s,
        calls,
        beside,
        stale_refused,
        connections_left,
        naive_overlap_s,
    )


def _cut(run: Run, proxy: FaultProxy, scope: str) -> float:
    run.recorder.note("fault", fault=f"blackhole:{scope}", kind="blackhole", scope=scope)
    proxy.blackhole()
    return time.monotonic()


def _heal(run: Run, proxy: FaultProxy, scope: str) -> float:
    proxy.heal()
    run.recorder.note("healed", fault=f"blackhole:{scope}", kind="blackhole", scope=scope)
    return time.monotonic()


async def _connections_left(proxy: FaultProxy, within: float = 5.0) -> int:
    until = time.monotonic() + within
    while proxy.counters.open and time.monotonic() < until:
        await asyncio.sleep(BEAT_S)
    return proxy.counters.open


@contextlib.asynccontextmanager
async def _naive(url: str, key: str) -> "AsyncIterator[asyncio.Task[float]]":
    """A holder as many are written: a time limit of a ttl around the call, and the deadline looked at after it."""
    owner, ttl_ms = f"{key}:{0:032x}", round(TTL_S * 1000)
    async with open_store(url) as store:
        until = time.monotonic() + PATIENCE_S
        while not isinstance(await store.acquire(key, owner, ttl_ms), Acquired):
            assert time.monotonic() < until, f"{key} is nobody's and was refused"
        holder = asyncio.create_task(_renew_naively(store, key, owner, ttl_ms))
        try:
            yield holder
        finally:
            holder.cancel()
            await asyncio.gather(holder, return_exceptions=True)


async def _renew_naively(store: LockStore, key: str, owner: str, ttl_ms: int) -> float:
    deadline = time.monotonic() + TTL_S
    while True:
        await asyncio.sleep(TTL_S / 3)
        sent_at = time.monotonic()
        renewed = False
        with contextlib.suppress(Exception):
            async with asyncio.timeout(TTL_S):  # the very thing that the library does not do
                renewed = await store.renew(key, owner, ttl_ms)
        if renewed:
            deadline = sent_at + TTL_S
        elif time.monotonic() >= deadline:
            return time.monotonic()


async def _displace(near: Peer, key: str) -> float:
    """Take *key* once it can be had; returns when it was granted. Not in the history: its holder is none."""
    until = time.monotonic() + PATIENCE_S
    while not isinstance(await near.raw.acquire(key, f"{key}:{1:032x}", 60_000), Acquired):
        assert time.monotonic() < until, f"{key} did not expire"
        await asyncio.sleep(BEAT_S)
    return time.monotonic()
