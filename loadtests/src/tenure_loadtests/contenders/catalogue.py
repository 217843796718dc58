"""Who takes part: every contender by name, what it runs on, what it needs, and what it is compared with."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

__all__ = ["CATALOGUE", "TRANSACTIONS", "Entry", "Role", "Server"]

Role = Literal["tenure", "floor", "peer", "limit"]
"""tenure; the least that can be done with the same client; another library; a program that is no library."""

Server = Literal["postgres", "valkey", "cluster", "memory"]


_CYCLE: Final = frozenset({"cycle"})
"""What has no way to wait for a key is asked for cycles alone."""
_TURNS: Final = frozenset({"cycle", "handoff", "section"})
_LEASES: Final = _TURNS | {"held"}
_TENURE: Final = _LEASES | {"expiry", "tick"}
_REQUEST: Final = frozenset({"request"})
_WAITING_FLOORS: Final[Mapping[str, str]] = {"postgres": "floor.postgres.advisory", "valkey": "floor.valkey.blpop"}


@dataclass(frozen=True, slots=True)
class Entry:
    """
    One contender.

    Attributes:
        name: `role.server.what`; for a peer, `peer.server.library`.
        role: What it is.
        server: What it runs on.
        path: `module:Class` in this package.
        options: What tells it from another of its class.
        environment: The name of a file in `requirements/`, or `node`, for one that runs in an environment of its own.
        floor: Whom its ratios are against.
        takes_part: The scenarios that it can be asked.
        in_python: Whether it counts among the Python peers.
        least_tasks: From how many tasks at once on it says anything.
        most_tasks: How many tasks at once it can serve at all.
        also: A second kind of server that it needs.
    """

    name: str
    role: Role
    server: Server
    path: str
    options: Mapping[str, Any] = field(default_factory=dict)
    environment: str | None = None
    floor: str = ""
    takes_part: frozenset[str] = _TURNS
    in_python: bool = True
    least_tasks: int = 1
    most_tasks: int | None = None
    also: Server | None = None

    @property
    def servers(self) -> tuple[Server, ...]:
        """All servers that it needs."""
        return (self.server,) if self.also is None else (self.server, self.also)

    def can_serve(self, tasks: int) -> bool:
        """Whether that many tasks at once make sense for it."""
        return self.least_tasks <= tasks and (self.most_tasks is None or tasks <= self.most_tasks)

    def floor_of(self, scenario: str) -> str:
        """Whom its ratios are against in a scenario; empty where there is nobody."""
        if scenario in ("cycle", "request"):
            return self.floor or self.name
        return _WAITING_FLOORS.get(self.server, "") if scenario in _TURNS else ""


_PG = "floor.postgres.pair"
_REDIS = "floor.valkey.evalsha-redis"
_GLIDE = "floor.valkey.evalsha-glide"
_CLUSTER_REDIS = "floor.cluster.evalsha-redis"
_CLUSTER_GLIDE = "floor.cluster.evalsha-glide"
_PLAIN = "floor.request.plain"
_STORE = "tenure_locks:TenureStore"
_LOCKS = "tenure_locks:TenureLocks"


def _tenure(store: str, server: Server, floor: str, takes_part: frozenset[str] = _TENURE) -> tuple[Entry, Entry]:
    options = {"store": store}
    return (
        Entry(f"tenure.store.{store}", "tenure", server, _STORE, options, floor=floor, takes_part=_CYCLE),
        Entry(f"tenure.locks.{store}", "tenure", server, _LOCKS, options, floor=floor, takes_part=takes_part),
    )


def _peer(  # noqa: PLR0913, PLR0917 -- a line of the table below
    server: Server,
    library: str,
    path: str,
    environment: str,
    takes_part: frozenset[str] = _TURNS,
    most_tasks: int | None = None,
) -> Entry:
    return Entry(
        f"peer.{server}.{library}",
        "peer",
        server,
        path,
        environment=environment,
        floor=_PG if server == "postgres" else _REDIS,
        takes_part=takes_part,
        most_tasks=most_tasks,
    )


def _orders(name: str, store: str, also: Server | None = None, **options: Any) -> Entry:
    return Entry(
        name,
        "tenure",
        "postgres",
        "tenure_requests:PostedOrders",
        {"store": store, **options},
        floor=_PLAIN,
        takes_part=_REQUEST,
        also=also,
    )


TRANSACTIONS: Final = Entry("others.postgres.transactions", "floor", "postgres", "transactions:Transactions")
"""No contender: an application whose commits the contenders' releases may hold up."""

