"""What a hook is, and how it is told: an event never breaks what it reports."""

import logging
from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from tenure.events import Event
from tenure.instrumentation._logging import LoggingHook

__all__ = ["Hook", "PassesOver", "default_hooks", "hears_of", "tell"]

_log = logging.getLogger("tenure")


class Hook(Protocol):
    """Hears of every event. Called on the event loop, between a store's answer and what follows: be quick."""

    def __call__(self, event: Event, /) -> None:
        """Take note of *event*."""
        ...


@runtime_checkable
class PassesOver(Protocol):
    """A hook that can tell of which kinds of events it makes nothing, now; those need not be built for it."""

    def hears(self, kind: type[Event], /) -> bool:
        """Whether an event of *kind* would come to anything. Asked before each one: be quicker than the event is."""
        ...


def hears_of(hook: Hook) -> Callable[[type[Event]], bool]:
    """Return what tells whether *hook* hears of a kind of event: of every one, where it does not say."""
    return hook.hears if isinstance(hook, PassesOver) else _hears_of_all


def _hears_of_all(_: type[Event]) -> bool:
    return True


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
