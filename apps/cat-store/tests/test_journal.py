"""What the demo reads from the replicas' output."""

import sys
from collections.abc import AsyncIterator

import pytest

from cat_store.demo.journal import Journal, NotSeenError
from tenure_testbed import Replica

LINES = """
import sys
print('{"level": "INFO", "event": "replica.up", "message": "Replica cat-store-1 is up"}')
print('{"level": "DEBUG", "event": "tenure.JobSkipped", "message": "Skipped", "key": "job"}')
print('no json at all', file=sys.stderr)
"""


@pytest.fixture
async def journal() -> AsyncIterator[Journal]:
    replica = Replica([sys.executable, "-c", LINES], name="cat-store-1")
    async with Journal().reading() as journal:
        journal.follow(replica)
        with replica:
            yield journal


async def test_an_event_is_found_by_its_name_and_fields(journal: Journal) -> None:
    entry = await journal.wait_for("tenure.JobSkipped", after=0, within_s=15, instance="cat-store-1", key="job")
    assert (entry.level, entry.message, entry.instance) == ("DEBUG", "Skipped", "cat-store-1")
    assert journal.count("tenure.JobSkipped", after=0, key="another") == 0
    assert journal.count("tenure.JobSkipped", after=entry.number) == 0


async def test_a_line_that_is_no_json_is_kept_as_it_is(journal: Journal) -> None:
    await journal.wait_until(lambda: journal.mark == 3, "three lines", within_s=15)
    assert "no json at all" in [entry.message for entry in journal.entries()]


async def test_what_does_not_come_is_told_with_the_last_lines(journal: Journal) -> None:
    await journal.wait_for("replica.up", after=0, within_s=15)
    with pytest.raises(NotSeenError, match=r"(?s)told of stock.reconciled .*Replica cat-store-1 is up"):
        await journal.wait_for("stock.reconciled", after=0, within_s=0.1)
    with pytest.raises(NotSeenError, match="in vain for: the impossible"):
        await journal.wait_until(lambda: False, "the impossible", within_s=0.1)
