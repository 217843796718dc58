"""C19: the server stands still under everybody, and then carries out what was sent to it meanwhile."""

import asyncio
import time
from dataclasses import dataclass, field
from typing import Final, final

from chaos.ledger import Ledger
from chaos.outcome import Times
from chaos.peers import BEAT_S, CALL_S, PATIENCE_S, TTL_S, Peer, conducted, side_by_side, tasks_left, timed
from chaos.recorded import read_calls
from chaos.scenario import Run, scenario
from chaos.stores import STANDALONE, Backend, backend
from tenure import Acquired, Lease

_LEASES: Final = 4
_ASKED: Final = 5
"""Acquires under way when the server stops, of each instance: as many as the locks' pool has connections."""
_OVERRUN_S: Final = 0.25
_LATE_S: Final = 0.3
"""After the end of a pause until a server has carried out what lay in its sockets."""


@final
@dataclass(slots=True)
class _Found:
    """What the pauses did: times in seconds, and counts."""

    overruns: list[float] = field(default_factory=list)
    free_after: list[float] = field(default_factory=list)
    """From the end of the pause until somebody else could have a key that was asked for in it."""
    back_after: list[float] = field(default_factory=list)
    answered: int = 0
    bare_taken: int = 0
    bare_asked: int = 0
    ended: dict[str, int] = field(default_factory=dict)


@scenario(
    "C19",
    "the server stands still for two ttl",
    claims="H3 H4 H7 H8 H9",
    stores=STANDALONE,
    quick=2,
    full=20,
    quick_stores=("postgres", "valkey"),
)
async def a_server_stands_still(run: Run) -> None:
    """SIGSTOP to the server, with leases held and acquires under way; SIGCONT after two ttl."""
    before = asyncio.all_tasks()
    found = _Found()
    async with (
        conducted(run),
        backend(run.store) as server,
        Ledger(run.recorder) as ledger,
        Peer(run, "holder", server.url) as holder,
        Peer(run, "asker", server.url) as asker,
        Peer(run, "prober", server.url) as prober,
    ):
        for number in range(run.n):
            await _stand_still(run, server, (holder, asker, prober), ledger, number, found=found)
    losses = read_calls(holder.history).losses
    held, asked = _LEASES * run.n, _ASKED * run.n
    run.zero("leases that were not lost", held - len(losses), of=held)
    run.within("loss after the deadline, max", max(loss.at - loss.deadline for loss in losses), _OVERRUN_S)
    run.zero("calls that a server answered while it stood still", found.answered, of=asked)
    run.within("call beyond its time-out, max", max(found.overruns), _OVERRUN_S)
    run.figure("what was asked for in the pause, and then", found.ended)
    run.times("free again after the pause", found.free_after)
    bound_s = TTL_S + _OVERRUN_S + 2 * run.meter.worst_s
    run.zero("late grants that outlived a ttl", sum(late > bound_s for late in found.free_after), of=asked)
    run.within("late grant, max", max(found.free_after), TTL_S + _OVERRUN_S)
    run.within("end of the pause to a new lease p99", Times.of(found.back_after).p99, 2 * TTL_S)
    for peer in (holder, asker):
        calls = read_calls(peer.history)
        run.zero(f"calls of the {peer.history.stem} that never ended", calls.sent - calls.ended, of=calls.sent)
    run.zero("tasks left", await tasks_left(before), of=run.n)
    run.control(
        "a time-out taken for a no: the server grants it afterwards", failed=found.bare_taken, of=found.bare_asked
    )


async def _stand_still(
    run: Run, server: Backend, peers: tuple[Peer, Peer, Peer], ledger: Ledger, number: int, *, found: _Found
) -> None:
    holder, asker, prober = peers
    leases = [await holder.take(f"held-{number}-{place}") for place in range(_LEASES)]
    works = [holder.work(lease, ledger) for lease in leases]
    # Every connection is open and knows its statement: what is sent lies in the sockets of a server that stands still.
    for place in range(3):
        await side_by_side([timed(asker.raw.acquire(f"warm-{place}-{one}", f"w:{0:032x}", 1)) for one in range(_ASKED)])
    await asyncio.to_thread(server.server.pause)
    paused_at = time.monotonic()
    run.recorder.note("fault", fault=f"server paused {number}", kind="paused server")
    keys = [f"asked-{number}-{place}" for place in range(_ASKED)]
    asking = [asyncio.create_task(timed(asker.locks.try_acquire(key))) for key in keys]
    bare = [f"bare-{number}-{place}" for place in range(_ASKED)]
    bare_calls = [asyncio.create_task(_ask_barely(prober, key)) for key in bare]
    for elapsed_s, answer in await side_by_side([_end_of(task) for task in asking]):
        found.answered += not isinstance(answer, Exception)
        found.overruns.append(elapsed_s - CALL_S)
    await asyncio.sleep(max(0.0, paused_at + 2 * TTL_S - time.monotonic()))
    await asyncio.gather(*works)
    await asyncio.to_thread(server.server.resume)
    resumed_at = time.monotonic()
    run.recorder.note("healed", fault=f"server paused {number}", kind="paused server")
    await asyncio.gather(*bare_calls)
    freed = [_until_free(prober, key, resumed_at, found) for key in keys]
    back, *_ = await side_by_side([_back(holder, number, resumed_at, found), *freed])
    if isinstance(back, Lease):
        await timed(back.release())
    found.bare_asked += len(bare)
    found.bare_taken += sum(await side_by_side([_is_taken(prober, key) for key in bare]))


async def _end_of(task: "asyncio.Task[tuple[float, Lease | Exception | None]]") -> tuple[float, object]:
    return await task


async def _ask_barely(prober: Peer, key: str) -> None:
    """Ask as code does that takes a time-out for a no: nothing is sent behind the call."""
    call = asyncio.create_task(timed(prober.raw.acquire(key, f"bare:{0:032x}", 60_000)))
    await asyncio.wait([call], timeout=CALL_S)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)


async def _is_taken(prober: Peer, key: str) -> bool:
    until = time.monotonic() + PATIENCE_S
    while True:
        _, answer = await timed(prober.raw.acquire(key, f"probe:{0:032x}", 1))
        if not isinstance(answer, Exception) or time.monotonic() >= until:
            return not isinstance(answer, Acquired | Exception)
        await asyncio.sleep(BEAT_S)


async def _until_free(prober: Peer, key: str, resumed_at: float, found: _Found) -> None:
    """Ask for *key*, which nobody believes to have, until it is had; note how the grant before it ended."""
    # Not at once: whoever asks first is first, and the late grant would be refused instead of ended.
    await asyncio.sleep(_LATE_S)
    lease = await prober.take(key)
    found.free_after.append(time.monotonic() - resumed_at)
    ended = lease.after or "never carried out"
    found.ended[ended] = found.ended.get(ended, 0) + 1
    await timed(lease.release())


async def _back(holder: Peer, number: int, resumed_at: float, found: _Found) -> Lease:
    lease = await holder.take(f"back-{number}")
    found.back_after.append(time.monotonic() - resumed_at)
    return lease
