"""What a mutant is, and how it is put on show."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TypeVar, final

from tenure.testing.clock import ManualClock
from tenure.testing.contract import Case, lock_store_contract
from tenure.testing.contract.case import Script
from tenure.testing.mutants.model import SoundStore

__all__ = ["Mutant", "Wing"]

_Store = TypeVar("_Store", bound=SoundStore)


@final
@dataclass(frozen=True, slots=True)
class Mutant:
    """
    A store with one planted bug.

    Attributes:
        name: What it is called.
        bug: What is wrong with it.
        rule: The rule that it breaks.
        caught_by: The names of the cases that it fails: these, and no others but those in *sometimes*.
        store: Its class.
        sometimes: The names of cases that it may fail, by the keys that they drew.
    """

    name: str
    bug: str
    rule: int
    caught_by: frozenset[str]
    store: type[SoundStore]
    sometimes: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return self.name

    def contract(self, *, callers: int = 6, rounds: int = 4, limit_s: float = 5.0) -> list[Case]:
        """
        List the contract's cases, races and restart included, on this store.

        Args:
            callers: As of `lock_store_contract()`.
            rounds: As of `lock_store_contract()`.
            limit_s: As of `lock_store_contract()`; some mutants hang.
        """
        clock = ManualClock()
        server = self.store.server_kind(clock)
        return lock_store_contract(
            lambda: self.store(server),
            concurrent=True,
            callers=callers,
            rounds=rounds,
            advance_time=clock.advance,
            restart=server.restart,
            limit_s=limit_s,
        )


@final
class Wing:
    """The mutants of one subject, in the order of their file."""

    def __init__(self) -> None:
        self.mutants: list[Mutant] = []

    def mutant(self, *caught_by: Script, sometimes: Collection[Script] = ()) -> Callable[[type[_Store]], type[_Store]]:
        """
        Put a store on show, under the name of its class; its docstring is the bug.

        Args:
            caught_by: The cases that it fails, the one that it was built for first: its rule is the mutant's.
            sometimes: The cases that it may fail, by the keys that they drew.
        """

        def decorate(store: type[_Store]) -> type[_Store]:
            bug = " ".join((store.__doc__ or "").split())
            names = frozenset(script.name for script in caught_by)
            may = frozenset(script.name for script in sometimes)
            self.mutants.append(Mutant(store.__name__, bug, caught_by[0].rule, names, store, may))
            return store

        return decorate
