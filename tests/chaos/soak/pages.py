"""The history of a process that lives through many windows: a file for each."""

import json
import os
from pathlib import Path
from typing import Any, Final, final

_PROBE: Final = "tenure:start:"


@final
class Pages:
    """
    A sink of `HistoryRecorder` whose file changes.

    Args:
        directory: Of the windows.
        process: The process whose history it is.

    Attributes:
        strays: Events between two windows. There are none, unless something goes on that was thought to have ended.
        open_calls: Store calls that have not ended yet.
    """

    def __init__(self, directory: Path, process: str) -> None:
        self._directory = directory
        self._process = process
        self._fd: int | None = None
        self._probes: set[int] = set()
        self.strays = 0
        self.open_calls = 0

    def open(self, window: int) -> None:
        """Begin the page of *window*."""
        page = window_directory(self._directory, window)
        page.mkdir(parents=True, exist_ok=True)
        path = page / f"{self._process}.jsonl"
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def close(self) -> None:
        """End the page."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __call__(self, event: dict[str, Any]) -> None:
        """Write an event down before its writer goes on."""
        if self._is_probe(event):
            return
        self.open_calls += {"invoke": 1, "return": -1}.get(event["what"], 0)
        if self._fd is None:
            self.strays += 1
        else:
            os.write(self._fd, json.dumps(event, separators=(",", ":")).encode() + b"\n")

    def _is_probe(self, event: dict[str, Any]) -> bool:
        """Whether it is of the call that `Locks` measures at its start: it may take what a first connection takes."""
        if event["what"] == "invoke" and event["key"].startswith(_PROBE):
            self._probes.add(event["call"])
            return True
        if event["what"] == "return" and event["call"] in self._probes:
            self._probes.discard(event["call"])
            return True
        return False


def window_directory(directory: Path, window: int) -> Path:
    """Name the directory of the histories of *window*."""
    return directory / f"window-{window:04}"
