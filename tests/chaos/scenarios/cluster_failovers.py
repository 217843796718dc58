"""C8, C9 and C10: the primaries of a Valkey cluster are swapped as planned, killed, and cut off from the others."""

import asyncio
import contextlib
import itertools
import json
import math
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import final

from chaos.holders import granted_to_each, holders
from chaos.ledger import Ledger
from chaos.outcome import STALLS, Times
from chaos.packet_filter import PacketFilter
from chaos.recorded import RecordedCall, first_grant_after, grants, recorded_calls, repeated_tokens
from chaos.scenario import Run, scenario
from tenure import Lease, Locks, open_store
from tenure.testing.history import HistoryRecorder
from tenure_testbed import StatementError, ValkeyCluster
from tenure_testbed.valkey_node import ValkeyNode

NODE_TIMEOUT_MS = 2000

_CLIENTS = ("valkey-cluster", "valkey-cluster-redis")
_PATIENCE_S = 30.0


def _url(run: Run, cluster: ValkeyCluster) -> str:
    return f"{cluster.url()}?client={'redis' if run.store.endswith('redis') else 'glide'}"


def _bounds(ttl_s: float) -> tuple[str, ...]:
    """A holder's ttl, and how long its calls may take: as long, for a failover takes longer than a third of it."""
    return ("--ttl", str(ttl_s), "--store-timeout", str(ttl_s))


def _key_on(cluster: ValkeyCluster, shard: int, name: str, prefix: str = "locks:") -> str:
    """A key that begins with *name* and lives on *shard*; a lock's, or with an empty prefix a plain one."""
    for number in itertools.count():
        key = f"{name}-{number}"
        slot = cluster.slot_of(f"{prefix}{{{key}}}" if prefix else key)
        if slot * cluster.shards // 16384 == shard:
            return key
    raise AssertionError


def _shard_of(cluster: ValkeyCluster, key: str) -> int:
    return cluster.slot_of(f"locks:{{{key}}}") * cluster.shards // 16384


# ---------------------------------------------------------------------------------------------------- C8

_PLANNED_TTL_S = 6.0
"""Long, so that the bound of a call, which is the ttl, is no claim here: what is claimed is that no call fails."""
_KEPT_TTL_S = 3.0
"""Of two dozen leases that are kept all the time, on every shard, and so renewed once a second."""


@scenario(
    "C8",
    "CLUSTER FAILOVER of each shard under load",
    claims="H1 H2 H3 H5 H9",
    stores=_CLIENTS,
    quick=3,
    full=60,
    quick_stores=("valkey-cluster",),
)
async def primaries_are_swapped_as_planned(run: Run) -> None:
    """No call fails, no token is given twice, and nobody waits for long."""
    pinned_failed = 0
    async with ValkeyCluster(node_timeout_ms=NODE_TIMEOUT_MS) as cluster:
        run.promise(ttl_s=_PLANNED_TTL_S, overlap_s=0.0, call_s=_PATIENCE_S)
        url = ("--url", f"{_url(run, cluster)}&timeout=5s")
        churn = (*url, *_bounds(_PLANNED_TTL_S), "--churn", "6", "--hold", "0.02")
        keep = (
            *url,
            *_bounds(_KEPT_TTL_S),
            *(word for number in range(24) for word in ("--key", f"kept-{number}")),
        )
        async with holders(run, 1, *keep, prefix="keeper") as keepers, holders(run, 2, *churn) as processes:
            await granted_to_each((*keepers, *processes), [0, 0, 0])
            run.promise(ttl_s=_PLANNED_TTL_S, overlap_s=0.0)
            run.recorder.note("phase", name="failovers")
            began = time.monotonic()
            for number in range(run.n):
                shard = number % cluster.shards
                before = await asyncio.to_thread(cluster.primary_of, shard)
                run.recorder.note("fault", fault="failover", kind="CLUSTER FAILOVER", scope=f"shard {shard}")
                await asyncio.to_thread(cluster.failover, shard)
                run.recorder.note("healed", fault="failover", scope=f"shard {shard}")
                pinned_failed += await asyncio.to_thread(_refuses, before, _key_on(cluster, shard, "pinned", ""))
                await granted_to_each(processes, [one.mark for one in processes])
            run.recorder.note("phase", name="after them")
            await asyncio.sleep(0.5)
            ended = time.monotonic()
        calls = [call for call in recorded_calls(run, prefix="") if began <= call.invoked and call.returned <= ended]
        gaps = [_longest_gap(cluster, calls, shard) for shard in range(cluster.shards)]
    granted = grants(calls)
    failed = [call for call in calls if call.failed]
    if failed:
        run.figure("errors", ", ".join(sorted({call.error for call in failed})))
    run.zero("failed calls", len(failed), of=len(calls))
    kept = [call for call in calls if call.op != "acquire"]
    run.zero("leases lost", sum(call.result == "no" for call in kept), of=len(kept))
    run.zero("tokens given twice", repeated_tokens(calls), of=len(granted))
    run.within("longest time without a grant on a shard", max(gaps), _PLANNED_TTL_S / 3)
    run.control("a client that stays with its node is refused", failed=pinned_failed, of=run.n)
    run.check_history()


