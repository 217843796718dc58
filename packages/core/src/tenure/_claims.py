"""
Claims on keys: two jobs under one name exclude each other silently, so the second one is refused.

A job named `export` uses the keys `export` (its run lock) and `export:owner` (its lease); an election named
`feed` uses `feed`. Whoever declares one of them claims all of its keys, and a claim on a key that is taken
fails at start-up, where it is a mistake of one line, and not at night, where it is a job that never ran.
"""

import gc
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, final

from tenure.errors import ConfigurationError

__all__ = ["Claimant", "Claims", "ambient_claims"]


@final
@dataclass(frozen=True, slots=True)
class Claimant:
    """
    Who claims keys, and which.

    Attributes:
        name: How the claimant is called in messages: `job app.jobs:export`, `election "feed"`.
        identity: What makes two declarations the same one (a factory that decorates the same function for
            each of three instances in a test declares one job, not three).
        keys: The keys that it uses.
        problem: Why it cannot run as it is declared, or None.
    """

    name: str
    identity: object
    keys: frozenset[str]
    problem: str | None = None


@final
class Claims:
    """
    The keys that are taken, and by whom. Claims end with the objects that made them.

    Not safe from several threads; declared at import or at start-up.
    """

    def __init__(self) -> None:
        self._claimants: weakref.WeakKeyDictionary[Any, Claimant] = weakref.WeakKeyDictionary()

    def add(self, declarer: object, claimant: Claimant) -> None:
        """
        Claim keys for as long as *declarer* lives.

        Raises:
            ConfigurationError: Another claimant has one of the keys.
        """
        self.check(claimant)
        self._claimants[declarer] = claimant

    def drop(self, declarer: object) -> None:
        """Give up what *declarer* claimed."""
        self._claimants.pop(declarer, None)

    def check(self, claimant: Claimant) -> None:
        """
        Refuse *claimant* if somebody else has one of its keys.

        Raises:
            ConfigurationError: Another claimant has one of the keys.
        """
        if self._rival(claimant) is not None:
            # What declared the other claim may be garbage that was not collected yet.
            gc.collect()
        rival = self._rival(claimant)
        if rival is not None:
            key = min(rival.keys & claimant.keys)
            raise ConfigurationError(
                f"{claimant.name} and {rival.name} both use the key {key!r}: they would exclude each other "
                "silently, and one of them would never run. Give each a key of its own."
            )

    def check_all(self, others: "Claims") -> None:
        """
        Refuse to start with *others* where two different claimants share a key, or one cannot run as it is declared.

        Raises:
            ConfigurationError: It is so.
        """
        for claimant in [*self, *others]:
            if claimant.problem is not None:
                raise ConfigurationError(claimant.problem)
        for claimant in others:
            self.check(claimant)

    def __iter__(self) -> Iterator[Claimant]:
        return iter(list(self._claimants.values()))

    def _rival(self, claimant: Claimant) -> Claimant | None:
        for other in self:
            if other.identity != claimant.identity and other.keys & claimant.keys:
                return other
        return None


ambient_claims = Claims()
"""The claims of jobs that name no `Locks`: they run on whichever is entered, and are checked when it is."""
