"""The supervisor of the demo's own replicas: what the buttons of the live page can do to the stage."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeVar, final

import httpx

from cat_store.demo.control import SupervisorError
from cat_store.demo.journal import NotSeenError
from cat_store.demo.stage import Stage, State
from cat_store.partners.wire import WarehouseSwitches
from tenure_testbed import NotReachedError, ServerError

__all__ = ["StageSupervisor"]

Result = TypeVar("Result")


@final
class StageSupervisor:
    """
    Does what the page's buttons ask for, once the story has been told.

    While it is being told everything is refused: a replica that somebody kills in the middle of a scene would be taken
    for what the scene measures.

    Attributes:
        count_delay_s: How long the warehouse takes for a page of a count, in seconds.
        story_told: Whether the story has been told.

    Args:
        stage: Whose replicas they are.
    """

    def __init__(self, stage: Stage) -> None:
        self._stage: Final = stage
        self.count_delay_s = 0.0
        self.story_told = False

    @property
    def locks(self) -> bool:
        """Whether replicas are started with locks: what the scenes did last, or a button."""
        return self._stage.runs_with_locks

    def states(self) -> Mapping[str, State]:
        """Tell what each replica is."""
        return {name: self._stage.state_of(name) for name in self._stage.replicas}

    async def pause(self, name: str) -> str:
        """Stop a replica where it stands (SIGSTOP)."""
        await self._signal(name, ("up",), self._stage.pause)
        return f"{name} is paused. It knows nothing of the time that passes from now on."

    async def resume(self, name: str) -> str:
        """Let a paused replica go on (SIGCONT)."""
        await self._signal(name, ("paused",), self._stage.resume)
        return f"{name} goes on, and finds out what it has lost."

    async def kill(self, name: str) -> str:
        """Kill a replica without giving it a chance to clean up (SIGKILL)."""
        await self._signal(name, ("up", "paused"), self._stage.kill)
        return f"{name} was killed. Nobody gives its leases back: they run out."

    async def stop(self, name: str) -> str:
        """Stop a replica as a deploy does (SIGTERM)."""
        code = await self._signal(name, ("up",), self._stage.terminate)
        return f"{name} has handed its leases back and ended with code {code}."

    async def start(self, name: str) -> str:
        """Start a replica that is gone."""
        self._refuse_during_the_story()
        if (state := self._stage.state_of(name)) != "gone":
            raise SupervisorError(f"{name} is {state}.")
        await self._guarded(self._stage.launch(name))
        return f"{name} is starting, {'with' if self.locks else 'without'} locks."

    async def restart(self, *, locks: bool) -> str:
        """Restart every replica, with locks or without."""
        self._refuse_during_the_story()
        for name in self._stage.replicas:
            if self._stage.state_of(name) == "paused":  # one that stands still would not hear of its end
                await self._guarded(self._stage.resume(name))
        await self._guarded(self._stage.stop())
        await self._guarded(self._stage.start(locks=locks))
        if locks:
            return "Every replica runs with locks again: each job on one of them."
        return "Every replica runs without locks. Place an order, and watch how often its invoice is booked."

    async def slow(self, seconds: float) -> str:
        """Have the warehouse take that long for each page of a count; 0 for no time at all."""
        self._refuse_during_the_story()
        await self._guarded(self._stage.partners.switch_warehouse(WarehouseSwitches(delay_s=seconds)))
        self.count_delay_s = seconds
        if seconds:
            return f"The warehouse takes {seconds:g} s for each page of a count: ticks during one are skipped."
        return "The warehouse counts as fast as it can."

    async def _signal(self, name: str, when: tuple[State, ...], act: Callable[[str], Awaitable[Result]]) -> Result:
        self._refuse_during_the_story()
        if (state := self._stage.state_of(name)) not in when:
            raise SupervisorError(f"{name} is {state}.")
        return await self._guarded(act(name))

    def _refuse_during_the_story(self) -> None:
        if not self.story_told:
            raise SupervisorError("The story is being told, and this would change it. The button works at its end.")

    @staticmethod
    async def _guarded(doing: Awaitable[Result]) -> Result:
        try:
            return await doing
        except (ServerError, NotReachedError, NotSeenError, httpx.HTTPError, OSError) as error:
            raise SupervisorError(f"It could not be done: {error}") from error
