"""Events to structlog, as an event name and fields."""

import dataclasses
import enum
import logging
from typing import Any, final

from tenure.events import Event
from tenure.instrumentation._wording import kind_of, level_of

__all__ = ["StructlogHook"]


@final
class StructlogHook:
    """
    Logs each event as `tenure.lease_acquired` and the like, with the event's fields.

    Seconds are rounded to milliseconds. Needs structlog (`pip install tenure[structlog]`).

    Args:
        logger: A bound logger; by default `structlog.get_logger("tenure")`.
    """

    def __init__(self, logger: Any = None) -> None:
        if logger is None:
            import structlog

            logger = structlog.get_logger("tenure")
        self._logger = logger

    def __call__(self, event: Event, /) -> None:
        """Log *event*."""
        fields = {field.name: _plain(getattr(event, field.name)) for field in dataclasses.fields(event)}
        method = {logging.DEBUG: "debug", logging.INFO: "info"}.get(level_of(event), "warning")
        getattr(self._logger, method)(f"tenure.{kind_of(event)}", **fields)


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    return round(value, 3) if isinstance(value, float) else value
