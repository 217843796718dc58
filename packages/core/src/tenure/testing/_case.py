"""Cases: one fact about a store each, which any test runner can run."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, final
from unittest import SkipTest

__all__ = ["Case", "Rung", "Script", "run_all"]

BenchT = TypeVar("BenchT")
"""The bench that a contract's cases work on."""


@final
@dataclass(frozen=True, slots=True)
class Case:
    """
    One fact that a store must bear out.

    Attributes:
        name: The fact, in a sentence; unique in a contract. Fit for a test's id.
        rule: The rule of the contract's module that it belongs to, 1 to 10.
        race: What happens in production where the fact does not hold.
        run: An async function without arguments. Raises `AssertionError` where the store breaks the rule, and
            `unittest.SkipTest`, which every runner knows, where the store has not the capability.
        capability: The protocol that the store has to have for it, or None for the methods that each has.
        alone: Whether it must not run beside others: it moves a time that they share, or it needs the store
            to itself.
    """

    name: str
    rule: int
    race: str
    run: Callable[[], Coroutine[Any, Any, None]] = field(repr=False)
    capability: type | None = None
    alone: bool = False

    def __str__(self) -> str:
        return self.name


@final
@dataclass(frozen=True)
class Script(Generic[BenchT]):
    """A case that has no store yet: what it does to one."""

    # Without slots: a generic class notes on each object what it was made for.

    name: str
    rule: int
    race: str
    play: Callable[[BenchT], Awaitable[None]] = field(repr=False)
    capability: type | None = None
    waits: bool = False
    races: bool = False
    restarts: bool = False
    alone: bool = False


class Rung(Generic[BenchT]):
    """The scripts of one subject, in the order of their file."""

    def __init__(self, rule: int, *, capability: type | None = None, races: bool = False) -> None:
        self._rule = rule
        self._capability = capability
        self._races = races
        self.scripts: list[Script[BenchT]] = []

    def case(  # noqa: PLR0913 -- what a case says of itself, by name
        self,
        name: str,
        *,
        race: str,
        rule: int | None = None,
        waits: bool = False,
        restarts: bool = False,
        alone: bool = False,
    ) -> Callable[[Callable[[BenchT], Awaitable[None]]], Script[BenchT]]:
        """
        Make a script of a function.

        Args:
            name: The fact.
            race: What it prevents.
            rule: Its rule, where it is not the rung's.
            waits: Whether time has to pass in it.
            restarts: Whether the server has to restart in it.
            alone: Whether it must not run beside others although it neither races nor restarts.
        """

        def decorate(play: Callable[[BenchT], Awaitable[None]]) -> Script[BenchT]:
            script: Script[BenchT] = Script(
                name=name,
                rule=rule or self._rule,
                race=race,
                play=play,
                capability=self._capability,
                waits=waits,
                races=self._races,
                restarts=restarts,
                alone=alone,
            )
            self.scripts.append(script)
            return script

        return decorate


async def run_all(cases: Iterable[Case], *, parallel: bool = True) -> None:
    """
    Run *cases*, for a script or a runner that knows no parameters, and raise all that failed at once.

    Args:
        cases: What `lock_store_contract()` or `idempotency_store_contract()` returned.
        parallel: Run side by side those that may: without `advance_time` most of them only wait for locks to
            expire. Races, and all that moves a shared time, run after them, one by one.

    Raises:
        ExceptionGroup: Of the failures, one `AssertionError` a case.
    """
    cases = list(cases)
    together = [case for case in cases if parallel and not case.alone]
    results = await asyncio.gather(*(case.run() for case in together), return_exceptions=True)
    failures = [result for result in results if result is not None]
    for case in cases:
        if not parallel or case.alone:
            try:
                await case.run()
            except Exception as failure:  # noqa: BLE001 - collected, and raised together
                failures.append(failure)
    broken = [one for one in failures if not isinstance(one, SkipTest)]
    if broken:
        raise BaseExceptionGroup(f"{len(broken)} of {len(cases)} cases failed", broken)
