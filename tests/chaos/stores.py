"""The stores that scenarios run on: a real server of one's own, and the URL that a process opens it by."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, final
from urllib.parse import urlsplit, urlunsplit

from tenure_postgres import create_schema_sql
from tenure_testbed import FaultProxy, PostgresServer, ValkeyCluster, ValkeyServer

STANDALONE = ("postgres", "valkey", "valkey-redis")
"""One server; `valkey` is asked through glide, `valkey-redis` through redis-py."""

STORES = (*STANDALONE, "valkey-cluster")


@final
@dataclass(frozen=True, slots=True)
class Backend:
    """
    A server that runs, with what a store needs in it.

    Attributes:
        store: Its name among `STORES`.
        url: What `tenure.open_store` opens.
        server: The server, to be killed and paused: `PostgresServer`, `ValkeyServer` or `ValkeyCluster`.
    """

    store: str
    url: str
    server: Any

    def through(self, proxy: FaultProxy) -> str:
        """The URL of the same store by way of *proxy*."""
        parts = urlsplit(self.url)
        login, at, _ = parts.netloc.rpartition("@")
        return urlunsplit(parts._replace(netloc=f"{login}{at}127.0.0.1:{proxy.port}"))


@contextlib.asynccontextmanager
async def backend(store: str, **settings: Any) -> AsyncIterator[Backend]:
    """Start the server of *store*, with the locks and records tables where it has tables; end it on leaving."""
    if store == "postgres":
        async with PostgresServer(settings=settings or None) as server:
            await asyncio.to_thread(server.execute, create_schema_sql())
            yield Backend(store, server.url(), server)
    elif store in ("valkey", "valkey-redis"):
        client = "glide" if store == "valkey" else "redis"
        async with ValkeyServer(settings=settings or None) as server:
            yield Backend(store, f"{server.url()}?client={client}", server)
    elif store == "valkey-cluster":
        async with ValkeyCluster(settings=settings or None) as cluster:
            yield Backend(store, f"{cluster.url()}?client=glide", cluster)
    else:
        raise ValueError(f"There is no store {store!r}; take one of {', '.join(STORES)}.")


@contextlib.asynccontextmanager
async def proxied(found: Backend) -> AsyncIterator[tuple[FaultProxy, str]]:
    """Put a fault proxy in front of a standalone server; it passes everything until it is told otherwise."""
    async with FaultProxy(("127.0.0.1", found.server.port)) as proxy:
        yield proxy, found.through(proxy)
