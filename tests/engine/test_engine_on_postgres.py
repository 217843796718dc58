"""The engine on the real store, a real server, and a network that fails: what a holder may rely on."""

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest
from sqlalchemy import BigInteger, Column, Integer, MetaData, Table, update
from sqlalchemy.ext.asyncio import AsyncEngine

from tenure import ConfigurationError, LeaseLostError, LeaseStateError, Locks, LossReason, open_store
from tenure.events import LeaseLost
from tenure_postgres import PostgresLockStore, create_lock_engine, create_schema_sql, fence, lease_guard
from tenure_testbed import FaultProxy, PostgresServer

TTL_S = 2.0


def plain(url: str) -> str:
    return url.replace("+asyncpg", "")


@pytest.fixture
async def url(postgres_url: str) -> str:
    """A database of the test's own, with the locks table in it."""
    await _create_table(postgres_url)
    return postgres_url


async def _create_table(url: str) -> None:
    connection = await asyncpg.connect(plain(url))
    try:
        await connection.execute(create_schema_sql())
    finally:
        await connection.close()


@contextlib.asynccontextmanager
async def engine_on(url: str, **options: Any) -> AsyncIterator[AsyncEngine]:
    engine = create_lock_engine(url, **options)
    try:
        yield engine
    finally:
        await engine.dispose()


async def until(condition: Any, *, within_s: float = 20.0) -> None:
    """Poll for what another process does; the bound is for a hung test, not a fact."""
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.mark.matrix
async def test_of_fifty_leases_one_whose_row_is_locked_by_somebody_else_stops_no_other(url: str) -> None:
    async with engine_on(url) as engine, Locks(PostgresLockStore(engine, lock_timeout=1), ttl=TTL_S, hooks=[]) as locks:
        leases = [await locks.acquire(f"k{number:02}") for number in range(50)]
        tokens = {lease.key: lease.token for lease in leases}
        somebody = await asyncpg.connect(plain(url))
        try:
            async with somebody.transaction():
                await somebody.execute("SELECT FROM tenure_locks WHERE key = 'k17' FOR UPDATE")
                await leases[17].lost.wait()
                # Three more rounds of renewals while the row stays locked.
                renewals = locks.statistics().renewals
                await until(lambda: locks.statistics().renewals >= renewals + 3 * 49)
                assert [lease.key for lease in leases if not lease.held] == ["k17"]
            held = {record.key: record.token for record in await locks.store.list_locks()}  # type: ignore[attr-defined]
            assert {key: token for key, token in tokens.items() if key != "k17"} == held
        finally:
            await somebody.close()


async def test_behind_a_blackhole_the_loss_comes_at_the_deadline_and_not_after_the_calls_timeout(url: str) -> None:
    host, port = _address_of(url)
    async with FaultProxy((host, port)) as proxy:
        through = url.replace(f":{port}/", f":{proxy.port}/")
        # Drivers and pool that would wait for a minute: none of it is waited for.
        engine = create_lock_engine(through, statement_timeout=60, pool_timeout=60)
        try:
            async with Locks(PostgresLockStore(engine), ttl=TTL_S, hooks=[]) as locks:
                with pytest.raises(LeaseLostError) as caught:
                    async with locks.hold("k") as lease:
                        proxy.blackhole()
                        deadline = lease._kept.term.trusted_until
                        await asyncio.sleep(60)
                overrun = locks.clock.now() - lease._kept.term.trusted_until
                assert caught.value.reason is LossReason.EXPIRED
                assert lease._kept.term.trusted_until >= deadline
                assert overrun < TTL_S, "the body was told when the call ended, or by nobody"
                proxy.heal()
                proxy.reset_all()
        finally:
            await engine.dispose()


async def test_a_server_that_restarts_in_time_costs_no_lease() -> None:
    with PostgresServer() as server:
        url = server.create_database("app")
        await _create_table(url)
        events: list[Any] = []
        async with engine_on(url) as engine, Locks(PostgresLockStore(engine), ttl=9, hooks=[events.append]) as locks:
            leases = [await locks.acquire(f"k{number}") for number in range(5)]
            await asyncio.to_thread(server.restart, "immediate")
            before = [lease._kept.term.trusted_until for lease in leases]
            await until(
                lambda: all(lease._kept.term.trusted_until > was for lease, was in zip(leases, before, strict=True))
            )
            assert all(lease.held for lease in leases)
            assert not [event for event in events if isinstance(event, LeaseLost)]
            other = await locks.acquire("after the restart")
            assert other.held


