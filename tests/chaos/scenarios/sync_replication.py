"""C13: a synchronous standby is cut off, waits for it are cancelled, it is promoted: nothing acknowledged is lost."""

import asyncio
import contextlib
import secrets
import time
from collections import Counter
from collections.abc import Coroutine
from typing import Any, final
from urllib.parse import quote

from chaos.holders import granted_to_each, holders
from chaos.ledger import Ledger
from chaos.recorded import RecordedCall, grants, recorded_calls
from chaos.scenario import Run, scenario
from tenure import Lease, Locks, open_store
from tenure.store import Acquired
from tenure.testing.history import HistoryRecorder
from tenure_postgres import UnreplicatedWriteError, create_schema_sql
from tenure_testbed import PostgresPair

TTL_S = 1.0

_EACH = 4
"""Calls of each kind that a round leaves waiting for the standby; those of a store travel in one statement."""
_CALL_S = 10.0
"""How long a call may take where no `Locks` bounds it; it is no claim of this scenario."""
_PATIENCE_S = 30.0
_CUT_S = 1.5 * TTL_S
"""How long the holders run on without the standby: past the deadline of every lease that they had."""

_STORES = ("direct", "by hand", "abandoned")
"""Who waits: each store under a name of its own, by which the server tells them apart."""

_WAITING = "FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
_ALL_WAIT = (
    f"SELECT count(DISTINCT application_name) FILTER (WHERE application_name IN {_STORES}) = {len(_STORES)} "
    f"AND count(*) FILTER (WHERE query LIKE 'INSERT INTO naive%') = {_EACH} {_WAITING}"
)
_REPLAYED = "SELECT pg_last_wal_replay_lsn() >= pg_last_wal_receive_lsn()"
_ARRIVED = "SELECT key, token FROM tenure_locks"


@scenario(
    "C13",
    "PostgreSQL, synchronous: the link is cut, waits for the standby are cancelled, the standby is promoted",
    claims="H1 H2 H3 H4 H5",
    stores=("postgres-sync",),
    quick=2,
    full=20,
)
async def a_synchronous_standby_is_promoted(run: Run) -> None:
    """No grant is acknowledged that the standby does not have; one whose wait was cancelled is none."""
    run.promise(ttl_s=TTL_S, call_s=_CALL_S)
    async with PostgresPair(synchronous=True) as pair, Ledger(run.recorder) as ledger:
        await asyncio.to_thread(pair.primary.execute, create_schema_sql() + ";CREATE TABLE naive (entry text)")
        url = pair.url(driver="postgresql")
        load = (
            "--url",
            url,
            "--ttl",
            str(TTL_S),
            "--store-timeout",
            str(TTL_S),
            "--churn",
            "3",
            "--keys",
            "12",
            "--key",
            "kept",
        )
        rounds = _Rounds(run, pair)
        async with holders(run, 2, *load, "--ledger", str(ledger.port)) as processes:
            for number in range(run.n):
                run.recorder.note("phase", name=f"failover {number + 1}")
                await granted_to_each(processes, [one.mark for one in processes])
                run.recorder.note("fault", fault="no standby", kind="cut")
                await rounds.lose_the_standby()
                await asyncio.to_thread(pair.promote)
                run.recorder.note("healed", fault="no standby")
                await granted_to_each(processes, [one.mark for one in processes])
                await rounds.count_the_naive()
                await asyncio.to_thread(pair.rewind)
            await asyncio.sleep(2 * TTL_S)
        rounds.close()
    rounds.report()
    run.check_history()


