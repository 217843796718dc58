"""Many leases, held for a while: what keeping them costs, and how well they are kept."""

import asyncio
import gc
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tenure_loadtests.contenders.contract import HoldsMany
from tenure_loadtests.figures import quantile
from tenure_loadtests.worker.meter import Meter

__all__ = ["connections_to", "hold_leases"]

_LAG_EVERY_S = 0.05
"""How often the event loop is asked how late it is: often enough for a p99, and a fraction of a percent of a core."""

_WARM = 256
"""Leases taken and handed back first, so that pools and caches are not counted as memory of the others."""


async def hold_leases(  # noqa: PLR0913 -- the members of a command
    contender: HoldsMany, servers: Sequence[int], *, leases: int, ttl_s: float, seconds: float, ports: Sequence[int]
) -> dict[str, Any]:
    """
    Take leases and keep them.

    Args:
        contender: Who keeps them.
        servers: Whose CPU time is told.
        leases: How many.
        ttl_s: How long each lives without a renewal.
        seconds: How long they are kept.
        ports: The servers' ports, to count the connections.

    Returns:
        What it took a minute, the renewals and how late they were sent, the loop's lag, memory a lease, and the lost.
    """
    keys = [f"bench:held:{number}" for number in range(leases)]
    await (await contender.hold([f"bench:warm:{number}" for number in range(_WARM)], ttl_s)).let_go()
    gc.collect()
    before = _resident_bytes()
    begun = time.perf_counter()
    held = await contender.hold(keys, ttl_s)
    took_s = time.perf_counter() - begun
    gc.collect()
    memory = _resident_bytes() - before
    seen = len(held.late_ms())
    meter = Meter(servers)
    lags = await _lags_ms(seconds)
    usage = meter.read()
    late = sorted(held.late_ms()[seen:])
    lost, connections = held.lost(), connections_to(ports)
    await held.let_go()
    a_minute = 60 / usage.wall_s
    return {
        "take_s": took_s,
        "client_s_per_min": usage.client_s * a_minute,
        "server_s_per_min": usage.server_s * a_minute,
        "renewals": len(late),
        "late_p99_ms": quantile(late, 0.99) if late else 0.0,
        "latest_ms": late[-1] if late else 0.0,
        "lag_p99_ms": quantile(lags, 0.99),
        "memory_bytes": memory / leases,
        "connections": connections,
        "lost": lost,
        "usage": usage.to_json(),
    }


def connections_to(ports: Sequence[int]) -> int:
    """How many connections of this process to one of *ports* stand, on any address."""
    own = set(_own_sockets())
    return sum(
        inode in own and state == "01" and int(remote.rpartition(":")[2], 16) in ports
        for name in ("tcp", "tcp6")
        for remote, state, inode in _connections(Path("/proc/self/net") / name)
    )


async def _lags_ms(seconds: float) -> list[float]:
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    lags = []
    while (asked := loop.time()) < until:
        await asyncio.sleep(_LAG_EVERY_S)
        lags.append((loop.time() - asked - _LAG_EVERY_S) * 1e3)
    return sorted(lags)


def _resident_bytes() -> int:
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def _own_sockets() -> Iterator[str]:
    try:
        descriptors = list(Path("/proc/self/fd").iterdir())
    except OSError:
        return
    for descriptor in descriptors:
        try:
            target = str(descriptor.readlink())
        except OSError:  # the one by which the folder was read
            continue
        if target.startswith("socket:["):
            yield target.removeprefix("socket:[").removesuffix("]")


def _connections(table: Path) -> Iterator[tuple[str, str, str]]:
    try:
        lines = table.read_text(encoding="ascii").splitlines()[1:]
    except OSError:
        return
    for line in lines:
        words = line.split()
        yield words[2], words[3], words[9]
