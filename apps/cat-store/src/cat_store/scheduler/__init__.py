"""The schedule: every replica fires every tick, and the locks decide which one runs."""

from cat_store.scheduler.crons import Cron, Scheduler

__all__ = ["Cron", "Scheduler"]
