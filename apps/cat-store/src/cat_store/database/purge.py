"""The purge of records whose time has ended: PostgreSQL keeps rows until somebody deletes them."""

import logging
from typing import Final

from tenure import Locks, on_one_instance
from tenure.idempotency import IdempotencyStore

__all__ = ["RECORD_PURGE", "RecordPurge"]

logger = logging.getLogger(__name__)

RECORD_PURGE: Final = "database:record-purge"
"""The job's key. Given, not derived: a renamed method must not run twice during a rolling deploy."""

_BATCH: Final = 1000
_MOST_BATCHES: Final = 100
"""A run deletes at most this many batches, and the next one goes on: it is not to hold up a stop for long."""


class RecordPurge:
    """
    The job. Correct on any number of instances at once; on one it is less work.

    Args:
        locks: Where the job's lease comes from; None to run without any.
        store: The records. A store that expires them by itself has nothing to do.
    """

    def __init__(self, locks: Locks | None, store: IdempotencyStore) -> None:
        self.locks = locks
        self._store = store

    @on_one_instance(RECORD_PURGE, locks="locks")
    async def run(self) -> int:
        """Purge, if this instance is the one to do so."""
        return await self.purge()

    async def purge(self) -> int:
        """Delete what has ended, and return how many records that were."""
        deleted = 0
        for _ in range(_MOST_BATCHES):
            deleted += (batch := await self._store.purge(_BATCH))
            if batch < _BATCH:
                break
        if deleted:
            logger.info("Purged %d records", deleted, extra={"event": "records.purged", "records": deleted})
        return deleted
