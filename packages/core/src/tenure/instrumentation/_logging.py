"""Events to the standard log, under the name `tenure`."""

import logging
from typing import final

from tenure.events import Event
from tenure.instrumentation._wording import least_level_of, level_of, sentence_of

__all__ = ["LoggingHook"]


@final
class LoggingHook:
    """
    Logs each event as one sentence, with the event itself as the record's `tenure_event`.

    Args:
        logger: Where to; by default the logger `tenure`.
    """

    def __init__(self, logger: logging.Logger | None = None) -> None:
        self._logger = logger or logging.getLogger("tenure")

    def __call__(self, event: Event, /) -> None:
        """Log *event*; a sentence nobody wants is not put together."""
        level = level_of(event)
        if self._logger.isEnabledFor(level):
            self._logger.log(level, "%s", sentence_of(event), extra={"tenure_event": event})

    def hears(self, kind: type[Event], /) -> bool:
        """Whether an event of *kind* would be logged, as the logger is set now."""
        return self._logger.isEnabledFor(least_level_of(kind))
