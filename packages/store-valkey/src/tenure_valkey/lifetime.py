"""What the stores share of a runner: whether the store is open, and who closes what it was opened with."""

from typing import final

from tenure.errors import LeaseStateError
from tenure_valkey.runner import ScriptRunner

__all__ = ["Lifetime"]


@final
class Lifetime:
    """
    One store's use of a runner, from its opening to its close.

    Args:
        runner: The runner.
        owned: Whether `aclose()` closes it.
        opened_with: What opens a store anew, for the error of a closed one.
    """

    def __init__(self, runner: ScriptRunner, *, owned: bool, opened_with: str) -> None:
        self._runner = runner
        self._owned = owned
        self._opened_with = opened_with
        self._closed = False

    async def aclose(self) -> None:
        """Close the runner, where it is the store's own. May be called again."""
        if self._owned and not self._closed:
            self._closed = True
            close = getattr(self._runner, "aclose", None)
            if close is not None:
                await close()

    def refuse_closed(self) -> None:
        """
        Refuse a call on a closed store.

        Raises:
            LeaseStateError: It is closed.
        """
        # A client that was closed opens new connections when it is asked again: nobody would close those.
        if self._closed:
            raise LeaseStateError(f"The store is closed: open a new one with {self._opened_with}().")
