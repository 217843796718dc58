"""An instance dies."""

import asyncio

from tenure import on_one_instance
from tenure.testing import instances


@on_one_instance("tutorial:takeover")
async def export() -> str:
    return "exported"


async def main() -> None:
    async with instances(2, ttl="30s") as shops:
        assert await shops[0].call(export) == "exported"
        await shops[0].kill()
        assert await shops[1].call(export) is None  # believed alive for up to a ttl
        await shops.advance("30s")
        assert await shops[1].call(export) == "exported"

        third = await shops.start("instance-3")
        await shops.advance("1s")  # a run is over for others a second after it began, at the soonest
        await shops[1].stop()  # as SIGTERM: drained, and handed back
        assert await third.call(export) == "exported"


asyncio.run(main())
