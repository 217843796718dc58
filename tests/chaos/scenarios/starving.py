"""C20 and C21: the holder's event loop is blocked; or it gets a fifth of a processor, or no more memory."""

import asyncio
import contextlib
import os
import signal
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, final

from chaos.holders import WAKE_S, HolderProcess, at_work, first_to_say, holding
from chaos.ledger import Ledger
from chaos.outcome import Times
from chaos.recorded import events, repeated, tokens_granted
from chaos.scenario import RETRY_S, Run, scenario
from chaos.scenarios.pauses import KEY, Stage, staged
from chaos.stores import STANDALONE, STORES, Backend, backend
from tenure_testbed import NotReachedError

_BLOCK_TTLS = 2.0
_TRIES = 30

_SHARE = 0.2
_PERIOD_S = 0.1
"""A fifth of a processor: 20 ms in each 100 ms, so that a process stands still for 80 ms at a time."""

_CPU = Path("/sys/fs/cgroup/cpu")

_STARVED_TTL_S = 30.0
_STARVED_STALL_S = 5.0
"""How late a process on a fifth of a processor may be with what it writes down itself."""
_TINY = 8
_TINY_TTL_S = 0.5
_LONG_PERIOD_S = 1.0
"""The control: leases on the same share in periods of a second, so that the process stands still for 800 ms."""

_MEMORY_TTL_S = 1.0


@scenario(
    "C20",
    "the event loop blocked for 2 ttl by user code",
    claims="H1 H2 H3 H4 H8",
    stores=STORES,
    quick=5,
    full=30,
    quick_stores=("postgres", "valkey"),
)
async def an_event_loop_is_blocked(run: Run) -> None:
    """The line after the block finds the lease lost, before any timer or reply had a chance to run."""
    ttl_s = 1.0 if run.full else 0.6
    run.promise(ttl_s=ttl_s, stall_s=WAKE_S)
    rounds: list[dict[str, Any]] = []
    async with staged(run, ttl_s=ttl_s, block_s=_BLOCK_TTLS * ttl_s) as stage:
        while len(rounds) < run.n:
            rounds.append(await _block(stage))
        unfenced = stage.unfenced.stale_accepted
    delays: list[float] = []
    for one in rounds:
        told = [event for event in events(run, one["process"], "lost") if event["token"] == one["unblocked"]["token"]]
        delays += [event["at"] - one["unblocked"]["at"] for event in told[:1]]
    n = len(rounds)
    run.zero(
        "blocks after which the next line found the lease held", sum(one["unblocked"]["held"] for one in rounds), of=n
    )
    run.zero("losses without a signal", n - len(delays), of=n)
    run.zero("lines that a body of hold() ran afterwards", sum(one["body"]["late"] for one in rounds), of=n)
    run.zero("stale writes that the ledger took", sum(one["stale"]["ledger"] for one in rounds), of=n)
    run.zero("new tokens not above the old", sum(one["next"] <= one["unblocked"]["token"] for one in rounds), of=n)
    run.figure("lines of hold() that were ready before the block", sum(one["body"]["in_turn"] for one in rounds))
    run.figure("told as", "/".join(sorted({str(one["unblocked"]["reason"]) for one in rounds})))
    run.within("loss told after the block, p99", Times.of(delays).p99, WAKE_S)
    run.control("a holder that goes by a flag", failed=sum(one["unblocked"]["naive"] for one in rounds), of=n)
    run.control("a ledger that does not fence takes the stale writes", failed=min(unfenced, n), of=n)
    run.check_history()


