"""C22 and C24: no room in the store, and no connection to it."""

import asyncio
import contextlib
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from chaos.peers import TTL_S, Peer, conducted, side_by_side, timed
from chaos.recorded import read_calls
from chaos.scenario import Run, scenario
from chaos.stores import Backend, backend
from tenure import Lease, open_idempotency_store
from tenure.idempotency_store import Acquired as Begun
from tenure.idempotency_store import Completion
from tenure_postgres import PostgresLockStore
from tenure_testbed import PostgresServer, ValkeyServer
from tenure_testbed.account import server_account

_KEPT: Final = 5
_ASKED: Final = 5
_MINUTE_MS: Final = 60_000
_NOBODY: Final = f"nobody:{0:032x}"

_DISK: Final = "2m"
_MOST_ROWS: Final = 2000
"""More than fit on the disk, whatever the page is filled to."""
_TOGETHER: Final = 20
_BALLAST: Final = 64 * 1024


# ------------------------------------------------------------------------------------ C22: no room


@scenario(
    "C22",
    "no room: Valkey at maxmemory, PostgreSQL on a full disk",
    claims="H1 H5 H7 H8 H9",
    stores=("postgres", "valkey", "valkey-redis"),
    quick=2,
    full=20,
    quick_stores=("postgres", "valkey"),
)
async def a_store_is_full(run: Run) -> None:
    """Nothing new is begun, and nothing half done; what is held goes on and ends; with room, so do all."""
    if run.store != "postgres":
        await _fill_valkey(run)
        return
    with contextlib.ExitStack() as stack:
        try:
            disk = stack.enter_context(_small_disk())
        except (OSError, subprocess.SubprocessError) as error:
            run.outcome.skipped = f"no small file system can be mounted here ({type(error).__name__})"
            return
        await _fill_postgres(run, disk)


async def _fill_valkey(run: Run) -> None:
    refused = written = kept = released = completed = begun = evicted = 0
    async with conducted(run), backend(run.store) as found, open_idempotency_store(found.url) as records:
        server: ValkeyServer = found.server
        async with Peer(run, "holder", found.url) as holder, Peer(run, "asker", found.url) as asker:
            for number in range(run.n):
                leases = [await holder.take(f"full-{number}-{place}") for place in range(_KEPT)]
                works = [holder.work(lease) for lease in leases]
                names = [f"record-{number}-{place}" for place in range(_KEPT)]
                for name in names:
                    begin = await records.acquire(name, _NOBODY, "payload", _MINUTE_MS, _MINUTE_MS)
                    run.expect(begin == Begun(1), "A record could not be begun before the server was full.")
                run.recorder.note("fault", fault=f"full {number}", kind="maxmemory")
                await asyncio.to_thread(server.set_maxmemory, 1)
                new = [f"new-{number}-{place}" for place in range(_ASKED)]
                refused += await _refusals(asker, new, "OOM", "maxmemory")
                begins = [records.acquire(f"r{key}", _NOBODY, "payload", _MINUTE_MS, _MINUTE_MS) for key in new]
                begun += sum(
                    isinstance(answer, Begun) for _, answer in await side_by_side([timed(one) for one in begins])
                )
                written += len(await asyncio.to_thread(_keys, server, f"*new-{number}-*"))
                await asyncio.sleep(1.5 * TTL_S)
                kept += sum(lease.held for lease in leases)
                done = [await records.complete(name, _NOBODY, b"done" * 500, _MINUTE_MS) for name in names]
                completed += sum(end is Completion.STORED for end in done)
                ends = [await timed(lease.release()) for lease in leases]
                released += sum(end is True for _, end in ends)
                await asyncio.gather(*works)
                evicted += await _evict(server, asker, number)
                await asyncio.to_thread(server.set_maxmemory, 0)
                run.recorder.note("healed", fault=f"full {number}", kind="maxmemory")
                for key in new:
                    await timed((await asker.take(key)).release())
    of = _KEPT * run.n
    run.figure("acquires refused", refused)
    run.zero("acquires that were granted, or failed for another reason", _ASKED * run.n - refused, of=_ASKED * run.n)
    run.zero("records begun on a full server", begun, of=_ASKED * run.n)
    run.zero("keys written by what was refused", written, of=2 * _ASKED * run.n)
    run.zero("held leases that were lost", of - kept, of=of)
    run.zero("held leases that could not be released", of - released, of=of)
    run.zero("records that could not be completed", of - completed, of=of)
    run.control("allkeys-lru throws held locks away", failed=evicted, of=of)


