"""A SAQ worker for each instance, with a queue of its own: the job runs on one of them."""

from typing import Any

from saq import CronJob, Queue

from tenure import on_one_instance, without_overlapping
from tenure.config import TenureConfig
from tenure.ext.saq import scheduled_time, tenure_hooks

INSTANCE = "shop-1"  # something that outlives a restart, and no other instance has


@on_one_instance("guide:nightly-export", slot=scheduled_time)
@without_overlapping()
async def export(ctx: dict[str, Any]) -> None:
    print("exported")


settings = {
    "queue": Queue.from_url("redis://localhost", name=f"cron:{INSTANCE}"),
    "functions": [],
    "cron_jobs": [CronJob(export, cron="0 2 * * *", timeout=0)],
    **tenure_hooks(TenureConfig(store="memory://", allow_in_memory=True)),  # TenureConfig.from_env() in earnest
}

if __name__ == "__main__":
    assert [*settings] == ["queue", "functions", "cron_jobs", "startup", "shutdown"]