def _refuses(node: ValkeyNode, key: str) -> bool:
    """Write to the node that was the primary, as a client does that knows no cluster."""
    try:
        node.execute("SET", key, "1")
    except (StatementError, OSError):
        return True
    return False


def _longest_gap(cluster: ValkeyCluster, calls: Sequence[RecordedCall], shard: int) -> float:
    moments = sorted(call.returned for call in grants(calls) if _shard_of(cluster, call.key) == shard)
    return max((later - earlier for earlier, later in itertools.pairwise(moments)), default=_PATIENCE_S)


# ---------------------------------------------------------------------------------------------------- C9

_KILLED_TTL_S = 1.0
_SERVED_AGAIN_S = 3 * NODE_TIMEOUT_MS / 1000
"""Kill to grant: a node time-out or half as much again, an election, a call that times out first."""
_COUNTS = 50


@scenario(
    "C9",
    "kill -9 of the primary of each shard under load, its replica cut off half a second before",
    claims="H1 H2 H3 H5 H9",
    stores=_CLIENTS,
    quick=1,
    full=30,
    quick_stores=("valkey-cluster",),
)
async def primaries_are_killed(run: Run) -> None:
    """Its replica takes the shard over with growing tokens, though the last grants are lost where they can be."""
    reason = PacketFilter.unavailable()
    killed: list[tuple[int, float]] = []
    repeated: list[int] = []
    with contextlib.ExitStack() as ending:
        cut = None if reason else ending.enter_context(PacketFilter())
        async with _cluster(cut) as cluster:
            run.promise(ttl_s=_KILLED_TTL_S, overlap_s=_KILLED_TTL_S, call_s=_PATIENCE_S)
            # The client gives a call up when the engine does: glide goes on with one whose caller was cancelled, and
            # an acquire that it sends again after the promotion, behind its own release, blocks the key for a ttl more.
            url = f"{_url(run, cluster)}&timeout={_KILLED_TTL_S:g}s"
            load = ("--url", url, *_bounds(_KILLED_TTL_S), "--churn", "5", "--key", "kept")
            async with holders(run, 2, *load) as processes:
                await granted_to_each(processes, [0, 0])
                run.promise(ttl_s=_KILLED_TTL_S, overlap_s=_KILLED_TTL_S)
                for number in range(run.n):
                    shard = number % cluster.shards
                    run.recorder.note("phase", name=f"kill {number + 1}")
                    await granted_to_each(processes, [one.mark for one in processes])
                    run.recorder.note("fault", fault="primary", kind="kill -9", scope=f"shard {shard}")
                    at, control = await asyncio.to_thread(_kill, cluster, shard, cut)
                    run.recorder.note("healed", fault="primary", scope=f"shard {shard}")
                    killed.append((shard, at))
                    repeated.append(len(control) - len(set(control)))
                    await granted_to_each(processes, [one.mark for one in processes])
                    await asyncio.to_thread(cluster.restart)
                await asyncio.sleep(2 * _KILLED_TTL_S)
            calls = recorded_calls(run)
            gaps = [first_grant_after(calls, [at], _is_on(cluster, shard))[0] for shard, at in killed]
    run.within("kill to a grant on the shard, p99", Times.of(gaps).p99, _SERVED_AGAIN_S)
    run.times("kill to a grant on the shard", gaps)
    run.zero("tokens given twice", repeated_tokens(calls), of=len(grants(calls)))
    if reason:
        run.figure("the last grants", f"not lost, so that a counter would not repeat itself either ({reason})")
    else:
        run.control("a counter repeats its tokens", failed=sum(map(bool, repeated)), of=run.n)
    run.check_history()


def _is_on(cluster: ValkeyCluster, shard: int) -> Callable[[str], bool]:
    return lambda key: _shard_of(cluster, key) == shard


