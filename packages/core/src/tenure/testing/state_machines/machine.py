"""
What both machines have in common: a store, a loop to ask it on, and a clock to say when.

Hypothesis runs a machine step by step, without an event loop. Each machine has one of its own, opened with it and
closed behind it, and every call is a task on it, bounded: a store that hangs is a finding.
"""

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar, final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine

from tenure.errors import ConfigurationError
from tenure.testing.state_machines.names import Names
from tenure.testing.state_machines.spans import Moment, Span

__all__ = [
    "HAIR_MS",
    "HOLDER",
    "LONGEST_SIMULATED_MS",
    "MOMENTS",
    "MOST_UNDER_WAY",
    "SHORT_MS",
    "Setting",
    "StoreMachine",
    "one_of_its",
]

_T = TypeVar("_T")

HAIR_MS = 0.001
"""On a simulated clock: what two floats of one moment may differ by. The moment of an end itself is either."""

_WHOLE_MS = 1.0
"""On a simulated clock after a fraction of a millisecond: the store's clock may count whole ones."""

_STEP_MS = 3.0
"""On a real server: its clock may count whole milliseconds, rounded either way, and be read before the call."""

_LATE_MS = 2000.0
"""How long after it was given up a real server may still carry out a call: longer than any in a buffer on loopback."""

_TURNS_BEHIND = 12
"""Turns of the event loop after a cancellation: what the store still does on its way out is done in them."""

LONGEST_SIMULATED_MS = 7_200_000
_LONGEST_WAIT_MS = 700
"""Ends beyond these are not waited for."""

HOLDER = "the holder"
"""Whoever has the key, as far as is known: a random caller is seldom the one whom a call is for."""

SHORT_MS = 150
"""A lock that is to end: long enough for a look at it on a real server, and soon over."""

MOST_UNDER_WAY = 2
"""Calls that were given up and may be carried out late, on one key: each may be before or after every other call."""

MOMENTS = ("just past", "just past", "just past", "just before", "well before", "at", "past every end")
"""Where time may be moved to, seen from the next end."""

_BEFORE_MS: Mapping[str, float] = {"just before": -1, "at": 0, "just past": 1}


@final
@dataclass(frozen=True)
class Setting:
    """
    What the author of a store gave.

    Attributes:
        make_store: Makes the store of an example.
        advance: Moves its clock by so many seconds; None waits.
        runner: Whose loop the calls run on; None opens one for each example.
        limit_s: How long a call may take, in real seconds, before it counts as hung.
    """

    make_store: Callable[[], Any]
    advance: Callable[[float], Any] | None
    runner: asyncio.Runner | None
    limit_s: float


def one_of_its(names: str) -> st.SearchStrategy[Any]:
    """Draw one of what the machine has under *names*, which its example chose."""
    return st.runner().flatmap(lambda machine: st.sampled_from(getattr(machine, names)))


