"""APScheduler on every instance; each scheduled time runs once, anywhere."""

import asyncio

from apscheduler.schedulers.asyncio import AsyncIOScheduler

from tenure import InMemoryLockStore, Locks, on_one_instance, without_overlapping
from tenure.ext.apscheduler import TenureExecutor, running, scheduled_time

ran = asyncio.Event()


@on_one_instance("guide:reports", slot=scheduled_time)
@without_overlapping()
async def report() -> None:
    print("due at", scheduled_time())
    ran.set()


async def main() -> None:
    scheduler = AsyncIOScheduler(executors={"default": TenureExecutor()}, timezone="Europe/Warsaw")
    scheduler.add_job(report, "cron", hour=2)
    scheduler.add_job(report, "date", misfire_grace_time=60)  # and once now, to see it
    # The scheduler is left before the Locks: a run that is under way ends under its lease.
    async with Locks(InMemoryLockStore()), running(scheduler):
        await ran.wait()


if __name__ == "__main__":
    asyncio.run(main())