def _keys(server: ValkeyServer, pattern: str) -> list[object]:
    found: Any = server.execute("KEYS", pattern)
    return list(found)


async def _evict(server: ValkeyServer, asker: Peer, number: int) -> int:
    """Do the same to a server that evicts; returns how many held locks are gone. Not in the history."""
    await asyncio.to_thread(server.set_maxmemory, 0)
    keys = [f"evicted-{number}-{place}" for place in range(_KEPT)]
    for key in keys:
        await asker.raw.acquire(key, _NOBODY, _MINUTE_MS)
    await asyncio.to_thread(server.set_maxmemory, 1, "allkeys-lru")
    await timed(asker.raw.acquire(f"evicting-{number}", _NOBODY, 1))
    held = [await asker.raw.renew(key, _NOBODY, _MINUTE_MS) for key in keys]
    await asyncio.to_thread(server.set_maxmemory, 0)
    return held.count(False)


async def _refusals(asker: Peer, keys: list[str], *words: str) -> int:
    """Ask for each of *keys*; returns how many were refused with an error that has one of *words* in it."""
    answers = await side_by_side([timed(asker.locks.try_acquire(key)) for key in keys])
    for _, answer in answers:
        if isinstance(answer, Lease):
            await timed(answer.release())
    errors = [answer for _, answer in answers if isinstance(answer, Exception)]
    return sum(any(word in f"{type(error).__name__} {error}" for word in words) for error in errors)


@contextlib.contextmanager
def _small_disk() -> Iterator[Path]:
    """Mount a small file system in memory, which the servers' account may write; unmount it on leaving."""
    account = server_account()
    with tempfile.TemporaryDirectory(prefix="tenure-chaos-disk-") as name:
        options = f"size={_DISK},uid={account.uid},gid={account.gid},mode=0700"
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", name], check=True, capture_output=True, timeout=10
        )
        try:
            _try_the_way(Path(name))
            yield Path(name)
        finally:
            subprocess.run(["umount", "-l", name], check=True, capture_output=True, timeout=10)


def _try_the_way(disk: Path) -> None:
    """Raise unless the servers' account can reach *disk*."""
    account = server_account()
    subprocess.run(["ls", str(disk)], check=True, capture_output=True, timeout=10, **account.identity())


async def _fill_postgres(run: Run, disk: Path) -> None:
    refused = written = kept = lost = released = half_done = 0
    async with conducted(run), backend("postgres") as found:
        server: PostgresServer = found.server
        await asyncio.to_thread(_move_to, server, disk)
        async with Peer(run, "holder", found.url) as holder, Peer(run, "asker", found.url) as asker:
            for number in range(run.n):
                leases = [await holder.take(f"full-{number}-{place}") for place in range(_KEPT)]
                works = [holder.work(lease) for lease in leases]
                run.recorder.note("fault", fault=f"full {number}", kind="disk full")
                ballast = await asyncio.to_thread(_fill, disk)
                await _fill_pages(run, asker, number)
                new = [f"new-{number}-{place}" for place in range(_ASKED)]
                refused += await _refusals(asker, new, "DiskFullError")
                count = await asyncio.to_thread(
                    server.execute, f"SELECT count(*) FROM tenure_locks WHERE key LIKE 'new-{number}-%'"
                )
                written += int(count[0][0])
                half_done += await _lock_in_two_steps(server, number)
                await asyncio.sleep(1.5 * TTL_S)
                kept += sum(lease.held for lease in leases)
                ends = [await timed(lease.release()) for lease in leases if lease.held]
                released += sum(end is True for _, end in ends)
                await asyncio.gather(*works)
                await asyncio.to_thread(ballast.unlink)
                run.recorder.note("healed", fault=f"full {number}", kind="disk full")
                for key in new:
                    await timed((await asker.take(key)).release())
        lost = len(read_calls(holder.history).losses)
    of = _KEPT * run.n
    run.figure("acquires refused", refused)
    run.figure("held leases kept, lost, released", f"{kept}, {lost}, {released}")
    run.zero("acquires that were granted, or failed for another reason", _ASKED * run.n - refused, of=_ASKED * run.n)
    run.zero("rows written by what was refused", written, of=_ASKED * run.n)
    run.zero("held leases neither kept nor told of their loss", of - kept - lost, of=of)
    run.control("a lock and its token in two statements are left half done", failed=half_done, of=run.n)


