"""What every replica asked its lock store and was told, as a history that is checked at the end of the story."""

import asyncio
from pathlib import Path
from typing import Final, final

from cat_store.demo.facts import History
from tenure.testing.history import HistoryRecorder, check_history

__all__ = ["Past"]

_NEMESIS: Final = "story"

_SLACK_S: Final = 1.0
"""What a busy machine may add to a signal or to the end of a call, in seconds; as for the takeovers of the report."""

_STORE_TIMEOUT_S: Final = 10.0
"""How long a call of the replicas' locks may take, where the ttl is not shorter: tenure's default."""

_SHOWN: Final = 5


@final
class Past:
    """
    The histories of a story: a file of each replica, and one of what happened to them.

    Args:
        directory: Where the files are.
        store: The lock store's kind.
        ttl_s: How long a lease of the replicas lives, in seconds.
    """

    def __init__(self, directory: Path, *, store: str, ttl_s: float) -> None:
        self._directory = directory
        self._recorder = HistoryRecorder(self.file_of(_NEMESIS), process=_NEMESIS)
        self._recorder.note(
            "run",
            topology=store,
            ttl_s=ttl_s,
            retry_s=ttl_s / 3,
            call_timeout_s=min(_STORE_TIMEOUT_S, ttl_s),
            margin=0.01,
            stall_s=_SLACK_S,
            overlap_s=0.0,
        )

    def file_of(self, name: str) -> Path:
        """Name the file of a replica; one that is started again goes on in it."""
        return self._directory / f"{name}.jsonl"

    def note(self, what: str, name: str) -> None:
        """Take note of what happened to a replica: started, died, paused or resumed."""
        self._recorder.note(what, process=name, by=_NEMESIS)

    async def check(self) -> History:
        """Check everything that was written until now against the rules of a history."""
        report = await asyncio.to_thread(check_history, sorted(self._directory.glob("*.jsonl")))
        broken = [f"{found.rule} {found.text}" for found in report.violations]
        problems = [problem for assumption in report.assumptions for problem in assumption.problems]
        broken += [f"The history proves nothing: {problem}" for problem in problems]
        return History(report.counts["events"], report.counts["grants"], broken[:_SHOWN])

    def close(self) -> None:
        """Close the story's own file."""
        self._recorder.close()
