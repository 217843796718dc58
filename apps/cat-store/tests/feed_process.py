"""A process that is nothing but an instance's part in the warehouse feed, for tests that kill and pause it."""

import asyncio
import signal

from cat_store.inventory.alerts import AlertBook
from cat_store.inventory.feed import WarehouseFeed
from cat_store.logs import configure
from cat_store.partners.connection import Partner
from cat_store.replica import open_replica
from cat_store.settings import Settings


async def main() -> None:
    settings = Settings.from_environment()
    configure(level="debug", form="json", instance=settings.instance)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with (
        open_replica(settings) as replica,
        Partner("The warehouse", f"{settings.warehouse_url}/", settings.instance) as warehouse,
        WarehouseFeed(replica.locks, warehouse, AlertBook(replica.engine)),
    ):
        print("up", flush=True)  # noqa: T201 -- whoever started it waits for the line
        await stop.wait()


asyncio.run(main())
