"""What a contender's process can be asked to do."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from tenure_loadtests.contenders.contract import Contender, HeldLeases, HoldsMany, RunsJobs
from tenure_loadtests.worker.cycles import run_cycles
from tenure_loadtests.worker.held import hold_leases
from tenure_loadtests.worker.protocol import Command, ProtocolError
from tenure_loadtests.worker.takeover import Waiters
from tenure_loadtests.worker.ticks import run_ticks
from tenure_loadtests.worker.turnover import turn_over
from tenure_loadtests.worker.turns import Turns, TurnsPlan

__all__ = ["Work"]

_Answer = dict[str, Any]


class Work:
    """
    Carries out commands, one at a time.

    Args:
        contender: The contender, opened.
        servers: The process ids of the servers that it uses.
    """

    def __init__(self, contender: Contender, servers: Sequence[int]) -> None:
        self._contender = contender
        self._servers = servers
        self._turns: Turns | None = None
        self._waiters: Waiters | None = None
        self._kept: HeldLeases | None = None
        self._can: Mapping[str, Callable[..., Awaitable[_Answer]]] = {
            "cycles": self._cycles,
            "gather": self._gather,
            "turns": self._take_turns,
            "hold": self._hold,
            "keep": self._keep,
            "ticks": self._ticks,
            "await": self._await,
            "taken": self._taken,
            "turnover": self._turnover,
        }

    async def do(self, command: Command) -> _Answer:
        """
        Carry out *command*.

        Raises:
            ProtocolError: There is no such work.
            Exception: What the contender raises.
        """
        if command.do not in self._can:
            raise ProtocolError(f"There is no work {command.do!r}: there is {', '.join(self._can)}.")
        return await self._can[command.do](**command.values)

    async def _cycles(self, **values: Any) -> _Answer:
        return await run_cycles(self._contender, self._servers, **values)

    async def _gather(self, key: str, tasks: int) -> _Answer:
        self._turns = Turns(self._contender, self._servers, key, tasks)
        return {}

    async def _take_turns(self, **values: Any) -> _Answer:
        assert self._turns is not None
        return await self._turns.run(TurnsPlan(**values))

    async def _hold(self, **values: Any) -> _Answer:
        if not isinstance(self._contender, HoldsMany):
            raise ProtocolError(f"{type(self._contender).__name__} does not keep leases alive.")
        return await hold_leases(self._contender, self._servers, **values)

    async def _keep(self, keys: Sequence[str], ttl_s: float) -> _Answer:
        if not isinstance(self._contender, HoldsMany):
            raise ProtocolError(f"{type(self._contender).__name__} does not keep leases alive.")
        self._kept = await self._contender.hold(keys, ttl_s)
        return {}

    async def _ticks(self, **values: Any) -> _Answer:
        if not isinstance(self._contender, RunsJobs):
            raise ProtocolError(f"{type(self._contender).__name__} runs no jobs.")
        return await run_ticks(self._contender, self._servers, **values)

    async def _await(self, keys: Sequence[str]) -> _Answer:
        self._waiters = Waiters(self._contender, keys)
        await self._waiters.begin()
        return {}

    async def _taken(self, within_s: float) -> _Answer:
        assert self._waiters is not None
        return await self._waiters.taken(within_s)

    async def _turnover(self, **values: Any) -> _Answer:
        return await turn_over(self._contender, self._servers, **values)
