"""The kinds of faults, and how each is done to a cell."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final

from chaos.soak.cell import Cell

Strike = Callable[[Cell, random.Random], Awaitable[None]]
"""Does a fault, waits, and heals it."""


async def kill(cell: Cell, chance: random.Random) -> None:
    """kill -9 of a process, and another one in its place."""
    resident = chance.choice(cell.mortals)
    async with resident.turn:
        await cell.replace(resident, graceful=False)


async def terminate(cell: Cell, chance: random.Random) -> None:
    """SIGTERM of a process, and another one in its place."""
    resident = chance.choice(cell.mortals)
    async with resident.turn:
        await cell.replace(resident, graceful=True)


async def stop(cell: Cell, chance: random.Random) -> None:
    """SIGSTOP of a process, at times for longer than its leases live."""
    resident = chance.choice(cell.mortals)
    lasts_s = cell.ttl_s * chance.uniform(0.2, 2.5)
    async with resident.turn:
        await cell.pause(resident)
        try:
            await asyncio.sleep(lasts_s)
        finally:
            await cell.resume(resident)


def _network(name: str, ttls: tuple[float, float]) -> Strike:
    """Do something to what passes between a process (any, also the one that lives) and the server."""

    async def strike(cell: Cell, chance: random.Random) -> None:
        proxy = chance.choice(cell.residents).proxy
        match name:
            case "blackhole":
                proxy.blackhole()
            case "reset":
                proxy.reset()
            case "refuse":
                proxy.refuse()
                proxy.reset_all()
            case "delay":
                proxy.delay(40, 10)
            case "drop reply":
                proxy.drop_reply()
            case "slice":
                proxy.slice(7)
        try:
            await asyncio.sleep(cell.ttl_s * chance.uniform(*ttls))
        finally:
            proxy.heal()

    return strike


async def pause_server(cell: Cell, chance: random.Random) -> None:
    """SIGSTOP of the server: what was sent meanwhile is carried out late."""
    await asyncio.to_thread(cell.server.pause)
    try:
        await asyncio.sleep(cell.ttl_s * chance.uniform(0.2, 1.5))
    finally:
        await asyncio.to_thread(cell.server.resume)


async def restart_server(cell: Cell, chance: random.Random) -> None:
    """Stop the server, and start it again with its data."""
    await asyncio.to_thread(cell.server.stop)
    await asyncio.sleep(cell.ttl_s * chance.uniform(0, 0.5))
    await asyncio.to_thread(cell.server.start)


async def flush_scripts(cell: Cell, chance: random.Random) -> None:
    """SCRIPT FLUSH, several times."""
    for _ in range(5):
        await asyncio.to_thread(cell.server.execute, "SCRIPT", "FLUSH")
        await asyncio.sleep(chance.uniform(0, 0.1))


async def end_sessions(cell: Cell, chance: random.Random) -> None:
    """pg_terminate_backend of every session, several times."""
    for _ in range(3):
        await asyncio.to_thread(cell.server.execute, _END_SESSIONS)
        await asyncio.sleep(chance.uniform(0, 0.2))


_END_SESSIONS: Final = (
    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE backend_type = 'client backend' "
    "AND pid <> pg_backend_pid()"
)

_EVERYWHERE: Final[dict[str, Strike]] = {
    "kill -9": kill,
    "SIGTERM": terminate,
    "SIGSTOP": stop,
    "blackhole": _network("blackhole", (0.3, 2)),
    "reset": _network("reset", (0.1, 0.5)),
    "refuse": _network("refuse", (0.1, 0.5)),
    "delay": _network("delay", (0.5, 2)),
    "drop reply": _network("drop reply", (0.1, 0.5)),
    "slice": _network("slice", (0.2, 1)),
    "server paused": pause_server,
    "server restarted": restart_server,
}

KINDS: Final[dict[str, dict[str, Strike]]] = {
    "postgres": _EVERYWHERE | {"pg_terminate_backend": end_sessions},
    "valkey": _EVERYWHERE | {"SCRIPT FLUSH": flush_scripts},
    "valkey-redis": _EVERYWHERE | {"SCRIPT FLUSH": flush_scripts},
}
"""By store, and by the name that histories and reports have them under."""

ON_A_SERVER: Final = frozenset({"server paused", "server restarted", "SCRIPT FLUSH", "pg_terminate_backend"})
"""Those of which no two are done at the same time: a server that stands still takes no statement."""
