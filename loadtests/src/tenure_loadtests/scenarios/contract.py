"""What a scenario is: settings, and how a cell of one contender in one setting is measured."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tenure_loadtests.contenders.catalogue import Entry
from tenure_loadtests.driver.workers import Worker

__all__ = ["Column", "Comparison", "Measured", "Plan", "Scenario", "Setting", "Stage"]


@dataclass(frozen=True, slots=True)
class Plan:
    """
    How long and how often.

    Attributes:
        rounds: How many rounds; every ratio is taken within one.
        quick: Whether a look is enough: fewer settings, shorter cells.
        cell_s: How long a cell of an open-ended load takes, in seconds.
        minutes: How long leases are held.
        quiet_cores: How many processors may be busy with other things before a cell is run again.
        tries: How often a noisy cell is run at most.
    """

    rounds: int = 5
    quick: bool = False
    cell_s: float = 1.0
    minutes: float = 1.0
    quiet_cores: float = 0.3
    tries: int = 3


@dataclass(frozen=True, slots=True)
class Setting:
    """
    One size of a scenario.

    Attributes:
        label: What tables call it.
        tasks: For how many tasks a worker connects.
        values: What the scenario needs to know.
    """

    label: str
    tasks: int
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Measured:
    """
    What came of a cell.

    Attributes:
        figures: By name; names end in their units.
        foreign_cores: How many processors were busy with other things.
    """

    figures: Mapping[str, float]
    foreign_cores: float


@dataclass(frozen=True, slots=True)
class Column:
    """
    A column of the scenario's table.

    Attributes:
        figure: The figure's name.
        heading: What stands above it.
        digits: How many after the point.
        scale: What the figure is multiplied by.
    """

    figure: str
    heading: str
    digits: int = 0
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Comparison:
    """
    What ratios are taken of.

    Attributes:
        figure: The figure's name.
        word: What tables call it.
        more_is_better: Whether the greater one wins.
    """

    figure: str
    word: str
    more_is_better: bool = False


class Stage(Protocol):
    """What a scenario has for one cell."""

    def worker(self, entry: Entry, tasks: int) -> Worker:
        """A process of the contender, to be used in a `with` statement."""
        ...

    def calls(self, entry: Entry) -> float | None:
        """How many calls the contender's server has carried out so far; None where that is not known."""
        ...

    def ports(self, entry: Entry) -> Sequence[int]:
        """The ports of the contender's servers."""
        ...


class Scenario(Protocol):
    """One question to every contender."""

    name: str
    title: str
    note: str
    """How the figures came about, in a sentence or two below the table."""
    columns: Sequence[Column]

    def comparisons(self, setting: str) -> Sequence[Comparison]:
        """What ratios are taken of in a setting: the first one decides who is the best peer. May be empty."""
        ...

    def rounds(self, plan: Plan) -> int:
        """How many rounds: those of the plan, or fewer where a cell takes minutes."""
        ...

    def settings(self, plan: Plan) -> Sequence[Setting]:
        """The sizes to run."""
        ...

    def includes(self, entry: Entry, setting: Setting) -> bool:
        """Whether a contender can be asked this at all."""
        ...

    def measure(self, stage: Stage, entry: Entry, setting: Setting, plan: Plan) -> Measured:
        """
        Run one cell.

        Raises:
            ProtocolError: The contender failed.
            EnvironmentUnusableError: It cannot be had.
        """
        ...
