"""C23: a Valkey that forgets: a restart without persistence, FLUSHALL, SCRIPT FLUSH, eviction."""

import asyncio
import contextlib
import itertools
import time
from dataclasses import dataclass, field
from typing import Any, Final, final

from chaos.ledger import Ledger
from chaos.peers import BEAT_S, CALL_S, TTL_S, Peer, conducted, timed
from chaos.recorded import read_calls
from chaos.scenario import Run, scenario
from chaos.stores import backend
from tenure import ConfigurationError, Lease, Locks, open_store
from tenure_testbed import StatementError, ValkeyServer

_KEYS: Final = 4
_WORKERS: Final = 8
_LONG_TTL_S: Final = 3.0
"""Under SCRIPT FLUSH what fails is to fail for the flush, and not for a machine that is busy."""
_FLUSHING_S: Final = {False: 1.6, True: 10.0}
"""How long scripts are flushed under load, in seconds: in a short run, and in a full one."""
_EVICTING: Final = ("allkeys-lru", "allkeys-lfu", "allkeys-random", "volatile-lru", "volatile-ttl")


@final
@dataclass(slots=True)
class _Memory:
    """What the server gave out: fencing tokens by key, and numbers of a counter of its own."""

    tokens: dict[str, list[int]] = field(default_factory=dict)
    counts: list[int] = field(default_factory=list)


@scenario(
    "C23",
    "restart without persistence, FLUSHALL, SCRIPT FLUSH, eviction",
    claims="H1 H2 H4",
    stores=("valkey", "valkey-redis"),
    quick=5,
    full=20,
    quick_stores=("valkey",),
)
async def a_server_forgets(run: Run) -> None:
    """The server loses its keys while they are held; tokens go on growing, and fences hold."""
    memory = _Memory()
    # The table of guarantees: two may believe, until the older one's next renewal is refused, a ttl at most.
    async with conducted(run, overlap_s=TTL_S), backend(run.store) as found, Ledger(run.recorder) as ledger:
        async with Peer(run, "holder", found.url) as holder, Peer(run, "successor", found.url) as successor:
            stale_taken = 0
            for number in range(run.n):
                stale_taken += await _forget(run, found.server, (holder, successor), ledger, number, memory=memory)
        async with (
            Peer(run, "keeper", found.url, ttl_s=_LONG_TTL_S, call_s=_LONG_TTL_S) as keeper,
            Peer(run, "churner", found.url, ttl_s=_LONG_TTL_S, call_s=_LONG_TTL_S) as churner,
        ):
            await _flush_scripts(run, found.server, keeper, churner)
        await _start_strictly(run, found.server, found.url)
    losses = [loss for loss in read_calls(holder.history).losses if loss.key.startswith("forgotten-")]
    tokens, counts = memory.tokens, memory.counts
    grants = [token for of_key in tokens.values() for token in of_key]
    repeated = sum(later <= earlier for of_key in tokens.values() for earlier, later in itertools.pairwise(of_key))
    run.figure("grants", len(grants))
    run.zero("tokens repeated or out of order", repeated, of=len(grants) - len(tokens))
    run.zero("stale writes taken", stale_taken, of=_KEYS * run.n)
    run.zero("forgotten leases that were not lost", _KEYS * run.n - len(losses), of=_KEYS * run.n)
    run.control("INCR repeats", failed=len(counts) - len(set(counts)), of=len(counts))


async def _forget(
    run: Run, server: ValkeyServer, peers: tuple[Peer, Peer], ledger: Ledger, number: int, *, memory: _Memory
) -> int:
    """Have the server forget what it holds; returns how many stale writes were taken."""
    holder, successor = peers
    keys = [f"forgotten-{place}" for place in range(_KEYS)]
    leases = [await holder.take(key) for key in keys]
    works = [holder.work(lease, ledger) for lease in leases]
    await asyncio.sleep(2 * BEAT_S)
    memory.counts.append(await _increment(server))
    kind = "restart without persistence" if number % 2 == 0 else "FLUSHALL"
    run.recorder.note("fault", fault=f"{kind} {number}", kind=kind)
    await asyncio.to_thread(server.restart if number % 2 == 0 else server.flush_all)
    run.recorder.note("healed", fault=f"{kind} {number}", kind=kind)
    memory.counts.append(await _increment(server))
    # At once: the older holder still believes, and its last writes meet the first ones of the new token.
    successors = [await successor.take(key) for key in keys]
    for lease in successors:
        ledger.take(f"resource:{lease.key}", lease.key, lease.token)
    later = [successor.work(lease, ledger) for lease in successors]
    for lease in (*leases, *successors):
        memory.tokens.setdefault(lease.key, []).append(lease.token)
    await asyncio.gather(*works)
    stale = sum(ledger.take(f"resource:{lease.key}", lease.key, lease.token) for lease in leases)
    for lease in successors:
        await timed(lease.release())
    await asyncio.gather(*later)
    return stale


