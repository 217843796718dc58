"""C11 and C12: an asynchronous failover that loses the last grants, with a counter beside it that repeats itself."""

import asyncio
import contextlib
import itertools
import secrets
import time
from collections.abc import AsyncIterator
from typing import Protocol, final

from chaos.ledger import Ledger
from chaos.scenario import Run, scenario
from tenure import Lease, Locks, LossReason, open_store
from tenure.store import Acquired, LockStore
from tenure.testing.history import HistoryRecorder
from tenure_postgres import create_schema_sql
from tenure_testbed import PostgresPair, ValkeyPair

TTL_S = 2.0

_KEYS = tuple(f"job-{number}" for number in range(4))
_PER_KEY = 25
"""
Grants of a key before the cut, after it, and after the promotion: a hundred each. More than the 32 values that a
sequence of PostgreSQL writes to the log ahead of its use, or the control would not repeat itself.
"""
_LONG_TTL_MS = 60_000
_CALL_S = 10.0
"""How long a call may take here, where no `Locks` bounds it: the client's own time-out, and a connection before it."""


class Topology(Protocol):
    """A pair of servers, as these scenarios use it."""

    name: str

    async def prepare(self) -> None:
        """Make what the store and the control need, once."""
        ...

    def url(self) -> str:
        """What leads to the server that is the primary now."""
        ...

    async def count(self) -> list[int]:
        """Draw a hundred tokens from the control, on the primary."""
        ...

    async def cut(self) -> None:
        """Cut the replication, once the standby has everything so far."""
        ...

    async def fail_over(self) -> None:
        """Kill the primary and promote the other."""
        ...

    async def come_back(self) -> None:
        """Bring the old primary back as the standby."""
        ...


@final
class ValkeyTails:
    """A Valkey primary with a replica; its control is a counter, as many a lock recipe has it."""

    def __init__(self, pair: ValkeyPair, client: str) -> None:
        self.name = "valkey-async"
        self._pair = pair
        self._client = client

    async def prepare(self) -> None:
        """There is nothing to make."""

    def url(self) -> str:
        """Name the primary of now: without a Sentinel nobody else tells a client of it."""
        return f"{self._pair.primary.url()}?client={self._client}"

    async def count(self) -> list[int]:
        """Count on, by INCR."""

        def increments() -> list[int]:
            return [int(str(self._pair.primary.execute("INCR", "control"))) for _ in range(len(_KEYS) * _PER_KEY)]

        return await asyncio.to_thread(increments)

    async def cut(self) -> None:
        """Cut the replication."""
        await asyncio.to_thread(self._pair.catch_up)
        await asyncio.to_thread(self._pair.cut_replication)

    async def fail_over(self) -> None:
        """Kill and promote."""
        await asyncio.to_thread(self._pair.kill_primary)
        await asyncio.to_thread(self._pair.promote)

    async def come_back(self) -> None:
        """Start the old primary as the replica."""
        await asyncio.to_thread(self._pair.rejoin)


@final
class PostgresTails:
    """An asynchronous PostgreSQL pair; its control is a sequence, with the row's last token as its floor."""

    _CONTROL = """
        CREATE SEQUENCE control_tokens;
        CREATE TABLE control (token bigint NOT NULL);
        INSERT INTO control VALUES (0);
    """
    _DRAW = "UPDATE control SET token = greatest(nextval('control_tokens'), token + 1) RETURNING token;"

    def __init__(self, pair: PostgresPair) -> None:
        self.name = "postgres-async"
        self._pair = pair

    async def prepare(self) -> None:
        """Make the locks table, and the control's."""
        await asyncio.to_thread(self._pair.primary.execute, create_schema_sql() + ";" + self._CONTROL)

    def url(self) -> str:
        """Name both servers: the pool takes the one that takes writes."""
        return self._pair.url(driver="postgresql")

    async def count(self) -> list[int]:
        """Draw from the sequence, in a transaction for each."""
        rows = await asyncio.to_thread(self._pair.primary.execute, self._DRAW * (len(_KEYS) * _PER_KEY))
        return [int(token) for [token] in rows]

    async def cut(self) -> None:
        """Cut the replication."""
        await asyncio.to_thread(self._pair.catch_up)
        await asyncio.to_thread(self._pair.cut_replication)

    async def fail_over(self) -> None:
        """Kill and promote."""
        await asyncio.to_thread(self._pair.kill_primary)
        await asyncio.to_thread(self._pair.promote)

    async def come_back(self) -> None:
        """Rewind the old primary."""
        await asyncio.to_thread(self._pair.rewind)


@scenario(
    "C11",
    "Valkey: the replication is cut, the primary grants on and is killed, the replica is promoted",
    claims="H1 H2 H3 H4",
    stores=("valkey-async", "valkey-async-redis"),
    quick=2,
    full=20,
    quick_stores=("valkey-async",),
)
async def a_replica_without_the_last_grants_is_promoted(run: Run) -> None:
    """Tokens grow all the same; a counter's do not."""
    async with ValkeyPair() as pair:
        await _lose_tails(run, ValkeyTails(pair, "redis" if run.store.endswith("redis") else "glide"))


@scenario(
    "C12",
    "PostgreSQL, asynchronous: the link is cut, the primary grants on and is killed, the standby is promoted",
    claims="H1 H2 H3 H4",
    stores=("postgres-async",),
    quick=2,
    full=20,
)
async def a_standby_without_the_last_grants_is_promoted(run: Run) -> None:
    """Tokens grow all the same; a sequence's do not."""
    async with PostgresPair() as pair:
        await _lose_tails(run, PostgresTails(pair))