async def _block(stage: Stage) -> dict[str, Any]:
    """Block whoever holds, see the other take over, and hear what the first found."""
    for _ in range(_TRIES):
        holder, _ = holding(stage.pair, KEY)
        other = next(one for one in stage.pair if one is not holder)
        mark, others = holder.mark, other.mark
        os.kill(holder.replica.pid, signal.SIGUSR1)
        unblocked = await holder.said("unblocked", after=mark)
        if unblocked["token"]:
            body = await holder.said("body", after=mark)
            stale = await holder.said("stale", after=mark)
            granted = await other.said("granted", after=others)
            return {
                "process": holder.process,
                "unblocked": unblocked,
                "body": body,
                "stale": stale,
                "next": granted["token"],
            }
        await asyncio.sleep(stage.ttl_s / 3)  # it did not hold its two keys just then
    raise NotReachedError(f"No writer held both of its keys in {_TRIES} tries.")


# ------------------------------------------------------------------------------------ a fifth of a processor


@scenario(
    "C21",
    "a CPU quota of 20 %, and the end of the memory",
    claims="H1 H2 H6",
    stores=STANDALONE,
    quick=2,
    full=20,
    quick_stores=("valkey",),
)
async def a_holder_is_starved(run: Run) -> None:
    """A ttl of 30 s is kept on a fifth of a processor; a holder killed for its memory is replaced as any other."""
    run.promise(ttl_s=_STARVED_TTL_S, stall_s=_STARVED_STALL_S)
    async with backend(run.store) as found, Ledger(run.recorder) as ledger:
        await asyncio.gather(_starve(run, found, ledger), _run_out_of_memory(run, found, ledger))
    run.check_history()


async def _starve(run: Run, found: Backend, ledger: Ledger) -> None:
    """Keep many leases on a fifth of a processor, and beside it one with a ttl that cannot be kept there."""
    keys, seconds = (200, 240.0) if run.full else (50, 12.0)
    common = ("--url", found.url, "--ledger", str(ledger.port))
    # A thousand writes a second: each fifth of a processor is used up, and then the process stands still.
    load = (*common, "--beat", str(keys / 1000), *_keys("kept", keys))
    rushed = (*common, "--churn", "4", "--hold", "0", *_keys("tiny", _TINY))
    with run.apart("control") as other:
        starved = HolderProcess(run, "starved", *load, "--ttl", str(_STARVED_TTL_S))
        tiny = HolderProcess(other, "tiny", *rushed, "--ttl", str(_TINY_TTL_S))
        async with at_work(starved, tiny):
            for number in range(keys):
                await starved.said("granted", key=f"kept-{number}")
            async with a_fifth(starved, _PERIOD_S) as quota, a_fifth(tiny, _LONG_PERIOD_S):
                before = time.monotonic()
                await asyncio.sleep(seconds)
                spent = time.monotonic() - before
                run.figure("starved by", quota.way)
                run.figure("processor that it got", quota.share())
            lost = [line for line in starved.lines("lost") if line["key"].startswith("kept-")]
            control = len({line["key"] for line in tiny.lines("lost")})
    renewed = _renewals(run, "starved")
    hours = keys * spent / 3600
    run.figure("seconds", spent)
    run.figure("renewals", renewed)
    run.figure("lease-hours", hours)
    run.figure("losses a lease-hour at most, at 95 %", 3 / hours if not lost else float(len(lost)) / hours)
    run.zero("leases of 30 s lost falsely", len(lost), of=keys)
    run.expect(renewed >= keys, f"only {renewed} renewals of {keys} leases: nothing was put to the test")
    run.control("a ttl of 0.5 s on a fifth of each second", failed=control, of=_TINY)


def _keys(name: str, count: int) -> list[str]:
    return [word for number in range(count) for word in ("--key", f"{name}-{number}")]


def _renewals(run: Run, process: str) -> int:
    asked = {event["call"] for event in events(run, process, "invoke") if event["op"] == "renew"}
    answers = events(run, process, "return")
    return sum(event["call"] in asked and event["result"] == "ok" for event in answers)


