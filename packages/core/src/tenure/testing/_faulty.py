"""What every store that fails on request has in common: the faults set on it, and the road that calls take."""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, ClassVar, Literal, Self

from tenure.clock import Clock, ObservesCalls, SystemClock
from tenure.errors import ConfigurationError
from tenure.store import Reach
from tenure.testing._passage import Call, Passage, Rule
from tenure.testing._script import Faults
from tenure.testing._tally import Tally

__all__ = ["Faulty"]


class Faulty:
    """
    The part of a faulty store that knows nothing of its methods.

    Args:
        inner: The store that works.
        clock: On which delays pass.
        seed: Where faults set with `chance` are drawn from.

    Attributes:
        METHODS: The methods that faults can be set on, as far as the store has them.
        REFUSALS: What each method answers when the store says no.
        calls: How often each method was called: `store.calls["renew"]`.
        executions: How often a call of each method ended on the inner store, also one whose reply was lost.
        fired: How often each kind of fault met a call. A fault that never did has proven nothing.
    """

    METHODS: ClassVar[tuple[str, ...]] = ()
    REFUSALS: ClassVar[Mapping[str, Callable[[Call], Any]]] = {}

    def __init__(self, inner: Any, *, clock: Clock | None = None, seed: int = 0) -> None:
        self.inner = inner
        self.clock: Clock = clock or SystemClock()
        self.calls = Tally("called")
        self.executions = Tally("executed")
        self.fired: Counter[str] = Counter()
        self._rng = random.Random(seed)  # noqa: S311 - replayable, not secret
        self._rules: list[Rule] = []
        # Dicts for their order: what is healed goes on in the order in which it came, so that a seed repeats it.
        self._hung: dict[asyncio.Future[None], None] = {}
        self._late: set[asyncio.Task[Any]] = set()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({type(self.inner).__name__})"

    @property
    def reach(self) -> Reach:
        """As far as the inner store's."""
        reach: Reach = getattr(self.inner, "reach", "cluster")
        return reach

    # ------------------------------------------------------------------------------- the script

    def on(
        self,
        method: str,
        *,
        when: Callable[[Call], bool] | None = None,
        key: str | None = None,
        chance: float = 1.0,
        after: int = 0,
    ) -> "Faults":
        """
        Choose the calls that a fault is for; the fault is what is called on the result.

        Args:
            method: A method of the store, or `"*"` for every one.
            when: Meets those calls only for which it returns True.
            key: Meets the calls on this key only.
            chance: Meets a call with this probability, drawn from the store's seed.
            after: Lets this many calls pass first, of those that it would meet.

        Raises:
            ConfigurationError: The store has no such method.
        """
        offered = [name for name in self.METHODS if hasattr(self, name)]
        if method not in ("*", *offered):
            has = ", ".join(offered)
            raise ConfigurationError(f"{self!r} has no method {method!r} to set a fault on. It has: {has}; or '*'.")

        def meets(call: Call) -> bool:
            if (key is not None and call.key != key) or (when is not None and not when(call)):
                return False
            return chance >= 1.0 or self._rng.random() < chance

        return Faults(self._rules, method, meets, after, self.REFUSALS)

    def down(self) -> Rule:
        """Take the store down: every request is lost until `heal()`."""
        return self.on("*").lose_request()

    def heal(self) -> None:
        """
        Lift every fault. Calls that hang end: with the error of a broken connection, or late, as they were set.

        Delays that a call is in the middle of pass on the clock, as they would have.
        """
        for rule in self._rules:
            rule.lift()
        self._rules.clear()
        for future in list(self._hung):
            if not future.done():
                future.set_result(None)
        self._hung.clear()

    async def called(self, method: str, times: int = 1) -> None:
        """
        Wait until *method* was called *times* times since the store was made. A signal: no sleep guesses it.

        Raises:
            DeadlockError: It was not within a generous limit of real time.
        """
        await self.calls.reaches(method, times)

    async def executed(self, method: str, times: int = 1) -> None:
        """Wait until *times* calls of *method* have ended on the inner store, answered or not."""
        await self.executions.reaches(method, times)

    async def aclose(self) -> None:
        """Lift every fault, and wait for what runs late. The inner store is its owner's to close."""
        self.heal()
        if self._late:
            await asyncio.wait(self._late)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> Literal[False]:
        await self.aclose()
        return False

    # ---------------------------------------------------------------------------------- the road

    async def _pass(self, method: str, *args: Any, **options: Any) -> Any:
        call = Call(method, self.calls.add(method), args, options)
        return await Passage(call, self, iter(tuple(self._rules))).go_on()

    async def execute(self, call: Call) -> Any:
        """Make *call* on the inner store. For the faults."""
        try:
            return await getattr(self.inner, call.method)(*call.args, **call.options)
        finally:
            self.executions.add(call.method)

    def run_beside(self, work: Awaitable[Any]) -> "asyncio.Task[Any]":
        """Run *work* whether or not the caller of the store stays. For the faults."""

        async def run() -> Any:
            return await work

        task = asyncio.get_running_loop().create_task(run())
        self._late.add(task)
        task.add_done_callback(self._forget)
        if isinstance(self.clock, ObservesCalls):
            self.clock.store_call_started(task)
        return task

    def until_healed(self) -> "asyncio.Future[None]":
        """Return a future that `heal()` resolves. For the faults."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._hung[future] = None
        future.add_done_callback(lambda done: self._hung.pop(done, None))
        return future

    def met(self, kind: str) -> None:
        """Take note of a fault that a call met. For the faults."""
        self.fired[kind] += 1

    def _forget(self, task: "asyncio.Task[Any]") -> None:
        self._late.discard(task)
        if not task.cancelled():
            task.exception()  # looked at here: whoever made the call may have left
