"""The health route: whether this instance may take work."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final, Literal, final

from litestar import Response, get
from litestar.handlers import HTTPRouteHandler

from tenure.errors import ConfigurationError, TenureError
from tenure.ext.litestar._running import Running
from tenure.idempotency import Idempotency
from tenure.locks import Locks, Phase
from tenure.store import ChecksServer

__all__ = ["Health", "health_route"]

_OPEN: Final = Phase.OPEN.name.lower()

_FRESH_S: Final = 1.0
"""How long a look at the store's server counts, in seconds: probes of several kinds come at the same second."""

Answer = Literal["ok", "unsafe", "unreachable", "unchecked"]
"""What a look at the store's server found: no fault, a fatal one, no answer; or that the store cannot look."""


@final
class _Look:
    """
    Looks at one store's server, one look at a time: probes that come meanwhile share it.

    A probe of a server that hangs would otherwise leave a call behind each time, until the pool is empty.
    """

    def __init__(self) -> None:
        self._under_way: asyncio.Task[Answer] | None = None
        self._answer: Answer = "unchecked"
        self._until = float("-inf")

    async def ask(self, one: Locks | Idempotency) -> Answer:
        """Look, or share the look that is under way or has just ended. Ends within some three seconds."""
        if not isinstance(one.store, ChecksServer):
            return "unchecked"
        if one.clock.now() < self._until:
            return self._answer
        if self._under_way is None:
            self._under_way = one.spawn(self._look(one))
            self._under_way.add_done_callback(self._ended)
        # One probe that is cancelled takes nothing from the others.
        await asyncio.wait([self._under_way])
        return self._answer

    async def _look(self, one: Locks | Idempotency) -> Answer:
        answer: Answer = "ok"
        try:
            findings = await one.check()
        except ConfigurationError:
            answer = "unsafe"
        except TenureError:
            answer = "unreachable"
        else:
            if any(finding.fatal for finding in findings):
                answer = "unsafe"
            elif any(finding.code == "store-unreachable" for finding in findings):
                answer = "unreachable"
        self._answer, self._until = answer, one.clock.now() + _FRESH_S
        return answer

    def _ended(self, _: object) -> None:
        self._under_way = None


@final
class Health:
    """
    Tells the state of what an application runs with.

    Args:
        running: What it runs with.
        locks: Whether it has locks.
        idempotency: Whether it has an idempotency.
    """

    def __init__(self, running: Running, *, locks: bool, idempotency: bool) -> None:
        self._running = running
        self._has = {"locks": locks, "idempotency": idempotency}
        self._looks = {name: _Look() for name in self._has}

    async def report(self) -> tuple[bool, dict[str, dict[str, Any]]]:
        """Return whether all is well, and what is known: phases, counts, names; no key, owner, address or text."""
        parts: dict[str, dict[str, Any]] = {}
        for name, has in self._has.items():
            if has:
                parts[name] = await self._part(name, getattr(self._running, name))
        return all(
            part["phase"] == _OPEN and part["store"]["server"] in ("ok", "unchecked") for part in parts.values()
        ), parts

    async def _part(self, name: str, one: Locks | Idempotency | None) -> dict[str, Any]:
        if one is None:
            return {"phase": Phase.NEW.name.lower(), "store": {"server": "unchecked"}}
        phase = one.phase.name.lower()
        server = await self._looks[name].ask(one) if phase == _OPEN else "unchecked"
        part: dict[str, Any] = {
            "phase": phase,
            "instance": one.instance,
            "store": {"type": type(one.store).__name__, "server": server},
        }
        if isinstance(one, Locks):
            counts = one.statistics()
            return part | {"held": counts.held, "waiting": counts.waiting, "lost": counts.lost}
        return part | {"running": one.running}


def health_route(path: str, health: Health, *, in_schema: bool) -> HTTPRouteHandler:
    """
    Build the route: 200 where the instance may take work, 503 where it shuts down or its store does not do.

    Middleware that follows Litestar's custom of `exclude_from_auth` leaves it alone: who probes has no account.
    """

    @get(
        path,
        include_in_schema=in_schema,
        opt={"exclude_from_auth": True},
        cache=False,
        name=f"tenure:health:{path}",
        summary="Health of the locks and of the idempotency records",
        tags=["health"],
    )
    async def tenure_health() -> Response[Mapping[str, Mapping[str, Any]]]:
        well, parts = await health.report()
        return Response(parts, status_code=200 if well else 503, headers={"Cache-Control": "no-store"})

    return tenure_health
