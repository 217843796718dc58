"""A run that takes longer than its tick."""

import asyncio

from tenure import without_overlapping
from tenure.testing import instances

counting = 0


@without_overlapping("tutorial:count")
async def count() -> str:
    global counting
    counting += 1
    assert counting == 1
    await goes_on.wait()
    counting -= 1
    return "counted"


goes_on = asyncio.Event()


async def main() -> None:
    async with instances(3) as shops:
        first = asyncio.create_task(shops[0].call(count))
        while counting == 0:
            await asyncio.sleep(0)
        assert await shops[1].call(count) is None
        assert await shops[2].call(count) is None
        goes_on.set()
        assert await first == "counted"


asyncio.run(main())
