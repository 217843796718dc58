"""The stage that the cases of every contract are played on: a fresh store, names of its own, time, and verdicts."""

import asyncio
import inspect
import math
import secrets
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NoReturn, final
from unittest import SkipTest

from tenure.errors import ConfigurationError
from tenure.testing._case import Case, Script

__all__ = ["LONG_MS", "Lateness", "Setting", "Stage"]

_TRIES = 4
_LATE_SHARE = 1 / 8
"""
A case that failed later than this share of its ttl says nothing, and is tried again: the last time with eight times
the ttl. A lock is looked at a half of its ttl before its end, and a twelfth after it.
"""

LONG_MS = 600_000
"""A ttl that no case outlives, however slow the server."""

_SLACK_MS = 30
"""
Added to a wait for an expiry: a server that counts whole milliseconds may be one late, and one that expires
keys in its event loop some more.
"""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What the caller of the contract gave: the store, its time, and how hard to press it."""

    bench: "Callable[[Setting, Script[Any], AsyncExitStack, Any], Stage]"
    make_store: Callable[[], Any]
    advance_time: Callable[[float], Awaitable[None]] | None
    restart: Callable[[], Awaitable[None]] | None
    ttl_ms: int
    callers: int
    rounds: int
    limit_s: float
    contract: str = "store contract"
    late_share: float = _LATE_SHARE

    def case(self, script: Script[Any]) -> Case:
        """Give *script* this store."""
        return Case(
            name=script.name,
            rule=script.rule,
            race=script.race,
            run=partial(self.play, script),
            capability=script.capability,
            alone=script.alone or script.races or script.restarts or (script.waits and self.advance_time is not None),
        )

    async def play(self, script: Script[Any]) -> None:
        """
        Run *script* on a bench of its own.

        In real time a case says nothing where the machine was so late that the lock had ended by the time it was looked
        at. One that failed so is run again, with more time between the moments; a store that breaks the rule fails
        again.
        """
        setting = self
        for _ in range(_TRIES - 1):
            late = Lateness()
            try:
                await setting.play_once(script, late)
            except AssertionError:
                if self.advance_time is not None or late.ms < setting.ttl_ms * self.late_share:
                    raise
                setting = replace(setting, ttl_ms=2 * setting.ttl_ms)
            else:
                return
        await setting.play_once(script, Lateness())

    async def play_once(self, script: Script[Any], late: "Lateness") -> None:
        """Run *script* once, bounded: a store that hangs is a finding, not a hung test run."""
        task = asyncio.get_running_loop().create_task(self._play(script, late))
        try:
            done, _ = await asyncio.wait({task}, timeout=self.limit_s)
        except asyncio.CancelledError:
            task.cancel()
            raise
        if not done:
            task.cancel()
            # A task that does not answer the cancellation is left behind, its outcome unseen.
            await asyncio.wait({task}, timeout=1)
            task.add_done_callback(look_at)
            raise AssertionError(
                message(script, self.contract, f"a call had not returned after {self.limit_s:g} s", "an answer")
            )
        task.result()

    async def _play(self, script: Script[Any], late: "Lateness") -> None:
        async with AsyncExitStack() as stack:
            bench = self.bench(self, script, stack, await self.open_store(stack))
            bench.late = late
            late.begin()
            stack.push_async_callback(bench.clean_up)
            bench.need_capability()
            try:
                await script.play(bench)
            except AssertionError:
                raise
            except Exception as error:  # noqa: BLE001 - whatever a store raises, the case has failed
                bench.fail(f"a call raised {type(error).__name__}", "nothing raised", cause=error)

    async def open_store(self, stack: AsyncExitStack) -> Any:
        """Make a store, and leave its cleaning up to *stack*."""
        made: Any = self.make_store()
        if inspect.isawaitable(made):
            made = await made
        if inspect.isasyncgen(made):
            generator = made
            made = asynccontextmanager(lambda: generator)()
        if hasattr(made, "__aenter__"):
            made = await stack.enter_async_context(made)
        return made


@final
class Lateness:
    """How much longer a case took than it asked to wait, in real milliseconds: calls, and a machine that was busy."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._began_at = self._loop.time()
        self.asked_ms = 0.0

    def begin(self) -> None:
        """Count from here: the store has been made."""
        self._began_at = self._loop.time()

    @property
    def ms(self) -> float:
        """What was not asked for, so far."""
        return (self._loop.time() - self._began_at) * 1000 - self.asked_ms


