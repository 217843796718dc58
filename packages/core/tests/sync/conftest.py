"""What the tests of threads share: a store in memory for the `Locks` of a test, and faults in front of it."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tenure import current_lease
from tenure.memory import InMemoryLockStore
from tenure.sync import Locks
from tenure.testing import FaultyStore


@pytest.fixture(autouse=True)
def nothing_is_current_behind_a_test() -> Iterator[None]:
    yield
    assert current_lease() is None


class Shared:
    """One store in memory that each `Locks` of a test reaches by a road of its own."""

    def __init__(self) -> None:
        self.store: InMemoryLockStore | None = None
        self.roads: list[FaultyStore] = []
        self.opened: list[Locks] = []

    def __call__(self) -> FaultyStore:
        """Make the next road; called in the loop thread, as a store's factory is."""
        self.store = self.store or InMemoryLockStore()
        self.roads.append(FaultyStore(self.store))
        return self.roads[-1]

    def locks(self, **options: Any) -> Locks:
        made = Locks(self, **{"allow_in_memory": True, "ttl": 30, "hooks": [], "drain": 0, **options})
        self.opened.append(made)
        return made


@pytest.fixture
def shared() -> Iterator[Shared]:
    shared = Shared()
    yield shared
    for locks in shared.opened:
        locks.close()


@pytest.fixture
def make(shared: Shared) -> Callable[..., Locks]:
    return shared.locks
