"""C16, C17 and C18: clocks that step, run at another rate, or stand still: the server's, and the holder's."""

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from chaos.faked_time import MISSING, FakedTime, backend_on, library, readable_directory, server_time_us
from chaos.holders import WAKE_S, HolderProcess, at_work, first_to_say, pause_the_holder
from chaos.ledger import Ledger
from chaos.outcome import Times
from chaos.recorded import events, repeated, tokens_granted
from chaos.scenario import Run, scenario
from chaos.stores import STANDALONE, Backend, backend
from tenure import open_store
from tenure.store import Acquired

_TTL_S = 1.0
_OVERLAP_S = 2 * _TTL_S / 3
"""A server that lets others in early is found out by the next renewal: a third of the ttl, and its time-out."""

_STEPS = ("+3600s", "-3600s", "+0.5s", "+0 x2.0")
_CLOCKED = "chaos.programs.clocked"
_LONG_TTL_S = 60


# --------------------------------------------------------------------------------------- the server's clock


@scenario(
    "C16",
    "the server's clock: an hour forward, an hour back, half a second, twice the rate",
    claims="H1 H2 H3",
    stores=STANDALONE,
    quick=4,
    full=40,
    quick_stores=("postgres", "valkey"),
)
async def the_clock_of_the_server_steps(run: Run) -> None:
    """Tokens grow through every step; two holders believe at a time for no longer than until the next renewal."""
    if library() is None:
        run.outcome.skipped = MISSING
        return
    run.promise(ttl_s=_TTL_S, overlap_s=_OVERLAP_S)
    # Every step goes back to where the clock was: on the way back a token of the clock alone repeats.
    moves = [offset for number in range(run.n) for offset in (_STEPS[number % len(_STEPS)], "+0s")]
    naive = early = 0
    with readable_directory() as directory:
        clock = FakedTime(directory, "server")
        async with backend_on(clock, run.store) as found, Ledger(run.recorder) as ledger:
            arguments = ("--url", found.url, "--ttl", str(_TTL_S), "--key", "job", "--ledger", str(ledger.port))
            load = (*arguments, "--churn", "2", "--keys", "8")
            processes = [HolderProcess(run, name, *load) for name in ("holder-1", "holder-2")]
            async with at_work(*processes):
                await first_to_say(processes, "granted", [0, 0], within=60)
                for number, offset in enumerate(moves):
                    before = await asyncio.to_thread(server_time_us, found)
                    early += await _unrenewed(found, clock, offset, f"unrenewed-{number}")
                    naive += await asyncio.to_thread(server_time_us, found) <= before
                    await asyncio.sleep(_TTL_S * 0.75)
            names = [one.process for one in processes]
    found_grants = tokens_granted(run, *names)
    run.figure("steps", len(moves))
    run.figure("grants", len(found_grants))
    run.zero("tokens repeated", repeated(found_grants), of=len(found_grants))
    run.zero("tokens of the campaign that went back", _gone_back(found_grants, "job"), of=len(found_grants))
    overlaps = _overlaps(run, names)
    run.figure("overlaps of two running holders", len(overlaps))
    run.within("longest overlap", max(overlaps, default=0.0), _OVERLAP_S)
    run.control("a token of the server's clock alone", failed=naive, of=len(moves))
    run.control("a lease of 60 s that is not renewed, taken by another within 2 s", failed=early, of=len(moves))
    run.check_history()


async def _unrenewed(found: Backend, clock: FakedTime, offset: str, key: str) -> int:
    """Take a long lease that nobody renews, move the clock, and see whether another gets it while it is believed in."""
    async with open_store(found.url) as store:
        await store.acquire(key, "first", _LONG_TTL_S * 1000)
        clock.set(offset)
        return isinstance(await store.acquire(key, "second", 1000), Acquired)


def _gone_back(found: list[tuple[float, str, int]], key: str) -> int:
    tokens = [token for _, about, token in found if about == key]
    return sum(later <= earlier for earlier, later in itertools.pairwise(tokens))


def _overlaps(run: Run, names: list[str]) -> list[float]:
    """For how long a holder went on believing after the grant that came after its own, in seconds."""
    first_grant = {(key, token): at for at, key, token in reversed(tokens_granted(run, *names))}
    last_belief: dict[tuple[str, int], float] = {}
    for name in names:
        for event in events(run, name, "believes"):
            last_belief[event["key"], event["token"]] = event["at"]
    found: list[float] = []
    for (key, token), at in last_belief.items():
        later = [granted for (about, other), granted in first_grant.items() if about == key and other > token]
        if later and at > min(later):
            found.append(at - min(later))
    return found


# --------------------------------------------------------------------------------------- the holder's clocks


@scenario(
    "C17",
    "the holder's clocks: the wall clock an hour forward and back, the monotonic clocks 100 s forward",
    claims="H3",
    stores=STANDALONE,
    quick=3,
    full=20,
    quick_stores=("valkey",),
)
async def the_clocks_of_a_holder_step(run: Run) -> None:
    """The wall clock decides nothing; a clock that says that the lease is over is believed at once."""
    if library() is None:
        run.outcome.skipped = MISSING
        return
    run.promise(ttl_s=_TTL_S)
    with readable_directory() as directory, run.apart("control") as other, run.apart("monotonic") as elsewhere:
        async with backend(run.store) as found:
            lost, steps, naive = await _step_the_wall(run, other, found, directory)
            delays = await _step_the_monotonic(elsewhere, found, directory)
    run.zero("leases lost to a step of the wall clock", lost, of=steps)
    run.control("a holder that goes by the wall clock", failed=naive, of=steps)
    run.zero("holders that went on after a step of their monotonic clock", sum(one is None for one in delays), of=run.n)
    told = [one for one in delays if one is not None]
    run.times("gave up after a step of 100 s", told)
    # The library looks at its clock once a second at least; a renewal is due before that.
    run.within("gave up after a step of 100 s, p99", Times.of(told).p99, _TTL_S / 3 + WAKE_S)
    run.check_history()