_ENTRIES: Final = (
    # ------------------------------------------------------------------------------------------- PostgreSQL
    Entry(_PG, "floor", "postgres", "postgres_floors:PairOnConnection", takes_part=_CYCLE),
    Entry("floor.postgres.pair-pool", "floor", "postgres", "postgres_floors:PairOnPool", floor=_PG, takes_part=_CYCLE),
    Entry(
        "floor.postgres.advisory",
        "floor",
        "postgres",
        "postgres_floors:AdvisoryLock",
        floor=_PG,
        takes_part=_TURNS - _CYCLE,
    ),
    *_tenure("postgres", "postgres", _PG, _TENURE | {"commit"}),
    _peer("postgres", "grelmicro", "grelmicro_locks:GrelmicroOnPostgres", "grelmicro", _LEASES),
    _peer("postgres", "mithril-locks", "mithril_locks:MithrilOnPostgres", "mithril", _LEASES),
    _peer("postgres", "sqlalchemy-dlock", "postgres_peers:SqlalchemyDlock", "postgres"),
    _peer("postgres", "postgres-mutex", "postgres_peers:PostgresMutex", "postgres"),
    Entry("peer.postgres.advisory", "peer", "postgres", "postgres_floors:AdvisoryLock", floor=_PG, takes_part=_CYCLE),
    Entry("limit.postgres.pgbench", "limit", "postgres", "programs:Pgbench", floor=_PG, takes_part=_CYCLE),
    # --------------------------------------------------------------------------------------------- Valkey
    Entry(_REDIS, "floor", "valkey", "valkey_floors:EvalshaOnRedis", takes_part=_CYCLE),
    Entry(_GLIDE, "floor", "valkey", "valkey_floors:EvalshaOnGlide", takes_part=_CYCLE),
    Entry(
        "floor.valkey.blpop", "floor", "valkey", "valkey_floors:BlpopHandOver", floor=_REDIS, takes_part=_TURNS - _CYCLE
    ),
    *_tenure("valkey-redis", "valkey", _REDIS),
    *_tenure("valkey-glide", "valkey", _GLIDE),
    _peer("valkey", "redis-asyncio-lock", "redis_peers:RedisAsyncioLock", "redis"),
    _peer("valkey", "python-redis-lock", "redis_peers:PythonRedisLock", "python-redis-lock"),
    _peer("valkey", "pottery", "redis_peers:Pottery", "redis"),
    _peer("valkey", "redis-lock-py", "redis_peers:RedisLockPy", "redis"),
    _peer("valkey", "grelmicro", "grelmicro_locks:GrelmicroOnRedis", "grelmicro", _LEASES),
    _peer("valkey", "mithril-locks", "mithril_locks:MithrilOnRedis", "mithril", _LEASES),
    Entry(
        "peer.valkey.redlock-universal-on-node",
        "peer",
        "valkey",
        "",
        environment="node",
        floor=_REDIS,
        takes_part=_CYCLE,
        in_python=False,
    ),
    Entry(
        "limit.valkey.redis-benchmark", "limit", "valkey", "programs:RedisBenchmark", floor=_REDIS, takes_part=_CYCLE
    ),
    Entry(
        "limit.valkey.redis-benchmark-pipelined",
        "limit",
        "valkey",
        "programs:RedisBenchmark",
        {"pipeline": 16},
        floor=_REDIS,
        takes_part=_CYCLE,
        least_tasks=16,
    ),
    # -------------------------------------------------------------------------------------------- a cluster
    Entry(_CLUSTER_REDIS, "floor", "cluster", "valkey_floors:EvalshaOnRedis", {"cluster": True}, takes_part=_CYCLE),
    Entry(_CLUSTER_GLIDE, "floor", "cluster", "valkey_floors:EvalshaOnGlide", {"cluster": True}, takes_part=_CYCLE),
    *_tenure("cluster-redis", "cluster", _CLUSTER_REDIS, _LEASES - {"section"}),
    *_tenure("cluster-glide", "cluster", _CLUSTER_GLIDE, _LEASES - {"section"}),
    # ------------------------------------------------------------------------------------------- in memory
    *_tenure("memory", "memory", "tenure.store.memory", frozenset({"cycle", "held"})),
    # ------------------------------------------------------------------------------------------- requests
    Entry(_PLAIN, "floor", "postgres", "tenure_requests:PostedOrders", takes_part=_REQUEST),
    _orders("tenure.request.postgres", "postgres"),
    _orders("tenure.request.valkey-redis", "valkey-redis", "valkey"),
    _orders("tenure.request.valkey-glide", "valkey-glide", "valkey"),
    _orders("tenure.request.memory", "memory"),
    _orders("tenure.replay.postgres", "postgres", repeat=True),
    _orders("tenure.replay.valkey-redis", "valkey-redis", "valkey", repeat=True),
)

CATALOGUE: Final[Mapping[str, Entry]] = {entry.name: entry for entry in _ENTRIES}