class StoreMachine(RuleBasedStateMachine):
    """A store, one call after the other, in time."""

    setting: ClassVar[Setting]

    def __init__(self) -> None:
        super().__init__()
        self.names = Names.drawn()
        self.spans_ms: tuple[int, ...] = ()
        self._passed_us = 0
        self.fractions = False
        self._stack = AsyncExitStack()
        self._runner = self.setting.runner or asyncio.Runner()
        try:
            self.store: Any = self.run(self._open())
        except BaseException:
            self._close()
            raise
        self._began_at = self._runner.get_loop().time()

    # ---------------------------------------------------------------------------------- the loop

    @property
    def simulated(self) -> bool:
        """Whether time passes only when the machine says so."""
        return self.setting.advance is not None

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run *work* on the machine's loop."""
        return self._runner.run(work)

    async def _open(self) -> Any:
        made: Any = self.setting.make_store()
        if inspect.isawaitable(made):
            made = await made
        if inspect.isasyncgen(made):
            generator: AsyncIterator[Any] = made
            made = asynccontextmanager(lambda: generator)()
        if hasattr(made, "__aenter__"):
            made = await self._stack.enter_async_context(made)
        return made

    def teardown(self) -> None:
        """Give back what was taken, and close what was opened."""
        try:
            self.run(self._give_back())
        finally:
            self._close()

    def _close(self) -> None:
        try:
            self.run(self._stack.aclose())
        finally:
            if self._runner is not self.setting.runner:
                self._runner.close()

    async def _give_back(self) -> None:
        for release in self.taken():
            # The example has its verdict; a store that cannot release has failed elsewhere.
            with suppress(Exception):
                await self._bounded(release)

    def taken(self) -> list[Awaitable[object]]:
        """Return the releases of what may be taken. For each machine to say."""
        raise NotImplementedError

    # ----------------------------------------------------------------------------------- the time

    @property
    def late_ms(self) -> float:
        """How long after it was given up a call may still be carried out."""
        return 0 if self.simulated else _LATE_MS

    def now_ms(self) -> float:
        """Read the machine's clock."""
        if self.simulated:
            return self._passed_us / 1000
        return (self._runner.get_loop().time() - self._began_at) * 1000

    def since(self, sent: float) -> Moment:
        """Say when a call took effect that was sent at *sent* and is answered now."""
        whole = self._passed_us % 1000 == 0 and not self.fractions
        tolerance_ms = _STEP_MS if not self.simulated else HAIR_MS if whole else _WHOLE_MS
        return Moment(sent, self.now_ms(), tolerance_ms)

    def ends(self) -> list[Span]:
        """Return when anything ends. For each machine to say."""
        raise NotImplementedError

    def pass_until(self, moment: str) -> None:
        """Let time pass until *moment* of the next end, or a little where nothing ends soon."""
        now, longest = self.now_ms(), LONGEST_SIMULATED_MS if self.simulated else _LONGEST_WAIT_MS
        ends = sorted(end.latest for end in self.ends() if now < end.latest <= now + longest)
        if not ends:
            self.pass_ms(7)
        elif moment == "well before":
            self.pass_ms((ends[0] - now) // 2)
        elif moment == "past every end":
            self.pass_ms(ends[-1] + 1 + (0 if self.simulated else _STEP_MS) - now)
        else:
            step = 1 if self.simulated else 2 * _STEP_MS
            self.pass_ms(ends[0] + step * _BEFORE_MS[moment] - now)

    def pass_beyond(self, span_ms: int) -> None:
        """Let *span_ms* pass, and as much more as shows that they have."""
        self.pass_ms(span_ms + 1 + (0 if self.simulated else 2 * _STEP_MS))

    def pass_ms(self, span_ms: float) -> None:
        """Let *span_ms* pass on the store's clock."""
        span_us = round(span_ms * 1000)
        self.fractions = self.fractions or span_us % 1000 != 0
        if span_us > 0:
            self.run(self._pass(span_us))
            self._passed_us += span_us

    async def _pass(self, span_us: int) -> None:
        if self.setting.advance is None:
            await asyncio.sleep(span_us / 1_000_000)
            return
        moved = self.setting.advance(span_us / 1_000_000)
        if inspect.isawaitable(moved):
            await moved

    # ---------------------------------------------------------------------------------- the calls

    def ask(self, what: object, call: Awaitable[object]) -> tuple[Any, Moment]:
        """
        Make one call; return its answer, and when it took effect.

        Raises:
            AssertionError: The store raised, or did not answer.
        """
        [(reply, moment)] = self.ask_at_once([(what, call)])
        return reply, moment

    def ask_at_once(
        self, calls: Collection[tuple[object, Awaitable[object]]], turns: Sequence[int] = ()
    ) -> list[tuple[Any, Moment]]:
        """Make calls that overlap, each some turns of the event loop late, and return what `ask` would of each."""

        async def all_of_them() -> list[tuple[Any, Moment]]:
            if len(calls) == 1:
                return [await self._one(*call) for call in calls]
            late = zip(calls, turns or [0] * len(calls), strict=True)
            return list(await asyncio.gather(*(self._one(what, call, by) for (what, call), by in late)))

        return self.run(all_of_them())

    async def _one(self, what: object, call: Awaitable[object], turns: int = 0) -> tuple[Any, Moment]:
        for _ in range(turns):
            await asyncio.sleep(0)
        sent = self.now_ms()
        try:
            reply = await self._bounded(call)
        except AssertionError:
            raise
        except Exception as error:
            raise AssertionError(f"{what} raised {type(error).__name__}; it must answer.") from error
        return reply, self.since(sent)

    async def _bounded(self, call: Awaitable[_T]) -> _T:
        async def run() -> _T:
            return await call

        task = asyncio.get_running_loop().create_task(run())
        done, _ = await asyncio.wait({task}, timeout=self.setting.limit_s)
        if not done:
            task.cancel()
            raise AssertionError(f"A call had not returned after {self.setting.limit_s:g} s.")
        return task.result()

    def ask_and_leave(self, call: Awaitable[object], turns: int) -> tuple[Any, Moment, bool]:
        """
        Make a call, and cancel it after some turns of the event loop.

        Returns:
            Its answer where it was quicker, when it took effect, and whether it was given up.
        """

        async def leave() -> tuple[Any, Moment, bool]:
            async def run() -> object:
                return await call

            sent = self.now_ms()
            task = asyncio.get_running_loop().create_task(run())
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            done, _ = await asyncio.wait({task}, timeout=self.setting.limit_s)
            if not done:
                raise AssertionError(f"A cancelled call had not ended after {self.setting.limit_s:g} s.")
            for _ in range(_TURNS_BEHIND):
                await asyncio.sleep(0)
            # A driver may answer a cancellation with an error of its own: it was given up all the same.
            left = task.cancelled() or task.exception() is not None
            return None if left else task.result(), self.since(sent), left

        return self.run(leave())

    def refuses(self, what: str, call: Awaitable[object], secret: str) -> None:
        """
        Make a call that must be refused before it is sent.

        Raises:
            AssertionError: It was answered, or refused otherwise, or in words that hold *secret*.
        """

        async def refused() -> None:
            try:
                reply = await self._bounded(call)
            except ConfigurationError as error:
                if secret and secret in f"{error}{error!r}{error.__cause__!r}":
                    raise AssertionError(f"{what} was refused in words that hold the owner.") from None
            except AssertionError:
                raise
            except Exception as error:
                raise AssertionError(f"{what} raised {type(error).__name__}; it must be refused.") from error
            else:
                raise AssertionError(f"{what} gave {reply!r}; it must be refused, before anything is sent.")

        self.run(refused())