def _kill(cluster: ValkeyCluster, shard: int, cut: "PacketFilter | None") -> tuple[float, list[int]]:
    """Kill a primary that its replica has heard nothing of for a moment; when, and what a counter gave around it."""
    counter = _key_on(cluster, shard, "control", "")
    control = _count(cluster.primary_of(shard), counter)
    cluster.catch_up()
    if cut is not None:
        cut.stop_replication_from(cluster.primary_of(shard))
        time.sleep(0.5)  # grants that the replica will not have
    control += _count(cluster.primary_of(shard), counter)
    cluster.kill(shard)
    at = time.monotonic()
    cluster.wait_until_ok()
    if cut is not None:
        cut.heal()  # not before: what the dead primary had sent would still be delivered by its kernel
    return at, control + _count(cluster.primary_of(shard), counter)


def _count(node: ValkeyNode, counter: str) -> list[int]:
    return [int(str(node.execute("INCR", counter))) for _ in range(_COUNTS)]


# --------------------------------------------------------------------------------------------------- C10

_SPLIT_TTL_S = 2.0
_BOTH_S = NODE_TIMEOUT_MS / 2 / 1000
"""
For how long both sides may serve. Each notices by pings of its own, of which one may be half a node time-out younger:
the cut off primary stops after one to one and a half, and the others can have elected its replica after little more
than one. So two can hold a key for so much longer than the ttl.
"""
_SPLIT_S = 7.0
"""Past the node time-out twice: the cut off primary has stopped, and its replica has been promoted."""
_KEYS_A_SIDE = 4


@scenario(
    "C10",
    "a primary of the cluster is cut off for 7 s with a client on its side",
    claims="H1 H2 H3 H4",
    stores=("valkey-cluster",),
    quick=1,
    full=20,
)
async def a_primary_is_cut_off_with_a_client(run: Run) -> None:
    """It grants until it notices; nobody is given a token that it gave, and later ones are greater on either side."""
    reason = PacketFilter.unavailable()
    if reason:
        run.outcome.skipped = reason
        return
    found = _Splits(run)
    with PacketFilter() as cut:
        async with _cluster(cut) as cluster:
            began = run.recorder.now()
            for number in range(run.n):
                run.recorder.note("phase", name=f"split {number + 1}")
                await found.split(cluster, cut, number % cluster.shards)
    # Said now, when the machine's stalls are known: they keep both sides serving for longer, too.
    stall_s = STALLS * run.meter.worst_s
    with HistoryRecorder(run.history_file("declared"), process="declared") as recorder:
        overlap_s = _SPLIT_TTL_S + _BOTH_S + stall_s
        run.promise(recorder=recorder, ttl_s=_SPLIT_TTL_S, overlap_s=overlap_s, at=began, stall_s=stall_s)
    found.report()
    run.check_history()


