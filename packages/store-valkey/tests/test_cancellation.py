"""Callers that give up, two thousand times: the client stays usable, and nothing is held longer than its ttl."""

import asyncio
import random
from collections.abc import Callable
from typing import Any

from tenure.store import Acquired, Claim
from tenure_testbed import ValkeyServer

Owner = Callable[[], str]

CALLS = 2000
TTL_MS = 500


async def test_two_thousand_cancelled_calls_leave_the_client_usable_and_no_key_held(
    own_valkey: ValkeyServer, open_store: Any, owner: Owner, client: str, until: Any
) -> None:
    dice = random.Random(20)
    store, holder = open_store(own_valkey.url(), client=client), owner()
    await store.acquire("held", holder, 600_000)

    async def give_up(number: int) -> None:
        key, name = f"job-{number % 50}", owner()
        calls = [
            lambda: store.acquire(key, name, TTL_MS),
            lambda: store.renew("held", holder, 600_000),
            lambda: store.release(key, name),
            lambda: store.renew_many([Claim("held", holder, 600_000), Claim(key, name, TTL_MS)]),
        ]
        task = asyncio.get_running_loop().create_task(dice.choice(calls)())
        for _ in range(dice.randrange(12)):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            # redis-py on Python 3.11 swallows some cancellations and answers: the answer has to be this call's own.
            assert not task.exception()
            assert isinstance(task.result(), Acquired | bool | list) or type(task.result()).__name__ == "Held"

    clients_before = own_valkey.info("clients")["connected_clients"]
    for start in range(0, CALLS, 20):
        await asyncio.gather(*(give_up(number) for number in range(start, start + 20)))
    # Every answer is its own call's: a reply left on a connection would be read by the next.
    for number in range(100):
        name = owner()
        reply = await store.acquire(f"fresh-{number}", name, 60_000)
        assert isinstance(reply, Acquired)
        assert await store.renew(f"fresh-{number}", name, 60_000) is True
        assert await store.renew(f"fresh-{number}", owner(), 60_000) is False
        assert await store.release(f"fresh-{number}", name) is True
    assert await store.renew("held", holder, 600_000)
    await until(
        lambda: not any(own_valkey.execute("EXISTS", f"locks:{{job-{number}}}") for number in range(50)),
        "what was granted to nobody to expire",
    )
    connected = int(own_valkey.info("clients")["connected_clients"])
    # glide has one connection; redis-py's pool may have as many as were used at once.
    assert connected <= int(clients_before) + (0 if client == "glide" else 20)
