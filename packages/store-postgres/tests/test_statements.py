"""The files of SQL: one statement each, whose first comment says what it prevents."""

import ast
import re
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

import tenure_postgres
from tenure.errors import ConfigurationError
from tenure_postgres.statements import (
    DEFAULT_RECORDS_TABLE,
    DEFAULT_TABLE,
    LockStatements,
    RecordStatements,
    TableName,
    read_statement,
)

SQL = Path(str(resources.files("tenure_postgres"))) / "sql"
FILES = sorted(path.relative_to(SQL).with_suffix("").as_posix() for path in SQL.rglob("*.sql"))
SOURCES = sorted(Path(str(resources.files("tenure_postgres"))).glob("*.py"))


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_one_statement_whose_first_comment_names_what_it_prevents(name: str) -> None:
    text = (SQL / f"{name}.sql").read_text(encoding="utf-8")
    assert re.match(r"-- (Prevents|One row a key)", text)
    assert read_statement(name).count(";") == 0
    assert text.rstrip().endswith(";")


@pytest.mark.parametrize("name", FILES)
def test_a_statement_carries_its_name_and_no_comment(name: str) -> None:
    text = read_statement(name)
    assert text.startswith(f"/* tenure:{name} */ ")
    assert "--" not in text


@pytest.mark.parametrize(
    ("statements", "default"), [(LockStatements, DEFAULT_TABLE), (RecordStatements, DEFAULT_RECORDS_TABLE)]
)
def test_a_statement_has_the_table_where_the_file_has_the_default_one(statements: Any, default: str) -> None:
    ours, theirs = statements.of(TableName(default)), statements.of(TableName("app", "ops"))
    for name in statements.__slots__:
        assert default not in getattr(theirs, name)
        assert getattr(ours, name) == getattr(theirs, name).replace('"ops"."app"', f'"{default}"')


def test_a_name_that_is_put_in_may_look_like_another_one() -> None:
    text = read_statement(
        "records/expiry_index", TableName("tenure_locks"), {"ix_tenure_idempotency_expires_at": '"x"'}
    )
    assert text.endswith('CREATE INDEX IF NOT EXISTS "x" ON "tenure_locks" (expires_at)')


@pytest.mark.parametrize(
    ("name", "schema", "quoted"),
    [
        ("locks", None, '"locks"'),
        ("Locks", "Ops", '"Ops"."Locks"'),
        ('a"b', 'c"d', '"c""d"."a""b"'),
        ('x"; DROP TABLE y; --', None, '"x""; DROP TABLE y; --"'),
        ("ä" * 31, None, '"' + "ä" * 31 + '"'),
    ],
)
def test_a_name_is_quoted(name: str, schema: str | None, quoted: str) -> None:
    assert str(TableName(name, schema)) == quoted


@pytest.mark.parametrize("name", ["", "x" * 64, "a\0", "\udfff", None, 7, b"x"])
def test_what_is_no_name_is_refused(name: object) -> None:
    with pytest.raises(ConfigurationError):
        TableName(name)  # type: ignore[arg-type]  # that is the point


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_no_python_file_builds_a_statement(source: Path) -> None:
    """An f-string that begins as SQL does is a value in a statement's text, sooner or later."""
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        if isinstance(node, ast.JoinedStr) and isinstance(node.values[0], ast.Constant):
            begin = str(node.values[0].value).lstrip()
            assert not re.match(r"(SELECT|INSERT|UPDATE|DELETE|WITH|CREATE)\b", begin), ast.dump(node)


def test_every_public_name_is_there() -> None:
    for name in tenure_postgres.__all__:
        assert getattr(tenure_postgres, name).__doc__
