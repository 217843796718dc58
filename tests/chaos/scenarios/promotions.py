"""C14 and C15: a PostgreSQL standby is promoted under load; the old primary is dead, or runs on."""

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, final

import asyncpg  # type: ignore[import-untyped]  # it ships no types

from chaos.holders import HolderProcess, granted_to_each, holders
from chaos.ledger import Ledger
from chaos.outcome import STALLS, Times
from chaos.recorded import RecordedCall, events_in, first_grant_after, grants, recorded_calls, repeated_tokens
from chaos.scenario import Run, scenario
from tenure import open_store
from tenure.testing import history
from tenure.testing.history import HistoryRecorder
from tenure_postgres import create_schema_sql
from tenure_testbed import PostgresPair

TTL_S = 1.0
_BOUNDS = ("--ttl", str(TTL_S), "--store-timeout", str(TTL_S))
FIRST_GRANT_S = 5.0
"""From the kill to the first grant, at most: a promotion, and the pools of the holders that find the new primary."""

_HOLDERS = 3
_PATIENCE_S = 10.0
_SPLIT_S = 2.0
"""How long clients use both primaries: two ttls, so that every lease from before the promotion has ended."""
_AHEAD = 2**52
"""A token that the clock reaches in a century: a side that draws below it counts on from the last token."""
_AHEAD_DRAWS = 5

# -------------------------------------------------------------------------------------------------- C14


@scenario(
    "C14",
    "PostgreSQL: the primary is killed under load, the standby is promoted, the old primary comes back",
    claims="H1 H2 H3 H5 H9",
    stores=("postgres-async", "postgres-sync"),
    quick=1,
    full=50,
    quick_stores=("postgres-sync",),
)
async def a_standby_is_promoted_under_load(run: Run) -> None:
    """The holders follow without a restart; nobody's token is given twice."""
    synchronous = run.store == "postgres-sync"
    killed: list[float] = []
    left_behind = 0
    async with PostgresPair(synchronous=synchronous) as pair, Ledger(run.recorder) as ledger:
        await asyncio.to_thread(pair.primary.execute, create_schema_sql())
        run.promise(ttl_s=TTL_S, overlap_s=0.0 if synchronous else TTL_S)
        load = ("--url", pair.url(driver="postgresql"), *_BOUNDS, "--churn", "4", "--keys", "12")
        async with holders(run, _HOLDERS, *load, "--key", "kept", "--ledger", str(ledger.port)) as processes:
            for number in range(run.n):
                run.recorder.note("phase", name=f"failover {number + 1}")
                await granted_to_each(processes, [one.mark for one in processes])
                kept = await asyncpg.connect(pair.url(driver="postgresql"), command_timeout=_PATIENCE_S)
                run.recorder.note("fault", fault="primary", kind="kill -9")
                await asyncio.to_thread(pair.kill_primary)
                killed.append(time.monotonic())
                await asyncio.to_thread(pair.promote)
                marks = [one.mark for one in processes]
                run.recorder.note("healed", fault="primary")
                await granted_to_each(processes, marks)
                left_behind += await _fails(kept)
                await asyncio.to_thread(pair.rewind)
            run.recorder.note("phase", name="after the last one")
            await asyncio.sleep(2 * TTL_S)
    _report_failovers(run, recorded_calls(run), killed)
    run.control("a connection that is kept serves nobody any more", failed=left_behind, of=run.n)
    run.check_history()


async def _fails(kept: Any) -> bool:
    """Whether a connection from before the failover, to hosts of which one is the primary now, is of no use."""
    try:
        await kept.fetchval("SELECT 1")
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
        return True
    finally:
        kept.terminate()
    return False


def _report_failovers(run: Run, calls: list[RecordedCall], killed: list[float]) -> None:
    spans = first_grant_after(calls, killed, lambda _: True)
    run.within("kill to first grant, p99", Times.of(spans).p99, FIRST_GRANT_S)
    run.times("kill to first grant", spans)
    each = [
        max(first_grant_after([call for call in calls if call.process == process], killed, lambda _: True))
        for process in sorted({call.process for call in calls})
    ]
    run.figure("slowest holder to its first grant", max(each))
    run.zero("tokens given twice", repeated_tokens(calls), of=len(grants(calls)))


# -------------------------------------------------------------------------------------------------- C15


