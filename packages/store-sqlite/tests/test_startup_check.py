"""The start-up check: a fact for each thing that it finds, and that it writes nothing."""

import os
import re
import shutil
import sqlite3
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tenure import Locks
from tenure.errors import ConfigurationError
from tenure.store import Finding
from tenure_sqlite import SqliteIdempotencyStore, SqliteLockStore, startup_check
from tenure_sqlite.clock import HostClock

README = Path(__file__).parents[1] / "README.md"


async def codes(store: Any) -> dict[str, bool]:
    """What the check finds, and whether it is fatal."""
    found: Sequence[Finding] = await store.check()
    for finding in found:
        assert finding.message.endswith(".")
        assert finding.remedy.endswith(".")
    return {finding.code: finding.fatal for finding in found}


async def test_nothing_is_found_where_nothing_is_wrong_and_nothing_is_made(file: Path) -> None:
    async with SqliteLockStore(file) as store:
        assert await codes(store) == {}
        assert not file.exists()
        await store.acquire("job", "owner", 1000)
        assert await codes(store) == {}


async def test_records_are_checked_likewise(file: Path) -> None:
    async with SqliteIdempotencyStore(file.parent / "not-there" / "locks.db") as store:
        assert await codes(store) == {"directory-missing": True}


async def test_an_engine_does_not_start_on_a_fatal_finding(file: Path) -> None:
    store = SqliteLockStore(file.parent / "not-there" / "locks.db")
    with pytest.raises(ConfigurationError, match="does not exist"):
        async with Locks(store, ttl=30):
            pass


async def test_a_relative_path_is_told(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    assert await codes(SqliteLockStore("locks.db")) == {"relative-path": False}


async def test_a_wall_clock_is_told(file: Path) -> None:
    clock = HostClock("wall", lambda: 1, lambda: 1, can_be_set=True)
    assert await codes(SqliteLockStore(file, clock=clock)) == {"wall-clock": False}


async def test_a_sqlite_that_is_too_old_is_refused(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup_check.sqlite3, "sqlite_version_info", (3, 37, 9))
    assert await codes(SqliteLockStore(file)) == {"sqlite-too-old": True}


async def test_two_names_of_one_file_are_refused(file: Path) -> None:
    sqlite3.connect(file).close()
    file.touch()
    (file.parent / "another.db").hardlink_to(file)
    assert await codes(SqliteLockStore(file)) == {"hard-links": True}


async def test_what_is_no_database_is_refused(file: Path) -> None:
    file.write_bytes(b"this is a text, and long enough to have a header" * 10)
    assert await codes(SqliteLockStore(file)) == {"unreadable": True}


def execute(file: Path, statement: str) -> None:
    connection = sqlite3.connect(file)
    connection.execute(statement)
    connection.commit()
    connection.close()


async def test_another_journal_mode_is_told_before_it_is_switched(file: Path) -> None:
    execute(file, "CREATE TABLE cats (name TEXT)")
    assert await codes(SqliteLockStore(file)) == {"journal-mode": False}


async def test_a_table_of_somebody_else_is_refused(file: Path) -> None:
    execute(file, "PRAGMA journal_mode = wal")
    execute(file, "CREATE TABLE tenure_locks (id INTEGER, name TEXT)")
    assert await codes(SqliteLockStore(file)) == {"table-columns": True}


async def test_rights_that_are_missing_are_refused(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup_check.os, "access", lambda path, mode: path != file.parent)
    assert await codes(SqliteLockStore(file)) == {"read-only": True}


def mounts(*rows: str) -> str:
    return "".join(
        f"36 35 98:0 / {where} rw,noatime shared:1 - {kind} source rw\n" for where, kind in map(str.split, rows)
    )


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        (["/ ext4", "{directory} nfs4"], {"network-filesystem": True}),
        (["/ nfs4", "{directory} ext4"], {}),
        (["/ ext4", "{directory} nfs4", "{directory} ext4"], {}),
        (["/ ext4", "{directory} virtiofs"], {"shared-folder": False}),
        (["/ overlay", "{file} ext4"], {"file-mounted": True}),
    ],
    ids=["network", "a local disk below a network", "covered by a later mount", "of a virtual machine", "a file alone"],
)
async def test_where_the_file_lies_is_looked_at(
    file: Path, monkeypatch: pytest.MonkeyPatch, rows: list[str], found: dict[str, bool]
) -> None:
    table = file.parent / "mountinfo"
    table.write_text(mounts(*(row.format(directory=file.parent.resolve(), file=file.resolve()) for row in rows)))
    monkeypatch.setattr(startup_check, "_MOUNTS", table)
    assert await codes(SqliteLockStore(file)) == found


async def test_a_mount_point_with_a_space_is_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = tmp_path / "two words"
    directory.mkdir()
    table = tmp_path / "mountinfo"
    table.write_text(mounts(f"{directory.resolve()} cifs".replace("two words", "two\\040words")))
    monkeypatch.setattr(startup_check, "_MOUNTS", table)
    assert await codes(SqliteLockStore(directory / "locks.db")) == {"network-filesystem": True}


@pytest.mark.matrix
def test_a_file_that_is_really_mounted_alone_is_found(tmp_path: Path) -> None:
    if shutil.which("unshare") is None or os.geteuid() != 0:
        pytest.skip("a mount of the test's own takes unshare and root")
    for name in ("of-the-host.db", "locks.db"):
        (tmp_path / name).touch()
    program = (
        "import asyncio, sys; from tenure_sqlite import SqliteLockStore; "
        "print([f.code for f in asyncio.run(SqliteLockStore(sys.argv[1]).check())])"
    )
    script = (
        f"mount --bind {tmp_path}/of-the-host.db {tmp_path}/locks.db && exec python -c '{program}' {tmp_path}/locks.db"
    )
    ran = subprocess.run(["unshare", "--mount", "sh", "-c", script], capture_output=True, text=True, check=False)
    if ran.returncode and "unshare" in ran.stderr:
        pytest.skip(f"no mount namespace can be made here: {ran.stderr.strip()}")
    assert ran.stdout.strip() == "['file-mounted']", ran.stderr


def test_the_table_of_the_readme_has_every_code() -> None:
    source = Path(startup_check.__file__).read_text(encoding="utf-8")
    told = {line.split("|")[1].strip().strip("`") for line in README.read_text().splitlines() if line.startswith("| `")}
    assert set(re.findall(r'Finding\(\s*"([\w-]+)"', source)) == told