class Stage:
    """A store of the case's own, and what a case needs to judge it."""

    def __init__(self, setting: Setting, script: Script[Any], stack: AsyncExitStack, store: Any) -> None:
        self.store: Any = store
        self.setting = setting
        self._script = script
        self._stack = stack
        # Drawn, so that a server shared with other cases, runs and people holds no key of this name.
        self._run = f"tenure-contract:{secrets.token_hex(8)}"
        self._granted: set[tuple[str, str]] = set()
        self.late = Lateness()

    # ------------------------------------------------------------------------------------- names

    def key(self, label: str = "key") -> str:
        """Return a key of this case alone; the same label gives the same key."""
        return f"{self._run}:{label}"

    def owner(self) -> str:
        """Draw an owner, as the engine does."""
        return f"contract:{secrets.token_hex(16)}"

    # -------------------------------------------------------------------------------------- time

    @property
    def ttl_ms(self) -> int:
        """The ttl of cases that measure when a lock ends: long enough to look at it half-way."""
        return self.setting.ttl_ms

    @property
    def short_ms(self) -> int:
        """The ttl of a lock that is to expire; nothing asks whether it is still held."""
        return max(1, self.setting.ttl_ms // 10)

    async def pass_ms(self, span_ms: float) -> None:
        """Let *span_ms* pass on the store's clock."""
        if self.setting.advance_time is None:
            self.late.asked_ms += span_ms
            await asyncio.sleep(span_ms / 1000)
        else:
            await self.setting.advance_time(span_ms / 1000)

    async def restart(self) -> None:
        """Restart the server, and the application with it: from here on the store is a new one."""
        assert self.setting.restart is not None, "a case that restarts is left out where nobody can"
        await self.setting.restart()
        self.store = await self.setting.open_store(self._stack)

    async def outlast(self, ttl_ms: int) -> None:
        """Let a lock of *ttl_ms* expire: a sixth more, and the slack of a real server."""
        await self.pass_ms(math.ceil(ttl_ms * 7 / 6) + _SLACK_MS)

    async def cancelled(self, call: Coroutine[Any, Any, object], turns: int) -> None:
        """Start *call*, cancel it after *turns* turns of the event loop, and wait for its end."""
        task = asyncio.get_running_loop().create_task(call)
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        look_at(task)

    async def refuses(self, call: Awaitable[object], *, what: str, secret: str = "") -> None:
        """Await *call*, which must be refused before it is sent, without *secret* in what is said of it."""
        try:
            reply = await call
        except ConfigurationError as error:
            if secret and secret in f"{error}{error!r}{error.__cause__!r}":
                self.fail(f"{what} was refused in words that hold the owner", "words without it")
            return
        except Exception as error:  # noqa: BLE001 - whatever else is raised is the finding
            self.fail(f"{what} raised {type(error).__name__}", "ConfigurationError", cause=error)
        self.fail(f"{what} gave {reply!r}", "ConfigurationError, before anything is sent")

    # ---------------------------------------------------------------------------------- verdicts

    def equal(self, seen: object, expected: object, *, what: str) -> None:
        """Require *seen* to be *expected*, of the same type: 1 is not True here."""
        if type(seen) is not type(expected) or seen != expected:
            self.fail(f"{what} gave {seen!r}", repr(expected))

    def grows(self, before: int, after: int, across: str) -> None:
        """Require the token *after* to be greater than *before*. As numbers: their type is another case's."""
        if int(after) <= int(before):
            self.fail(f"the token was {before!r} before {across}, and {after!r} after", "greater")

    def require(self, holds: bool, seen: str, expected: str) -> None:
        """Require that something *holds*; say what was *seen* if not."""
        if not holds:
            self.fail(seen, expected)

    def fail(self, seen: str, expected: str, *, cause: BaseException | None = None) -> NoReturn:
        """Fail the case."""
        raise AssertionError(message(self._script, self.setting.contract, seen, expected)) from cause

    # ------------------------------------------------------------------------------ set-up and end

    def need_capability(self) -> None:
        """
        Leave a case of a capability that the store has not.

        Raises:
            unittest.SkipTest: The store has it not. Declare the store's capabilities to have no such case.
        """
        needed = self._script.capability
        if needed is not None and not isinstance(self.store, needed):
            raise SkipTest(f"{type(self.store).__name__} is no {needed.__name__}: it need not be.")

    def forget(self) -> None:
        """Say that the case has given back by itself what it took."""
        self._granted.clear()

    async def clean_up(self) -> None:
        """Give back what was granted, so that nothing stays on a server that others use."""
        for key, owner in self._granted:
            # The case has its verdict; a store that cannot release has failed elsewhere.
            with suppress(Exception):
                await self.store.release(key, owner)


def message(script: Script[Any], contract: str, seen: str, expected: str) -> str:
    return (
        f"Rule {script.rule} of the {contract}, {script.name!r}: {seen}; it must be {expected}. The race: {script.race}"
    )


def look_at(task: "asyncio.Task[Any]") -> None:
    if not task.cancelled():
        task.exception()
