"""A job that one instance runs."""

import asyncio

from tenure import on_one_instance
from tenure.testing import instances

exported: list[str] = []


@on_one_instance("tutorial:export")
async def export() -> str:
    exported.append("the invoices of yesterday")
    return "exported"


async def main() -> None:
    async with instances(3, ttl="30s") as shops:
        for night in range(3):
            told = [await shop.call(export) for shop in shops]
            print(f"night {night}: {told}")
            assert told == ["exported", None, None]


asyncio.run(main())
assert len(exported) == 3  # one each night
