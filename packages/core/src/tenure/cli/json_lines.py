"""JSON as the command prints it: one line a time, each of a documented shape that stays."""

import json
import sys

__all__ = ["as_json", "print_json"]


def as_json(shape: object) -> str:
    """Write a shape as one line."""
    return json.dumps(shape, separators=(", ", ": "))


def print_json(shape: object) -> None:
    """Print a shape as one line, at once: who reads a pipe is not to wait for the next one."""
    sys.stdout.write(f"{as_json(shape)}\n")
    sys.stdout.flush()
