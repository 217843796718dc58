"""C3: the holder's process stands still for longer than its lease, and goes on."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from chaos.holders import WAKE_S, HolderProcess, at_work, first_to_say, pause_the_holder
from chaos.ledger import Ledger
from chaos.outcome import Times
from chaos.programs.stock import CREATE
from chaos.recorded import events, repeated, tokens_granted
from chaos.scenario import Run, scenario
from chaos.stores import STORES, Backend, backend
from tenure.testing.history import HistoryRecorder

_PAUSE_TTLS = 2.5
KEY = "job"


@dataclass(slots=True)
class Stage:
    """
    Two writers on one key, and what they write to.

    Attributes:
        run: The run.
        ttl_s: The ttl of their leases.
        pair: The two.
        fenced: The ledger that looks at tokens.
        unfenced: The one that does not: the control. What it takes stands in no history.
    """

    run: Run
    ttl_s: float
    pair: list[HolderProcess]
    fenced: Ledger
    unfenced: Ledger


@contextlib.asynccontextmanager
async def staged(run: Run, *, ttl_s: float, block_s: float = 0.0) -> AsyncIterator[Stage]:
    """Start the store, the ledgers and two writers; end them on leaving."""
    unwritten = HistoryRecorder([], process="unfenced")
    async with backend(run.store) as found, Ledger(run.recorder) as fenced, Ledger(unwritten, fenced=False) as unfenced:
        ports = ("--ledger", str(fenced.port), "--unfenced", str(unfenced.port))
        arguments = (
            "--url",
            found.url,
            "--key",
            KEY,
            "--ttl",
            str(ttl_s),
            "--block",
            str(block_s),
            *ports,
            *await _tables(found),
        )
        pair = [HolderProcess(run, f"writer-{number}", *arguments, module="chaos.programs.writer") for number in (1, 2)]
        async with at_work(*pair):
            await first_to_say(pair, "granted", [0, 0])
            yield Stage(run, ttl_s, pair, fenced, unfenced)


async def _tables(found: Backend) -> tuple[str, ...]:
    if found.store != "postgres":
        return ()
    await asyncio.to_thread(found.server.execute, CREATE)
    return ("--table", found.url)


@scenario(
    "C3",
    "SIGSTOP of the holder for 2.5 ttl, then SIGCONT",
    claims="H1 H2 H3 H4 H8",
    stores=STORES,
    quick=5,
    full=50,
    quick_stores=("postgres", "valkey"),
)
async def a_holder_is_paused(run: Run) -> None:
    """The paused one finds its lease lost before it does anything, and what it had on its way is refused."""
    ttl_s = 1.0 if run.full else 0.6
    run.promise(ttl_s=ttl_s, stall_s=WAKE_S)
    rounds: list[dict[str, Any]] = []
    async with staged(run, ttl_s=ttl_s) as stage:
        while len(rounds) < run.n:
            rounds.append(await _pause(stage))
        unfenced = stage.unfenced.stale_accepted
    _say_what_was_found(run, rounds, unfenced)
    run.check_history()


async def _pause(stage: Stage) -> dict[str, Any]:
    """Pause whoever holds, see the other take over, let the first go on, and hear what it found."""
    marks = {one.process: one.mark for one in stage.pair}
    holder, token, paused_at = await pause_the_holder(stage.pair, KEY, stage.ttl_s)
    other = next(one for one in stage.pair if one is not holder)
    granted = await other.said("granted", after=marks[other.process])
    await asyncio.sleep(max(0.0, paused_at + _PAUSE_TTLS * stage.ttl_s - time.monotonic()))
    mark = holder.mark
    resumed_at = await holder.resume()
    stale = await holder.said("stale", after=mark)
    return {
        "process": holder.process,
        "token": token,
        "takeover": granted["at"] - paused_at,
        "resumed_at": resumed_at,
        "stale": stale,
    }


def _say_what_was_found(run: Run, rounds: list[dict[str, Any]], unfenced: int) -> None:
    n = len(rounds)
    signals: list[float] = []
    beliefs = 0
    for one in rounds:
        told = [event for event in events(run, one["process"], "lost") if event["token"] == one["token"]]
        signals += [event["at"] - one["resumed_at"] for event in told[:1]]
        believed = events(run, one["process"], "believes")
        beliefs += any(event["token"] == one["token"] and event["at"] > one["resumed_at"] for event in believed)
    run.zero("pauses after which the lease was believed in", beliefs, of=n)
    run.zero("losses without a signal", n - len(signals), of=n)
    run.zero("stale writes that the ledger took", sum(one["stale"]["ledger"] for one in rounds), of=n)
    found = tokens_granted(run, "writer-1", "writer-2")
    run.zero("tokens repeated", repeated(found), of=len(found))
    run.within("loss told after SIGCONT, p99", Times.of(signals).p99, WAKE_S)
    run.times("takeover after SIGSTOP", [one["takeover"] for one in rounds])
    run.control("a ledger that does not fence takes the stale writes", failed=min(unfenced, n), of=n)
    if run.store == "postgres":
        stale = [one["stale"] for one in rounds]
        run.zero("rows that a stale UPDATE with fence() changed", sum(one["rows"] for one in stale), of=n)
        run.zero("statements that fence() built after the loss", sum(one["built"] for one in stale), of=n)
        run.control("an UPDATE without a fence", failed=sum(one["unfenced"] for one in stale), of=n)
