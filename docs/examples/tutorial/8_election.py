"""Somebody has to lead."""

import asyncio
import contextlib

from tenure import LeaderElection, Lease
from tenure.testing import instances

listening: list[str] = []


async def main() -> None:
    async with instances(2, ttl="30s") as shops, contextlib.AsyncExitStack() as elections:
        for shop in shops:

            async def lead(lease: Lease, name: str = shop.name) -> None:
                listening.append(name)
                await asyncio.Event().wait()  # the warehouse's stream

            await elections.enter_async_context(LeaderElection(shop.locks, "tutorial:feed", lead))
        while not listening:
            await shops.advance("1s")
        [leader] = [shop for shop in shops if shop.name == listening[0]]
        await leader.stop()
        while len(listening) < 2:
            await shops.advance("1s")
        assert listening[0] != listening[1]


asyncio.run(main())
