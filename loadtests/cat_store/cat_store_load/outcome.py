"""What a run is asked for, and what it measures."""

from dataclasses import dataclass, field
from typing import Final

from cat_store_load.books import Books
from cat_store_load.figures import BlockFigures

__all__ = ["RECORDS", "Outcome", "Trouble", "Wanted"]

RECORDS: Final = ("database", "valkey")
"""Where the records of keys can be: with the orders, or apart from them."""

_LEAST_BLOCK_S: Final = 5


@dataclass(frozen=True, slots=True)
class Trouble:
    """
    What befell one replica.

    Attributes:
        what: "killed" or "paused".
        instance: Which.
        at: When, in seconds on the machine's monotonic clock.
        until: When it was started again (not yet up), or went on.
    """

    what: str
    instance: str
    at: float
    until: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """
    What a run was asked for.

    Attributes:
        users: How many users.
        seconds: How long the storm is, and all calm blocks together.
        pairs: How many pairs of calm blocks.
        think_s: The mean pause of a user between two things, in seconds.
        store: Where the locks are, a name of the demo's.
        records: Where the records of keys are, one of `RECORDS`.
        seed: What the users' choices follow from.
    """

    users: int = 200
    seconds: int = 60
    pairs: int = 3
    think_s: float = 6.0
    store: str = "postgres"
    records: str = "database"
    seed: int = 7

    @property
    def calm_s(self) -> int:
        """How long one calm block is, in seconds."""
        return max(_LEAST_BLOCK_S, self.seconds // (2 * self.pairs))

    @property
    def control_s(self) -> int:
        """How long the control is, in seconds."""
        return max(_LEAST_BLOCK_S, self.seconds // 6)

    @property
    def storm_size(self) -> int:
        """How many users send one order at once: half of those who come for a storm, so that two gather at a time."""
        return max(3, self.users // 15)


@dataclass(slots=True)
class Outcome:
    """
    What was measured.

    Attributes:
        control: The control's figures.
        pairs: The calm blocks: without keys, with them.
        storm: The storm's figures.
        troubles: What befell the replicas in it.
        books: The audit.
        duplicates_without_keys: How often an order of the control was placed beyond its first time.
        settled: Orders whose customers had given up without an answer.
        history: What broke a rule in the history of the locks; empty as it should be.
        alarms: What replicas logged as errors, by what it tells, and how often.
    """

    control: BlockFigures
    pairs: list[tuple[BlockFigures, BlockFigures]]
    storm: BlockFigures
    troubles: list[Trouble]
    books: Books
    duplicates_without_keys: int
    settled: int
    history: list[str] = field(default_factory=list)
    alarms: dict[str, int] = field(default_factory=dict)