def _move_to(server: PostgresServer, disk: Path) -> None:
    """Have the locks, and the control's tokens, on the small disk; indexes, log and the rest stay where they are."""
    server.execute(f"CREATE TABLESPACE cramped LOCATION '{disk}'")
    server.execute("ALTER TABLE tenure_locks SET TABLESPACE cramped")
    server.execute("CREATE TABLE naive_locks (key text)")
    server.execute("CREATE TABLE naive_tokens (key text, token bigint) TABLESPACE cramped")


def _fill(disk: Path) -> Path:
    """Fill the disk to its last byte."""
    ballast = disk / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        size = _BALLAST
        while size:
            try:
                file.write(b"\0" * size)
            except OSError:
                size //= 2
    return ballast


async def _fill_pages(run: Run, asker: Peer, number: int) -> None:
    """Fill what the table has of pages: a row needs no disk while a page has room. Not in the history."""
    for first in range(0, _MOST_ROWS, _TOGETHER):
        # Side by side: each connection remembers a page of its own that has room.
        rows = [f"row-{number}-{row}" for row in range(first, first + _TOGETHER)]
        answers = await side_by_side([timed(asker.raw.acquire(row, _NOBODY, 1)) for row in rows])
        if all(isinstance(answer, Exception) for _, answer in answers):
            return
    run.expect(condition=False, otherwise=f"{_MOST_ROWS} rows found room on a disk that is full.")


async def _lock_in_two_steps(server: PostgresServer, number: int) -> int:
    """Take a lock as code does that writes it and its token one after the other; returns 1 if half of it stands."""
    await asyncio.to_thread(server.execute, f"INSERT INTO naive_locks VALUES ('{number}')")
    with contextlib.suppress(Exception):
        await asyncio.to_thread(
            server.execute, f"INSERT INTO naive_tokens SELECT '{number}', n FROM generate_series(1, 2000) n"
        )
    rows = await asyncio.to_thread(server.execute, f"SELECT count(*) FROM naive_tokens WHERE key = '{number}'")
    return int(rows[0][0] == "0")


# ------------------------------------------------------------------------------ C24: no connection

LONG_TTL_S: Final = 3.0
_MANY: Final = 50
_SPELL_S: Final = 1.3 * LONG_TTL_S
_LONG_CALL_S: Final = 2.0
_POOL: Final = 5


@scenario(
    "C24",
    "pool exhausted, connections terminated, a row held in an idle transaction",
    claims="H3 H8",
    stores=("postgres",),
    quick=1,
    full=5,
)
async def connections_are_taken(run: Run) -> None:
    """Fifty leases are renewed through an engine of their own, whatever the application does with its connections."""
    lost_in: dict[str, int] = {}
    starved = in_the_pool = stuck_lost = blocked = terminated = 0
    async with conducted(run, ttl_s=LONG_TTL_S, call_s=_LONG_CALL_S), backend("postgres") as found:
        application = create_async_engine(found.url, pool_size=_POOL, max_overflow=0)
        try:
            for number in range(run.n):
                keys = [f"kept-{number}-{place}" for place in range(_MANY)]
                holder = Peer(run, f"holder-{number}", found.url, ttl_s=LONG_TTL_S, call_s=_LONG_CALL_S)
                async with holder:
                    leases = await side_by_side([holder.take(key) for key in keys])
                    works = [holder.work(lease) for lease in leases]
                    lost, plain_lost = await _exhaust(run, application, number)
                    starved += lost
                    in_the_pool += plain_lost
                    _count(lost_in, "an exhausted pool", leases)
                    terminated += await _terminate(found.server)
                    _count(lost_in, "pg_terminate_backend", leases)
                    blocked += await _hold_a_row(found, application, leases[0], number)
                    _count(lost_in, "a row that a session holds", leases[1:])
                    stuck_lost += not leases[0].held
                    for lease in leases:
                        await timed(lease.release())
                    await asyncio.gather(*works)
        finally:
            await application.dispose()
    run.figure("connections terminated", terminated)
    run.figure("leases lost whose row was held", f"{stuck_lost} of {run.n}")
    run.zero("leases lost under an exhausted pool", lost_in["an exhausted pool"], of=_MANY * run.n)
    run.zero("leases lost under pg_terminate_backend", lost_in["pg_terminate_backend"], of=_MANY * run.n)
    others = lost_in["a row that a session holds"]
    run.zero("other leases lost beside a row that a session holds", others, of=(_MANY - 1) * run.n)
    run.zero("spells in which nothing was terminated", int(terminated == 0), of=run.n)
    run.zero("leases lost of a store on the application's own engine", starved, of=_POOL * run.n)
    run.control("a lock that is renewed through the application's pool is lost with it", failed=in_the_pool, of=run.n)
    run.control("one UPDATE for all leases waits for the row that is held", failed=blocked, of=run.n)


