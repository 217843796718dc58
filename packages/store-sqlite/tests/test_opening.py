"""Where the file is, how it is opened, and when the store stops trusting it."""

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tenure import ConfigurationError, LeaseStateError, open_idempotency_store, open_store
from tenure.store import Acquired
from tenure_sqlite import (
    ForeignClockError,
    LockFileReplacedError,
    SqliteIdempotencyStore,
    SqliteLockStore,
    open_sqlite_store,
)

Open = Callable[..., Any]


async def test_the_file_and_its_tables_are_made_at_the_first_call(file: Path) -> None:
    async with SqliteLockStore(file) as store:
        assert not file.exists()
        assert await store.list_locks() == []
        assert file.exists()


async def test_a_url_with_four_slashes_names_an_absolute_path(file: Path) -> None:
    async with (
        open_store(f"sqlite:///{file}") as locks,
        open_idempotency_store(f"sqlite+aiosqlite:///{file}") as records,
    ):
        assert isinstance(locks, SqliteLockStore)
        assert isinstance(records, SqliteIdempotencyStore)
        assert locks.path == records.path == file
        assert locks.reach == records.reach == "host"


async def test_a_url_has_the_options_of_the_store(file: Path) -> None:
    async with open_sqlite_store(f"sqlite:///{file}?busy_timeout=2s&synchronous=normal") as store:
        assert isinstance(await store.acquire("job", "owner", 1000), Acquired)


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("sqlite://localhost/locks.db", "a SQLite file has no host"),
        ("sqlite://", "names no file"),
        ("sqlite:///:memory:", "no file that processes share"),
        ("sqlite:////a.db?mode=ro", "has the option 'mode'"),
        ("sqlite:////a.db?synchronous=off", '"full" or "normal"'),
        ("sqlite:////a.db?busy_timeout=1m", "at most 30 s"),
        ("sqlite:////a.db?busy_timeout=1&busy_timeout=2", "more than once"),
    ],
)
def test_a_url_that_cannot_be_is_refused_before_anything_is_opened(url: str, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        open_sqlite_store(url)


@pytest.mark.parametrize("path", ["", ":memory:", "file:locks.db", "a\0b", 7])
def test_a_path_of_no_shared_file_is_refused(path: Any) -> None:
    with pytest.raises(ConfigurationError):
        SqliteLockStore(path)


async def test_a_store_may_be_closed_twice_and_says_so_afterwards(file: Path) -> None:
    store = SqliteLockStore(file)
    await store.acquire("job", "owner", 1000)
    await store.aclose()
    await store.aclose()
    with pytest.raises(LeaseStateError, match="closed"):
        await store.acquire("job", "owner", 1000)


def descriptors() -> int:
    directory = Path("/proc/self/fd")
    return len(list(directory.iterdir())) if directory.is_dir() else 0


async def test_nothing_is_left_open_behind_a_store(file: Path) -> None:
    before = descriptors()
    async with SqliteLockStore(file) as store:
        await store.acquire("job", "owner", 1000)
    assert descriptors() <= before


async def test_a_repr_tells_the_path_and_no_owner(file: Path) -> None:
    async with SqliteLockStore(file) as store:
        await store.acquire("job", "an-owner", 1000)
        assert repr(store) == f"SqliteLockStore({str(file)!r})"


@pytest.mark.parametrize("replace", [False, True], ids=["deleted", "replaced"])
async def test_a_file_that_is_gone_from_under_the_store_is_refused(opened: Open, file: Path, replace: bool) -> None:
    store = opened()
    await store.acquire("job", "owner", 60_000)
    for name in (file, Path(f"{file}-wal"), Path(f"{file}-shm")):
        name.unlink(missing_ok=True)
    if replace:
        assert isinstance(await opened().acquire("job", "another", 60_000), Acquired)
    with pytest.raises(LockFileReplacedError, match="deleted or replaced"):
        await store.renew("job", "owner", 60_000)


async def test_a_second_kernel_on_the_file_is_noticed_by_the_first(opened: Open, clocks: Any) -> None:
    first = opened()
    await first.acquire("job", "owner", 60_000)
    clocks.reboot()
    await opened().acquire("other", "owner", 60_000)
    with pytest.raises(ForeignClockError, match="another kernel or time namespace"):
        await first.renew("job", "owner", 60_000)


async def test_a_busy_file_is_told_with_what_to_do(opened: Open, file: Path) -> None:
    store = opened(busy_timeout=0.05)
    await store.acquire("job", "owner", 60_000)
    other = sqlite3.connect(file, isolation_level=None)
    try:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(sqlite3.OperationalError, match="locked") as caught:
            await store.renew("job", "owner", 60_000)
        assert "nothing was written" in caught.value.__notes__[0]
        other.execute("ROLLBACK")
    finally:
        other.close()
    assert await store.renew("job", "owner", 60_000)


async def test_a_file_that_is_no_database_is_told_with_what_to_do(file: Path) -> None:
    file.write_bytes(b"no database, but long enough to be looked at" * 40)
    async with SqliteLockStore(file) as store:
        with pytest.raises(sqlite3.DatabaseError) as caught:
            await store.acquire("job", "owner", 1000)
    assert "give the locks a path of their own" in "".join(caught.value.__notes__)


async def test_a_cancelled_call_leaves_no_transaction_open(opened: Open) -> None:
    store, other = opened(busy_timeout=1), opened(busy_timeout=1)
    for number in range(30):
        call = asyncio.create_task(store.acquire(f"job-{number}", "owner", 60_000))
        for _ in range(number % 5):
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait([call])
        assert isinstance(await other.acquire(f"other-{number}", "owner", 60_000), Acquired)


async def test_automatic_checkpoints_are_off_and_the_log_is_written_back_all_the_same(opened: Open, file: Path) -> None:
    store = opened(synchronous="normal")
    await store.acquire("job", "owner", 60_000)
    largest = 0
    for _ in range(2500):
        await store.renew("job", "owner", 60_000)
        largest = max(largest, Path(f"{file}-wal").stat().st_size)
    # Some four kilobytes a commit: without being written back the log had ten megabytes by now.
    assert largest < 6_000_000
    writer, _ = await store._file._ready()
    [row] = await writer.execute_fetchall("PRAGMA wal_autocheckpoint")
    assert row[0] == 0


async def test_what_asks_outside_of_the_rules_is_refused_before_the_file_is_made(file: Path) -> None:
    async with SqliteLockStore(file) as store:
        for call in (store.acquire("", "owner", 1000), store.renew("job", "", 1000), store.acquire("job", "owner", 0)):
            with pytest.raises(ConfigurationError):
                await call
        with pytest.raises(ConfigurationError, match="older_than"):
            await store.prune(older_than="1s")
        assert not file.exists()