@final
class _Splits:
    """Two sides of a cluster, each with a client that reaches its own side only, and what each was given."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.ledger = Ledger(run.recorder)
        self.cuts: list[float] = []
        self.counted: list[int] = []
        self.sides = {name: HistoryRecorder(run.history_file(name), process=name) for name in ("minority", "majority")}

    async def split(self, cluster: ValkeyCluster, cut: "PacketFilter", shard: int) -> None:
        """Cut the primary of *shard* off, and let both sides work on the same keys."""
        keys = [_key_on(cluster, shard, f"job-{number}") for number in range(_KEYS_A_SIDE)]
        kept, counter = _key_on(cluster, shard, "kept"), _key_on(cluster, shard, "control", "")
        primary, replica = cluster.primary_of(shard), cluster.replica_of(shard)
        async with self._side("minority", primary, keys, kept):
            await asyncio.sleep(1.0)
            await asyncio.to_thread(cluster.catch_up)
            self.run.recorder.note("fault", fault="split", kind="partition", scope=f"shard {shard}")
            await asyncio.to_thread(cut.isolate, primary)
            self.cuts.append(time.monotonic())
            try:
                control = await asyncio.to_thread(_count, primary, counter)
                async with self._side("majority", replica, keys, kept):
                    await asyncio.sleep(max(0.0, self.cuts[-1] + _SPLIT_S - time.monotonic()))
                    control += await asyncio.to_thread(_count, replica, counter)
            finally:
                await asyncio.to_thread(cut.heal)
        await asyncio.to_thread(cluster.wait_until_ok)
        self.run.recorder.note("healed", fault="split", scope=f"shard {shard}")
        self.counted.append(len(control) - len(set(control)))
        async with self._side("majority", replica, keys, kept):
            await asyncio.sleep(1.0)

    @contextlib.asynccontextmanager
    async def _side(self, name: str, node: ValkeyNode, keys: Sequence[str], kept: str) -> AsyncIterator[None]:
        """A client of one node, which knows nothing of a cluster and so cannot leave its side."""
        recorder = self.sides[name]
        async with (
            open_store(f"{node.url()}?client=redis") as store,
            Locks(
                recorder.around(store),
                ttl=_SPLIT_TTL_S,
                instance=name,
                hooks=[recorder],
                startup_check=False,
                drain=0.05,
            ) as locks,
        ):
            works = [self._work(name, locks, key, hold_s=0.03) for key in keys]
            works.append(self._work(name, locks, kept, hold_s=_PATIENCE_S))
            tasks = [asyncio.create_task(work) for work in works]
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _work(self, name: str, locks: Locks, key: str, *, hold_s: float) -> None:
        """Take a key, write under its token, give it back, and again; whatever fails is tried again."""
        while True:
            lease: Lease | None = None
            with contextlib.suppress(Exception):
                lease = await locks.try_acquire(key)
            if lease is None:
                await asyncio.sleep(0.02)
                continue
            until = time.monotonic() + hold_s
            try:
                while lease.held and time.monotonic() < until:
                    self.sides[name].note("believes", key=key, token=lease.token)
                    self.ledger.take(f"resource:{key}", key, lease.token)
                    await asyncio.sleep(0.02)
                self.ledger.take(f"resource:{key}", key, lease.token)  # the one that was on its way
            finally:
                with contextlib.suppress(Exception):
                    await lease.release()

    def report(self) -> None:
        """Hold what was found against the claims."""
        run = self.run
        for recorder in self.sides.values():
            recorder.close()
        minority, majority = (grants(recorded_calls(run, prefix=name)) for name in ("minority", "majority"))
        stopped_s, began_s, overlap_s = [], [], []
        late: list[RecordedCall] = []
        for at in self.cuts:
            older, newer = (
                [call for call in side if at <= call.invoked < at + _SPLIT_S] for side in (minority, majority)
            )
            stopped_s.append(max((call.returned for call in older), default=at) - at)
            began_s.append(min((call.returned for call in newer), default=math.inf) - at)
            beliefs = [found for found in self._beliefs("minority") if at <= found < at + _SPLIT_S]
            overlap_s.append(max(0.0, max(beliefs, default=at) - at - began_s[-1]))
            late += [call for call in older if call.returned - at > began_s[-1]]
        both_s = [stopped - began for stopped, began in zip(stopped_s, began_s, strict=True)]
        run.times("the minority granted for", stopped_s)
        run.times("the majority granted after", began_s)
        run.figure("grants of the minority beside the majority", f"{len(late)} of {len(minority)}")
        run.within("both sides granted, at most", max(0.0, *both_s), _BOTH_S)
        run.within("two holders at once, at most", max(overlap_s), _SPLIT_TTL_S + _BOTH_S)
        run.zero("tokens given twice", repeated_tokens((*minority, *majority)), of=len(minority) + len(majority))
        writes = self.ledger.accepted + self.ledger.refused
        run.zero("stale writes taken", self.ledger.stale_accepted, of=writes)
        run.control("a counter repeats its tokens", failed=sum(map(bool, self.counted)), of=run.n)
        run.expect(all(self.counted), "both sides counted and gave nothing twice: there was no split")

    def _beliefs(self, name: str) -> list[float]:
        return [at for at, what in _moments(self.run.history_file(name)) if what == "believes"]


def _moments(path: Path) -> Iterator[tuple[float, str]]:
    for line in path.read_text(encoding="ascii").splitlines():
        event = json.loads(line)
        yield event["at"], event["what"]


# -------------------------------------------------------------------------------------- cutting on loopback


@contextlib.asynccontextmanager
async def _cluster(cut: "PacketFilter | None") -> AsyncIterator[ValkeyCluster]:
    """A cluster whose nodes call each other from addresses of their own, so that their packets can be told apart."""
    cluster = ValkeyCluster(node_timeout_ms=NODE_TIMEOUT_MS)
    if cut is not None:
        for node in cluster.nodes:
            node.configure_start({"bind-source-addr": cut.address_for(node), "cluster-announce-ip": "127.0.0.1"})
    async with cluster:
        yield cluster