async def _step_the_wall(run: Run, other: Run, found: Backend, directory: Path) -> tuple[int, int, int]:
    """Step the wall clock of a holder, and of one that goes by it; returns losses, steps, and the other's losses."""
    wall = FakedTime(directory, "wall")
    common = ("--url", found.url, "--ttl", str(_TTL_S))
    holder = HolderProcess(run, "stepped", *common, "--key", "stepped", env=wall.env, module=_CLOCKED)
    naive = HolderProcess(other, "naive", *common, "--key", "naive", "--clock", "wall", env=wall.env, module=_CLOCKED)
    moves = ["+3600s", "+0s", "-3600s", "+0s"] * run.n
    async with at_work(holder, naive):
        await asyncio.gather(holder.said("granted"), naive.said("granted"))
        for offset in moves[: 2 * run.n]:
            wall.set(offset)
            await asyncio.sleep(_TTL_S / 2)
        return len(holder.lines("lost")), 2 * run.n, min(len(naive.lines("lost")), 2 * run.n)


async def _step_the_monotonic(run: Run, found: Backend, directory: Path) -> list[float | None]:
    """Step the monotonic clocks of a holder once: they never go back. Returns when it gave up, after the step."""
    delays: list[float | None] = []
    for number in range(run.n):
        ahead = FakedTime(directory, f"monotonic-{number}", monotonic=True)
        arguments = ("--url", found.url, "--ttl", str(_TTL_S), "--key", f"ahead-{number}")
        holder = HolderProcess(run, f"ahead-{number}", *arguments, env=ahead.env, module=_CLOCKED)
        async with at_work(holder):
            granted = await holder.said("granted")
            since = time.monotonic()
            ahead.set("+100s")
            with contextlib.suppress(Exception):
                lost = await holder.said("lost", within=10)
                assert lost["token"] == granted["token"]
            delays.append(time.monotonic() - since if holder.lines("lost") else None)
    return delays


# ------------------------------------------------------------------------------------- the holder is suspended


@scenario(
    "C18",
    "the holder's machine suspended for 2.5 ttl: its monotonic clock stands still",
    claims="H1 H2 H3 H8",
    stores=STANDALONE,
    quick=3,
    full=20,
    quick_stores=("valkey",),
)
async def a_holder_is_suspended(run: Run) -> None:
    """A clock that runs through a suspend finds the lease over on the first line; one that stops believes on."""
    ttl_s = 1.0
    run.promise(ttl_s=ttl_s, stall_s=WAKE_S)
    with run.apart("control") as other:
        async with backend(run.store) as found:
            through, stopped = await asyncio.gather(
                _suspensions(run, found, "boottime", ttl_s), _suspensions(other, found, "monotonic", ttl_s)
            )
    n = len(through)
    run.zero("suspends after which two believed", sum(one["believed"] for one in through), of=n)
    run.zero("losses without a signal", sum(one["told"] is None for one in through), of=n)
    run.within("told after the wake-up, p99", Times.of([one["told"] or 0.0 for one in through]).p99, 1.25)
    run.control("a clock that stands still in a suspend", failed=sum(one["believed"] for one in stopped), of=n)
    run.check_history()


async def _suspensions(run: Run, found: Backend, clock: str, ttl_s: float) -> list[dict[str, Any]]:
    """Suspend a holder so many times, and see what it believes when it wakes up beside the next holder."""
    async with _sleepers(run, found, clock, ttl_s) as (pair, asleep):
        rounds: list[dict[str, Any]] = []
        await first_to_say(pair, "granted", [0, 0])
        for _ in range(run.n):
            marks = {one.process: one.mark for one in pair}
            holder, token, slept_from = await pause_the_holder(pair, f"asleep-{clock}", ttl_s)
            other = next(one for one in pair if one is not holder)
            await other.said("granted", after=marks[other.process])
            await asyncio.sleep(max(0.0, slept_from + 2.5 * ttl_s - time.monotonic()))
            file = asleep[holder.process]
            total_s = float(file.read_text(encoding="ascii")) + time.monotonic() - slept_from
            file.write_text(f"{total_s:.6f}".ljust(32), encoding="ascii")
            mark, woken_at = holder.mark, await holder.resume()
            lost = await holder.said("lost", after=mark)
            believed = any(line["token"] == token for line in holder.lines("believed"))
            rounds.append({"believed": believed, "told": lost["at"] - woken_at if lost["token"] == token else None})
        return rounds


@contextlib.asynccontextmanager
async def _sleepers(
    run: Run, found: Backend, clock: str, ttl_s: float
) -> AsyncIterator[tuple[list[HolderProcess], dict[str, Path]]]:
    """Start two holders with a clock for sleeps, and the files in which they read how long they slept."""
    names = [f"{clock}-{number}" for number in (1, 2)]
    asleep = {name: run.directory / f"{name}.asleep" for name in names}
    for path in asleep.values():
        path.write_text("0".ljust(32), encoding="ascii")
    common = ("--url", found.url, "--ttl", str(ttl_s), "--key", f"asleep-{clock}", "--clock", clock)
    pair = [HolderProcess(run, name, *common, "--asleep", str(asleep[name]), module=_CLOCKED) for name in names]
    async with at_work(*pair):
        yield pair, asleep
