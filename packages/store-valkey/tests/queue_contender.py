"""
A process of contenders for one key, which tests start, pause and kill: each enters, notes it, leaves, and queues again.

    python queue_contender.py URL NAME CONTENDERS TTL_MS PLACE_MS BODY_S

Each section is a line of JSON on stdout: contender, token, when it began and ended in seconds of the machine's clock.
"""

import asyncio
import json
import sys
import time
from typing import Any

from tenure.store import Acquired
from tenure_valkey import ValkeyLockStore, open_valkey_store

KEY = "job"


def tell(what: dict[str, Any]) -> None:
    """Write a line."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


async def enter(store: ValkeyLockStore, owner: str, ttl_ms: int, place_ms: int) -> int:
    """Take the key, as the engine does: listen, and poll now and then. Returns the token."""
    while True:
        sent_at = time.monotonic()
        reply = await store.acquire_queued(KEY, owner, ttl_ms, place_ms)
        if isinstance(reply, Acquired):
            return reply.token
        heard = asyncio.create_task(store.granted(KEY, owner))
        await asyncio.wait([heard], timeout=min(place_ms / 4, reply.expires_in_ms or 1) / 1000)
        # Heard too late, as after a pause, a grant may have ended: then the store is asked.
        if heard.done() and time.monotonic() < sent_at + ttl_ms / 1000:
            return heard.result().token
        heard.cancel()


async def contend(store: ValkeyLockStore, name: str, ttl_ms: int, place_ms: int, body_s: float) -> None:
    turn = 0
    while True:
        turn += 1
        owner = f"{name}-{turn}"
        token = await enter(store, owner, ttl_ms, place_ms)
        began = time.monotonic()
        await asyncio.sleep(body_s)
        section = {"name": name, "token": token, "began": began, "ended": time.monotonic()}
        tell(section | {"released": await store.release(KEY, owner)})


async def main(url: str, name: str, contenders: int, *, ttl_ms: int, place_ms: int, body_s: float) -> None:
    async with open_valkey_store(url) as store, asyncio.TaskGroup() as group:
        await store.acquire("warm", name, 1)
        tell({"ready": name})
        await asyncio.to_thread(sys.stdin.readline)
        for number in range(contenders):
            group.create_task(contend(store, f"{name}{number}", ttl_ms, place_ms, body_s))


if __name__ == "__main__":
    url, name, *numbers = sys.argv[1:]
    contenders, ttl_ms, place_ms = map(int, numbers[:3])
    asyncio.run(main(url, name, contenders, ttl_ms=ttl_ms, place_ms=place_ms, body_s=float(numbers[3])))
