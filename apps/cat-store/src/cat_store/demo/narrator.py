"""Who tells the story: the scenes speak to this, and it decides how much is shown, and how fast."""

from typing import Protocol

__all__ = ["Narrator", "Plain"]


class Narrator(Protocol):
    """What the scenes need of whoever tells the story."""

    def scene(self, title: str, explanation: str) -> None:
        """Begin a scene: its name, and a sentence or two on what happens and why."""
        ...

    def step(self, text: str) -> None:
        """Tell what happens right now."""
        ...

    def result(self, text: str) -> None:
        """End a scene: what was measured."""
        ...

    async def breathe(self) -> None:
        """Give a person the time to look; does nothing where nobody looks."""
        ...


class Plain:
    """One line a scene, for logs and pipes."""

    def __init__(self) -> None:
        self._title = ""

    def scene(self, title: str, explanation: str) -> None:
        """Remember the name."""
        del explanation
        self._title = title

    def step(self, text: str) -> None:
        """Say nothing."""

    def result(self, text: str) -> None:
        """Print the line."""
        print(f"{self._title}: {text}", flush=True)  # noqa: T201 -- it is what the command is for

    async def breathe(self) -> None:
        """Go on at once."""