@final
class Quota:
    """
    A fifth of a processor for one process: by the kernel where it lets us, by SIGSTOP and SIGCONT elsewhere.

    Attributes:
        way: Which of the two.
    """

    way: str

    def __init__(self, pid: int, period_s: float) -> None:
        self._pid = pid
        self._period_s = period_s
        self._group = _CPU / f"tenure-chaos-{pid}"
        self._before = (time.monotonic(), _cpu_s(pid))
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._take_turns, name="duty-cycle", daemon=True)
        try:
            self._group.mkdir()
            (self._group / "cpu.cfs_period_us").write_text(str(round(period_s * 1e6)), encoding="ascii")
            (self._group / "cpu.cfs_quota_us").write_text(str(round(_SHARE * period_s * 1e6)), encoding="ascii")
            (self._group / "cgroup.procs").write_text(str(pid), encoding="ascii")
            self.way = "cgroup"
        except OSError:
            self.way = "SIGSTOP and SIGCONT"
            self._thread.start()

    def share(self) -> float:
        """How much of a processor the process got since."""
        at, cpu_s = self._before
        return (_cpu_s(self._pid) - cpu_s) / (time.monotonic() - at)

    def end(self) -> None:
        """Take it away."""
        if self.way == "cgroup":
            (_CPU / "cgroup.procs").write_text(str(self._pid), encoding="ascii")
        else:
            self._stop.set()
            self._thread.join()
        with contextlib.suppress(OSError):
            self._group.rmdir()

    def _take_turns(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            while not self._stop.is_set():
                os.kill(self._pid, signal.SIGSTOP)
                self._stop.wait(self._period_s * (1 - _SHARE))
                os.kill(self._pid, signal.SIGCONT)
                self._stop.wait(self._period_s * _SHARE)


def _cpu_s(pid: int) -> float:
    """How long a process has run so far, in seconds of a processor."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.asynccontextmanager
async def a_fifth(process: HolderProcess, period_s: float) -> AsyncIterator[Quota]:
    """Give *process* a fifth of a processor for as long as the body runs."""
    quota = await asyncio.to_thread(Quota, process.replica.pid, period_s)
    try:
        yield quota
    finally:
        await asyncio.to_thread(quota.end)


# -------------------------------------------------------------------------------------- the end of the memory


async def _run_out_of_memory(run: Run, found: Backend, ledger: Ledger) -> None:
    """One of two holds the key and is killed for the memory that it takes; the other has the key after the ttl."""
    arguments = ("--url", found.url, "--ttl", str(_MEMORY_TTL_S), "--key", KEY, "--ledger", str(ledger.port))
    pair = [HolderProcess(run, f"hungry-{number}", *arguments, module="chaos.programs.hungry") for number in (1, 2)]
    async with at_work(*pair):
        await first_to_say(pair, "granted", [0, 0])
        takeovers = [await _end_the_memory_of_the_holder(run, pair) for _ in range(run.n)]
    found_grants = [one for one in tokens_granted(run, "hungry-1", "hungry-2") if one[1] == KEY]
    run.zero("tokens repeated after a kill for memory", repeated(found_grants), of=len(found_grants))
    run.within("takeover after a kill for memory, p99", Times.of(takeovers).p99, _MEMORY_TTL_S + RETRY_S + 0.25)
    run.times("takeover after a kill for memory", takeovers)


async def _end_the_memory_of_the_holder(run: Run, pair: list[HolderProcess]) -> float:
    """Let the holder eat until it is killed; returns from its death to the next grant."""
    for _ in range(_TRIES):
        holder, token = holding(pair, KEY)
        other = next(one for one in pair if one is not holder)
        mark = other.mark
        os.kill(holder.replica.pid, signal.SIGUSR1)
        code = await asyncio.to_thread(holder.replica.wait, 60.0)
        died_at = time.monotonic()
        run.recorder.note("died", process=holder.process, by="nemesis")
        run.expect(code == -signal.SIGKILL, f"the end of the memory ended {holder.process} with {code}")
        held = holding(pair, KEY) == (holder, token) and all(line["token"] != token for line in holder.lines("lost"))
        if held:
            granted = await other.said("granted", after=mark)
        await holder.start()
        if held:
            return float(granted["at"] - died_at)
    raise NotReachedError(f"No holder could be killed in {_TRIES} tries.")
