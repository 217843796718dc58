"""What the tests of the store share: a file of a test's own, and clocks that a test sets."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tenure_sqlite import SqliteLockStore
from tenure_sqlite.clock import HostClock


class Clocks(SimpleNamespace):
    """The clocks of a host, in microseconds, as a test has set them."""

    def __init__(self, boot: str = "boot:1:0") -> None:
        super().__init__(boot=boot, now=1_000_000, wall=1_800_000_000_000_000)

    def pass_ms(self, milliseconds: int) -> None:
        self.now += milliseconds * 1000
        self.wall += milliseconds * 1000

    def reboot(self) -> None:
        """Begin the boot clock anew, under another name; the wall clock goes on."""
        self.boot, self.now = f"{self.boot}'", 1

    @property
    def host(self) -> HostClock:
        """The host as a process sees it that starts now: it keeps the name of this boot."""
        return HostClock(self.boot, lambda: self.now, lambda: self.wall)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "locks.db"


@pytest.fixture
def clocks() -> Clocks:
    return Clocks()


@pytest.fixture
async def opened(file: Path, clocks: Clocks) -> AsyncIterator[Callable[..., SqliteLockStore]]:
    """Open stores on the test's file and clocks, and close them at its end."""
    stores: list[Any] = []

    def open_one(kind: type[Any] = SqliteLockStore, **options: Any) -> Any:
        stores.append(kind(file, **{"clock": clocks.host, **options}))
        return stores[-1]

    yield open_one
    for store in stores:
        await store.aclose()
