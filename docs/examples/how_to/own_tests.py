"""Tests of an application's own jobs: several instances, one clock, no waiting."""

import asyncio

from tenure import on_one_instance
from tenure.testing import instances


@on_one_instance("guide:own-tests")
async def export() -> str:
    return "exported"


async def test_another_instance_takes_over_after_a_crash() -> None:
    async with instances(2, ttl="30s") as shops:
        assert [await shop.call(export) for shop in shops] == ["exported", None]
        await shops[0].kill()
        await shops.advance("30s")
        assert await shops[1].call(export) == "exported"


async def test_an_instance_that_is_cut_off_gives_up_by_itself() -> None:
    async with instances(2, ttl="30s") as shops:
        await shops[0].call(export)
        shops[0].cut()
        await shops.advance("30s")
        assert await shops[1].call(export) == "exported"
        await shops[0].heal()
        assert await shops[0].call(export) is None


if __name__ == "__main__":
    asyncio.run(test_another_instance_takes_over_after_a_crash())
    asyncio.run(test_an_instance_that_is_cut_off_gives_up_by_itself())
