"""tenure itself: the store's own methods, and `Locks` on them."""

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from tenure import Acquired, Held, Lease, Locks, LockStore, on_one_instance, open_store
from tenure.events import Event, LeaseLost
from tenure.store import Claim
from tenure_loadtests.contenders.contract import TTL_S, Address, AsyncLock, Contender, HeldLeases, HoldsMany, RunsJobs
from tenure_loadtests.contenders.renewed_by_task import RENEWALS_PER_TTL, Renewals

__all__ = ["TenureLocks", "TenureStore", "store_url"]

_AT_ONCE = 256
"""How many leases are asked for at the same time when many are taken."""

_WAIT_S = 120.0
"""Longer than any cell: a waiter that gives up would be counted as a failure of the library."""


def store_url(address: Address, store: str) -> str:
    """
    The URL by which an application opens the store.

    Args:
        address: Where the servers are.
        store: `postgres`, `valkey-redis`, `valkey-glide`, `cluster-redis`, `cluster-glide` or `memory`.
    """
    server, _, client = store.partition("-")
    match server:
        case "postgres":
            return address.postgres
        case "valkey":
            return f"valkey://{address.valkey}/0?client={client}"
        case "cluster":
            return f"valkey+cluster://{','.join(address.cluster)}?client={client}"
        case "memory":
            return "memory://"
        case _:
            raise ValueError(f"There is no store {store!r}.")


class TenureStore(Contender):
    """The store's methods: acquire and release, nothing kept and nothing renewed."""

    distributions = ("tenure", "tenure-postgres", "tenure-valkey", "asyncpg", "sqlalchemy", "redis", "valkey-glide")

    def __init__(self, address: Address, *, store: str) -> None:
        super().__init__(address)
        self._url = store_url(address, store)
        self._exits = contextlib.AsyncExitStack()
        self._store: Any = None

    async def open(self, tasks: int) -> None:
        """Open the store as an application does, by its URL."""
        del tasks
        self._store = open_store(self._url)
        if hasattr(self._store, "aclose"):
            self._exits.push_async_callback(self._store.aclose)

    async def close(self) -> None:
        """Close the store."""
        await self._exits.aclose()

    def lock(self, key: str) -> AsyncLock:
        """Acquire and release on the store."""
        return _StoreLock(self._store, key)


class _StoreLock:
    def __init__(self, store: LockStore, key: str) -> None:
        self._store = store
        self._key = key
        # As long as one that is drawn for an acquisition. The owner of a lock that was released is nobody's any more.
        self._owner = f"bench-1:{id(self):032x}"
        self._ttl_ms = round(TTL_S * 1000)

    async def acquire(self) -> None:
        reply = await self._store.acquire(self._key, self._owner, self._ttl_ms)
        if not isinstance(reply, Acquired):
            raise RuntimeError(  # noqa: TRY004 -- not a matter of types: the store said no
                "The key is held by another: a store's methods do not wait, this scenario is not theirs."
            )

    async def release(self) -> None:
        if not await self._store.release(self._key, self._owner):
            raise RuntimeError("The store did not release a lock that was just acquired.")


class TenureLocks(TenureStore, HoldsMany, RunsJobs):
    """`Locks`: leases that are renewed, watched and handed back."""

    async def open(self, tasks: int) -> None:
        """Open the store, and enter a `Locks` on it."""
        await super().open(tasks)
        self._locks = Locks(self._store, ttl=TTL_S, instance=f"bench-{os.getpid()}")
        await self._exits.enter_async_context(self._locks)

    def lock(self, key: str) -> AsyncLock:
        """Acquire, waiting, and release the lease."""
        return _LeaseLock(self._locks, key)

    async def hold(self, keys: Sequence[str], ttl_s: float) -> HeldLeases:
        """Leases of a `Locks` of their own, whose store notes when each is renewed."""
        held = _Leases(self._store, ttl_s)
        await held.take(keys)
        return held

    def job(self, key: str, ran: Callable[[], None]) -> Callable[[], Awaitable[object]]:
        """A job under `on_one_instance`."""

        @on_one_instance(key, locks=self._locks)
        async def tick() -> None:
            ran()

        return tick


class _LeaseLock:
    def __init__(self, locks: Locks, key: str) -> None:
        self._locks = locks
        self._key = key
        self._lease: Lease | None = None

    async def acquire(self) -> None:
        self._lease = await self._locks.acquire(self._key, wait=_WAIT_S)

    async def release(self) -> None:
        assert self._lease is not None
        await self._lease.release()


class _Leases:
    """Many leases of one `Locks`."""

    def __init__(self, store: Any, ttl_s: float) -> None:
        self._renewals = Renewals(ttl_s / RENEWALS_PER_TTL)
        self._locks = Locks(
            _NotingStore(store, self._renewals), ttl=ttl_s, instance=f"bench-{os.getpid()}", hooks=[self._hear]
        )
        self._lost = 0

    async def take(self, keys: Sequence[str]) -> None:
        await self._locks.__aenter__()
        gate = asyncio.Semaphore(_AT_ONCE)

        async def take(key: str) -> None:
            async with gate:
                await self._locks.acquire(key)

        async with asyncio.TaskGroup() as group:
            for key in keys:
                group.create_task(take(key))

    def lost(self) -> int:
        """How many were reported lost."""
        return self._lost

    def late_ms(self) -> Sequence[float]:
        """How late each renewal reached the store's method."""
        return self._renewals.late_ms

    async def let_go(self) -> None:
        """Close, which hands all of them back."""
        await self._locks.close()

    def _hear(self, event: Event) -> None:
        if isinstance(event, LeaseLost):
            self._lost += 1


class _NotingStore:
    """A store that notes when a lease is renewed, and passes everything on."""

    def __init__(self, store: Any, renewals: Renewals) -> None:
        self.reach = store.reach
        self._store = store
        self._renewals = renewals

    async def acquire(self, key: str, owner: str, ttl_ms: int) -> Acquired | Held:
        """Pass on; the first renewal is due from here."""
        self._renewals.note(key)
        reply: Acquired | Held = await self._store.acquire(key, owner, ttl_ms)
        return reply

    async def renew(self, key: str, owner: str, ttl_ms: int) -> bool:
        """Note, and pass on."""
        self._renewals.note(key)
        renewed: bool = await self._store.renew(key, owner, ttl_ms)
        return renewed

    async def renew_many(self, claims: Sequence[Claim]) -> Sequence[bool | None]:
        """Note each, and pass them on."""
        for claim in claims:
            self._renewals.note(claim.key)
        renewed: Sequence[bool | None] = await self._store.renew_many(claims)
        return renewed

    async def release(self, key: str, owner: str) -> bool:
        """Pass on."""
        released: bool = await self._store.release(key, owner)
        return released
