"""The servers of a run: the test bed's, started when they are first needed, or those that the environment names."""

import asyncio
import contextlib
import os
import re
from collections.abc import Callable, Mapping
from typing import Any, Self

from tenure_loadtests.contenders.catalogue import Entry, Server
from tenure_loadtests.contenders.contract import Address
from tenure_postgres import create_idempotency_schema_sql, create_schema_sql
from tenure_testbed import PostgresServer, ServerError, ValkeyCluster, ValkeyServer

__all__ = ["CLUSTER_VARIABLE", "POSTGRES_VARIABLE", "VALKEY_VARIABLE", "ServerUnusableError", "Servers"]

POSTGRES_VARIABLE = "TENURE_BENCH_POSTGRES_URL"
VALKEY_VARIABLE = "TENURE_BENCH_VALKEY"
CLUSTER_VARIABLE = "TENURE_BENCH_CLUSTER"

_POSTGRES_SETTINGS: Mapping[str, str | int | bool] = {
    "max_connections": 400,
    "synchronous_commit": "on",
    # A checkpoint in the middle of a cell would be noise of one contender.
    "checkpoint_timeout": "30min",
    "max_wal_size": "4GB",
}
_VALKEY_SETTINGS = {"maxclients": "4000", "maxmemory-policy": "noeviction"}


class ServerUnusableError(Exception):
    """A kind of server cannot be had here; the text says why."""


class Servers:
    """
    What the contenders connect to. A server that this process started is the one that answers: the test bed proves it.

    `TENURE_BENCH_POSTGRES_URL` (`postgresql://user@host:port/database`), `TENURE_BENCH_VALKEY` (`host:port`) and
    `TENURE_BENCH_CLUSTER` (`host:port,host:port`) name servers to be used instead. Nothing is emptied on those, and
    their CPU time is not known.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._environment = os.environ if environment is None else environment
        self._exits = contextlib.ExitStack()
        self._postgres: PostgresServer | None = None
        self._valkey: ValkeyServer | None = None
        self._cluster: ValkeyCluster | None = None
        self._addresses: dict[Server, Address] = {"memory": Address()}
        self._failures: dict[Server, str] = {}

    @property
    def named(self) -> bool:
        """Whether the environment names any: their CPU time would be taken for that of foreign processes."""
        return any(self._environment.get(name) for name in (POSTGRES_VARIABLE, VALKEY_VARIABLE, CLUSTER_VARIABLE))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._exits.close()

    def address(self, server: Server) -> Address:
        """
        Where a kind of server is; it is started if it is not there yet.

        Raises:
            ServerUnusableError: It cannot be had.
        """
        if server in self._failures:
            raise ServerUnusableError(self._failures[server])
        if server not in self._addresses:
            start: Mapping[str, Callable[[], Address]] = {
                "postgres": self._start_postgres,
                "valkey": self._start_valkey,
                "cluster": self._start_cluster,
            }
            try:
                self._addresses[server] = start[server]()
            except (ServerError, OSError) as error:
                self._failures[server] = str(error)
                raise ServerUnusableError(str(error)) from error
        return self._addresses[server]

    def address_of(self, entry: Entry) -> Address:
        """Where all the servers of a contender are; raises as `address`."""
        address = Address()
        for server in entry.servers:
            address = address.with_all_of(self.address(server))
        return address

    def processes(self, server: Server) -> list[int]:
        """The ids of the processes whose CPU time counts as that server's; none where the environment named it."""
        match server:
            case "postgres" if self._postgres is not None:
                return [self._postgres.pid]
            case "valkey" if self._valkey is not None:
                return [self._valkey.pid]
            case "cluster" if self._cluster is not None:
                return [node.pid for node in self._cluster.nodes]
            case _:
                return []

    def ports(self, server: Server) -> list[int]:
        """The ports that the server's connections go to."""
        address = self.address(server)
        places = [address.valkey, *address.cluster, address.postgres.rpartition("@")[2].partition("/")[0]]
        return [int(place.rpartition(":")[2]) for place in places if ":" in place]

    def empty(self, server: Server) -> None:
        """Remove what the last contender left, on servers of this run's own."""
        if server == "postgres" and self._postgres is not None:
            self._postgres.execute("TRUNCATE tenure_locks, tenure_idempotency, bench_orders")
        elif server == "valkey" and self._valkey is not None:
            self._valkey.flush_all()
        elif server == "cluster" and self._cluster is not None:
            self._cluster.flush_all()

    def calls(self, server: Server) -> float | None:
        """How many scripts or transactions the server has carried out so far; None where that is not known."""
        if server == "valkey" and self._valkey is not None:
            return _script_runs(self._valkey)
        if server == "cluster" and self._cluster is not None:
            return sum(_script_runs(node) for node in self._cluster.nodes)
        if server == "postgres" and self._postgres is not None:
            [[count]] = self._postgres.execute("SELECT sum(xact_commit + xact_rollback) FROM pg_stat_database")
            return float(count)
        return None

    def versions(self) -> dict[str, str]:
        """The versions of the servers that were used."""
        found = {}
        if self._postgres is not None:
            found["postgres"] = self._postgres.execute("SHOW server_version")[0][0]
        if self._valkey is not None:
            told = self._valkey.info("server")
            found["valkey"] = told.get("valkey_version", told.get("redis_version", "?"))
        if self._cluster is not None:
            found["cluster"] = f"{len(self._cluster.nodes)} nodes, as valkey"
        return found

    def _start_postgres(self) -> Address:
        url = self._environment.get(POSTGRES_VARIABLE)
        if not url:
            self._postgres = self._exits.enter_context(PostgresServer(fsync=True, settings=_POSTGRES_SETTINGS))
            url = self._postgres.url(driver="postgresql")
        asyncio.run(_make_tables(url))
        return Address(postgres=url)

    def _start_valkey(self) -> Address:
        named = self._environment.get(VALKEY_VARIABLE)
        if named:
            return Address(valkey=named)
        self._valkey = self._exits.enter_context(ValkeyServer(settings=_VALKEY_SETTINGS))
        return Address(valkey=f"127.0.0.1:{self._valkey.port}")

    def _start_cluster(self) -> Address:
        named = self._environment.get(CLUSTER_VARIABLE)
        if named:
            return Address(cluster=tuple(named.split(",")))
        self._cluster = self._exits.enter_context(ValkeyCluster(settings=_VALKEY_SETTINGS))
        return Address(cluster=tuple(f"{host}:{port}" for host, port in self._cluster.startup_nodes))


def _script_runs(server: ValkeyServer) -> float:
    # Not the count of all commands: what a script calls would count as well.
    told = server.info("commandstats")
    runs = (told.get(f"cmdstat_{name}", "") for name in ("evalsha", "eval", "fcall"))
    return sum(float(found[1]) for one in runs if (found := re.search(r"calls=(\d+)", one)))


async def _make_tables(url: str) -> None:
    import asyncpg  # type: ignore[import-untyped]  # it ships no types

    connection: Any = await asyncpg.connect(url)
    try:
        await connection.execute(create_schema_sql())
        await connection.execute(create_idempotency_schema_sql())
        await connection.execute(
            "CREATE TABLE IF NOT EXISTS bench_orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, body text)"
        )
    finally:
        await connection.close()
