"""Three instances, one job."""

import asyncio

from tenure.testing import instances

exported: list[str] = []


async def export() -> None:
    exported.append("the invoices of yesterday")


async def main() -> None:
    async with instances(3) as shops:
        for shop in shops:
            await shop.call(export)


asyncio.run(main())
assert len(exported) == 3  # accounting books each invoice three times
