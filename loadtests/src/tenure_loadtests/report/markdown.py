"""Markdown tables."""

from collections.abc import Sequence

__all__ = ["number", "table"]


def number(value: float | None, digits: int = 0) -> str:
    """A number for a table: thin spaces between thousands, a dash for what is not known."""
    if value is None:
        return "–"
    return f"{value:,.{digits}f}".replace(",", "\u202f")


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: bool = True) -> str:
    """A table whose first column is text; the others are *numbers*, or text as well."""
    lines = [head, ["---", *["---:" if numbers else "---"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