@scenario(
    "C15",
    "PostgreSQL: the standby is promoted while the old primary runs on, with clients on both",
    claims="H1 to H5 within each side, H4 over both",
    stores=("postgres-async",),
    quick=1,
    full=5,
)
async def the_old_primary_runs_on(run: Run) -> None:
    """Each side gives its own tokens; within a side all rules hold, and over both a fence takes no step back."""
    found = _Sides()
    async with PostgresPair() as pair, Ledger(run.recorder) as ledger:
        await asyncio.to_thread(pair.primary.execute, create_schema_sql())
        run.promise(ttl_s=TTL_S)
        for number in range(run.n):
            ahead = f"ahead-{number}"
            row = f"INSERT INTO tenure_locks (key, token, expires_at) VALUES ('{ahead}', {_AHEAD}, now())"
            await asyncio.to_thread(pair.primary.execute, row)
            await asyncio.to_thread(pair.catch_up)
            run.recorder.note("fault", fault="two primaries", kind="promotion")
            await found.split(run, pair, ledger, ahead, f"round {number + 1}")
            run.recorder.note("healed", fault="two primaries")
            await asyncio.to_thread(pair.rewind)
        unfenced = Ledger(HistoryRecorder([], process="unfenced"), fenced=False)
        for write in events_in(run.history_file("nemesis")):
            if write["what"] == "write":
                unfenced.take(write["resource"], write["key"], write["token"])
        run.control(
            "an unfenced resource takes writes of the older side",
            failed=unfenced.stale_accepted,
            of=ledger.accepted + ledger.refused,
        )
    run.zero("stale writes taken by the fence", ledger.stale_accepted, of=ledger.accepted + ledger.refused)
    run.figure("stale writes refused", ledger.refused)
    found.report(run)
    # Of both sides together this alone is promised; the rest holds within each.
    writes = history.check_history(run.history_file("nemesis"))
    run.outcome.broken += [f"{one.rule} {one.text}" for one in writes.violations[:5]]
    run.outcome.history = dict(writes.counts)


@final
class _Sides:
    """What each side gave while there were two primaries."""

    def __init__(self) -> None:
        self.given = 0
        self.repeated = 0
        self.by_both = 0
        self.ahead = 0
        self.ahead_by_both = 0

    async def split(self, run: Run, pair: PostgresPair, ledger: Ledger, ahead: str, name: str) -> None:
        """Promote under clients of the old primary, have others use the new one, and look at each side by itself."""
        started = time.monotonic()
        urls = {"old": pair.primary.url(), "new": pair.standby.url()}
        directories = {side: run.directory / name.replace(" ", "-") / side for side in urls}
        for directory in directories.values():
            directory.mkdir(parents=True)
        load = (*_BOUNDS, "--key", "kept", "--churn", "3", "--keys", "12", "--ledger", str(ledger.port))
        async with _clients(run, directories["old"], ("--url", urls["old"], *load)) as old:
            await granted_to_each(old, [0] * len(old))
            await asyncio.to_thread(pair.promote)
            async with _clients(run, directories["new"], ("--url", urls["new"], *load)) as new:
                await granted_to_each(new, [0] * len(new))
                await granted_to_each(old, [one.mark for one in old])
                for side, url in urls.items():
                    await _draw_by_hand(directories[side], url, ahead)
                await asyncio.sleep(_SPLIT_S)
        calls = {side: recorded_calls(run, prefix="", directory=directory) for side, directory in directories.items()}
        for side, directory in directories.items():
            with HistoryRecorder(directory / "declared.jsonl", process="declared") as recorder:
                run.promise(
                    ttl_s=TTL_S,
                    recorder=recorder,
                    topology=f"{run.store}, {side}",
                    at=started,
                    stall_s=STALLS * run.meter.worst_s,
                )
            report = history.check_history(sorted(directory.glob("*.jsonl")), starts_empty=False)
            problems = [f"{one.rule} {one.text}" for one in report.violations[:5]]
            problems += [text for one in report.assumptions for text in one.problems]
            run.outcome.broken += [f"the {side} side: {text}" for text in problems]
            self.repeated += repeated_tokens(calls[side])
            self.given += len(grants(calls[side]))
        both = [{(call.key, call.token) for call in grants(one)} for one in calls.values()]
        twice = both[0] & both[1]
        self.by_both += sum(key != ahead for key, _ in twice)
        self.ahead_by_both += sum(key == ahead for key, _ in twice)
        self.ahead += sum(key == ahead for key, _ in both[1])

    def report(self, run: Run) -> None:
        """Say what a side promises, and what the two of them do not."""
        run.zero("tokens given twice within a side", self.repeated, of=self.given)
        run.figure("tokens given by both sides", f"{self.by_both} of {self.given}")
        run.control(
            "two sides that count on from one last token, the clock being behind it",
            failed=self.ahead_by_both,
            of=self.ahead,
        )


@contextlib.asynccontextmanager
async def _clients(run: Run, directory: Path, arguments: Sequence[str]) -> AsyncIterator[list[HolderProcess]]:
    """Two holders of one side, whose histories go into a directory of that side's own."""
    side = directory.name
    found = [
        HolderProcess(run, name, *arguments, "--history", str(directory / f"{name}.jsonl"))
        for name in (f"{side}-1", f"{side}-2")
    ]
    try:
        await asyncio.gather(*(one.start() for one in found))
        yield found
    finally:
        await asyncio.gather(*(one.close() for one in found))


async def _draw_by_hand(directory: Path, url: str, key: str) -> None:
    """Take a key whose last token is ahead of the clock, a few times."""
    process = f"{directory.name}-by-hand"
    with HistoryRecorder(directory / f"{process}.jsonl", process=process) as recorder:
        async with open_store(url) as opened:
            store = recorder.around(opened)
            for number in range(_AHEAD_DRAWS):
                owner = f"{process}:{number}:{secrets.token_hex(16)}"
                await store.acquire(key, owner, 60_000)
                await store.release(key, owner)