@final
class _Rounds:
    """What the cuts did to calls that were waiting for the standby, and what had arrived there."""

    def __init__(self, run: Run, pair: PostgresPair) -> None:
        self._run = run
        self._pair = pair
        self._caller = HistoryRecorder(run.history_file("caller"), process="caller")
        self._outcomes: Counter[str] = Counter()
        self._windows: list[tuple[float, float]] = []
        self._arrived: list[dict[str, int]] = []
        self._naive: list[str] = []
        self._naive_lost = 0

    async def lose_the_standby(self) -> None:
        """Cut the link, let everybody wait for the standby, cancel the waits, and kill the primary."""
        async with contextlib.AsyncExitStack() as ending:
            opened = [await ending.enter_async_context(open_store(self._url(name))) for name in _STORES]
            direct, by_hand, alone = map(self._caller.around, opened)
            locks = Locks(by_hand, ttl=60, store_timeout=_CALL_S, hooks=[self._caller], startup_check=False)
            await ending.enter_async_context(locks)
            await asyncio.to_thread(self._pair.cut_replication)
            cut_at = time.monotonic()
            self._naive = [secrets.token_hex(8) for _ in range(_EACH)]
            calls: list[Coroutine[Any, Any, Any]]
            calls = [direct.acquire(_fresh_key(), _fresh_owner(), 60_000) for _ in range(_EACH)]
            calls += [locks.try_acquire(_fresh_key()) for _ in range(_EACH)]
            abandoned = asyncio.create_task(alone.acquire(_fresh_key(), _fresh_owner(), 60_000))
            waiting = [asyncio.create_task(self._outcome(call)) for call in calls]
            waiting += [asyncio.create_task(self._insert(entry)) for entry in self._naive]
            await self._until(self._pair.primary, _ALL_WAIT, [["t"]])
            abandoned.cancel()  # as a request does whose client has gone away
            await asyncio.sleep(max(0.0, cut_at + _CUT_S - time.monotonic()))
            await self._cancel_until_over([*waiting, abandoned])
            self._outcomes["cancelled" if abandoned.cancelled() else "granted"] += 1
            await self._until(self._pair.standby, _REPLAYED, [["t"]])
            rows = await asyncio.to_thread(self._pair.standby.execute, _ARRIVED)
            self._arrived.append({key: int(token) for key, token in rows})
            self._windows.append((cut_at, time.monotonic()))
            await asyncio.to_thread(self._pair.kill_primary)

    def _url(self, name: str) -> str:
        return f"{self._pair.url(driver='postgresql')}&application_name={quote(name)}"

    async def count_the_naive(self) -> None:
        """Count the naive entries that were reported as written, and that the promoted server does not have."""
        rows = await asyncio.to_thread(self._pair.primary.execute, "SELECT entry FROM naive")
        self._naive_lost += len(set(self._naive) - {entry for [entry] in rows})

    async def _outcome(self, call: Coroutine[Any, Any, Any]) -> None:
        """Count how a call ended whose wait was cancelled."""
        try:
            reply = await call
        except UnreplicatedWriteError:
            self._outcomes["unknown"] += 1
        else:
            self._outcomes["granted" if isinstance(reply, Acquired | Lease) else "refused"] += 1

    async def _insert(self, entry: str) -> None:
        """Write as one does who knows nothing of the warning: a row that comes back is a success."""
        insert = f"INSERT INTO naive VALUES ('{entry}') RETURNING entry"
        rows = await asyncio.to_thread(self._pair.primary.execute, insert)
        self._outcomes["naive success"] += rows == [[entry]]

    async def _until(self, server: Any, question: str, answer: list[list[str]]) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while await asyncio.to_thread(server.execute, question) != answer:
            if time.monotonic() > deadline:
                raise TimeoutError(f"It never became so within {_PATIENCE_S:.0f} s: {question}")
            await asyncio.sleep(0.02)

    async def _cancel_until_over(self, tasks: list[asyncio.Task[Any]]) -> None:
        """Cancel every wait for the standby, as an operator would, until the calls have ended."""
        deadline = time.monotonic() + _PATIENCE_S
        while not all(task.done() for task in tasks):
            if time.monotonic() > deadline:
                raise TimeoutError("A call whose wait was cancelled has not ended.")
            await asyncio.to_thread(self._pair.primary.execute, f"SELECT pg_cancel_backend(pid) {_WAITING}")
            await asyncio.sleep(0.05)
        await asyncio.gather(*tasks, return_exceptions=True)

    def close(self) -> None:
        """Close the history of the calls."""
        self._caller.close()

    def report(self) -> None:
        """Hold what was found against the claims."""
        run, n = self._run, self._run.n
        calls = recorded_calls(run, prefix="")
        within = [call for call in calls if any(cut <= call.invoked < end for cut, end in self._windows)]
        asked = [call for call in within if call.op in ("acquire", "renew")]
        run.zero("grants and renewals acknowledged while the link was cut", sum(map(_ok, asked)), of=len(asked))
        missing, acknowledged = self._missing(calls)
        run.zero("acknowledged grants that the promoted server lacked", missing, of=acknowledged)
        cancelled = 2 * _EACH * n
        run.zero("cancelled waits taken for a grant", self._outcomes["granted"], of=cancelled + n)
        run.expect(
            self._outcomes["unknown"] == cancelled,
            f"of {cancelled} cancelled waits {self._outcomes['unknown']} were reported as unknown",
        )
        run.control("a naive INSERT reports success and is lost", failed=self._naive_lost, of=_EACH * n)
        run.figure("naive successes", self._outcomes["naive success"])

    def _missing(self, calls: list[RecordedCall]) -> tuple[int, int]:
        """Count grants that were acknowledged before a cut, and of which the standby's row knew nothing after it."""
        missing = acknowledged = 0
        before = 0.0
        for (cut, _), arrived in zip(self._windows, self._arrived, strict=True):
            granted = [call for call in grants(calls) if before <= call.returned < cut]
            acknowledged += len(granted)
            missing += sum(call.token > arrived.get(call.key, 0) for call in granted)
            before = cut
        return missing, acknowledged


def _ok(call: RecordedCall) -> bool:
    return call.result == "ok"


def _fresh_key() -> str:
    return f"cancelled-{secrets.token_hex(8)}"


def _fresh_owner() -> str:
    return f"caller:{secrets.token_hex(16)}"
