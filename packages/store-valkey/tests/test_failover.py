"""An asynchronous failover that loses the last writes: tokens grow all the same, and a counter's do not."""

import asyncio
import secrets
from typing import Any

from tenure.store import Acquired
from tenure_testbed.pytest_plugin import or_skip
from tenure_testbed.valkey_pair import ValkeyPair
from tenure_valkey import ValkeyLockStore, create_redis_client, open_valkey_store

GRANTS = 30
COUNTER = "control:counter"


async def grant(store: ValkeyLockStore, key: str) -> int:
    """Acquire and give back: one token."""
    holder = secrets.token_hex(16)
    reply = await store.acquire(key, holder, 60_000)
    assert isinstance(reply, Acquired)
    assert await store.release(key, holder)
    return reply.token


async def lose_the_tail(client: str) -> tuple[list[int], list[int]]:
    """Grant before and after a failover that loses what was granted last; tokens, and those of an INCR control."""
    with or_skip():
        pair = await asyncio.to_thread(ValkeyPair().__enter__)
    try:
        tokens: list[int] = []
        control: list[int] = []
        for step in ("replicated", "lost", "after"):
            url = f"{pair.primary.url()}?client={client}"
            async with open_valkey_store(url) as store, create_redis_client(pair.primary.url()) as other:
                for _ in range(GRANTS):
                    tokens.append(await grant(store, "job"))
                    control.append(await other.incr(COUNTER))
            if step == "replicated":
                await asyncio.to_thread(pair.catch_up)
                await asyncio.to_thread(pair.cut_replication)
            elif step == "lost":
                await asyncio.to_thread(pair.kill_primary)
                await asyncio.to_thread(pair.promote)
        return tokens, control
    finally:
        await asyncio.to_thread(pair.close)


async def check_a_lost_tail(client: str) -> None:
    tokens, control = await lose_the_tail(client)
    assert len(set(control)) == 2 * GRANTS, "the run lost nothing: it proves nothing"
    assert len(tokens) == 3 * GRANTS
    assert tokens == sorted(set(tokens)), "a token came back"


async def test_tokens_grow_across_a_failover_that_lost_the_last_writes(client: str) -> None:
    await check_a_lost_tail(client)


async def test_a_lock_that_the_failover_lost_is_free_and_its_holder_is_refused() -> None:
    """What cannot be helped: the newer holder has the greater token, and the older one is told at its next renewal."""
    with or_skip():
        pair = await asyncio.to_thread(ValkeyPair().__enter__)
    try:
        async with open_valkey_store(pair.primary.url()) as store:
            await grant(store, "job")
            await asyncio.to_thread(pair.catch_up)
            await asyncio.to_thread(pair.cut_replication)
            first: Any = await store.acquire("job", "first", 60_000)
        await asyncio.to_thread(pair.kill_primary)
        await asyncio.to_thread(pair.promote)
        async with open_valkey_store(pair.primary.url()) as store:
            second: Any = await store.acquire("job", "second", 60_000)
            assert second.token > first.token
            assert not await store.renew("job", "first", 60_000)
            assert not await store.release("job", "first")
            assert await store.renew("job", "second", 60_000)
    finally:
        await asyncio.to_thread(pair.close)
