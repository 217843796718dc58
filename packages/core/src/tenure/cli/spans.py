"""Durations as they are typed: seconds where there is no unit, as in the variables TENURE_TTL and the like."""

__all__ = ["read_span"]


def read_span(text: str) -> str | float:
    """Read `5`, `0.5`, `inf` as seconds, `forever` as seconds without end; the rest has a unit, or is refused later."""
    if text == "forever":
        return float("inf")
    try:
        return float(text)
    except ValueError:
        return text
