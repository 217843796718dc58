"""How the command ends: exit codes, and one line on stderr for everything that is not as it should be."""

import sys
from typing import Final, final

__all__ = ["MISTAKE", "NOT_SO", "OK", "Stop", "one_line", "printable", "say", "shortened"]

OK: Final = 0

NOT_SO: Final = 1
"""What was asked about is not so: a fatal finding, a key that nobody holds, a lock that moved."""

MISTAKE: Final = 2
"""Wrong usage, a URL that cannot be used, or a store that cannot be reached."""

_LONGEST_LINE: Final = 400


@final
class Stop(Exception):  # noqa: N818 -- an ending with a code of its own, not a kind of error
    """
    End the command with a line on stderr.

    Attributes:
        code: The exit code.
    """

    def __init__(self, message: str, code: int = MISTAKE) -> None:
        super().__init__(message)
        self.code = code


def say(message: str) -> None:
    """Write one line to stderr, where a pipe that carries the output does not see it."""
    sys.stderr.write(f"tenure: {one_line(message)}\n")
    sys.stderr.flush()


def one_line(text: str) -> str:
    """Make one line of a text, without anything that a terminal would obey."""
    return printable(" ".join(text.split()))


def printable(text: str) -> str:
    """Show what cannot be printed by its escape: a key may hold anything, also what would drive a terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def shortened(text: str) -> str:
    """Cut a foreign text, such as a driver's, to what a line of a terminal or a log can bear."""
    return text if len(text) <= _LONGEST_LINE else f"{text[:_LONGEST_LINE]}…"
