"""The journal of a run: what happened, what was seen to happen, and what must not have happened."""

import hashlib
from collections import Counter
from dataclasses import dataclass
from typing import Any, Final, final

from tenure.testing import VirtualTimeLoop

__all__ = ["START_S", "Journal", "Violation"]

_MOST_VIOLATIONS: Final = 20
"""One bug breaks much; the first few tell which."""

START_S: Final = 1_000_000.0
"""Where virtual time begins: lines count from there."""


@final
@dataclass(frozen=True, slots=True)
class Violation:
    """Something that must not happen: which rule it broke, when, and how."""

    rule: str
    at: float
    text: str

    def __str__(self) -> str:
        return f"[{self.rule}] at {self.at:.6f}: {self.text}"


@final
class Journal:
    """
    What is written down of a run.

    Attributes:
        lines: The trace: when, who, what.
        history: The events of the run, in the form that `tenure.testing.history` checks.
        violations: What must not have happened.
        seen: How often each named situation came up.
    """

    def __init__(self, loop: VirtualTimeLoop) -> None:
        self._loop = loop
        self.lines: list[tuple[float, str, str]] = []
        self.history: list[dict[str, Any]] = []
        self.violations: list[Violation] = []
        self.seen: Counter[str] = Counter()
        self.muted = False

    @property
    def now(self) -> float:
        """The true time, in seconds on the loop's clock."""
        return self._loop.time()

    def say(self, who: str, what: str) -> None:
        """Add a line to the trace."""
        if not self.muted:
            self.lines.append((self._loop.time() - START_S, who, what))

    def note(self, what: str, process: str, **fields: Any) -> None:
        """Add an event to the history."""
        if not self.muted:
            self.history.append({"what": what, "at": self._loop.time() - START_S, "process": process, **fields})

    def saw(self, situation: str) -> None:
        """Count a situation."""
        if not self.muted:
            self.seen[situation] += 1

    def broke(self, rule: str, text: str) -> None:
        """Report what must not happen."""
        if self.muted or len(self.violations) >= _MOST_VIOLATIONS:
            return
        violation = Violation(rule, self.now - START_S, text)
        self.violations.append(violation)
        self.lines.append((violation.at, "observer", f"VIOLATION [{rule}] {text}"))

    def warned(self, text: str) -> None:
        """Report a warning of Python's. No line of the trace: when it comes is up to the collector."""
        if not any(violation.text == text for violation in self.violations):
            self.violations.append(Violation("unawaited", self.now - START_S, text))

    def hash(self) -> str:
        """Digest the trace: the same for the same seed, wherever it runs."""
        digest = hashlib.blake2b(digest_size=8)
        for at, who, what in self.lines:
            digest.update(f"{at:.9f} {who} {what}\n".encode())
        return digest.hexdigest()
