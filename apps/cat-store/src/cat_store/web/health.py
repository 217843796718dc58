"""Whether this replica is alive, and whether it may take work."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Literal

import msgspec
from litestar import Controller, Response, get
from litestar.di import NamedDependency
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from tenure import Locks
from tenure.idempotency import Idempotency, Phase

__all__ = ["Alive", "HealthController", "Readiness", "Ready"]

_WITHIN_S: Final = 2.0
"""How long a part may take to answer, in seconds: under what probes wait for."""

Answer = Literal["ok", "off", "closed", "unsafe", "unreachable"]


class Alive(msgspec.Struct, frozen=True):
    """The process answers."""

    status: Literal["alive"] = "alive"


class Ready(msgspec.Struct, frozen=True):
    """What each part answers; nothing of addresses, keys or errors."""

    database: Answer
    locks: Answer
    idempotency: Answer


class _Look:
    """
    A look at one part, which probes that come meanwhile share.

    A part that hangs would otherwise gather one look a probe, and each holds a connection.
    """

    def __init__(self, look: Callable[[], Awaitable[Answer]]) -> None:
        self._look = look
        self._under_way: asyncio.Task[Answer] | None = None

    async def ask(self) -> Answer:
        if self._under_way is None:
            self._under_way = asyncio.create_task(self._safely())
        # Not cancelled when it takes too long: that would cost a connection, and the next probe shares it.
        task = self._under_way
        await asyncio.wait({task}, timeout=_WITHIN_S)
        return task.result() if task.done() else "unreachable"

    async def _safely(self) -> Answer:
        try:
            return await self._look()
        except Exception:  # noqa: BLE001 -- whatever a driver raises: it does not answer
            return "unreachable"
        finally:
            self._under_way = None


class Readiness:
    """
    Looks at what requests need.

    Args:
        engine: The shop's database.
        locks: The replica's locks; None where they are switched off.
        idempotency: What carries requests under a key out once.
    """

    def __init__(self, engine: AsyncEngine, locks: Locks | None, idempotency: Idempotency) -> None:
        async def database() -> Answer:
            async with engine.connect() as connection:
                await connection.execute(text("SELECT 1"))
            return "ok"

        async def of_locks() -> Answer:
            return "off" if locks is None else await _of(locks)

        async def of_idempotency() -> Answer:
            return await _of(idempotency)

        self._looks = tuple(_Look(each) for each in (database, of_locks, of_idempotency))

    async def look(self) -> Ready:
        """Look at every part at once; takes two seconds at most."""
        return Ready(*await asyncio.gather(*(look.ask() for look in self._looks)))


async def _of(one: Locks | Idempotency) -> Answer:
    if one.phase is not Phase.OPEN:
        return "closed"
    findings = await one.check()
    if any(finding.fatal for finding in findings):
        return "unsafe"
    return "unreachable" if any(finding.code == "store-unreachable" for finding in findings) else "ok"


class HealthController(Controller):
    """For whoever decides whether a replica lives and gets requests."""

    path = "/health"
    tags = ["health"]  # noqa: RUF012 -- declared so by Litestar

    @get("/live", sync_to_thread=False)
    def live(self) -> Alive:
        """Tell that the process answers; a replica whose database is away is alive, and a restart would not help."""
        return Alive()

    @get("/ready")
    async def ready(self, readiness: NamedDependency[Readiness]) -> Response[Ready]:
        """Tell whether requests can be answered: 503 where the database, the locks or the records do not answer."""
        found = await readiness.look()
        well = all(answer in {"ok", "off"} for answer in msgspec.structs.astuple(found))
        return Response(found, status_code=200 if well else 503, headers={"Cache-Control": "no-store"})
