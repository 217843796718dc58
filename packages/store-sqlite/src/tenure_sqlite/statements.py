"""The statements, read once from the files in `sql/`. Keys, owners and times travel as parameters."""

from functools import cache
from importlib import resources

__all__ = ["read_statement"]


@cache
def read_statement(name: str) -> str:
    """Return the statement in `sql/<name>.sql`, without its comments."""
    text = (resources.files("tenure_sqlite") / "sql" / f"{name}.sql").read_text(encoding="utf-8")
    lines = (line.partition("--")[0].rstrip() for line in text.splitlines())
    return "\n".join(line for line in lines if line)
