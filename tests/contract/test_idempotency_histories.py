"""Two thousand random calls, the same on every store: what an application moves between answers alike."""

import secrets
from collections.abc import Callable
from contextlib import AsyncExitStack

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from tenure.idempotency import InMemoryIdempotencyStore
from tenure.idempotency_store import IdempotencyStore
from tenure.testing import idempotency_histories
from tenure_postgres import PostgresIdempotencyStore
from tenure_valkey import open_valkey_idempotency_store

CALLS = 2000

ANSWERS = {"Acquired", "Acquired again", "InFlight", "Abandoned", "Mismatch", "Completed", "STORED", "STALE", "GONE"}
"""What a run of this length comes by, whatever is drawn; a run that does not has compared nothing."""


@pytest.mark.matrix
async def test_random_histories_are_answered_alike_by_every_store_through_every_client(
    records_database: str, valkey_url: str, valkey_cluster_url: str, make_engine: Callable[..., AsyncEngine]
) -> None:
    prefix = f"{secrets.token_hex(4)}:"
    async with AsyncExitStack() as stack:
        stores: dict[str, IdempotencyStore] = {
            "memory": InMemoryIdempotencyStore(),
            "PostgreSQL": PostgresIdempotencyStore(make_engine(records_database)),
        }
        for where, url in (("server", valkey_url), ("cluster", valkey_cluster_url)):
            for client in ("glide", "redis"):
                asked = f"{url}{'&' if '?' in url else '?'}client={client}&prefix={prefix}{where}:{client}:"
                stores[f"{where}, {client}"] = await stack.enter_async_context(open_valkey_idempotency_store(asked))
        report = await idempotency_histories(stores, calls=CALLS, keys=100, unit_ms=1200)
    assert report.calls >= CALLS
    assert report.answers.keys() >= ANSWERS
