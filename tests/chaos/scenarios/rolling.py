"""C28: a deploy: every process is replaced, one after the other, under load."""

import asyncio

from chaos.holders import HolderProcess, first_to_say, holding, next_grant
from chaos.ledger import Ledger
from chaos.outcome import Times
from chaos.recorded import RecordedCall, recorded_calls, repeated, tokens_granted
from chaos.scenario import RETRY_S, Run, scenario
from chaos.stores import STORES, Backend, backend
from tenure import open_store
from tenure.store import ListsLocks, LockStore

_TTL_S = 10.0
"""Long enough that a lock which a process left behind is seen before it expires, on a busy machine as well."""

_SLOTS = 3
_KEY = "job"


@scenario(
    "C28",
    "a deploy: three processes under load, replaced one after the other",
    claims="H1 H2 H3 H4",
    stores=STORES,
    quick=3,
    full=20,
    quick_stores=("valkey",),
)
async def a_deploy_rolls(run: Run) -> None:
    """Every process hands back what it holds, and the next one goes on with greater tokens: no call fails."""
    run.promise(ttl_s=_TTL_S)
    async with backend(run.store) as found, open_store(found.url) as store, Ledger(run.recorder) as ledger:
        deploy = Deploy(run, found, store, ledger)
        try:
            await deploy.begin()
            for version in range(1, run.n + 1):
                await deploy.roll(version)
            await deploy.kill_the_holder()
        finally:
            await deploy.end()
    found_grants = tokens_granted(run, *deploy.names)
    run.figure("versions", "one: there is no older release yet")
    run.figure("processes replaced", deploy.replaced)
    run.figure("grants", len(found_grants))
    run.zero("tokens repeated", repeated(found_grants), of=len(found_grants))
    calls = [call for call in recorded_calls(run, prefix="v") if call.result != "open"]
    run.zero("calls that failed", _failed(calls), of=len(calls))
    run.zero("processes that did not end in order", deploy.disorderly, of=deploy.replaced)
    run.zero("locks that a process left behind", deploy.left_behind, of=deploy.replaced)
    run.within("handover, p99", Times.of(deploy.handovers).p99, RETRY_S + 0.1)
    run.times("handover", deploy.handovers)
    run.control("a deploy by kill -9 leaves locks behind", failed=deploy.left_by_kill, of=1)
    counted = _repeated_by_a_counter(run, deploy.names)
    run.control("a token that each process counts for itself", failed=counted, of=len(found_grants))
    run.check_history()


class Deploy:
    """
    The processes that run, and what became of those that did.

    Args:
        run: The run.
        found: The server.
        store: A store on it, to look at.
        ledger: What they write to.
    """

    def __init__(self, run: Run, found: Backend, store: LockStore, ledger: Ledger) -> None:
        self._run = run
        self._store = store
        load = ("--churn", "3", "--keys", "12", "--key", _KEY)
        self._arguments = ("--url", found.url, "--ttl", str(_TTL_S), "--ledger", str(ledger.port), *load)
        self._all: list[HolderProcess] = []
        self._slots: list[HolderProcess] = []
        self.replaced = self.disorderly = self.left_behind = self.left_by_kill = 0
        self.handovers: list[float] = []

    @property
    def names(self) -> list[str]:
        """The names of all processes that there were."""
        return [one.process for one in self._all]

    def _make(self, slot: int, version: int) -> HolderProcess:
        arguments = (*self._arguments, "--seed", str(version * _SLOTS + slot))
        made = HolderProcess(self._run, f"v{version}-{slot}", *arguments)
        self._all.append(made)
        return made

    async def begin(self) -> None:
        """Start the first version."""
        self._slots = [self._make(slot, 0) for slot in range(_SLOTS)]
        await asyncio.gather(*(one.start() for one in self._slots))
        await first_to_say(self._slots, "granted", [0] * _SLOTS)

    async def roll(self, version: int) -> None:
        """Start the next version beside the old one, and SIGTERM the old processes one after the other."""
        old, new = self._slots, [self._make(slot, version) for slot in range(_SLOTS)]
        await asyncio.gather(*(one.start() for one in new))
        for slot in range(_SLOTS):
            self._slots = [*new[: slot + 1], *old[slot + 1 :]]
            await self._stop(old[slot])

    async def _stop(self, old: HolderProcess) -> None:
        leads, token = holding(self._all, _KEY)
        told_at = await old.terminate()
        self.replaced += 1
        self.disorderly += not (old.replica.exit_code == 0 and bool(old.lines("closed")))
        self.left_behind += await self._left_by(old)
        if leads is old:
            others = [one for one in self._all if one.replica.running]
            self.handovers.append(await next_grant(others, _KEY, above=token) - told_at)

    async def _left_by(self, process: HolderProcess) -> int:
        """Count the locks that the store still has of a process that has ended."""
        assert isinstance(self._store, ListsLocks)
        return sum(record.instance == process.process for record in await self._store.list_locks())

    async def kill_the_holder(self) -> None:
        """End the holder of the job as a careless deploy does: the control."""
        holder, _ = holding(self._slots, _KEY)
        await holder.kill()
        self.left_by_kill = min(1, await self._left_by(holder))

    async def end(self) -> None:
        """End those that still run."""
        await asyncio.gather(*(one.close() for one in self._all))


def _failed(calls: list[RecordedCall]) -> int:
    """Count the calls that ended in an error; the cancellation of what a closing process still waits for is none."""
    return sum(call.failed and call.error != "CancelledError" for call in calls)


def _repeated_by_a_counter(run: Run, names: list[str]) -> int:
    """Count the grants whose token would have been given before, if each process counted from 1 for each key."""
    seen: set[tuple[str, int]] = set()
    repeats = 0
    for name in names:
        counts: dict[str, int] = {}
        for _, key, _ in tokens_granted(run, name):
            counts[key] = counts.get(key, 0) + 1
            repeats += (key, counts[key]) in seen
            seen.add((key, counts[key]))
    return repeats
