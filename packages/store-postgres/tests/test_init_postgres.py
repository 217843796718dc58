"""`tenure init-postgres`: the tables as text, in a database, and as a revision that Alembic runs."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tenure_postgres import create_idempotency_schema_sql, create_schema_sql
from tenure_testbed.postgres_access import PostgresAccess, database_of

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def tenure(capsys: pytest.CaptureFixture[str]) -> Run:
    from tenure.cli.app import app

    def run(*words: Any) -> tuple[int, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            app(["init-postgres", *map(str, words)], prog_name="tenure")
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return run


@pytest.fixture
def empty(postgres_server: PostgresAccess) -> Iterator[str]:
    url = postgres_server.create_database()
    yield url
    postgres_server.drop_database(database_of(url))


def tables(server: PostgresAccess, url: str) -> str:
    return str(
        server.execute(
            "SELECT string_agg(tablename, ',' ORDER BY 1) FROM pg_tables WHERE schemaname = 'public'", database_of(url)
        )
    )


def test_the_statements_are_those_of_the_library(tenure: Run) -> None:
    code, out, err = tenure("--sql")
    assert (code, err) == (0, "")
    assert out.rstrip().rstrip(";") == create_schema_sql().rstrip().rstrip(";")
    assert create_idempotency_schema_sql().rstrip().rstrip(";") in tenure("--sql", "--idempotency")[1]
    assert '"shop"' in tenure("--sql", "--schema", "shop")[1] or "shop." in tenure("--sql", "--schema", "shop")[1]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "Say what to do with the tables: one of --sql"),
        (["--sql", "--url", "postgresql://a/b"], "one of --sql"),
        (["--sql", "--down-revision", "abc"], "--down-revision goes with --alembic"),
        (["--alembic", "no-such-directory"], "is no directory"),
        (["--url", "postgresql://shop@db/shop?table=t"], "options, --table and --schema"),
    ],
)
def test_wrong_usage_is_one_line_and_two(tenure: Run, words: list[str], told: str) -> None:
    code, out, err = tenure(*words)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert told in err


def test_the_tables_are_created_once_and_checked(tenure: Run, empty: str, postgres_server: PostgresAccess) -> None:
    code, out, _ = tenure("--url", empty, "--idempotency", "--json")
    shape = json.loads(out)
    assert code == 0
    assert shape["tables"] == ["tenure_locks", "tenure_idempotency"]
    assert not [finding for finding in shape["findings"] if finding["fatal"]]
    again, out, _ = tenure("--url", empty, "--idempotency")
    assert (again, "There is tenure_locks, tenure_idempotency." in out) == (0, True)


def test_a_table_that_locks_cannot_use_is_left_and_told(
    tenure: Run, empty: str, postgres_server: PostgresAccess
) -> None:
    postgres_server.execute("CREATE TABLE tenure_locks (id int)", database_of(empty))
    code, out, _ = tenure("--url", empty, "--json")
    assert code == 1
    assert any(finding["fatal"] for finding in json.loads(out)["findings"])


def test_a_server_that_is_not_there_is_two_without_a_password(tenure: Run) -> None:
    code, out, err = tenure("--url", "postgresql://shop:hunter2@127.0.0.1:1/shop")
    assert (code, out) == (2, "")
    assert "were not created in postgresql://127.0.0.1:1/shop" in err
    assert "hunter2" not in err


REVISION = """
revision = {name!r}
down_revision = {after!r}
"""


def versions(root: Path, **revisions: str | None) -> Path:
    """An Alembic directory with these revisions: the name of each, and what it follows."""
    directory = root / "alembic" / "versions"
    directory.mkdir(parents=True)
    (directory.parent / "env.py").write_text(ENV)
    for name, after in revisions.items():
        (directory / f"{name}.py").write_text(REVISION.format(name=name, after=after))
    return directory


ENV = """
from alembic import context
from sqlalchemy import create_engine

engine = create_engine(context.config.get_main_option("sqlalchemy.url"))
"""


def test_a_revision_follows_the_head_and_a_second_one_is_refused(tenure: Run, tmp_path: Path) -> None:
    directory = versions(tmp_path, first=None, second="first")
    code, out, _ = tenure("--alembic", directory.parent, "--json")
    assert code == 0
    text = Path(json.loads(out)["revision"]).read_text()
    assert "down_revision = 'second'" in text
    compile(text, "revision", "exec")
    code, _, err = tenure("--alembic", directory)
    assert (code, "creates the table already" in err) == (2, True)
    assert tenure("--alembic", directory, "--idempotency", "--table", "x")[0] == 2


def test_several_heads_have_to_be_named(tenure: Run, tmp_path: Path) -> None:
    directory = versions(tmp_path, first=None, left="first", right="first")
    code, _, err = tenure("--alembic", directory)
    assert (code, "several heads, left, right" in err) == (2, True)
    assert tenure("--alembic", directory, "--down-revision", "left")[0] == 0


@pytest.mark.matrix
def test_alembic_runs_the_revision_up_and_down(
    tenure: Run, tmp_path: Path, empty: str, postgres_server: PostgresAccess
) -> None:
    def alembic(*words: str) -> None:
        command = [sys.executable, "-m", "alembic", *words]
        ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
        assert ran.returncode == 0, ran.stderr

    alembic("init", "-t", "async", "migrations")
    ini = tmp_path / "alembic.ini"
    asynchronous = empty.replace("postgresql://", "postgresql+asyncpg://")
    lines = [
        f"sqlalchemy.url = {asynchronous}" if line.startswith("sqlalchemy.url") else line
        for line in ini.read_text().splitlines()
    ]
    ini.write_text("\n".join(lines))
    code, out, err = tenure("--alembic", tmp_path / "migrations", "--idempotency")
    assert code == 0, err
    assert "Now: alembic upgrade head" in out
    alembic("upgrade", "head")
    assert "tenure_idempotency" in tables(postgres_server, empty)
    assert tenure("--url", empty, "--idempotency")[0] == 0
    alembic("downgrade", "base")
    assert "tenure" not in tables(postgres_server, empty)


@pytest.mark.matrix
def test_every_command_works_on_postgres(
    tenure: Run, empty: str, postgres_server: PostgresAccess, capsys: pytest.CaptureFixture[str]
) -> None:
    from tenure.cli.app import app
    from tenure.sync import Locks

    def run(*words: Any) -> tuple[int, Any]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            app([*map(str, words), "--json"], prog_name="tenure")
        return int(ended.value.code or 0), json.loads(capsys.readouterr().out.splitlines()[0])

    assert run("check", empty)[0] == 1, "there is no table yet"
    assert tenure("--url", empty)[0] == 0
    assert run("check", empty)[0] == 0
    with Locks(empty, instance="shop-1", hooks=[]) as locks:
        lease = locks.acquire("job")
        code, listed = run("ls", empty)
        assert (code, [lock["token"] for lock in listed["locks"]]) == (0, [lease.token])
        assert 0 <= listed["locks"][0]["age_s"] < 60
        assert run("show", empty, "job")[1]["held"]
        assert run("watch", empty, "--count", 1)[1]["locks"][0]["instance"] == "shop-1"
        assert run("release", empty, "job", "--token", lease.token)[1]["released"]
        assert run("show", empty, "job")[0] == 1