def _count(lost_in: dict[str, int], spell: str, leases: list[Lease]) -> None:
    lost_in[spell] = lost_in.get(spell, 0) + sum(not lease.held for lease in leases)


@contextlib.asynccontextmanager
async def _all_connections(engine: AsyncEngine) -> AsyncIterator[None]:
    """Have every connection of *engine* in a transaction that goes on."""
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(_POOL):
            connection = await stack.enter_async_context(engine.connect())
            await connection.execute(text("SELECT 1"))
        yield


async def _exhaust(run: Run, application: AsyncEngine, number: int) -> tuple[int, int]:
    """
    Take the application's connections for more than a ttl.

    Returns how many leases of a store on its engine were lost, and how many locks renewed through its pool.
    """
    store = PostgresLockStore(application)
    peer = Peer(run, f"starved-{number}", store=store, ttl_s=LONG_TTL_S, call_s=_LONG_CALL_S)
    plain = f"plain-{number}"
    async with peer:
        leases = [await peer.take(f"starved-{number}-{place}") for place in range(_POOL)]
        await store.acquire(plain, _NOBODY, round(LONG_TTL_S * 1000))
        renewing = asyncio.create_task(_renew_in_the_pool(application, plain))
        async with _all_connections(application):
            await asyncio.sleep(_SPELL_S)
            lost = sum(not lease.held for lease in leases)
            plain_lost = int(not await store.renew(plain, _NOBODY, 1))
        renewing.cancel()
        await asyncio.wait([renewing])
        for lease in leases:
            await timed(lease.release())
    await store.aclose()
    return lost, plain_lost


async def _renew_in_the_pool(application: AsyncEngine, key: str) -> None:
    """Renew a lock as code does that asks the application's pool for a connection each time."""
    renewal = text(
        "UPDATE tenure_locks SET expires_at = clock_timestamp() + make_interval(secs => :ttl_s) "
        "WHERE key = :key AND owner = :owner AND expires_at > clock_timestamp()"
    )
    while True:
        await asyncio.sleep(LONG_TTL_S / 3)
        async with application.begin() as connection:
            await connection.execute(renewal, {"key": key, "owner": _NOBODY, "ttl_s": LONG_TTL_S})


_TERMINATED_EVERY_S = LONG_TTL_S / 6
"""Time enough for a new connection on a busy machine: one that never stands for as long as a call renews nothing."""


async def _terminate(server: PostgresServer) -> int:
    """Terminate the locks' connections again and again for more than a ttl; returns how many there were."""
    until = time.monotonic() + _SPELL_S
    terminated = 0
    statement = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'tenure'"
    while time.monotonic() < until:
        terminated += len(await asyncio.to_thread(server.execute, statement))
        await asyncio.sleep(_TERMINATED_EVERY_S)
    return terminated


async def _hold_a_row(found: Backend, application: AsyncEngine, lease: Lease, number: int) -> int:
    """
    Hold the row of *lease* in a transaction that does nothing, for more than a ttl.

    Returns:
        1 if a renewal of all rows in one UPDATE waited for it; that is the control.
    """
    async with application.connect() as idle, application.connect() as naive:
        await naive.execute(text(f"CREATE TABLE naive_{number} (key text, expires_at timestamptz)"))
        await naive.execute(text(f"INSERT INTO naive_{number} SELECT n::text, now() FROM generate_series(1, 10) n"))
        await naive.commit()
        await idle.execute(text("SELECT 1 FROM tenure_locks WHERE key = :key FOR UPDATE"), {"key": lease.key})
        await idle.execute(text(f"SELECT 1 FROM naive_{number} WHERE key = '1' FOR UPDATE"))
        renewal = asyncio.create_task(timed(naive.execute(text(f"UPDATE naive_{number} SET expires_at = now()"))))
        await asyncio.sleep(_SPELL_S)
        blocked = not renewal.done()
        await idle.rollback()
        await renewal
        await naive.rollback()
    return int(blocked)