@final
class _Tails:
    """One run: what was granted, what the control gave, and what became of the leases that a failover took away."""

    def __init__(self, run: Run, pair: Topology) -> None:
        self.run = run
        self.pair = pair
        self.ledger = Ledger(run.recorder)
        self.caller = HistoryRecorder(run.history_file("caller"), process="caller")
        self.sides = [HistoryRecorder(run.history_file(name), process=name) for name in ("older", "newer")]
        self.tokens: dict[str, list[int]] = {key: [] for key in _KEYS}
        self.overlaps: list[float] = []
        self.stale_taken = 0
        self.reasons: list[str] = []

    async def grant(self, store: LockStore) -> None:
        """Acquire each key by turns, write under its token, and give it back."""
        for _ in range(_PER_KEY):
            for key in _KEYS:
                owner = f"caller:{secrets.token_hex(16)}"
                reply = await store.acquire(key, owner, _LONG_TTL_MS)
                if not isinstance(reply, Acquired):
                    raise TypeError(f"{key} was given back and is held: {reply}")
                self.tokens[key].append(reply.token)
                self.ledger.take(f"resource:{key}", key, reply.token)
                await store.release(key, owner)

    @contextlib.asynccontextmanager
    async def holder(self, number: int) -> AsyncIterator[Locks]:
        """A process of its own as far as locks go: the older one of the two, or the newer."""
        recorder = self.sides[number]
        async with (
            open_store(self.pair.url()) as store,
            Locks(
                recorder.around(store),
                ttl=TTL_S,
                instance=recorder.process,
                hooks=[recorder],
                startup_check=False,
                drain=0.05,
            ) as locks,
        ):
            yield locks

    async def round(self) -> list[int]:
        """Lose a tail; returns the control's tokens of this round."""
        note = self.run.recorder.note
        async with open_store(self.pair.url()) as store:
            calls = self.caller.around(store)
            await self.grant(calls)
            control = await self.pair.count()
            note("fault", fault="lost tail", kind="cut")
            await self.pair.cut()
            await self.grant(calls)
            control += await self.pair.count()
            async with self.holder(0) as locks:
                older = await locks.acquire("kept", wait=_CALL_S)
                beliefs = asyncio.create_task(self._believe(older))
                try:
                    await self.pair.fail_over()
                    note("healed", fault="lost tail")
                    await self._take_over(older)
                finally:
                    beliefs.cancel()
                    await asyncio.wait({beliefs})
        async with open_store(self.pair.url()) as store:
            await self.grant(self.caller.around(store))
            control += await self.pair.count()
        return control

    async def _take_over(self, older: Lease) -> None:
        """Have another holder take what the promoted server knows nothing of, and the older one hear of it."""
        async with self.holder(1) as locks:
            newer = await locks.acquire("kept", wait=_CALL_S)
            granted_at = time.monotonic()
            self.sides[1].note("believes", key="kept", token=newer.token)
            self.ledger.take("resource:kept", "kept", newer.token)
            heard = asyncio.create_task(older.lost.wait())
            await asyncio.wait({heard}, timeout=2 * TTL_S + _CALL_S)
            self.run.expect(heard.done(), "the older holder was not told of its loss")
            heard.cancel()
            self.overlaps.append(max(0.0, time.monotonic() - granted_at))
            self.reasons.append((older.lost.reason or LossReason.CLOSED).name)
            self.stale_taken += self.ledger.take("resource:kept", "kept", older.token)
            await newer.release()

    async def _believe(self, lease: Lease) -> None:
        while lease.held:
            self.sides[0].note("believes", key=lease.key, token=lease.token)
            self.ledger.take("resource:kept", "kept", lease.token)
            await asyncio.sleep(0.02)


async def _lose_tails(run: Run, pair: Topology) -> None:
    run.promise(ttl_s=TTL_S, call_s=_CALL_S, overlap_s=TTL_S)
    await pair.prepare()
    tails = _Tails(run, pair)
    repeated: list[int] = []
    for number in range(run.n):
        run.recorder.note("phase", name=f"failover {number + 1}")
        control = await tails.round()
        repeated.append(len(control) - len(set(control)))
        await pair.come_back()
    granted = [token for tokens in tails.tokens.values() for token in tokens]
    duplicates = sum(len(tokens) - len(set(tokens)) for tokens in tails.tokens.values())
    steps = [later - earlier for tokens in tails.tokens.values() for earlier, later in itertools.pairwise(tokens)]
    run.zero("duplicate tokens", duplicates, of=len(granted))
    run.zero("tokens below an earlier one of their key", sum(step < 0 for step in steps), of=len(steps))
    run.zero("stale writes taken", tails.stale_taken, of=run.n)
    run.within("two holders at once, at most", max(tails.overlaps), TTL_S)
    run.figure("losses", ", ".join(f"{reason} {tails.reasons.count(reason)}" for reason in sorted({*tails.reasons})))
    run.control("a counter repeats its tokens", failed=sum(map(bool, repeated)), of=run.n)
    run.figure("tokens that the counter repeated", sum(repeated))
    run.expect(all(repeated), "a failover lost nothing, as the counter shows: it proves nothing")
    for recorder in (tails.caller, *tails.sides):
        recorder.close()
    run.check_history()
