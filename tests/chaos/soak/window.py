"""Checks one window's histories: `python -m chaos.soak.window DIRECTORY`, in a process of its own, which then ends."""

import json
import sys
from pathlib import Path
from typing import Any

from chaos.soak.pages import window_directory
from tenure.testing.history import check_history

_SHOWN = 5


def judged(directory: Path, *, first: bool) -> dict[str, Any]:
    """Check the histories of *directory*, which nothing was before if it is the first; tells each key's tokens."""
    files = sorted(directory.glob("*.jsonl"))
    report = check_history(files, starts_empty=first)
    problems = [problem for assumption in report.assumptions for problem in assumption.problems]
    return {
        "violations": [f"{found.rule} {found.text}" for found in report.violations],
        "problems": problems[:_SHOWN],
        "counts": dict(report.counts),
        "figures": dict(report.figures),
        "tokens": _tokens(files),
    }


def _tokens(files: list[Path]) -> dict[str, tuple[int, int]]:
    keys: dict[tuple[str, int], str] = {}
    tokens: dict[str, tuple[int, int]] = {}
    for path in files:
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                event = json.loads(line)
            except ValueError:
                continue  # the last line of a process that was killed
            if event["what"] == "invoke":
                keys[event["process"], event["call"]] = event["key"]
            elif event["what"] == "return" and event.get("token"):
                key, token = keys[event["process"], event["call"]], event["token"]
                low, high = tokens.get(key, (token, token))
                tokens[key] = (min(low, token), max(high, token))
    return tokens


if __name__ == "__main__":
    directory = Path(sys.argv[1])
    print(json.dumps(judged(directory, first=directory.name == window_directory(directory, 1).name)))
