"""A revision for Alembic that creates the tables, written into a directory of revisions."""

import ast
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from tenure.cli.endings import Stop

__all__ = ["write_revision"]

_OURS: Final = re.compile(r"\bcreate_(lock|idempotency)_table\(")

_TEXT: Final = '''"""
Create {what} of tenure.

Revision ID: {revision}
Revises: {revises}
"""

from alembic import op
from tenure_postgres import {imports}

revision = {revision!r}
down_revision = {down_revision!r}
branch_labels = None
depends_on = None


def upgrade() -> None:
{upgrades}


def downgrade() -> None:
{downgrades}
'''


class _Revision(NamedTuple):
    name: str
    follows: tuple[str, ...]


def write_revision(
    directory: Path, locks: str | None, records: str | None, schema: str | None, down_revision: str | None
) -> Path:
    """
    Write a revision that creates the tables.

    Args:
        directory: Where revisions are, or where their `versions` is.
        locks: The name of the table of locks, or None for none.
        records: The name of the table of idempotency records, or None for none.
        schema: Their schema.
        down_revision: What it follows; by default the head of what is there.

    Returns:
        The file.

    Raises:
        Stop: The directory is none, has several heads, or has such a revision.
    """
    if (directory / "env.py").is_file():
        directory /= "versions"
    if not directory.is_dir():
        raise Stop(
            f"{str(directory)!r} is no directory: give the one with Alembic's revisions, such as alembic/versions."
        )
    files = sorted(directory.glob("*.py"))
    made = [
        (kind, _arguments(name, schema))
        for kind, name in (("lock", locks), ("idempotency", records))
        if name is not None
    ]
    _refuse_second(files, [kind for kind, _ in made])
    revision, follows = secrets.token_hex(6), down_revision or _head(files)
    text = _TEXT.format(
        what="the tables" if len(made) > 1 else "the table",
        revision=revision,
        revises=follows or "",
        down_revision=follows,
        imports=", ".join(sorted(f"{verb}_{kind}_table" for kind, _ in made for verb in ("create", "drop"))),
        upgrades="\n".join(f"    create_{kind}_table(op{arguments})" for kind, arguments in made),
        downgrades="\n".join(f"    drop_{kind}_table(op{arguments})" for kind, arguments in reversed(made)),
    )
    path = directory / f"{revision}_tenure.py"
    path.write_text(text, encoding="utf-8")
    return path


def _arguments(name: str, schema: str | None) -> str:
    return f", table={name!r}" + ("" if schema is None else f", schema={schema!r}")


def _refuse_second(files: list[Path], kinds: list[str]) -> None:
    for file in files:
        for kind in _OURS.findall(file.read_text(encoding="utf-8")):
            if kind in kinds:
                raise Stop(f"{file.name} creates the table already (create_{kind}_table): nothing was written.")


def _head(files: list[Path]) -> str | None:
    """Find the one revision that no other one follows."""
    revisions = [revision for file in files for revision in _revisions(file)]
    followed = {name for revision in revisions for name in revision.follows}
    heads = sorted(revision.name for revision in revisions if revision.name not in followed)
    if len(heads) > 1:
        raise Stop(f"There are several heads, {', '.join(heads)}: say which one to follow with --down-revision.")
    return heads[0] if heads else None


def _revisions(file: Path) -> Iterator[_Revision]:
    """Read a revision's names without running it."""
    try:
        module = ast.parse(file.read_text(encoding="utf-8"))
    except SyntaxError:
        raise Stop(
            f"{file.name} is no Python that can be read, so the head cannot be found: give --down-revision."
        ) from None
    values: dict[str, Any] = {}
    for node in module.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                pass
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                pass
            case _:
                continue
        if name in ("revision", "down_revision"):
            values[name] = ast.literal_eval(value)
    if "revision" in values:
        follows = values.get("down_revision") or ()
        yield _Revision(values["revision"], (follows,) if isinstance(follows, str) else tuple(follows))
