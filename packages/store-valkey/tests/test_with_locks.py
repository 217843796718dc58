"""The engine on this store: leases that are kept, a takeover after a crash, an election that is handed over."""

import asyncio
import contextlib
from typing import Any

import pytest

from tenure import LeaderElection, Lease, Locks
from tenure.errors import LossReason
from tenure_testbed import ValkeyServer


@pytest.mark.matrix
async def test_leases_are_kept_for_as_long_as_their_holder_is_up(valkey_url: str, open_store: Any, client: str) -> None:
    store = open_store(valkey_url, client=client)
    # Long: a release is waited for through a third of the ttl, and sixty at once are late where the machine is busy.
    async with Locks(store, ttl=3, instance="one") as locks:
        leases = await asyncio.gather(*(locks.acquire(f"job-{number}", wait=1) for number in range(60)))
        await asyncio.sleep(4.6)  # more than a ttl and a half
        assert all(lease.held for lease in leases)
        assert {record.instance for record in await store.list_locks("job-")} == {"one"}
        assert all(await asyncio.gather(*(lease.release() for lease in leases)))
    assert await store.list_locks() == []


async def test_a_takeover_is_told_that_its_predecessor_died(valkey_url: str, open_store: Any, client: str) -> None:
    store = open_store(valkey_url, client=client)
    dead: Any = await store.acquire("job", f"dead:{'0' * 32}", 300)
    async with Locks(store, ttl=3, instance="two") as locks:
        lease = await locks.acquire("job", wait=5)
        assert lease.after == "expired"
        assert lease.token > dead.token
        await lease.release()
        assert (await locks.acquire("job")).after == "released"


async def test_who_lost_everything_with_the_server_is_told_at_the_next_renewal(
    own_valkey: Any, open_store: Any, client: str
) -> None:
    async with Locks(open_store(own_valkey.url(), client=client), ttl=1.5) as locks:
        lease = await locks.acquire("job")
        own_valkey.execute("FLUSHALL")
        async with asyncio.timeout(5):
            await lease.lost.wait()
        assert lease.lost.reason is LossReason.REFUSED


async def test_an_election_is_handed_over(valkey_url: str, open_store: Any, client: str) -> None:
    store = open_store(valkey_url, client=client)
    led: list[str] = []
    handed_over = asyncio.Event()

    async with Locks(store, ttl=2, instance="one") as one, Locks(store, ttl=2, instance="two") as two:

        def leading(name: str) -> Any:
            async def lead(lease: Lease) -> None:
                led.append(name)
                if len(led) == 2:
                    handed_over.set()
                await asyncio.Event().wait()

            return lead

        async with LeaderElection(one, "feed", leading("one")) as first:
            while not first.is_leader:
                await asyncio.sleep(0.01)
            async with LeaderElection(two, "feed", leading("two")):
                await first.step_down()
                async with asyncio.timeout(10):
                    await handed_over.wait()
    assert led == ["one", "two"]


async def test_a_release_hands_the_lock_to_the_instance_that_waited_longest(
    valkey_url: str, valkey_server: ValkeyServer, open_store: Any, client: str, until: Any
) -> None:
    """Without a poll of theirs: each stands in the queue on the server, and is told."""

    def waiting() -> int:
        return str(valkey_server.execute("GET", "locks:{job}")).count("\0\0")

    async with contextlib.AsyncExitStack() as stack:
        holder, *others = [
            await stack.enter_async_context(Locks(open_store(valkey_url, client=client), ttl=30, instance=name))
            for name in ("one", "two", "three")
        ]
        lease = await holder.acquire("job")
        waiters = []
        for place, locks in enumerate(others, 1):
            waiters.append(asyncio.create_task(locks.acquire("job", wait=30)))
            await until(lambda expected=place: waiting() == expected, "the waiter to have its place")
        tokens = [lease.token]
        for waiter in waiters:
            assert await lease.release()
            lease = await waiter
            assert lease.after == "released"
            assert lease.held
            tokens.append(lease.token)
        assert tokens == sorted(set(tokens))
        assert await lease.release()
    assert waiting() == 0