async def _increment(server: ValkeyServer) -> int:
    return int(str(await asyncio.to_thread(server.execute, "INCR", "counter")))


# ------------------------------------------------------------------------------------ SCRIPT FLUSH


async def _flush_scripts(run: Run, server: ValkeyServer, keeper: Peer, churner: Peer) -> None:
    """Flush the server's scripts for a while, under callers that take and give back, and leases that are renewed."""
    kept = [await keeper.take(f"kept-{place}") for place in range(_WORKERS)]
    until = time.monotonic() + _FLUSHING_S[run.full]
    results: list[object] = []
    flushes = 0
    steps = [0] * _WORKERS

    async def churn(place: int) -> None:
        while time.monotonic() < until:
            _, lease = await timed(churner.locks.try_acquire(f"churn-{place}"))
            results.append(lease)
            steps[place] += 1
            if isinstance(lease, Lease):
                results.append((await timed(lease.release()))[1])

    workers = [asyncio.create_task(churn(place)) for place in range(_WORKERS)]
    while time.monotonic() < until:
        await asyncio.to_thread(server.execute, "SCRIPT", "FLUSH")
        flushes += 1
        # Not while a call still answers for the flush before: a client may load a script and send the call again, and
        # has to do so once, not for as long as somebody flushes in between.
        seen = list(steps)
        while time.monotonic() < until and any(now < then + 2 for now, then in zip(steps, seen, strict=True)):
            await asyncio.sleep(0.002)
    await asyncio.gather(*workers)
    failures = [result for result in results if isinstance(result, Exception)]
    run.figure("SCRIPT FLUSH", flushes)
    run.zero("calls that failed under SCRIPT FLUSH", len(failures), of=len(results))
    run.expect(not failures, f"The first of them: {failures[:1]!r}.")
    run.zero("leases lost under SCRIPT FLUSH", sum(not lease.held for lease in kept), of=len(kept))
    for lease in kept:
        await timed(lease.release())
    run.control("EVALSHA alone fails", failed=await _call_by_hash_alone(server), of=_KEYS)


async def _call_by_hash_alone(server: ValkeyServer) -> int:
    """Call a script by its hash after a flush, as a client does that loads it once; returns how many calls failed."""
    failed = 0
    for _ in range(_KEYS):
        digest = str(await asyncio.to_thread(server.execute, "SCRIPT", "LOAD", "return 1"))
        await asyncio.to_thread(server.execute, "SCRIPT", "FLUSH")
        try:
            await asyncio.to_thread(server.execute, "EVALSHA", digest, 0)
        except StatementError:
            failed += 1
    return failed


# ---------------------------------------------------------------------------------------- eviction


async def _start_strictly(run: Run, server: ValkeyServer, url: str) -> None:
    """Start on a server that throws keys away: refused in strict mode."""
    started = 0
    for policy in _EVICTING:
        await asyncio.to_thread(server.configure, {"maxmemory-policy": policy})
        started += await _starts(url, "strict")
    run.zero("strict starts on a server that evicts", started, of=len(_EVICTING))
    run.expect(await _starts(url, "warn"), "A start that is only to be warned was refused.")
    await asyncio.to_thread(server.configure, {"maxmemory-policy": "noeviction"})
    run.expect(await _starts(url, "strict"), "A strict start was refused by a server that evicts nothing.")


async def _starts(url: str, check: Any) -> bool:
    async with open_store(url) as store:
        with contextlib.suppress(ConfigurationError):
            async with Locks(store, ttl=TTL_S, store_timeout=CALL_S, startup_check=check, hooks=[]) as locks:
                lease = await locks.try_acquire("started")
                if isinstance(lease, Lease):
                    await timed(lease.release())
                return True
    return False