async def test_a_paused_server_takes_the_lease_and_gives_the_key_back_after_it_runs_again() -> None:
    with PostgresServer() as server:
        url = server.create_database("app")
        await _create_table(url)
        async with engine_on(url) as engine, Locks(PostgresLockStore(engine), ttl=TTL_S, hooks=[]) as locks:
            first = await locks.acquire("k")
            await asyncio.to_thread(server.pause)
            try:
                assert await first.lost.wait() is LossReason.EXPIRED
            finally:
                await asyncio.to_thread(server.resume)
            second = await locks.acquire("k", wait=30)
            assert second.token > first.token


PAUSED_HOLDER = """
import asyncio, sys
from tenure import Locks, open_store

async def main(url):
    async with open_store(url) as store, Locks(store, ttl=2, instance="paused") as locks:
        lease = await locks.acquire("k")
        print("token", lease.token, flush=True)
        reason = await lease.lost.wait()
        print("lost", reason.value, lease.held, flush=True)

asyncio.run(main(sys.argv[1]))
"""


async def test_a_holder_that_is_stopped_past_its_ttl_wakes_up_knowing(url: str) -> None:
    holder = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PAUSED_HOLDER, url, stdout=asyncio.subprocess.PIPE
    )
    assert holder.stdout is not None
    try:
        token = int((await holder.stdout.readline()).split()[1])
        holder.send_signal(signal.SIGSTOP)
        async with open_store(url) as store, Locks(store, ttl=TTL_S, instance="other", hooks=[]) as locks:
            lease = await locks.acquire("k", wait=60)
            assert lease.after == "expired"
            assert lease.token > token
            holder.send_signal(signal.SIGCONT)
            assert (await holder.stdout.readline()).split() == [b"lost", b"stalled", b"False"]
            assert lease.held
    finally:
        holder.kill()
        await holder.wait()


async def test_what_makes_locks_impossible_is_refused_at_the_start_with_its_fix(postgres_url: str) -> None:
    async with open_store(postgres_url) as store:
        with pytest.raises(ConfigurationError, match="table") as caught:
            await Locks(store).__aenter__()
        assert "tenure_locks" in str(caught.value)


async def test_a_write_under_a_lease_that_was_given_back_is_refused_before_it_is_sent(url: str) -> None:
    stock = Table("stock", MetaData(), Column("id", Integer, primary_key=True), Column("token", BigInteger))
    async with engine_on(url) as engine, Locks(PostgresLockStore(engine), ttl=30, hooks=[]) as locks:
        async with locks.hold("stock") as lease:
            assert fence(stock.c.token, lease).values == {"token": lease.token}
        with pytest.raises(LeaseStateError, match="given back"):
            fence(stock.c.token, lease).guard(update(stock))
        async with engine.connect() as connection:
            with pytest.raises(LeaseStateError, match="given back"):
                await lease_guard(connection, lease)


async def test_cycles_of_many_tasks_on_one_engine_leave_nothing_behind(url: str) -> None:
    async with engine_on(url) as engine, Locks(PostgresLockStore(engine), ttl=30, hooks=[]) as locks:

        async def work(name: str) -> list[int]:
            tokens = []
            for _ in range(25):
                async with locks.hold(name) as lease:
                    tokens.append(lease.token)
            return tokens

        for tokens in await asyncio.gather(*(work(f"k{number}") for number in range(8))):
            assert tokens == sorted(set(tokens))
        assert locks.statistics().held == 0
        assert await locks.store.list_locks() == []  # type: ignore[attr-defined]


def _address_of(url: str) -> tuple[str, int]:
    from sqlalchemy import make_url

    parsed = make_url(url)
    assert parsed.host is not None
    assert parsed.port is not None
    return parsed.host, parsed.port
