"""What is promised: ratios in one run, and a few absolute figures, each with its limit."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

__all__ = ["BEST_PEER", "PROMISES", "Promise"]

BEST_PEER: Final = "the best Python peer"
"""Whoever of the peers on the contender's server wins that row in that run."""

Bound = Literal["at least", "at most"]


@dataclass(frozen=True, slots=True)
class Promise:
    """
    One promise.

    Attributes:
        scenario: Where it is measured.
        setting: In which setting.
        contender: Whose figure.
        figure: Which figure.
        bound: Whether the limit is the least or the most.
        limit: The limit: of the ratio to `against`, or of the figure itself.
        against: Whose figure it is divided by, within a round; None for the figure itself.
        required: Whether missing it fails the check; otherwise it is reported beside the one that is required.
    """

    scenario: str
    setting: str
    contender: str
    figure: str
    bound: Bound
    limit: float
    against: str | None = None
    required: bool = True


_VALKEY: Final = ("valkey-redis", "valkey-glide")
_STORES: Final = ("postgres", *_VALKEY)
_FLOORS: Final = {
    "postgres": "floor.postgres.pair",
    "valkey-redis": "floor.valkey.evalsha-redis",
    "valkey-glide": "floor.valkey.evalsha-glide",
}


def _cycles() -> Iterator[Promise]:
    def rate(contender: str, tasks: int, against: str, times: float, *, required: bool = True) -> Promise:
        return Promise("cycle", f"{tasks} tasks", contender, "cycles_per_s", "at least", times, against, required)

    yield rate("tenure.store.postgres", 256, BEST_PEER, 10)
    yield rate("tenure.locks.postgres", 256, BEST_PEER, 4)
    yield rate("tenure.store.postgres", 256, "limit.postgres.pgbench", 1)
    yield rate("tenure.store.postgres", 32, BEST_PEER, 5)
    yield rate("tenure.locks.postgres", 32, BEST_PEER, 5, required=False)
    for store in _VALKEY:
        yield rate(f"tenure.store.{store}", 256, BEST_PEER, 5)
        yield rate(f"tenure.locks.{store}", 256, BEST_PEER, 2.5)
        yield rate(f"tenure.store.{store}", 256, "peer.valkey.redlock-universal-on-node", 1)
    for store, floor in _FLOORS.items():
        for layer, required in (("store", True), ("locks", False)):
            yield Promise("cycle", "1 task", f"tenure.{layer}.{store}", "p50_us", "at most", 1.25, floor, required)


def _handovers() -> Iterator[Promise]:
    for waiters in (2, 16, 64):
        setting = f"{waiters} waiters"
        for store in _VALKEY:
            contender = f"tenure.locks.{store}"
            yield Promise("handoff", setting, contender, "p50_ms", "at most", 2, "floor.valkey.blpop")
        yield Promise("handoff", setting, "tenure.locks.postgres", "p50_ms", "at most", 3, "floor.postgres.advisory")
    for store in _STORES:
        contender = f"tenure.locks.{store}"
        yield Promise("handoff", "2 waiters", contender, "p50_ms", "at most", 0.1, "peer.valkey.redis-asyncio-lock")
        yield Promise("section", "16 contenders", contender, "jain", "at least", 0.95)
        yield Promise("section", "16 contenders", contender, "overlaps", "at most", 0)
    yield Promise("commit", "4 clients", "tenure.locks.postgres", "waited_ratio", "at most", 1.10)


def _leases() -> Iterator[Promise]:
    for store in _STORES:
        contender = f"tenure.locks.{store}"
        for figure, limit in (
            ("connections", 2.0),
            ("client_s_per_min", 1.5),
            ("latest_ms", 250.0),
            ("lag_p99_ms", 10.0),
            ("memory_bytes", 2048.0),
            ("lost", 0.0),
        ):
            yield Promise("held", "10 000 leases", contender, figure, "at most", limit)
        # One interval of the waiters' poll, which is the net below the wake-ups.
        yield Promise("expiry", "1 000 holders", contender, "beyond_ttl_s", "at most", 1.0)
        yield Promise("expiry", "1 000 holders", contender, "missing", "at most", 0)
        yield Promise("tick", "3 instances", contender, "not_once", "at most", 0)


PROMISES: Final[Sequence[Promise]] = (*_cycles(), *_handovers(), *_leases())
