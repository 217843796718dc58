"""A first lock."""

import asyncio

from tenure import LockNotAcquiredError, Locks, open_store


async def main() -> None:
    async with (
        open_store("memory://", allow_in_memory=True) as store,
        Locks(store, ttl=30) as here,
        Locks(store) as there,
        here.hold("invoices:nightly-export") as lease,
    ):
        print(f"No other instance is in here. Fencing token: {lease.token}")
        try:
            async with there.hold("invoices:nightly-export", wait=0):
                raise AssertionError("two instances at once")
        except LockNotAcquiredError as error:
            print(error)


asyncio.run(main())
