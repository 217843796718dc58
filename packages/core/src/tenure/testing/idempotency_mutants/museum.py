"""What a mutant is, and how it is put on show."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar, final

from tenure.testing.clock import ManualClock
from tenure.testing.idempotency_contract import idempotency_store_contract
from tenure.testing.idempotency_contract.case import Case, Script
from tenure.testing.idempotency_mutants.model import SoundRecords

__all__ = ["IdempotencyMutant", "Wing"]

_Store = TypeVar("_Store", bound=SoundRecords)


@final
@dataclass(frozen=True, slots=True)
class IdempotencyMutant:
    """
    An idempotency store with one planted bug.

    Attributes:
        name: What it is called.
        bug: What is wrong with it.
        rule: The rule that it breaks.
        caught_by: The names of the cases that it fails: these, and no others.
        store: Its class.
    """

    name: str
    bug: str
    rule: int
    caught_by: frozenset[str]
    store: type[SoundRecords]

    def __str__(self) -> str:
        return self.name

    def contract(self, *, callers: int = 6, rounds: int = 4, limit_s: float = 5.0) -> list[Case]:
        """
        List the contract's cases, races, effects and restart included, on this store.

        Args:
            callers: As of `idempotency_store_contract()`.
            rounds: As of `idempotency_store_contract()`.
            limit_s: As of `idempotency_store_contract()`.
        """
        clock = ManualClock()
        server = self.store.server_kind(clock)
        return idempotency_store_contract(
            lambda: self.store(server),
            concurrent=True,
            callers=callers,
            rounds=rounds,
            advance_time=clock.advance,
            restart=server.restart,
            limit_s=limit_s,
            effects=server.transaction,
            purges=True,
        )


@final
class Wing:
    """The mutants of one subject, in the order of their file."""

    def __init__(self) -> None:
        self.mutants: list[IdempotencyMutant] = []

    def mutant(self, *caught_by: Script) -> Callable[[type[_Store]], type[_Store]]:
        """
        Put a store on show, under the name of its class; its docstring is the bug.

        Args:
            caught_by: The cases that it fails, the one that it was built for first: its rule is the mutant's.
        """

        def decorate(store: type[_Store]) -> type[_Store]:
            bug = " ".join((store.__doc__ or "").split())
            names = frozenset(script.name for script in caught_by)
            self.mutants.append(IdempotencyMutant(store.__name__, bug, caught_by[0].rule, names, store))
            return store

        return decorate
