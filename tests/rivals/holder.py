"""
One process that holds a lock of one library, as its documentation has it; it runs in that library's own environment.

    python holder.py LIBRARY PORT KEY TTL

It says `held TOKEN TIME`, then `write TIME` twenty times a second from inside the body, and at the end how it left:
`left` (the line `leave` came, or the body ran to its end), `cancelled`, or `error NAME`. Times are of the monotonic
clock, which the processes of a machine share.
"""

import asyncio
import contextlib
import logging
import sys
import time
from collections.abc import AsyncIterator
from importlib import import_module
from typing import Any

_WRITES = 60
"""How often a body writes after the pause before it ends by itself: three seconds' worth."""


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def client(port: int) -> Any:
    return import_module("redis.asyncio").Redis(host="127.0.0.1", port=port)


@contextlib.asynccontextmanager
async def tenure(port: int, key: str, ttl: float) -> AsyncIterator[Any]:
    locks: Any = import_module("tenure")
    url = f"redis://127.0.0.1:{port}"
    async with locks.open_store(url) as store, locks.Locks(store, ttl=ttl) as mine, mine.hold(key, wait=60) as lease:
        yield lease.token


@contextlib.asynccontextmanager
async def redis_asyncio(port: int, key: str, ttl: float) -> AsyncIterator[Any]:
    async with client(port) as redis, redis.lock(key, timeout=ttl):
        yield None


@contextlib.asynccontextmanager
async def redis_lock_py(port: int, key: str, ttl: float) -> AsyncIterator[Any]:
    library: Any = import_module("redis_lock.asyncio")
    async with client(port) as redis, library.RedisLock(redis, key, expire_timeout=round(ttl), blocking_timeout=60):
        yield None


@contextlib.asynccontextmanager
async def grelmicro(port: int, key: str, ttl: float) -> AsyncIterator[Any]:
    provider: Any = import_module("grelmicro.providers.redis").RedisProvider(f"redis://127.0.0.1:{port}/0")
    async with provider, import_module("grelmicro.coordination.redis").RedisLockAdapter(provider=provider) as backend:
        lock = import_module("grelmicro.coordination").Lock(key, backend=backend, lease_duration=ttl)
        async with lock as handle:
            yield getattr(handle, "fencing_token", None)


@contextlib.asynccontextmanager
async def mithril(port: int, key: str, ttl: float) -> AsyncIterator[Any]:
    structlog: Any = import_module("structlog")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    async with client(port) as redis:
        backend = import_module("mithril.backends.aio").AsyncRedisBackend(redis)
        lock = import_module("mithril.aio").AsyncLock(key, backend=backend, ttl=ttl, timeout=60, auto_renewal=True)
        async with lock as token:
            yield token.fencing_token


async def leave_asked() -> None:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    await reader.readline()


async def main(library: str, port: int, key: str, ttl: float) -> None:
    how = "left"
    try:
        asked = asyncio.create_task(leave_asked())
        async with globals()[library](port, key, ttl) as token:
            say("held", token, time.monotonic())
            try:
                written = 0
                before = time.monotonic()
                while not asked.done() and written < _WRITES:
                    now = time.monotonic()
                    # Counted from the pause on: before it the body writes for as long as nobody asks it to leave.
                    written += written > 0 or now - before > ttl
                    before = now
                    say("write", now)
                    await asyncio.sleep(0.05)
                say("leaving", time.monotonic())
            except asyncio.CancelledError:
                say("cancelled", time.monotonic())
                raise
    except Exception as error:  # noqa: BLE001 -- told by its name, whatever it is
        how = f"error {type(error).__name__}"
    say(how)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3], float(sys.argv[4])))
