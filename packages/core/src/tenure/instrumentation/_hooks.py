"""What a hook is, and how it is told: an event never breaks what it reports."""

import logging
from collections.abc import Sequence
from typing import Protocol

from tenure.events import Event
from tenure.instrumentation._logging import LoggingHook

__all__ = ["Hook", "default_hooks", "tell"]

_log = logging.getLogger("tenure")


class Hook(Protocol):
    """Hears of every event. Called on the event loop, between a store's answer and what follows: be quick."""

    def __call__(self, event: Event, /) -> None:
        """Take note of *event*."""
        ...


def default_hooks() -> Sequence[Hook]:
    """Return the hooks of a `Locks` that was given none: the log."""
    return (LoggingHook(),)


def tell(hooks: Sequence[Hook], event: Event) -> None:
    """Tell each of *hooks* of *event*; one that raises is logged, and stops neither the others nor the engine."""
    for hook in hooks:
        try:
            hook(event)
        except Exception:  # noqa: BLE001 -- whatever a hook raises, the lease it heard of is still to be kept
            _log.exception("A hook failed on %s.", type(event).__name__)
